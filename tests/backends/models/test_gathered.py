"""Tensors that a trainer gathers when they are read: only those of the handle's version are given."""

from __future__ import annotations

import pytest

from coterie.core.errors import SystemFault

torch = pytest.importorskip("torch")

from coterie.backends.models.merged_weights import Gathered  # noqa: E402

pytestmark = pytest.mark.torch


def test_tensors_of_another_version_are_refused_also_if_an_update_comes_while_they_are_gathered():
    weight = torch.zeros(3)
    updating = False

    def read():
        if updating:
            weight.add_(1)
        return {"w": weight}

    gathered = Gathered(read, lambda: weight._version)
    assert dict(gathered()) == {"w": weight} == dict(gathered())
    updating = True
    with pytest.raises(SystemFault, match="have changed"):
        dict(gathered())
    updating = False
    with pytest.raises(SystemFault, match="have changed"):
        dict(gathered())
    assert dict(Gathered(read, lambda: weight._version)()) == {"w": weight}
