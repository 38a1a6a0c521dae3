"""The device of a trainer's process."""

from __future__ import annotations

import os

import torch

from coterie.backends.models import devices
from coterie.backends.trainers.ranks.group import check_world
from coterie.core.errors import ConfigError

_RANKS_ON_CPU = 8
"""Ranks that a CPU may run, whatever its cores."""


def device_of(name: str, local: int | None = None) -> torch.device:
    """The device of a process.

    Args:
        local: the number of the rank on its host, which is that of its GPU; None: the only rank.

    Raises:
        ConfigError: there is no such device, or none for this rank.
    """
    device: torch.device = devices.device_of(name, "trainer.device")
    return device if local is None or device.type != "cuda" else _device_of_rank(device, local)


def on_gpu(device: str) -> bool:
    """Whether ranks compute on GPUs, by the trainer's setting and what this host has."""
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def check_ranks(ranks: int, device: str) -> None:
    """Refuse a world of another size, and more ranks than this host can run, before any of them starts.

    Args:
        device: the trainer's setting. On GPUs each rank has one; on a CPU ranks share the cores.

    Raises:
        ConfigError: there are too many, or there is no such device.
    """
    if check_world(ranks) or ranks == 1:
        return
    gpus = on_gpu(device)
    if gpus and not torch.cuda.is_available():
        device_of(device)  # it says why
    cores = os.cpu_count() or 1
    most = torch.cuda.device_count() if gpus else max(cores, _RANKS_ON_CPU)
    if ranks > most:
        has = f"it has {most} GPUs, one for each rank" if gpus else f"it has {cores} cores"
        raise ConfigError(
            f"this host can't run {ranks} ranks",
            path="trainer.ranks",
            why=has,
            fix=f"set trainer.ranks={most} or lower; executor=ray and torchrun start ranks on several hosts",
        )


def _device_of_rank(device: torch.device, local: int) -> torch.device:
    if device.index is not None:
        raise ConfigError(
            f"all ranks would train on '{device}'",
            path="trainer.device",
            why="each rank of a host has a GPU for itself",
            fix="set trainer.device to auto or cuda; CUDA_VISIBLE_DEVICES chooses the GPUs",
        )
    count = torch.cuda.device_count()
    if local >= count:
        raise ConfigError(
            f"there is no GPU for rank {local} of this host",
            path="trainer.ranks",
            why=f"it has {count}",
            fix=f"set trainer.ranks={count}, or trainer.device=cpu",
        )
    return torch.device("cuda", local)
