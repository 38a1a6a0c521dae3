"""The actor that has the trainer of one set of weights (`cluster.updates: at_once`).

The trainer lives in a thread with an event loop of its own. So the actor answers while the trainer computes,
and a process that gives no answer hangs.
"""

from __future__ import annotations

import asyncio
import pickle
import queue
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeVar

from coterie.backends.cluster.hosts import Actors, HostProgram
from coterie.backends.cluster.transfer import Order
from coterie.backends.cluster.wire import Answered, Code, answered, compact, sent_error
from coterie.backends.executors.ray import direct_weights
from coterie.backends.executors.ray.direct_weights import Holder
from coterie.backends.executors.ray.shipping import Sender, SentWeights
from coterie.backends.executors.ray.trainer_files import HostFiles, Listed, Stated
from coterie.core.errors import SystemFault
from coterie.core.plugins.origin import closed, plugin_call, plugin_open
from coterie.core.protocols import Demonstration, TrainerContext
from coterie.core.types import Metrics
from coterie.discovery.optional import TrainerDefaults, with_defaults

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opening:
    """What a trainer host makes its trainer of. Picklable."""

    name: str
    """Of the set of weights."""
    make: Callable[[], Any]
    """Makes the trainer, its loss and its chat format."""
    ctx: TrainerContext
    """With the policies of the set alone; without loss and chat format."""
    actors: Actors
    """Starts the other ranks."""
    sources: Sequence[bytes]
    """The weights of a `from`, as `sent_sources` gives them; others may be among them."""


class WantedDemonstrations:
    """The demonstrations of a warm start, those of one step at a time.

    They are made in the run's process, which has the environment, while the trainer waits for them in its
    thread. Made in the thread of the event loop that answers.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps: asyncio.Queue[int | None] = asyncio.Queue()
        self._given: queue.SimpleQueue[Sequence[Demonstration] | BaseException] = queue.SimpleQueue()

    def demonstrations(self, step: int) -> Sequence[Demonstration]:
        """Those of a step, in the trainer's thread, which waits for them."""
        self._loop.call_soon_threadsafe(self._steps.put_nowait, step)
        given = self._given.get()
        if isinstance(given, BaseException):
            raise given
        return given

    async def next(self) -> int | None:
        """The next step whose demonstrations are wanted; None: no other one will be."""
        return await self._steps.get()

    def give(self, demonstrations: Sequence[Demonstration]) -> None:
        """The demonstrations of the last step."""
        self._given.put(demonstrations)

    def end(self) -> None:
        """Want nothing any more; whoever waits for demonstrations gets an error."""
        self._steps.put_nowait(None)
        self._given.put(SystemFault("the warm start has ended"))


class TrainerHost(HostProgram):
    """A trainer in a process of its own. A Ray actor."""

    process = "a trainer's process"

    def __init__(self) -> None:
        super().__init__()
        self._files = HostFiles()
        self._wanted: WantedDemonstrations | None = None
        self._trainer: Any = None
        self._policies: tuple[str, ...] = ()
        self._sender: Sender
        self._holder = Holder()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="trainer", daemon=True).start()

    async def _inside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the trainer's thread; several run in the order in which they came."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _called(self, method: str, *arguments: Any) -> Any:
        """Call a method of the trainer, in its thread."""
        with plugin_call(self._trainer, method):
            result = getattr(self._trainer, method)(*arguments)
            return await result if isawaitable(result) else result

    # -------------------------------------------------------------------------------------------- the trainer

    @answered
    async def open(self, code: Code, opening: bytes, variables: Mapping[str, str]) -> dict[str, int]:
        """Make and open the trainer; returns the versions of its policies.

        Args:
            opening: the pickled `Opening`.
            variables: environment variables with secrets.
        """
        return await self._inside(self._open(code, opening, variables))

    async def _open(self, code: Code, data: bytes, variables: Mapping[str, str]) -> dict[str, int]:
        self._import(code, variables)
        opening: Opening = pickle.loads(data)
        self._trainer, loss, chat = opening.make()
        self._policies, self._sender = tuple(opening.ctx.policies), Sender(opening.name)
        with_defaults(self._trainer, TrainerDefaults).use_cluster(opening.actors)
        sources = {name: source for data in opening.sources for name, source in pickle.loads(data).items()}
        if sources:
            sources = {name: source for name, source in sources.items() if name in self._policies}
            await self._called("begin_with", sources)
        with plugin_open(self._trainer):
            await self._trainer.open(replace(opening.ctx, loss=loss, chat=chat))
        return self._versions()

    def _versions(self) -> dict[str, int]:
        with plugin_call(self._trainer, "weights"):
            return {policy: self._trainer.weights(policy).version for policy in self._policies}

    @answered
    async def call(self, method: str, arguments: bytes) -> tuple[bytes, dict[str, int]]:
        """Call a method of the trainer.

        Args:
            arguments: pickled.

        Returns:
            what it returned, pickled, and the versions of the policies.
        """

        async def work() -> tuple[bytes, dict[str, int]]:
            result = await self._called(method, *pickle.loads(arguments))
            return compact(result), self._versions()

        return await self._inside(work())

    async def send(
        self, policy: str, version: int | None, ways: Mapping[str, str] | None = None
    ) -> tuple[Answered, SentWeights | None]:
        """Weights for the engine: whether they introduce something, as `wire.answered` says; and the weights.

        Args:
            version: a kept one; None: the present one.
            ways: this process sends their tensors itself (`fulfil`).
        """
        try:
            sent = await self._inside(self._send(policy, version, ways))
        except Exception as error:
            return (False, sent_error(error, f"in {self.process}")), None
        return (True, sent.introduces), sent

    async def _send(self, policy: str, version: int | None, ways: Mapping[str, str] | None) -> SentWeights:
        with ExitStack() as held:
            if version is None:
                weights = await self._called("weights", policy)
            else:
                weights = held.enter_context(await self._called("weights_at", policy, version))
            if ways is None:
                return self._sender.send(weights)
            self._holder.keep(weights)
            return self._sender.outline(weights, ways)

    @answered
    async def can_send(self) -> bool:
        """Whether this process can send weights from a GPU."""
        return await asyncio.to_thread(direct_weights.has_gpu)

    @answered
    async def fulfil(self, order: Order) -> None:
        """Send weights to a replica, as `Holder.fulfil`."""
        await self._inside(self._holder.fulfil(order))

    @answered
    async def drop(self, number: int) -> None:
        """End the sending of an order."""

        async def dropped() -> None:
            self._holder.drop(number)

        await self._inside(dropped())

    async def _close(self) -> None:
        await self._inside(self._holder.close())
        if self._wanted is not None:
            self._wanted.end()
        if self._trainer is not None:
            await self._inside(closed(self._trainer))
        self._files.clear()

    # ----------------------------------------------------------------------------------------- the warm start

    @answered
    async def warm_start(self, policy: str, config: Any) -> Metrics:
        """`warm_start` of the trainer, whose demonstrations `wanted` asks for."""
        self._wanted = wanted = WantedDemonstrations()
        try:
            warmed: Metrics = await self._inside(
                self._called("warm_start", policy, wanted.demonstrations, config)
            )
            return warmed
        finally:
            wanted.end()

    @answered
    async def wanted(self) -> int | None:
        """The next step whose demonstrations the trainer asks for; None: the warm start is over."""
        while self._wanted is None:  # `warm_start` comes first, and both are on their way
            await asyncio.sleep(0.01)
        return await self._wanted.next()

    @answered
    async def give(self, demonstrations: bytes) -> None:
        """The demonstrations of the step that `wanted` gave, pickled."""
        assert self._wanted is not None, "`wanted` comes first"
        self._wanted.give(pickle.loads(demonstrations))

    @answered
    async def give_up(self) -> None:
        """There are no demonstrations for the step that `wanted` gave: the trainer raises an error."""
        if self._wanted is not None:
            self._wanted.end()

    # -------------------------------------------------------------------------------------------------- files

    @answered
    async def write(self, method: str, arguments: bytes, folder: Path, mark: Stated) -> Listed | None:
        """Let a method of the trainer write files; see `HostFiles.target`.

        Args:
            method: `save` or `export`.
            arguments: pickled: those before the folder, and those by keyword.

        Returns:
            the sizes of the files, by name; None: they are in `folder`.
        """

        async def work() -> Listed | None:
            target = self._files.target(folder, mark)
            before, named = pickle.loads(arguments)
            with plugin_call(self._trainer, method):
                getattr(self._trainer, method)(*before, target, **named)
            return self._files.listed(target) if target != folder else None

        return await self._inside(work())

    @answered
    async def files(self, method: str, *arguments: Any) -> Any:
        """Call a method of the files that `write` has listed, or that `load` reads."""
        return await asyncio.to_thread(getattr(self._files, method), *arguments)

    @answered
    async def load(self) -> dict[str, int]:
        """Load the state whose files were taken; returns the versions."""

        async def work() -> dict[str, int]:
            await self._called("load", self._files.folder)
            return self._versions()

        try:
            return await self._inside(work())
        finally:
            self._files.clear()
