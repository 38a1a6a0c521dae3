"""The engine client of a rollout host: asks the engine host for tokens, without the run's process between.

What the two tell each other is picklable.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.backends.cluster.hosts import HostGone, HostHandle
from coterie.backends.cluster.wire import compact, received_error
from coterie.core.concurrency.active_rollouts import COHORT, ActiveRollouts
from coterie.core.errors import UserError
from coterie.core.protocols import Codec
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.types import Call, Request

Place = tuple[str, str, int, int]
"""(cohort, task, epoch, chain): a job."""


class Vocabularies:
    """The words of several codecs, as far as another process knows them.

    Args:
        codecs: by policy; only those count whose ids have a text where their words were seen alone, such as
            `WordCodec`, that of engine `scripted`.
    """

    def __init__(self, codecs: Mapping[str, Any]) -> None:
        self._codecs = {policy: codec for policy, codec in codecs.items() if hasattr(codec, "learn")}
        self._told = {policy: 0 for policy in self._codecs}

    def new(self) -> dict[str, list[str]]:
        """Words that the other process hasn't been told, by policy."""
        new = {policy: codec.words(self._told[policy]) for policy, codec in self._codecs.items()}
        for policy, words in new.items():
            self._told[policy] += len(words)
        return {policy: words for policy, words in new.items() if words}

    def learn(self, words: Mapping[str, list[str]]) -> None:
        """See what the other process has seen."""
        for policy, seen in words.items():
            self._codecs[policy].learn(seen)


@dataclass(frozen=True, slots=True)
class HostRequest:
    """A request of a rollout host."""

    number: int
    """Counted by the host. The answer has the same."""
    cohort: str
    request: Request

    @property
    def place(self) -> Place:
        """The job that it belongs to."""
        key = self.request.key
        return self.cohort, key.task, key.epoch, key.chain


@dataclass(frozen=True, slots=True)
class News:
    """What changed on a rollout host since its last news."""

    live: Mapping[str, int]
    """Active rollouts by cohort, all of them; a cohort without any is absent."""
    taken: Mapping[str, int]
    """Jobs by cohort that the host has begun: they are among `live`, if they did not end since."""
    asked: tuple[HostRequest, ...] = ()
    cancelled: tuple[int, ...] = ()
    """Requests whose rollouts were cancelled."""
    words: Mapping[str, list[str]] = field(default_factory=dict)
    """See `Vocabularies`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (compact((News, self.live, self.taken, self.asked, self.cancelled, self.words)),)


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """The call of a request, or the error that it raised."""

    number: int
    call: Call | None = None
    error: bytes = b""


@dataclass(frozen=True, slots=True)
class HostAnswers:
    """What a rollout host gets at once."""

    answers: list[HostAnswer]
    words: Mapping[str, list[str]]
    """See `Vocabularies`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (compact((HostAnswers, self.answers, self.words)),)


def _unpickled(data: bytes) -> Any:
    cls, *values = pickle.loads(data)
    return cls(*values)


@dataclass(slots=True)
class KnownHost:
    """What an engine host knows of a rollout host."""

    sent: dict[str, int] = field(default_factory=dict)
    """Jobs by cohort that were sent to it and that it has not begun; they count as active."""
    live: Mapping[str, int] = field(default_factory=dict)
    answers: list[HostAnswer] = field(default_factory=list)
    """Those that it has not collected."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once there is one."""
    vocabularies: Vocabularies = field(default_factory=lambda: Vocabularies({}))


T = TypeVar("T")
STALL_SECONDS = 60.0
"""Time after which requests are sent although other rollouts of the host don't wait yet."""


class HostCount(ActiveRollouts):
    """The active rollouts of a host, which say when one of them ends.

    Args:
        ended: called then, with the cohort.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        super().__init__()
        self._ended = ended

    @property
    def by_cohort(self) -> dict[str, int]:
        return dict(self._live)

    def stop(self) -> None:
        super().stop()
        if not self._live[COHORT.get()]:
            self._ended()


class HostEngineClient:
    """An `EngineClient` that tells the engine host of its rollouts' requests and of their count.

    News leave when all active rollouts of a cohort wait or have ended. With an engine that does not begin its
    batches by the count they leave at once. While the engine host is gone, requests wait: `reconnect` names
    another one, which is asked for what the first one owed.

    Args:
        engine: the engine host.
        host: this host's name there.
        batches: whether the engine begins its batches by the count of active rollouts.
        codecs: by policy.
    """

    def __init__(self, engine: HostHandle, host: str, *, batches: bool, codecs: dict[str, Codec]) -> None:
        self._engine, self._host, self._batches, self._codecs = engine, host, batches, codecs
        self._vocabularies = Vocabularies(codecs)
        self._count = HostCount(self._due)
        self._count.listen(self._due)
        self._local = LocalEngineClient(None, self._count)  # type: ignore[arg-type]
        self._asked: dict[str, list[HostRequest]] = {}
        """By cohort: requests that were not told yet."""
        self._began: Counter[str] = Counter()
        self._cancelled: list[int] = []
        self._open: dict[int, tuple[HostRequest, asyncio.Future[Call]]] = {}
        self._calls: dict[Place, list[tuple[HostRequest, Call]]] = {}
        """By job that is played: the calls that it got. Another engine host is told them."""
        self._told: dict[str, int] = {}
        """The counts that were told last."""
        self._numbers = 0
        self._wake = asyncio.Event()
        self._oldest = float("inf")
        """When the oldest request that was not told was made."""
        self._loops: list[asyncio.Task[None]] = []
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the exception of an engine host that takes nothing from this host any more."""

    def start(self) -> None:
        self._loops = [asyncio.ensure_future(self._tell()), asyncio.ensure_future(self._collect())]

    async def reconnect(self, engine: HostHandle, began: Mapping[str, int]) -> None:
        """Tell an engine host that took the place of another all that the other one knew of this host.

        Args:
            began: jobs by cohort that the new one counts as sent here, and that this host has begun.
        """
        ending = self._silence()
        # All of this before the first await: a job that begins meanwhile is counted by the new one.
        self._engine, self._told, self._began = engine, {}, Counter(began)
        self._cancelled.clear()
        self._asked = {}
        for asked, _ in self._open.values():
            self._asked.setdefault(asked.cohort, []).append(asked)
        self._vocabularies = Vocabularies(self._codecs)
        calls = [call for calls in self._calls.values() for call in calls]
        await ending
        try:
            await engine.call("restore", calls)
        except HostGone:
            return
        if self._engine is engine:  # else yet another one came meanwhile
            self._due()
            self.start()

    async def close(self) -> None:
        await self._silence()
        self.failed.cancel()

    def _silence(self) -> Awaitable[Any]:
        """Cancel the loops; the result waits for their end."""
        for loop in self._loops:
            loop.cancel()
        return asyncio.gather(*self._loops, return_exceptions=True)

    def began(self, cohort: str) -> None:
        """Note that the host has begun a job that it was sent; before its rollout counts."""
        self._began[cohort] += 1

    def ended(self, place: Place) -> None:
        """Note that a job has ended, perhaps without a rollout that counted."""
        self._calls.pop(place, None)
        self._due()

    def drawn(self, place: Place) -> int:
        """Tokens of the calls that a job which has not ended got so far."""
        return sum(len(call.token_ids) for _, call in self._calls.get(place, ()))

    # --------------------------------------------------------------------------------------- EngineClient

    def codec(self, policy: str) -> Codec:
        return self._codecs[policy]

    async def generate(self, request: Request) -> Call:
        if self.failed.done():
            await self.failed
        cohort, number = COHORT.get(), self._numbers
        self._numbers += 1
        future: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        asked = HostRequest(number, cohort, request)
        self._open[number] = asked, future
        if not self._asked:
            self._oldest = time.monotonic()
        self._asked.setdefault(cohort, []).append(asked)
        self._count.wait()
        if not self._batches:
            self._due()
        try:
            return await future
        finally:
            if self._open.pop(number, None):  # it was cancelled
                self._count.resume(1, cohort)
                self._cancelled.append(number)
                self._due()

    async def active(self, work: Awaitable[T]) -> T:
        return await self._local.active(work)

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        return await self._local.gather(work)

    # --------------------------------------------------------------------------------------------- messages

    def _due(self) -> None:
        self._wake.set()

    async def _tell(self) -> None:
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(STALL_SECONDS):
                        await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(0)  # what began in the same turn of the loop may still ask
                if (news := self._news()) is not None:
                    await self._engine.call("tell", self._host, news)
        except HostGone:  # another one comes, or the run ends
            return
        except Exception as error:
            self._fail(error)

    def _news(self) -> News | None:
        """What may be told now; None: nothing."""
        live = self._count.by_cohort
        stalled = time.monotonic() - self._oldest >= STALL_SECONDS
        settled = {
            cohort
            for cohort in {*self._asked, *self._began, *self._told, *live}
            if stalled or not self._batches or not live.get(cohort) or self._count.all_wait(cohort)
        }
        asked = tuple(
            request for cohort in sorted(settled & self._asked.keys()) for request in self._asked.pop(cohort)
        )
        taken = {cohort: self._began.pop(cohort) for cohort in settled & self._began.keys()}
        # Of a cohort that is not settled nothing is told: its jobs count as they did.
        counts = {cohort: count for cohort, count in self._told.items() if cohort not in settled}
        counts |= {cohort: live[cohort] for cohort in settled if live.get(cohort)}
        cancelled, self._cancelled = tuple(self._cancelled), []
        if not self._asked:
            self._oldest = float("inf")
        if not (asked or taken or cancelled or counts != self._told):
            return None
        self._told = counts
        return News(counts, taken, asked, cancelled, self._vocabularies.new())

    async def _collect(self) -> None:
        try:
            while True:
                answers: HostAnswers = await self._engine.call("answers", self._host)
                self._vocabularies.learn(answers.words)
                for answer in answers.answers:
                    self._take(answer)
        except HostGone:
            return
        except Exception as error:
            self._fail(error)

    def _take(self, answer: HostAnswer) -> None:
        asked, future = self._open.pop(answer.number, (None, None))
        if asked is None or future is None:  # it was cancelled
            return
        self._count.resume(1, asked.cohort)
        if answer.call is not None:
            self._calls.setdefault(asked.place, []).append((asked, answer.call))
            future.set_result(answer.call)
        else:
            future.set_exception(received_error(answer.error))

    def _fail(self, cause: Exception) -> None:
        """The engine host takes nothing from this host: whoever waits for it gets to know."""
        why = f"{type(cause).__name__}: {cause}".strip().partition("\n")[0]
        fix = "`coterie run --resume RUN` goes on from the last checkpoint"
        error = UserError("the engine's process is gone", path="engine", why=why, fix=fix)
        waiting, self._open = self._open, {}
        for asked, future in waiting.values():
            self._count.resume(1, asked.cohort)
            if not future.done():
                future.set_exception(error)
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # asyncio would print one that nobody asks for
