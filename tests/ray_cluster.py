"""A Ray cluster of this machine, for the tests that start actors themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from coterie.backends.cluster.connection import QUIET


@contextmanager
def local_cluster(cpus: int) -> Iterator[Any]:
    """Ray, connected to a new cluster that has so many CPUs, whatever the machine has; skips without Ray."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
        try:
            yield ray
        finally:
            ray.shutdown()
