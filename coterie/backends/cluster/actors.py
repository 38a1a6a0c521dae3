"""Actors that a process of the cluster starts for itself, such as the replicas of an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from coterie.backends.cluster.connection import KEPT, import_ray
from coterie.backends.cluster.reservation import Room
from coterie.backends.cluster.settings import ClusterConfig


class Actors:
    """Starts actors from a process of the cluster, which owns them: they end with it at the latest.

    Args:
        settings: of the cluster. Picklable, and so is this object.
        rooms: what is reserved for them, by name.
    """

    def __init__(self, settings: ClusterConfig, rooms: Mapping[str, Room] = MappingProxyType({})) -> None:
        self.settings, self._rooms = settings, dict(rooms)

    @property
    def ray(self) -> Any:
        return import_ray()

    @property
    def on_gpus(self) -> bool:
        """Whether any node has a GPU."""
        return bool(self.ray.cluster_resources().get("GPU", 0.0))

    def start(self, cls: type, *, name: str, cpus: float, gpus: float) -> Any:
        """The handle of a new actor, which waits for its place where the cluster is full."""
        options = self.options(name, cpus, gpus)
        return self.ray.remote(cls).options(max_concurrency=100_000, max_restarts=0, **options).remote()

    def shared(self, name: str) -> bool:
        """Whether an actor's GPUs are the trainer's too."""
        return name in self._rooms and self._rooms[name].shared

    def options(self, name: str, cpus: float, gpus: float) -> dict[str, Any]:
        """What Ray needs to place an actor: in its room, or wherever there is some if its node is gone."""
        variables = {name: os.environ[name] for name in KEPT if name in os.environ}
        options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus}
        room = self._rooms.get(name)
        if room is not None and any(n["Alive"] and n["NodeID"] == room.node for n in self.ray.nodes()):
            options |= room.options
            variables |= options.pop("env_vars", {})
        return {**options, "runtime_env": {"env_vars": variables}}

    def kill(self, handle: Any) -> None:
        """Kill an actor's process; nothing happens if it is gone."""
        self.ray.kill(handle)

    def room(self) -> str:
        """What of the cluster is free, for a message."""
        there, free = self.ray.cluster_resources(), self.ray.available_resources()
        kinds = [kind for kind in ("CPU", "GPU") if there.get(kind)]
        return ", ".join(f"{free.get(kind, 0.0):g} of {there[kind]:g} {kind}s" for kind in kinds)


class OwnActors(Actors):
    """The actors of a process of the cluster, in the form of the connection that the run's process has: for
    components that run there, too, such as a trainer with ranks."""

    def __init__(self, settings: ClusterConfig, rooms: Mapping[str, Room] = MappingProxyType({})) -> None:
        super().__init__(settings, rooms)
        self._started: list[Any] = []

    def open(self) -> None:
        """Nothing: the process is connected."""

    def actor(self, cls: type, *, cpus: float = 0.0, gpus: float = 0.0, name: str) -> Any:
        """The handle of a new actor; its room says what it takes, and `cpus` and `gpus` if it has none."""
        handle = self.start(cls, name=name, cpus=cpus, gpus=gpus)
        self._started.append(handle)
        return handle

    def remove(self, handle: Any) -> None:
        """Kill an actor's process."""
        if handle in self._started:
            self._started.remove(handle)
        self.kill(handle)

    def close(self) -> None:
        """Kill all actors."""
        for handle in [*self._started]:
            self.remove(handle)


@runtime_checkable
class UsesActors(Protocol):
    """An engine that has actors of its own where it runs in a process of a cluster."""

    def use_actors(self, actors: Actors) -> None:
        """Start its processes as actors; called before `open`."""
