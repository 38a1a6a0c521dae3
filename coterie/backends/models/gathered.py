"""Tensors of weights that a trainer hands to an engine: gathered from its ranks, or in another process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NoReturn

from torch import Tensor

from coterie.core.errors import SystemFault


class Gathered:
    """Tensors that are gathered each time they are read, while they are those of the handle's version.

    A trainer gives one as `Weights.tensors`.

    Args:
        read: gathers the tensors, by their names.
        state: a number that changes with their values.
        base: of an adapter: the frozen weights below it, by their names in a plain model.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, Tensor]], state: Callable[[], int], base: Gathered | None = None
    ) -> None:
        self._read, self.state, self.base = read, state, base
        self._handed_over = state()

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """Gather the tensors.

        Raises:
            SystemFault: the trainer has changed them since it handed them over.
        """
        tensors = self._read()
        if self.state() != self._handed_over:
            raise SystemFault("the trainer's weights have changed since it handed them over")
        yield from tensors.items()


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
