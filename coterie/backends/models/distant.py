"""Tensors of weights that another process has, and sends itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from coterie.backends.models.gathered import Gathered


class Distant(Gathered):
    """Stands for tensors that are never in this process: as `Weights.tensors`, in an engine's process.

    Args:
        version: of the weights.
        ways: by receiver that can get them from GPU to GPU: how.
        ask: lets the process that has them send them to a receiver.
    """

    def __init__(self, version: int, ways: Mapping[str, str], ask: Callable[[Any], Awaitable[None]]) -> None:
        super().__init__(_nowhere, lambda: version)
        self.ways, self.send_by = dict(ways), ask


def _nowhere() -> NoReturn:
    raise RuntimeError("these tensors are in another process, which sends them")
