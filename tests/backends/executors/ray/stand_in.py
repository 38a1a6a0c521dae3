"""A stand-in for Ray that runs actors in threads of this process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.executors.ray.trainer_host import TrainerHost


class RayError(Exception):
    """What calls of an actor that is gone raise."""


class Reference:
    """A reference to what a method of an actor returns."""

    def __init__(self, future: concurrent.futures.Future[Any]) -> None:
        self.future = future

    def __await__(self) -> Generator[Any, None, Any]:
        # A call goes on although nobody waits for it.
        inner = asyncio.wrap_future(self.future)
        inner.add_done_callback(lambda done: done.cancelled() or done.exception())
        return asyncio.shield(inner).__await__()


class Method:
    """A method of an actor, called as Ray would call it: with copies of its arguments."""

    def __init__(self, actor: Actor, name: str, returns: int = 1) -> None:
        self._actor, self._name, self._returns = actor, name, returns

    def options(self, num_returns: int) -> Method:
        return Method(self._actor, self._name, num_returns)

    def remote(self, *arguments: Any) -> Any:
        copies = pickle.loads(pickle.dumps(arguments))
        whole: concurrent.futures.Future[Any] = self._actor.submit(self._name, copies)
        if self._returns == 1:
            return Reference(whole)
        parts: list[concurrent.futures.Future[Any]] = [
            concurrent.futures.Future() for _ in range(self._returns)
        ]

        def divide(done: concurrent.futures.Future[Any]) -> None:
            for number, part in enumerate(parts):
                error = done.exception()
                part.set_result(done.result()[number]) if error is None else part.set_exception(error)

        whole.add_done_callback(divide)
        return tuple(map(Reference, parts))


class Actor:
    """An actor in a thread with an event loop; `kill` makes it gone, and `freeze` silent."""

    def __init__(self, made: Any) -> None:
        self.made, self._waiting = made, set[concurrent.futures.Future[Any]]()
        self._gone = self._frozen = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)

    def submit(self, name: str, arguments: Sequence[Any]) -> concurrent.futures.Future[Any]:
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._waiting.add(answer)
        if self._gone:
            answer.set_exception(RayError("the actor is dead"))
        elif not self._frozen:
            work = asyncio.run_coroutine_threadsafe(getattr(self.made, name)(*arguments), self._loop)
            work.add_done_callback(lambda done: self._answer(answer, done))
        return answer

    def _answer(self, answer: concurrent.futures.Future[Any], done: concurrent.futures.Future[Any]) -> None:
        if self._frozen or answer.done() or done.cancelled():
            return
        error = done.exception()
        answer.set_result(pickle.loads(pickle.dumps(done.result()))) if error is None else (
            answer.set_exception(error)
        )

    def kill(self) -> None:
        self._gone = True
        for answer in [*self._waiting]:
            if not answer.done():
                answer.set_exception(RayError("the actor is dead"))

    def freeze(self) -> None:
        self._frozen = True


def _wait(
    references: Sequence[Reference], num_returns: int = 1, timeout: float | None = None
) -> tuple[list[Reference], list[Reference]]:
    when = concurrent.futures.ALL_COMPLETED
    concurrent.futures.wait([reference.future for reference in references], timeout, when)
    ready = [reference for reference in references if reference.future.done()]
    return ready, [reference for reference in references if not reference.future.done()]


class Hosted(TrainerHost):
    """A trainer host whose log and garbage are those of the test's process."""

    async def begin(self, process: str) -> tuple[bool, int]:  # type: ignore[override]
        self.process = process
        return True, 4711


class StandIn:
    """As much of a connection as trainers ask for."""

    connected = True

    def __init__(self, **settings: Any) -> None:
        self.settings = ClusterConfig(**settings)
        self.actors: dict[str, Actor] = {}
        self.ray = SimpleNamespace(
            cloudpickle=pickle,
            cluster_resources=dict,
            exceptions=SimpleNamespace(RayError=RayError),
            get=lambda reference, timeout: reference.future.result(timeout),
            wait=_wait,
        )

    def rooms(self) -> Mapping[str, Any]:
        return {}

    def secrets(self, names: Any) -> dict[str, str]:
        return {}

    def actor(self, cls: Callable[[], Any], *, cpus: float, name: str) -> Actor:
        self.actors[name] = Actor(Hosted())
        return self.actors[name]

    async def placed(self, handle: Actor, name: str) -> None: ...

    def remove(self, handle: Actor) -> None:
        handle.kill()
