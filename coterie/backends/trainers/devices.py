"""The device of a trainer's process: which it is, what it can hold, and the time of its tokens."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

import torch

from coterie.backends.models import devices, memory as sizes_in_bytes
from coterie.backends.models.policy import of_tensors
from coterie.backends.models.precision import with_dtype
from coterie.backends.models.sizes import least_size
from coterie.backends.models.sources import initial_weights_of
from coterie.backends.trainers.ranks.group import check_world
from coterie.core.config import PolicyConfig
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


log = logging.getLogger("coterie")

CORE_FLOPS, GPU_FLOPS = 2.5e11, 1e15
"""Operations a second that a core (two AVX-512 units, float32) and a GPU (bfloat16) reach at most, about."""
HOUR = 3600.0


def check_fit(
    device: str, policies: Mapping[str, PolicyConfig], vocabulary: Sequence[str], memory: int | None
) -> None:
    """Refuse weights, optimiser and gradients that one device can't hold; policies of unknown size count 0.

    Args:
        device: the trainer's setting.
        memory: bytes of this machine; None: unknown.

    Raises:
        ConfigError: with the numbers. A device that isn't there is told when the trainer opens.
    """
    try:
        place = device_of(device)
    except ConfigError:
        return
    limit = memory if place.type == "cpu" else devices.gpu_memory(place)
    configs = with_dtype(of_tensors(policies), place.type)
    parts: dict[str, dict[str, int]] = {}
    parameters: dict[str, int] = {}
    for names in initial_weights_of(configs).values():
        size = least_size(configs[names[0]], tuple(vocabulary))
        if size is not None:
            parts |= sizes_in_bytes.trainer_bytes({name: configs[name] for name in names}, size)
            parameters |= dict.fromkeys(names, size.parameters)
    held = {name: part["weights"] + part["masters"] + part["moments"] for name, part in parts.items()}
    needed = sum(held.values()) + max((part["gradients"] for part in parts.values()), default=0)
    if limit is not None and needed > limit:
        largest = max(held, key=lambda name: held[name])
        policy = configs[largest]
        raise ConfigError(
            f"the trainer needs at least {needed / 1e9:,.3g} GB, and its device '{place}' has "
            f"{limit / 1e9:,.3g} GB",
            path=f"policies.{largest}",
            why=f"weights, optimiser and gradients: '{largest}' has {parameters[largest]:,} parameters in "
            f"{policy.dtype}, and train: {policy.train}",
            fix="train an adapter (train: lora), choose a smaller model, or divide the trainer between GPUs "
            "(trainer.type=deepspeed)",
        )


def warn_of_hours(
    device: str,
    policies: Mapping[str, PolicyConfig],
    vocabulary: Sequence[str],
    tokens: Mapping[str, int],
) -> None:
    """Warn of a step that takes hours at this machine's peak, if its answers are as long as they may be.

    Args:
        tokens: by policy, most tokens that a step generates.
    """
    work, largest = 0, 0
    for name, policy in of_tensors(policies).items():
        size = least_size(policy, tuple(vocabulary))
        if size is not None:
            # Two operations a parameter and token; an update computes the tokens again, and the gradients.
            work += tokens[name] * size.parameters * (2 if policy.train == "none" else 6)
            largest = max(largest, size.parameters)
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    peak = GPU_FLOPS * gpus or CORE_FLOPS * (os.cpu_count() or 1)
    hours = int(min(work, 10**300) / (peak * HOUR))
    if hours >= 1:
        log.warning(
            "a step may take more than %s hours on this machine: if answers are as long as they may be, "
            "%.3g tokens go through models of up to %.3g parameters (see `coterie plan`)",
            *(f"{hours:,}" if hours < 10**6 else f"{hours:.0e}", min(sum(tokens.values()), 10**300), largest),
        )
