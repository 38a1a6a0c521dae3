"""Memory that replicas share with the trainer, on a cluster: the trainer asks for it in another process."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from coterie.backends.cluster.reservation import Room
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.transfer import Transfer, transfer_of
from coterie.backends.executors.ray.engine_host import EngineHost
from coterie.backends.executors.ray.hosted_engine import HostedEngine
from coterie.backends.models import device_memory
from coterie.core.types import Weights
from tests.backends.executors.ray.test_exchange import Context, Recording


class Sleeper(Recording):
    """An engine with memory that the trainer may need."""

    asleep = 0

    async def open(self, ctx: Any) -> None:
        await super().open(ctx)
        device_memory.lend(self)

    async def sleep(self) -> None:
        Sleeper.asleep += 1

    async def close(self) -> None:
        device_memory.withdraw(self)
        await super().close()


class Actor:
    """Calls an engine host as Ray would: by `handle.method.remote(...)`."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    begin = SimpleNamespace(remote=lambda process: asyncio.sleep(0, (True, 4711)))
    """Its log and its garbage are those of the test's process."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._host, name)
        return SimpleNamespace(remote=lambda *given: asyncio.ensure_future(method(*given)))


class Cluster:
    """As much of a connection as the engine asks for."""

    def __init__(self, shared: bool) -> None:
        self.settings = ClusterConfig()
        self.ray = SimpleNamespace(
            put=lambda value: value,
            cloudpickle=pickle,
            exceptions=SimpleNamespace(RayError=type("RayError", (Exception,), {})),
        )
        self._rooms = {"vllm p/0": Room("node", {}, shared), "engine": Room("node", {}, False)}

    def open(self) -> None: ...

    def close(self) -> None: ...

    def rooms(self) -> dict[str, Room]:
        return self._rooms

    def transfer(self) -> Transfer:
        return transfer_of(self.settings, ())

    def secrets(self, names: Any) -> dict[str, str]:
        return {}

    def actor(self, cls: type, **options: Any) -> Actor:
        return Actor(cls())

    async def placed(self, handle: Any, name: str) -> None: ...

    def lose(self, *_: Any) -> None: ...


def opened(shared: bool, then: Callable[[HostedEngine], Any]) -> None:
    async def run() -> None:
        hosted = HostedEngine(Sleeper, Cluster(shared))  # type: ignore[arg-type]
        await hosted.open(Context())  # type: ignore[arg-type]
        await then(hosted)
        await hosted.close()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sleeper, "asleep", 0)


def test_the_trainer_asks_the_engine_host_for_the_memory_of_replicas_on_its_gpus() -> None:
    asked: list[str] = []

    async def reclaim(hosted: HostedEngine) -> None:
        hosted.actor.sleep = SimpleNamespace(remote=lambda: asyncio.ensure_future(answer()))
        await device_memory.reclaim()

    async def answer() -> tuple[bool, None]:
        asked.append("sleep")
        return True, None

    opened(True, reclaim)
    assert asked == ["sleep"]
    opened(False, reclaim)
    assert asked == ["sleep"], "replicas with GPUs of their own stay awake"


def test_an_engine_host_lets_its_engine_sleep() -> None:
    async def sleep(hosted: HostedEngine) -> None:
        device_memory.withdraw(hosted)  # in the run's process
        await hosted.sleep()

    opened(True, sleep)
    assert Sleeper.asleep == 1


def test_the_trainer_leaves_once_its_weights_are_sent_and_before_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replicas wake with new weights, or with the first request of a step whose weights are old."""
    monkeypatch.setattr(device_memory, "occupied", WeakKeyDictionary())
    order: list[str] = []

    class Trainer:
        async def offload(self) -> None:
            order.append("the trainer leaves")

    async def load(hosted: HostedEngine) -> None:
        sent, notify = hosted.sender.send, hosted.notify

        def noted(method: str, *arguments: Any) -> Any:
            order.append(method)
            return notify(method, *arguments)

        monkeypatch.setattr(hosted.sender, "send", lambda weights: (order.append("sent"), sent(weights))[1])
        monkeypatch.setattr(hosted, "notify", noted)
        await hosted.load_weights(Weights(policy="p", version=1))
        await hosted.before_jobs()

    trainer = Trainer()
    device_memory.occupy(trainer, ())
    opened(True, load)
    assert order == ["sent", "the trainer leaves", "load_weights", "the trainer leaves"]
