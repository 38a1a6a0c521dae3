"""The actor that has the engine. Rollout hosts ask it for tokens, the run gives it weights.

The engine sees one count of active rollouts, over all hosts. Two rules keep it what it is in one process:

* A job counts as active from the moment it is sent to a host: no batch begins before its first request.
* A host tells its counts and requests together, when all of its active rollouts of a cohort wait.

So the requests of a batch are those that one process would have had. A job that is played again, since its
host died, gets the calls that it got before: they are kept by key until its tree is there. An engine host
that takes the place of another one gets them from the rollout hosts (`restore`).
"""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coterie.backends.cluster.hosts import HostProgram
from coterie.backends.cluster.transfer import Order, Orders, Send
from coterie.backends.cluster.wire import Code, answered, received_error, sent_error
from coterie.backends.executors.ray.host_client import (
    HostAnswer,
    HostAnswers,
    HostRequest,
    KnownHost,
    News,
    Place,
    Vocabularies,
)
from coterie.backends.executors.ray.shipping import Receiver, SentWeights
from coterie.backends.executors.ray.weight_files import OnDisk, received
from coterie.backends.models import device_memory
from coterie.core.concurrency.active_rollouts import ActiveRollouts, in_cohort
from coterie.core.errors import SystemFault
from coterie.core.plugins.origin import closed, plugin_call, plugin_open
from coterie.core.protocols import Codec, Engine, EngineContext
from coterie.core.rollout.engine_client import IdleTime, LocalEngineClient
from coterie.core.types import Call, Key, Request
from coterie.discovery.members import UsesRunFolder
from coterie.discovery.optional import EngineDefaults, with_defaults


class CountedRollouts(ActiveRollouts):
    """Active rollouts that an engine may listen to."""

    @property
    def heard(self) -> bool:
        """Whether an engine listens, and begins batches by the count."""
        return bool(self._listeners)


class EngineHost(HostProgram):
    """An engine in a process of its own. A Ray actor."""

    process = "the engine's process"

    def __init__(self) -> None:
        super().__init__()
        self.active = CountedRollouts()
        self.hosts: dict[str, KnownHost] = {}
        self._dropped: set[str] = set()
        """Hosts that counted as dead: one that was only slow tells nothing any more."""
        self.kept: dict[Place, dict[Key, tuple[Request, asyncio.Future[Call]]]] = {}
        """By job that is in play: its requests so far, with their calls."""
        self.waiting: dict[tuple[str, int], HostRequest] = {}
        """By host and number: requests that were not answered yet."""
        self._orphans: set[tuple[Place, Key]] = set()
        """Requests of hosts that are gone, without a call then. Each counts as active until its job, played
        again, asks for it: it is counted as waiting, and a batch could begin without the others."""
        self._receiver = Receiver()
        self._codecs: dict[str, Codec] = {}
        """Those that hosts have."""
        self._orders = Orders()
        self._engine: Engine
        self._client: LocalEngineClient

    @answered
    async def open(
        self,
        code: Code,
        payload: bytes,
        folder: Path | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Make and open the engine.

        Args:
            payload: the pickled function that makes it, its context, and what starts actors of its own.
            folder: the run's.
            variables: environment variables with secrets.
        """
        self._import(code, variables)
        make: Callable[[], Engine]
        ctx: EngineContext
        make, ctx, actors = pickle.loads(payload)
        self._engine = engine = make()
        with_defaults(engine, EngineDefaults).use_actors(actors)
        self._client = LocalEngineClient(self._engine, self.active, IdleTime())
        if folder is not None and isinstance(engine, UsesRunFolder):
            with plugin_call(engine, "use_run_folder"):
                engine.use_run_folder(folder)
        with plugin_open(engine):
            await engine.open(replace(ctx, active_rollouts=self.active))

    # ------------------------------------------------------------------------------------------ for the run

    @answered
    async def introduce(self, sent: SentWeights | OnDisk) -> None:
        """Take the module and the tokenizer of weights, without giving them to the engine."""
        await received(self._receiver, sent)

    @answered
    async def load_weights(self, sent: SentWeights | OnDisk) -> None:
        weights = await received(self._receiver, sent)
        if isinstance(sent, SentWeights) and sent.ways is not None:
            from coterie.backends.models.merged_weights import Distant

            policy, version = weights.policy, weights.version

            async def ask(send: Send) -> None:
                await self._orders.fulfilled(policy, version, send)

            weights = replace(weights, tensors=Distant(version, sent.ways, ask))
        with plugin_call(self._engine, "load_weights"):
            await self._engine.load_weights(weights)
        self._codecs[weights.policy] = self._client.codec(weights.policy)

    @answered
    async def orders(self, patience: float) -> tuple[list[Order], list[int]]:
        """Orders for the process that has weights, and dropped ones, as `Orders.take`."""
        return await self._orders.take(patience)

    @answered
    async def settle(self, number: int, error: bytes) -> None:
        """Take the end of an order; b"": the weights were sent."""
        self._orders.settle(number, received_error(error) if error else None)

    @answered
    async def call(self, method: str, policy: str, version: int) -> None:
        """Call `lease` or `release`."""
        engine: Any = self._engine
        with plugin_call(self._engine, method):
            await getattr(engine, method)(policy, version)

    @answered
    async def sleep(self) -> None:
        """Free the device memory that the trainer needs: whatever of the engine can sleep does."""
        await device_memory.reclaim()

    @answered
    async def codec(self, policy: str) -> Codec:
        return self._client.codec(policy)

    @answered
    async def batches(self) -> bool:
        """Whether the engine begins batches by the count of active rollouts."""
        return self.active.heard

    @answered
    async def idle_seconds(self) -> float:
        """Seconds without a request since the last call of this method."""
        return self._client.idle_time.take()

    @answered
    async def send(self, host: str, jobs: dict[str, int]) -> None:
        """Count jobs, by cohort, that are about to be sent to a host."""
        if host in self._dropped:
            return
        known = self._known(host)
        for cohort, count in jobs.items():
            known.sent[cohort] = known.sent.get(cohort, 0) + count
            with in_cohort(cohort):
                self.active.start(count)

    @answered
    async def drop(self, host: str) -> None:
        """Forget a host that is gone, with its counts and requests."""
        self._dropped.add(host)
        known = self.hosts.pop(host, KnownHost())
        for number in [number for name, number in self.waiting if name == host]:
            self._orphaned(self.waiting.pop((host, number)))
        self._count(Counter(known.sent) + Counter(known.live), Counter())

    @answered
    async def forget(self, played: list[Place]) -> None:
        """Drop the kept calls of jobs whose trees are there, or that are cancelled."""
        for place in played:
            for key, (_, task) in self.kept.pop(place, {}).items():
                self._adopted(place, key)
                task.cancel()

    async def _close(self) -> None:
        for kept in self.kept.values():
            for _, task in kept.values():
                task.cancel()
        await closed(self._engine)

    # ---------------------------------------------------------------------------------------- for the hosts

    @answered
    async def tell(self, host: str, news: News) -> None:
        """Take the news of a host. A host tells one after the other.

        Raises:
            SystemFault: the host counted as dead.
        """
        if host in self._dropped:
            raise SystemFault(f"{host} answered too late, and its jobs are played elsewhere")
        known = self._known(host)
        known.vocabularies.learn(news.words)
        before = Counter(known.sent) + Counter(known.live)
        for cohort, count in news.taken.items():
            known.sent[cohort] = max(0, known.sent.get(cohort, 0) - count)
        known.live = news.live
        for number in news.cancelled:
            self.waiting.pop((host, number), None)
        for asked in news.asked:
            self.waiting[host, asked.number] = asked
            self._generated(asked).add_done_callback(partial(self._answer, host, asked))
        self._count(before, Counter(known.sent) + Counter(known.live))

    @answered
    async def restore(self, calls: list[tuple[HostRequest, Call]]) -> None:
        """Keep the calls that the jobs of a host got from an engine host which is gone."""
        for asked, call in calls:
            known: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
            known.set_result(call)
            self.kept.setdefault(asked.place, {})[asked.request.key] = asked.request, known

    @answered
    async def answers(self, host: str) -> HostAnswers:
        """The answers for a host, once there are any."""
        known = self._known(host)
        while not known.answers:
            known.answered.clear()
            await known.answered.wait()
        answers, known.answers = known.answers, []
        return HostAnswers(answers, known.vocabularies.new())

    # ------------------------------------------------------------------------------------------------- inside

    def _known(self, host: str) -> KnownHost:
        if host not in self.hosts:
            self.hosts[host] = KnownHost(vocabularies=Vocabularies(self._codecs))
        return self.hosts[host]

    def _answer(self, host: str, asked: HostRequest, task: asyncio.Future[Call]) -> None:
        """Keep the answer of a request for its host, unless one of the two is gone."""
        waited = self.waiting.pop((host, asked.number), None)
        error = None if task.cancelled() else task.exception()
        if waited is None or task.cancelled():
            return
        if error is None:
            answer = HostAnswer(asked.number, task.result())
        else:
            answer = HostAnswer(asked.number, error=sent_error(error, f"in {self.process}"))
        known = self._known(host)
        known.answers.append(answer)
        known.answered.set()

    def _generated(self, asked: HostRequest) -> asyncio.Future[Call]:
        """The call of a request; the one that it had before, if its job is played again."""
        place, key = asked.place, asked.request.key
        kept = self.kept.setdefault(place, {})
        before = kept.get(key)
        self._adopted(place, key)
        if before is not None and before[0] == asked.request:
            return before[1]
        with in_cohort(asked.cohort):
            task = asyncio.ensure_future(self._client.generate(asked.request))
        kept[key] = asked.request, task
        return task

    def _orphaned(self, asked: HostRequest) -> None:
        place, key = asked.place, asked.request.key
        if key in self.kept.get(place, {}) and (place, key) not in self._orphans:
            self._orphans.add((place, key))
            with in_cohort(asked.cohort):
                self.active.start()

    def _adopted(self, place: Place, key: Key) -> None:
        if (place, key) in self._orphans:
            self._orphans.remove((place, key))
            with in_cohort(place[0]):
                self.active.stop()

    def _count(self, before: Counter[str], after: Counter[str]) -> None:
        """Change the engine's count; what is more first, else a batch could begin between."""
        for cohort in sorted({*before, *after}, key=lambda cohort: before[cohort] - after[cohort]):
            with in_cohort(cohort):
                if after[cohort] > before[cohort]:
                    self.active.start(after[cohort] - before[cohort])
                for _ in range(before[cohort] - after[cohort]):
                    self.active.stop()
