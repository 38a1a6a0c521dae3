"""Device memory that trainer and engine share: a trainer asks for it, and engines free what they can.

The two kinds of backend don't know each other, and the loop calls neither between the last token and the
update. An engine registers here what can sleep, and a trainer asks before it computes. A trainer registers
the GPUs of its ranks, and an engine with processes of its own keeps off them. Before it takes memory for
episodes, an engine asks the trainers to leave theirs.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from coterie.discovery.optional import TrainerDefaults, with_defaults


class RankDevice(NamedTuple):
    """The device of one rank of a trainer."""

    host: str
    gpu: int | None
    """Its index among those that the rank sees; None: a CPU."""


lenders: WeakSet[Any] = WeakSet()
"""What holds memory of engines. Weak, since an engine that was never closed must not outlive its run."""


occupied: WeakKeyDictionary[Any, tuple[int, ...]] = WeakKeyDictionary()
"""By trainer: the GPUs of its ranks on this host, rank 0's first."""


def rank_device(device: Any) -> RankDevice:
    """What a rank tells rank 0 of its `torch.device`."""
    import torch

    on_gpu, gpu = device.type == "cuda", device.index
    if on_gpu and gpu is None:
        gpu = torch.cuda.current_device()
    return RankDevice(socket.gethostname(), gpu if on_gpu else None)


def occupy(trainer: Any, ranks: Sequence[RankDevice | None]) -> None:
    """Register where a trainer's ranks compute, rank 0's device first; None: a rank doesn't say."""
    here = socket.gethostname()
    if not ranks or all(ranks):
        known = (rank for rank in ranks if rank is not None and rank.host == here)
        occupied[trainer] = tuple(rank.gpu for rank in known if rank.gpu is not None)


def vacate(trainer: Any) -> None:
    """Undo `occupy`."""
    occupied.pop(trainer, None)


def trainer_gpus() -> tuple[int, ...]:
    """The GPUs of this host on which trainers compute, the one that sends weights first.

    Trainers that registered nothing are assumed to compute on the first one.
    """
    if not occupied:
        return (0,)
    return tuple(dict.fromkeys(gpu for gpus in occupied.values() for gpu in gpus))


def lend(lender: Any) -> None:
    """Register what `reclaim` asks to sleep.

    Args:
        lender: its coroutine `sleep()` frees the device memory until it is needed again, if it isn't in use.
    """
    lenders.add(lender)


def withdraw(lender: Any) -> None:
    """Undo `lend`."""
    lenders.discard(lender)


async def reclaim() -> None:
    """Ask all lenders to free device memory; a trainer calls it before it computes."""
    for lender in tuple(lenders):
        await lender.sleep()


async def make_room() -> None:
    """Ask all trainers to leave their GPUs; an engine calls it before its servers start or wake."""
    for trainer in tuple(occupied):
        await with_defaults(trainer, TrainerDefaults).offload()
