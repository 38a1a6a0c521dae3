"""How weights travel from the trainer on a cluster, and why so. Imports neither Ray nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coterie.backends.cluster.placement import RUN, TRAINER, Process, kind_of
from coterie.backends.cluster.settings import ClusterConfig


class Transfer(NamedTuple):
    """How weights travel, in words."""

    name: str
    """`store` or `disk`."""
    text: str
    """What is said of it."""
    why: str

    @property
    def sentence(self) -> str:
        return f"{self.text}: {self.why}"


def transfer_of(settings: ClusterConfig, processes: Sequence[Process]) -> Transfer:
    """How weights go from the trainer to the engine's process, and from there to replicas.

    Args:
        processes: of the run, as they are placed.
    """
    replicas = [each for each in processes if "/" in each.name and kind_of(each) != TRAINER]
    onward = ", and from there through the object store to the replicas" if replicas else ""
    if settings.weights == "disk":
        place = settings.weights_folder or "the run's folder"
        text = f"weights go to the engine's process by safetensors files in {place}{onward}"
        return Transfer("disk", text, "cluster.weights is disk")
    end = f"the engine's process{onward and ' and its replicas'}"
    text = f"weights go to {end} through Ray's object store"
    if settings.weights == "store":
        return Transfer("store", text, "cluster.weights is store")
    return Transfer(
        "store", text, f"{_reason(processes, replicas)}; files (cluster.weights=disk) are used on request"
    )


def _reason(processes: Sequence[Process], replicas: Sequence[Process]) -> str:
    """Why nothing is faster between these GPUs."""
    trainer = any(process.gpus for process in processes if kind_of(process) in (RUN, TRAINER))
    if any(replica.shares for replica in replicas):
        return (
            "replicas are on GPUs of the trainer, where NCCL connects no two processes, and executor 'ray' "
            "shares no memory of a GPU (CUDA IPC) yet"
        )
    if trainer and any(replica.gpus for replica in replicas):
        return (
            "the GPUs of trainer and replicas could exchange them by NCCL, and executor 'ray' makes no such "
            "group yet"
        )
    if replicas:
        return "NCCL needs GPUs on both sides, and trainer or replicas compute on CPUs"
    return "the engine has a process of its own, without a group of GPUs in common with the trainer"
