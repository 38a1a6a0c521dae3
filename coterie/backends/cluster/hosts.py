"""A process of the run that is a Ray actor, a *host*: its start, its program, its handle elsewhere.

There is one account of who is alive. Ray says which process has died, and one that gives no answer for so
many seconds hangs; time in which the asking process itself stood still doesn't count. What becomes of a host
that is gone, its owner decides: it starts another one and tells it what the first one knew, or ends the run.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from coterie.backends.cluster.reservation import Room
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.wire import Answered, Code, answered, first_line, unwrapped, use_code
from coterie.backends.models.patience import NoAnswer, Patience
from coterie.core.errors import MissingExtra
from coterie.core.training.lifetime import RARELY

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


Record = tuple[str, int, str]
"""What is logged: (logger, level, text)."""


class HostGone(Exception):
    """The process of a host has died, or hangs; with the reason."""


# ------------------------------------------------------------------------------------------------ its program


class KeptRecords(logging.Handler):
    """Keeps what Coterie logs in this process, until it is taken."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._records: list[Record] = []
        self._news = asyncio.Event()
        self._ends = False

    def keep(self) -> None:
        """Begin."""
        log = logging.getLogger("coterie")
        log.addHandler(self)
        log.setLevel(min(self.level, logging.WARNING))
        log.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append((record.name, record.levelno, record.getMessage()))
        self.wake()

    def wake(self) -> None:
        """Let `next` return now."""
        self._news.set()

    def take(self) -> list[Record]:
        """The records since the last time."""
        records, self._records = self._records, []
        self._news.clear()
        return records

    async def next(self, patience: float) -> list[Record]:
        """The records, once there are any, or after `patience` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._news.wait()
        return [] if self._ends else self.take()

    def end(self) -> None:
        """From now on `next` gives nothing: whoever waited for it may be gone, and `take` has the rest."""
        self._ends = True


class HostProgram:
    """What every host does. Its public methods answer as `wire.answered` says, a subclass's too."""

    process = "a process of the run"
    """In words, for the note of an exception."""
    level = logging.INFO
    """The least level of what the run logs of it."""

    def __init__(self) -> None:
        self._records = KeptRecords(self.level)

    @answered
    async def begin(self, process: str = "") -> int:
        """Keep what is logged here; returns the process id.

        Args:
            process: this one, in words.
        """
        self.process = process or self.process
        self._records.keep()
        gc.set_threshold(*RARELY)  # as in the run's process
        return os.getpid()

    def _import(self, code: Code, variables: Mapping[str, str]) -> None:
        """Import what the run's process does.

        Args:
            variables: environment variables with secrets.
        """
        os.environ.update(variables)
        use_code(code)

    @answered
    async def records(self, patience: float) -> list[Record]:
        """What was logged here, once there is something, or after `patience` seconds."""
        return await self._records.next(patience)

    @answered
    async def alive(self) -> None:
        """Answer."""

    @answered
    async def close(self) -> list[Record]:
        """End what runs here; returns what was logged."""
        self._records.end()
        await self._close()
        return self._records.take()

    async def _close(self) -> None:
        """End what runs here."""


# ------------------------------------------------------------------------------------------------- its handle


def log_again(records: Sequence[Record]) -> None:
    """Log records of another process here."""
    for name, level, text in records:
        logging.getLogger(name).log(level, "%s", text)


class HostHandle:
    """A host, as another process calls it; the run's process watches it, too.

    Args:
        ray: Ray's module.
        actor: Ray's handle of it.
        name: of the process, in words.
    """

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self._ray, self.actor, self.name = ray, actor, name
        self.pid = 0
        """0: it has not begun."""
        self.watching: asyncio.Task[None] | None = None

    async def placed(self, connection: Any, name: str = "") -> None:
        """Wait until it has its place on the cluster, as `Connection.placed`.

        Raises:
            UserError: there is no room for it.
            HostGone: it is gone.
        """
        try:
            await connection.placed(self.actor, name or self.name)
        except self._ray.exceptions.RayError as error:
            raise HostGone(first_line(error)) from error

    async def begin(self, process: str = "") -> None:
        """Begin, as `HostProgram.begin`."""
        self.pid = await self.call("begin", process)

    def sent(self, method: str, *arguments: Any) -> Any:
        """A reference to the answer of a method, which is called before this function returns."""
        return getattr(self.actor, method).remote(*arguments)

    async def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the host returns.

        Raises:
            HostGone: its process is gone.
            Exception: what the method raised.
        """
        return await self.answer(self.sent(method, *arguments))

    async def answer(self, reference: Awaitable[Answered]) -> Any:
        """What a method that was called has returned; raises as `call` does."""
        try:
            answer = await reference
        except self._ray.exceptions.RayError as error:
            raise HostGone(first_line(error)) from error
        return unwrapped(answer)

    def answer_now(self, reference: Any, seconds: float | None = None) -> Any:
        """`answer`, for a caller that can't await; the event loop stands still meanwhile."""
        try:
            return unwrapped(self._ray.get(reference, timeout=seconds))
        except self._ray.exceptions.RayError as error:
            raise HostGone(first_line(error)) from error

    async def watch(
        self,
        every: float,
        silence: float,
        method: str = "records",
        take: Callable[[Any], object] = log_again,
    ) -> str:
        """Take the reports of the host until it is gone; returns why.

        Args:
            every: seconds after which it reports, if it has nothing to tell.
            silence: seconds without a report after which it counts as dead.
            method: what it reports by.
            take: takes a report.
        """
        while True:
            try:
                report = await Patience(self.name, silence).wait(self.call(method, every))
            except NoAnswer:
                return f"no answer for {silence:g} s"
            except HostGone as gone:
                return str(gone)
            take(report)

    async def close(self, seconds: float, take: Callable[[Sequence[Record]], object] = log_again) -> None:
        """Close it, and log what was logged there. One that is gone or hangs is left to be killed.

        Raises:
            Exception: what its `close` raised.
        """
        with suppress(TimeoutError, HostGone):
            async with asyncio.timeout(seconds):
                take(await self.call("close"))


async def end(
    connection: Any,
    hosts: Sequence[HostHandle],
    seconds: float,
    take: Callable[[Sequence[Record]], object] = log_again,
) -> None:
    """Close hosts, and end their processes: at the latest after so many seconds.

    Args:
        connection: what has started them.
        take: as `HostHandle.close`.
    """
    watching = [host.watching for host in hosts if host.watching is not None]
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    closing = [host.close(seconds, take) for host in hosts if host.pid]
    await asyncio.gather(*closing, return_exceptions=True)
    for host in hosts:
        connection.remove(host.actor)
