"""A device that spoils what has left it, and trainers on it; other ranks import this too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.backends.trainers.deepspeed.trainer import DeepSpeedTrainer
from coterie.backends.trainers.offloading import TorchDevice
from coterie.backends.trainers.torch_trainer import TorchTrainer


class Poisoned(TorchDevice):
    """A device in the CPU's memory. A storage that is freed holds NaN, so that nothing can use it unseen.

    It is never handed out again, but for its return: an alias of it finds NaN as long as it is away.
    """

    def __init__(self) -> None:
        super().__init__("cpu")
        self.freed = 0
        """Bytes."""
        self.most = 0
        """Buffers that it gives; 0: no limit."""
        self.made = 0
        self.full = False
        """Whether nothing has room."""
        self.released = 0

    def holds(self, tensor: Tensor) -> bool:
        return True

    def buffer(self, size: int) -> Tensor:
        self.made += 1
        if self.most and self.made > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return torch.empty(size, dtype=torch.uint8)

    def free(self, data: Tensor) -> None:
        data.fill_(255)
        self.freed += len(data)

    def allocate(self, data: Tensor, size: int) -> None:
        if self.full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        assert data.eq(255).all(), "somebody wrote to memory that was free"
        self.freed -= size

    def release(self) -> None:
        self.released += 1


class _OnPoisoned:
    """A trainer on such a device."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.device = Poisoned()

    def _offload_device(self) -> TorchDevice:
        return self.device

    def rank_freed(self) -> int:
        """Bytes of this rank that are free."""
        return self.device.freed


class PoisonedTrainer(_OnPoisoned, TorchTrainer):
    """Trainer `torch` on it."""


class PoisonedDeepSpeed(_OnPoisoned, DeepSpeedTrainer):
    """Trainer `deepspeed` on it, which divides tensors of any size."""

    persistent = 0


def freed(trainer: Any) -> list[int]:
    """Bytes that are free, by rank."""
    counts: list[int] = trainer.commands.run("rank_freed")
    return counts
