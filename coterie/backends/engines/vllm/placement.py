"""Where a server of processes of its own runs, and how weights reach it; imports neither vLLM nor torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerPlacement:
    """The GPUs of one server, and its way of transfer."""

    gpus: tuple[int, ...]
    """Indices among the run's visible GPUs; () on a CPU."""
    transfer: str
    """`file`, `nccl` or `ipc`."""
    pickled: bool = False
    """Whether any server of these settings uses `ipc`, whose handles of GPU memory pass pickled."""
    shared: bool = False
    """Whether the trainer computes on one of these GPUs too."""

    @property
    def variables(self) -> dict[str, str | None]:
        """The environment variables that place it."""
        if not self.gpus:
            return {}
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        names = [visible[gpu] if visible else str(gpu) for gpu in self.gpus]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names)}


def needed_gpus(settings: VLLMConfig) -> int:
    """Fewest GPUs that the run must see, for servers with processes of their own."""
    if settings.devices:
        return max(settings.devices) + 1
    return settings.replicas * settings.tensor_parallel


def gpus_of(settings: VLLMConfig, gpus: int, trainer: Sequence[int] = (0,)) -> list[int]:
    """The GPUs of all servers, `tensor_parallel` of them for each replica.

    They are the last ones that the trainer doesn't use. Where these don't suffice, the trainer's last ones
    are shared too.

    Args:
        gpus: how many the run sees.
        trainer: the GPUs on which its ranks compute.

    Raises:
        ConfigError: there are too few, or `devices` names others.
    """
    width, needed = settings.tensor_parallel, settings.replicas * settings.tensor_parallel
    free = [gpu for gpu in range(gpus) if gpu not in trainer]
    used = [gpu for gpu in range(gpus) if gpu in trainer]
    devices = settings.devices if settings.devices is not None else sorted([*used, *free][-needed:])
    if len(devices) != needed or not all(device in range(gpus) for device in devices):
        path = "engine.replicas" if settings.devices is None else "engine.devices"
        raise ConfigError(
            f"{settings.replicas} replicas of {width} GPUs need {needed} GPUs",
            path=path,
            why=f"{len(devices)} are named, and the run sees {gpus} (0 to {gpus - 1})",
            fix="lower engine.replicas or engine.tensor_parallel, or set engine.devices",
        )
    return devices


def place(
    settings: VLLMConfig, replica: int, gpus: int, trainer: Sequence[int] = (0,), outside: str = ""
) -> ServerPlacement:
    """The placement of a replica.

    Args:
        gpus: how many the run sees; 0: it runs on a CPU.
        trainer: the GPUs on which its ranks compute, rank 0's first, which sends the weights; (): none does.
        outside: how a process elsewhere sends the weights; "": none does.

    Raises:
        ConfigError: there are too few GPUs, or the transfer is impossible there.
    """
    if outside:
        devices = gpus_of(settings, gpus, ()) if gpus else ()
        return ServerPlacement(tuple(devices[: settings.tensor_parallel]), outside, outside == "ipc")
    if gpus == 0 or not trainer:
        if settings.transfer in ("nccl", "ipc"):
            raise ConfigError(
                f"`transfer: {settings.transfer}` needs a trainer on a GPU",
                path="engine.transfer",
                fix="set engine.transfer: auto (a file in shared memory here)",
            )
        if gpus == 0:
            return ServerPlacement((), _way(settings, "file"))
    width, devices = settings.tensor_parallel, gpus_of(settings, gpus, trainer)
    mine = tuple(devices[replica * width : (replica + 1) * width])
    if not trainer:
        return ServerPlacement(mine, _way(settings, "file"))
    sender = trainer[0]
    same = mine == (sender,)
    pickled = width == 1 and sender in devices and settings.transfer in ("auto", "ipc")
    if settings.transfer == "ipc" and not same:
        raise ConfigError(
            "`transfer: ipc` shares memory within one GPU",
            path="engine.transfer",
            why=f"the trainer sends from GPU {sender}, and vLLM computes on {', '.join(map(str, mine))}",
            fix="set engine.transfer: auto (nccl here)",
        )
    if settings.transfer == "nccl" and sender in mine:
        raise ConfigError(
            "`transfer: nccl` can't send from a GPU to itself",
            path="engine.transfer",
            why=f"trainer and vLLM both compute on GPU {sender}",
            fix=f"set engine.transfer: auto, or engine.devices without {sender}",
        )
    way = _way(settings, "ipc" if same else "file" if sender in mine else "nccl")
    return ServerPlacement(mine, way, pickled, shared=any(gpu in trainer for gpu in mine))


def _way(settings: VLLMConfig, default: str) -> str:
    if settings.transfer == "memory":
        raise ConfigError(
            "`transfer: memory` is for a vLLM inside the run's process",
            path="engine.transfer",
            fix="set engine.transfer: auto, or engine.process: inside",
        )
    return default if settings.transfer == "auto" else settings.transfer
