"""DeepSpeed in this process: imported for the device, without compiled kernels, in a process group."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist

from coterie.backends.trainers.deepspeed.settings import DeepSpeedConfig
from coterie.core.errors import ConfigError

_users = 0
"""Open trainers of one rank; they share the process group that the first of them made."""
_made = False
"""Whether `leave` removes torch's default process group: it is the trainers'."""
_LOCAL_RANK = "LOCAL_RANK"
"""The environment variable by which DeepSpeed knows a process's device, again and again."""
_named = False
"""Whether `enter` has set it."""


def load(device: torch.device) -> Any:
    """The module `deepspeed`, for tensors on this device.

    Raises:
        MissingExtra: it isn't installed.
        ConfigError: the process uses DeepSpeed with another kind of device.
    """
    DeepSpeedConfig.check_packages()
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    # It logs each engine's configuration, on standard output.
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    deprecated = r"`torch\.distributed\.(reduce_scatter|all_gather)"
    warnings.filterwarnings("ignore", message=deprecated, category=FutureWarning)
    import deepspeed
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # A shared-memory all-reduce that init_distributed would compile, with a compiler: gloo does as well.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    kind = get_accelerator().device_name()
    if kind != device.type:
        raise ConfigError(
            f"DeepSpeed computes on '{kind}' in this process",
            path="trainer.device",
            why=f"DS_ACCELERATOR is {os.environ['DS_ACCELERATOR']}, or another trainer uses it there",
            fix=f"set trainer.device={kind}, or unset DS_ACCELERATOR in a new process",
        )
    return deepspeed


def refuse_other_group() -> None:
    """Refuse a default process group that this trainer's ranks can't join.

    Raises:
        ConfigError: another library made it.
    """
    if dist.is_initialized():
        raise ConfigError(
            "torch's default process group is taken",
            path="trainer.ranks",
            why="DeepSpeed works in that group alone; another library in this process, such as the engine "
            "`vllm` inside it or a second trainer, has made it",
            fix="set engine.process=own, or trainer.ranks=1",
        )


def enter(world: int, local: int, device: torch.device) -> None:
    """Begin to use DeepSpeed's process group; `leave` ends it.

    With several ranks torch's default group is theirs already. A group of one is made here, unless another
    library has made one.
    """
    global _users, _made, _named
    _users += 1
    if _LOCAL_RANK not in os.environ:
        os.environ[_LOCAL_RANK], _named = str(local), True
    if world == 1 and not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        _made = True
    elif world > 1:
        _made = True
    if dist.get_world_size() != world:
        _users -= 1
        refuse_other_group()
    from deepspeed import comm

    # It finds the default group, and never looks for MPI or for a launcher's variables.
    comm.init_distributed(
        dist_backend="nccl" if device.type == "cuda" else "gloo", auto_mpi_discovery=False, verbose=False
    )


def leave() -> None:
    """End the use of the process group; the last user removes it, and what DeepSpeed remembers of it."""
    global _users, _made, _named
    _users -= 1
    if _users:
        return
    if _named:
        del os.environ[_LOCAL_RANK]
    _named = False
    import deepspeed.comm.comm

    if _made and dist.is_initialized():
        deepspeed.comm.destroy_process_group()
    deepspeed.comm.comm.cdb = None
    _made = False


def forget() -> None:
    """Remove the process group of an earlier trainer, which rank 0 closed without telling this rank."""
    global _users
    if _users:
        _users = 1
        leave()
