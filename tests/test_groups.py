"""An `xdist_group` shares a process: pytest 9.2.0 with pytest-xdist 3.8.0 ignores groups in silence."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("groups")
def test_a_test_of_a_group_is_sent_with_its_group(request, worker_id):
    assert request.node.nodeid.endswith("@groups") == (worker_id != "master")
