"""Rollout hosts and an engine host, all in one event loop: the engine's batches are those of one process."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from coterie.backends.cluster.hosts import HostGone
from coterie.backends.cluster.wire import own_code, unwrapped
from coterie.backends.engines.request_batching import RequestBatcher
from coterie.backends.executors.ray.engine_host import EngineHost
from coterie.backends.executors.ray.host_client import HostEngineClient, Vocabularies
from coterie.backends.models.wordcodec import WordCodec
from coterie.core.concurrency.active_rollouts import ActiveRollouts, in_cohort, together
from coterie.core.errors import SystemFault, UserError
from coterie.core.protocols import EngineClient
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.types import Call, Key, Request, Sampling

BATCHES: list[list[tuple[str, ...]]] = []
"""What the engine of the present test has computed, as keys."""
FAIL: set[Key] = set()


class Recording:
    """An engine that begins a batch when all active rollouts wait, and writes its keys down."""

    async def open(self, ctx: Any) -> None:
        self.batcher = RequestBatcher(self._batch, ctx.active_rollouts, deterministic=True, threaded=False)

    def _batch(self, name: str, requests: list[Request]) -> list[Call]:
        BATCHES.append([request.key for request in requests])
        if failing := [request.key for request in requests if request.key in FAIL]:
            raise SystemFault(f"no token for {failing[0]}")
        return [
            Call(
                prompt_ids=r.prompt_ids, token_ids=(r.seed % 97,), logprobs=(-1.0,), version=0, finish="stop"
            )
            for r in requests
        ]

    async def generate(self, request: Request) -> Call:
        return await self.batcher.submit(request)

    async def load_weights(self, weights: Any) -> None: ...

    def codec(self, policy: str) -> Any:
        return policy

    async def close(self) -> None:
        self.batcher.close()


@dataclass(frozen=True)
class Context:
    """As much of an `EngineContext` as the engine reads."""

    active_rollouts: ActiveRollouts = field(default_factory=ActiveRollouts)
    policies: tuple[str, ...] = ("p",)


@dataclass(frozen=True)
class Job:
    """Turns of an episode: how many branches each samples at the same time, and how many calls one makes."""

    name: str
    turns: tuple[tuple[int, int], ...]
    cohort: str = ""


async def episode(job: Job, client: EngineClient, rng: random.Random) -> dict[Key, int]:
    """Play a job; the environment takes a random time."""
    tokens: dict[Key, int] = {}

    async def branch(turn: int, number: int, calls: int) -> None:
        for call in range(calls):
            key = Key(job.name, path=(turn,), role="r", branch=number, call=call)
            seed = random.Random(str(key)).getrandbits(32)
            sampling = Sampling(max_new_tokens=1)
            request = Request(key=key, policy="p", prompt_ids=(1,), sampling=sampling, seed=seed)
            tokens[key] = (await client.generate(request)).token_ids[0]
            await slowly(rng)

    async def play() -> dict[Key, int]:
        for turn, (branches, calls) in enumerate(job.turns):
            await client.gather([branch(turn, number, calls) for number in range(branches)])
            await slowly(rng)
        return tokens

    with in_cohort(job.cohort):
        return await client.active(play())


async def slowly(rng: random.Random) -> None:
    for _ in range(rng.randrange(4)):
        await asyncio.sleep(0)
    if rng.random() < 0.1:
        await asyncio.sleep(0.001)


async def local(jobs: list[Job]) -> list[dict[Key, int]]:
    engine, active = Recording(), ActiveRollouts()
    await engine.open(Context(active))
    client = LocalEngineClient(engine, active)  # type: ignore[arg-type]
    return await together(episode(job, client, random.Random(0)) for job in jobs)


class Hosts:
    """An engine host, and rollout hosts whose messages take a random time."""

    def __init__(self, count: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.engine = EngineHost()
        self.count, self.clients = count, list[HostEngineClient]()
        self.sent: defaultdict[int, list[Job]] = defaultdict(list)
        self.begun: defaultdict[int, list[Job]] = defaultdict(list)
        self.travelling = 0
        """Messages with answers that are on their way."""

    async def open(self) -> None:
        payload = pickle.dumps((Recording, Context(), None))
        unwrapped(await self.engine.open(own_code(), payload, None, {}))
        for number in range(self.count):
            self.clients.append(await self.new(f"host {number}"))

    async def new(self, name: str) -> HostEngineClient:
        batches = unwrapped(await self.engine.batches())
        client = HostEngineClient(self.handle(self.engine), name, batches=batches, codecs={})
        client.start()
        return client

    def handle(self, engine: EngineHost) -> Any:
        """The handle of an engine host, as long as it is the present one."""

        async def call(name: str, *arguments: Any) -> Any:
            await slowly(self.rng)
            sent = pickle.loads(pickle.dumps(arguments))
            if engine is not self.engine:
                raise HostGone
            answer = await getattr(engine, name)(*sent)
            self.travelling += name == "answers"
            try:
                await slowly(self.rng)
            finally:
                self.travelling -= name == "answers"
            if engine is not self.engine:
                raise HostGone
            return unwrapped(pickle.loads(pickle.dumps(answer)))

        return SimpleNamespace(call=call)

    @property
    def quiet(self) -> bool:
        """Whether no answer is on its way to a host."""
        waiting = any(host.answers for host in self.engine.hosts.values())
        done = any(task.done() for kept in self.engine.kept.values() for _, task in kept.values())
        return not (self.travelling or waiting or (done and self.engine.waiting and self._part()))

    def _part(self) -> bool:
        """Whether a call is there that its host doesn't have yet."""
        return any(
            self.engine.kept[asked.place][asked.request.key][1].done()
            for asked in self.engine.waiting.values()
        )

    async def send(self, job: Job, number: int) -> None:
        self.sent[number].append(job)
        await self.handle(self.engine).call("send", f"host {number}", {job.cohort: 1})

    async def replace_engine(self) -> None:
        """Start another engine host in place of the present one, which dies now."""
        self.engine = EngineHost()
        counted = {number: [*jobs] for number, jobs in self.sent.items()}
        unwrapped(await self.engine.open(own_code(), pickle.dumps((Recording, Context(), None)), None, {}))
        for number, jobs in counted.items():
            unwrapped(await self.engine.send(f"host {number}", Counter(job.cohort for job in jobs)))
        for number, client in enumerate(self.clients):
            await slowly(self.rng)
            here = [job for job in counted.get(number, ()) if job in self.begun[number]]
            await client.reconnect(self.handle(self.engine), Counter(job.cohort for job in here))

    async def play(self, job: Job, number: int) -> dict[Key, int]:
        client = self.clients[number]
        await slowly(self.rng)
        self.begun[number].append(job)
        client.began(job.cohort)
        try:
            return await episode(job, client, self.rng)
        finally:
            client.ended((job.cohort, job.name, 0, 0))

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        unwrapped(await self.engine.close())


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    BATCHES.clear()
    FAIL.clear()
    yield


def batches(play: Callable[[], Awaitable[Any]]) -> tuple[Any, list[list[Any]]]:
    """What a function returns, and the batches that it caused."""
    BATCHES.clear()
    result = asyncio.run(asyncio.wait_for(play(), 20))  # type: ignore[arg-type]
    return result, [*BATCHES]


TURNS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=0, max_size=3)
JOBS = st.lists(TURNS, min_size=1, max_size=7)


def numbered(turns: list[list[tuple[int, int]]], cohort: str = "") -> list[Job]:
    return [Job(f"task-{number}", tuple(each), cohort) for number, each in enumerate(turns)]


@given(turns=JOBS, hosts=st.integers(1, 4), seed=st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_batches_are_those_of_one_process(turns: Any, hosts: int, seed: int) -> None:
    jobs = numbered(turns)

    async def remote() -> list[dict[Key, int]]:
        several = Hosts(hosts, seed)
        await several.open()
        await asyncio.gather(*(several.send(job, n % hosts) for n, job in enumerate(jobs)))
        result = await together(several.play(job, n % hosts) for n, job in enumerate(jobs))
        await settle(several)
        await several.close()
        return result

    expected, of_one = batches(partial(local, jobs))
    got, of_several = batches(remote)
    assert got == expected
    assert of_several == of_one


async def settle(hosts: Hosts) -> None:
    """Wait until the engine's process knows that nothing is active."""
    for _ in range(2000):
        if hosts.engine.active.live == 0 == hosts.engine.active.waiting:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{hosts.engine.active.live} rollouts are still counted")


@given(turns=JOBS, hosts=st.integers(2, 3), seed=st.integers(0, 2**32), at=st.integers(0, 60))
@settings(max_examples=12, deadline=None)
def test_the_jobs_of_a_lost_host_are_played_again_in_the_same_batches(
    turns: Any, hosts: int, seed: int, at: int
) -> None:
    jobs = numbered(turns)

    async def remote() -> list[dict[Key, int]]:
        several = Hosts(hosts, seed)
        await several.open()
        await asyncio.gather(*(several.send(job, n % hosts) for n, job in enumerate(jobs)))
        playing = [asyncio.ensure_future(several.play(job, n % hosts)) for n, job in enumerate(jobs)]
        for _ in range(at):
            await asyncio.sleep(0)
        # Host 0 is killed: what it had to say is lost, and the run plays its jobs on a new host.
        lost = [n for n in range(0, len(jobs), hosts) if not playing[n].done()]
        await several.clients[0].close()
        for n in lost:
            playing[n].cancel()
        several.clients.append(await several.new(f"host {hosts}"))
        for n in lost:
            await several.send(jobs[n], hosts)
        await several.handle(several.engine).call("drop", "host 0")
        for n in lost:
            playing[n] = asyncio.ensure_future(several.play(jobs[n], hosts))
        result = list(await asyncio.gather(*playing))
        await settle(several)
        await several.close()
        return result

    expected, of_one = batches(partial(local, jobs))
    got, of_several = batches(remote)
    assert got == expected
    assert of_several == of_one


@given(
    turns=JOBS,
    hosts=st.integers(1, 3),
    seed=st.integers(0, 2**32),
    at=st.integers(0, 80),
    times=st.integers(1, 3),
)
@settings(max_examples=12, deadline=None)
def test_another_engine_host_computes_what_the_first_one_owed(
    turns: Any, hosts: int, seed: int, at: int, times: int
) -> None:
    """Each batch is one of one process, and none is missing; the engine host dies while no answer travels."""
    jobs = numbered(turns)

    async def remote() -> list[dict[Key, int]]:
        several = Hosts(hosts, seed)
        await several.open()
        playing = await begun(several, jobs)
        for _ in range(times):
            for _ in range(at):
                await asyncio.sleep(0)
            while not several.quiet:
                await asyncio.sleep(0)
            await several.replace_engine()
        result = list(await asyncio.gather(*playing))
        await settle(several)
        await several.close()
        return result

    expected, of_one = batches(partial(local, jobs))
    got, of_several = batches(remote)
    assert got == expected
    assert [batch for n, batch in enumerate(of_several) if batch not in of_several[:n]] == of_one


async def begun(hosts: Hosts, jobs: list[Job]) -> list[asyncio.Task[dict[Key, int]]]:
    """Tasks that play jobs, which are counted."""
    await asyncio.gather(*(hosts.send(job, n % hosts.count) for n, job in enumerate(jobs)))
    return [asyncio.ensure_future(hosts.play(job, n % hosts.count)) for n, job in enumerate(jobs)]


@given(turns=JOBS, hosts=st.integers(1, 3), seed=st.integers(0, 2**32), at=st.integers(0, 200))
@settings(max_examples=12, deadline=None)
def test_an_engine_host_that_dies_at_any_moment_changes_no_token(
    turns: Any, hosts: int, seed: int, at: int
) -> None:
    jobs = numbered(turns)

    async def remote() -> list[dict[Key, int]]:
        several = Hosts(hosts, seed)
        await several.open()
        playing = await begun(several, jobs)
        for _ in range(at):
            await asyncio.sleep(0)
        await several.replace_engine()
        result = list(await asyncio.gather(*playing))
        await settle(several)
        await several.close()
        return result

    assert batches(remote)[0] == batches(partial(local, jobs))[0]


@given(turns=JOBS, ahead=JOBS, hosts=st.integers(1, 3), seed=st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_cohorts_never_share_a_batch(turns: Any, ahead: Any, hosts: int, seed: int) -> None:
    jobs = [*numbered(turns, "1"), *(Job(f"next-{job.name}", job.turns, "2") for job in numbered(ahead))]

    async def remote() -> list[dict[Key, int]]:
        several = Hosts(hosts, seed)
        await several.open()
        await asyncio.gather(*(several.send(job, n % hosts) for n, job in enumerate(jobs)))
        result = await together(several.play(job, n % hosts) for n, job in enumerate(jobs))
        await several.close()
        return result

    expected, of_one = batches(partial(local, jobs))
    got, of_several = batches(remote)
    assert got == expected
    for cohort in ("task", "next"):
        mine = [[b for b in batch if b.task.startswith(cohort)] for batch in of_several]
        theirs = [[b for b in batch if b.task.startswith(cohort)] for batch in of_one]
        assert [batch for batch in mine if batch] == [batch for batch in theirs if batch]
    assert all(len({key.task.startswith("next") for key in batch}) == 1 for batch in of_several)


def test_an_error_of_the_engine_reaches_the_rollout_that_asked() -> None:
    async def remote() -> list[Any]:
        several = Hosts(2, 1)
        await several.open()
        jobs = numbered([[(1, 1)], [(1, 2)]])
        FAIL.add(Key("task-1", path=(0,), role="r", branch=0, call=1))
        await asyncio.gather(*(several.send(job, n) for n, job in enumerate(jobs)))
        playing = [asyncio.ensure_future(several.play(job, n)) for n, job in enumerate(jobs)]
        results = await asyncio.gather(*playing, return_exceptions=True)
        await several.close()
        return results

    (first, second), _ = batches(remote)
    assert len(first) == 1
    assert isinstance(second, SystemFault) and "no token for" in str(second)


def test_a_host_that_counted_as_dead_says_nothing_any_more() -> None:
    async def remote() -> Any:
        several = Hosts(2, 1)
        await several.open()
        await several.handle(several.engine).call("drop", "host 0")
        await several.send(Job("late", ((1, 1),)), 0)
        try:
            await several.play(Job("late", ((1, 1),)), 0)
        except UserError as error:
            return error, several.engine.active.live

    (error, live), _ = batches(remote)
    assert "answered too late" in error.why and live == 0


def test_calls_are_kept_no_longer_than_their_jobs() -> None:
    async def remote() -> tuple[int, int]:
        several = Hosts(1, 1)
        await several.open()
        job = Job("task", ((2, 2),))
        await several.send(job, 0)
        await several.play(job, 0)
        kept = sum(map(len, several.engine.kept.values()))
        await several.handle(several.engine).call("forget", [("", "task", 0, 0)])
        await several.close()
        return kept, len(several.engine.kept)

    kept, _ = batches(remote)
    assert kept == (4, 0)


def test_words_that_one_process_has_seen_have_a_text_in_the_other():
    """The codec of engine `scripted` numbers words by their hash, and knows the texts of those it saw."""
    mine, theirs = {"p": WordCodec()}, {"p": WordCodec(), "q": object()}
    here, there = Vocabularies(mine), Vocabularies(theirs)
    ids = mine["p"].ids("go north")
    there.learn(pickle.loads(pickle.dumps(here.new())))
    assert theirs["p"].text(ids) == "go north" and here.new() == {}
    theirs["p"].ids("go south")
    told = there.new()
    assert " south" in told["p"]
    here.learn(told)
    assert mine["p"].text(theirs["p"].ids(" south")) == " south"
