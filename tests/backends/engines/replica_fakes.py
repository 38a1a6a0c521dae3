"""Actors of replicas whose vLLM is a fake, and what starts them."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from coterie.backends.cluster.hosts import Actors
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.engines.vllm import replica_actor
from coterie.backends.engines.vllm.actor_server import ActorServer, actor_servers
from coterie.backends.engines.vllm.replica_actor import ReplicaActor
from coterie.backends.engines.vllm.server import Output, ServerLost, ServerSpec, VersionSpan
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.core.errors import SystemFault, UserError

ANSWER, STATE, WAIT, STUCK, REFUSED, DIE = range(1, 7)
"""First token of a prompt: what the fake does with it."""


class FakeVLLM:
    """A server that answers with what it was given."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec, self.alive, self.version, self.steps = spec, False, -1, 0
        self.sum, self.asleep, self.cancelled = 0, 0, 0
        self.adapters: dict[int, str] = {}
        self.release = asyncio.Event()
        self._stepping: Any = None

    async def open(self) -> None:
        if self.spec.stored and not Path(self.spec.model).is_dir():
            raise UserError("no such model", path="policies.p.model", fix="copy it")
        if not self.spec.stored:
            assert (Path(self.spec.model) / "config.json").read_bytes() == b"{}"
        self.alive = True
        self._stepping = asyncio.ensure_future(self._step())

    async def _step(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            self.steps += 1

    async def generate(self, prompt_ids: Any, params: Any, adapter: Any) -> Output:
        assert self.alive and self.asleep != 1
        if prompt_ids[0] == WAIT:
            try:
                await asyncio.sleep(prompt_ids[1] / 1000)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if prompt_ids[0] == STUCK:
            self._stepping.cancel()
            await asyncio.sleep(600)
        if prompt_ids[0] == REFUSED:
            raise SystemFault("it is refused")
        if prompt_ids[0] == DIE:
            self.alive = False
            raise ServerLost("its engine died")
        tokens = [*prompt_ids]
        if prompt_ids[0] == STATE:
            tokens = [os.getpid(), self.sum, self.asleep, self.cancelled, len(self.adapters)]
        if adapter is not None:
            tokens += (Path(adapter.path) / "adapter_model.safetensors").read_bytes()
        return Output(tuple(tokens), (-1.0,), "stop", (VersionSpan(self.version, 0, 1),))

    async def add_adapter(self, adapter: Any) -> None:
        if b"bad" in (Path(adapter.path) / "adapter_model.safetensors").read_bytes():
            raise SystemFault(f"vLLM refused the adapter {adapter.name}")
        self.adapters[adapter.id] = adapter.path

    async def remove_adapter(self, adapter_id: int) -> None:
        del self.adapters[adapter_id]

    async def sync(self, named_tensors: Any, version: int) -> None:
        total = 0

        def read() -> None:
            nonlocal total
            for _, tensor in named_tensors:
                total += int(tensor.double().sum())
                if version == 666 and total:
                    raise ValueError("the third tensor is bad")

        try:
            await asyncio.to_thread(read)
        except UserError as error:
            if not total:
                raise
            self.alive = False
            raise ServerLost("half-way") from error
        except ValueError as error:
            self.alive = False
            raise ServerLost("half-way") from error
        self.version, self.sum = version, total

    async def sleep(self) -> None:
        self.asleep = 1

    async def wake(self) -> None:
        self.asleep = 2

    async def close(self) -> None:
        self.alive = False


class FakeReplica(ReplicaActor):
    """A replica's actor with a fake vLLM."""

    def __init__(self) -> None:
        super().__init__()
        replica_actor.make = lambda owner, spec: FakeVLLM(spec)  # of this actor's process alone


class CountingPut:
    """Ray with a count of the objects that are put."""

    def __init__(self, ray: Any) -> None:
        self._ray, self.puts = ray, 0

    def put(self, value: Any) -> Any:
        self.puts += 1
        return self._ray.put(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)


class FakeActors(Actors):
    """Starts fake replicas."""

    replica: type = FakeReplica

    def __init__(self, **settings: Any) -> None:
        super().__init__(ClusterConfig(**{"timeout": 60, "replica_cpus": 0.1, **settings}))
        self.counting: CountingPut | None = None
        self.started: list[tuple[str, Any]] = []

    @property
    def ray(self) -> Any:
        if self.counting is None:
            self.counting = CountingPut(super().ray)
        return self.counting

    def actor(self, cls: type, *, name: str, cpus: float, gpus: float) -> Any:
        assert cls is ReplicaActor
        handle = super().actor(self.replica, name=name, cpus=cpus, gpus=gpus)
        self.started.append((name, handle))
        return handle


def spec_of(folder: Path, replicas: int = 2, **settings: Any) -> ServerSpec:
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_bytes(b"{}")
    return ServerSpec(name="p", model=str(model), settings=VLLMConfig(replicas=replicas, **settings))


def made(
    folder: Path, replicas: int = 2, actors: FakeActors | None = None, **settings: Any
) -> list[ActorServer]:
    servers: Any = actor_servers(spec_of(folder, replicas, **settings), actors or FakeActors())
    return list(servers)


class Owner:
    """An actor that has replicas of its own, as the engine host."""

    async def start(self, folder: str) -> list[int]:
        self.servers = made(Path(folder))
        await asyncio.gather(*(server.open() for server in self.servers))
        return [os.getpid(), *(server.began.pid for server in self.servers if server.began)]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids: list[int], seconds: float) -> bool:
    """Whether all processes end in time."""
    end = time.monotonic() + seconds
    while any(map(running, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def folders_of(pid: int) -> list[Path]:
    """Folders for files of vLLM that a process holds."""
    held = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.exists()]
    places = ("/dev/shm", tempfile.gettempdir())
    return [
        Path(file).parent for file in held if file.endswith(".lock") and file.startswith(places)
    ]  # the lock of each
