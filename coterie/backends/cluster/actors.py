"""Actors: how each of them is started, and those that a process of the cluster starts for itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from coterie.backends.cluster.reservation import Room
from coterie.backends.cluster.settings import ClusterConfig
from coterie.core.errors import MissingExtra

_KEPT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "HF_HOME")
"""Variables that processes of the run have from it: Ray sets the number of threads to that of CPUs."""


def import_ray() -> Any:
    """Ray's module.

    Raises:
        MissingExtra: it isn't installed.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "ray", "ray", needed_by="executor 'ray'", instead="executor=local cluster=null"
        ) from error
    return ray


def start_actor(
    ray: Any,
    cls: type,
    *,
    cpus: float,
    gpus: float,
    place: Mapping[str, Any],
    groups: Mapping[str, int] | None = None,
) -> Any:
    """The handle of a new actor, which waits for its place where the cluster is full.

    Args:
        place: Ray's options of its place, which may say what it takes, too; {}: it is anywhere.
        groups: names of further event loops, each with the calls that it takes at a time.
    """
    options = {"num_cpus": cpus, "num_gpus": gpus, **place}
    variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
    variables |= options.pop("env_vars", {})
    kind = ray.remote(concurrency_groups=groups)(cls) if groups else ray.remote(cls)
    options |= {"max_concurrency": 100_000, "max_restarts": 0, "runtime_env": {"env_vars": variables}}
    return kind.options(**options).remote()


class Actors:
    """Starts actors from a process of the cluster, which owns them: they end with it at the latest.

    It has the form of the connection of the run's process, for components that run in both, such as a trainer
    with ranks.

    Args:
        settings: of the cluster. Picklable, and so is this object.
        rooms: what is reserved for them, by name.
    """

    def __init__(self, settings: ClusterConfig, rooms: Mapping[str, Room] = MappingProxyType({})) -> None:
        self.settings, self._rooms = settings, dict(rooms)

    @property
    def ray(self) -> Any:
        return import_ray()

    def open(self) -> None:
        """Nothing: the process is connected."""

    def actor(self, cls: type, *, name: str, cpus: float, gpus: float) -> Any:
        """The handle of a new actor: in its room, which says what it takes, or wherever there is some if its
        node is gone."""
        room = self._rooms.get(name)
        there = room is not None and any(n["Alive"] and n["NodeID"] == room.node for n in self.ray.nodes())
        place = room.options if room is not None and there else {}
        return start_actor(self.ray, cls, cpus=cpus, gpus=gpus, place=place)

    def remove(self, handle: Any) -> None:
        """Kill an actor's process; nothing happens if it is gone."""
        self.ray.kill(handle)

    def close(self) -> None:
        """Nothing: the process stays connected."""

    def shared(self, name: str) -> bool:
        """Whether an actor's GPUs are the trainer's too."""
        return name in self._rooms and self._rooms[name].shared

    @property
    def on_gpus(self) -> bool:
        """Whether any node has a GPU."""
        return bool(self.ray.cluster_resources().get("GPU", 0.0))

    def room(self) -> str:
        """What of the cluster is free, for a message."""
        there, free = self.ray.cluster_resources(), self.ray.available_resources()
        kinds = [kind for kind in ("CPU", "GPU") if there.get(kind)]
        return ", ".join(f"{free.get(kind, 0.0):g} of {there[kind]:g} {kind}s" for kind in kinds)
