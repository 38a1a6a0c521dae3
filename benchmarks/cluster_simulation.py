"""A training run as queues: processes that work off what they are given, and engines that draw in batches.

Time is simulated, event by event. What something costs is an input (`Case`); what it waits for is the result.
`cluster_model.py` has the cases.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

Then = Callable[[], None]


class Costs(NamedTuple):
    """Seconds of a process by what it handles."""

    tree: float = 0.0
    action: float = 0.0
    prompt_token: float = 0.0
    answer_token: float = 0.0

    def of(self, trees: float = 0, actions: float = 0, prompts: float = 0, answers: float = 0) -> float:
        """Seconds for so many trees, actions, tokens of prompts and tokens of answers."""
        counts = (trees, actions, prompts, answers)
        return sum(cost * count for cost, count in zip(self, counts, strict=True))

    def times(self, factor: float) -> Costs:
        return Costs(*(cost * factor for cost in self))


FREE = Costs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run on some processes. All trees are alike, but for the lengths of their answers."""

    trees: int
    stages: int
    """Decisions of a tree, one after the other."""
    branches: int
    """Requests of a decision, all at once."""
    prompt: int = 0
    answer: int = 0
    """Mean tokens."""
    spread: float = 0.0
    """Deviation of the logarithm of an answer's length."""
    longest: int = 10**9
    wait: float = 0.0
    """Seconds after each decision in which nothing computes: sandboxes, judges."""
    costs: Mapping[str, Costs] = field(default_factory=dict)
    """By process: `driver` takes trees, `host` plays, `engine` passes requests on; `credit` and `record` are
    what the driver does when a step's trees are there, before and after its update."""
    hosts: int = 0
    """Rollout hosts; 0: the driver plays."""
    cores: int | None = None
    """For all processes together; None: each has its own."""
    replicas: int = 1
    rows: int = 10**9
    """Most rows that a replica draws at a time."""
    decoding: tuple[float, float] = (0.0, 0.0)
    """Seconds of a decoding step: at least, and for each row."""
    update: float = 0.0
    sync: float = 0.0
    ahead: int = 0
    bundle: int = 1
    """Trees that one simulated tree stands for."""


class Clock:
    """The time, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, then: Then) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), then))

    def run(self, ended: Callable[[], bool]) -> None:
        while self._events and not ended():
            self.now, _, then = heapq.heappop(self._events)
            then()


class Cores:
    """Cores that processes share; who waits gets one in turn."""

    def __init__(self, count: int) -> None:
        self.free = count
        self.line: deque[Process] = deque()


class Process:
    """One thread that works off its queue in order, on a core of its own or a shared one."""

    def __init__(self, clock: Clock, cores: Cores | None = None) -> None:
        self._clock, self._cores = clock, cores
        self._queue: deque[tuple[float, Then]] = deque()
        self._works = self._waits = False
        self.busy = 0.0

    def do(self, seconds: float, then: Then) -> None:
        self._queue.append((seconds, then))
        self._begin()

    def _begin(self) -> None:
        if self._works or self._waits or not self._queue:
            return
        if self._cores is not None:
            if not self._cores.free:
                self._waits = True
                self._cores.line.append(self)
                return
            self._cores.free -= 1
        self._works = True
        seconds, then = self._queue.popleft()
        self.busy += seconds
        self._clock.after(seconds, partial(self._end, then))

    def _end(self, then: Then) -> None:
        self._works = False
        if self._cores is not None:
            self._cores.free += 1
        then()
        if self._cores is not None and self._cores.line:
            other = self._cores.line.popleft()
            other._waits = False
            other._begin()
        self._begin()


class Replica:
    """An engine that draws a token for each of its rows at a time.

    All rows advance equally, so the tokens that each has drawn since the beginning are one number.
    """

    def __init__(self, clock: Clock, case: Case) -> None:
        self._clock, self._case = clock, case
        self._rows: list[tuple[float, int, int, Then]] = []
        self._line: deque[tuple[float, int, Then]] = deque()
        self._numbers = itertools.count()
        self._plan = self.count = 0
        self._drawn = self._since = self.busy = 0.0

    def draw(self, tokens: float, count: int, then: Then) -> None:
        """Draw so many tokens for each of `count` rows."""
        self._advance()
        self._line.append((tokens, count, then))
        self._fill()

    def _seconds(self) -> float:
        least, row = self._case.decoding
        return least + row * self.count

    def _advance(self) -> None:
        passed, self._since = self._clock.now - self._since, self._clock.now
        if self._rows and passed:
            self.busy += passed
            self._drawn += passed / self._seconds()  # who draws in no time has no time that passes

    def _fill(self) -> None:
        while self._line and (not self._rows or self.count + self._line[0][1] <= self._case.rows):
            tokens, count, then = self._line.popleft()
            heapq.heappush(self._rows, (self._drawn + tokens, next(self._numbers), count, then))
            self.count += count
        self._plan += 1
        if self._rows:
            seconds = max(self._rows[0][0] - self._drawn, 0.0) * self._seconds()
            self._clock.after(seconds, partial(self._due, self._plan))

    def _due(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        self._drawn = max(self._drawn, self._rows[0][0])  # exactly: it is due now
        ended = list[Then]()
        while self._rows and self._rows[0][0] <= self._drawn + 1e-9:
            _, _, count, then = heapq.heappop(self._rows)
            self.count -= count
            ended.append(then)
        self._fill()
        for then in ended:
            then()


class Result(NamedTuple):
    """What a step takes."""

    seconds: float
    busy: dict[str, float]
    """Seconds a step that each kind of process works; of several processes the mean."""


class Run:
    """A run of a case."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case, self.clock = case, Clock()
        cores = Cores(case.cores) if case.cores else None
        self.driver, self.engine, self.trainer = (
            Process(self.clock, cores),
            Process(self.clock, cores),
            Process(self.clock),
        )
        self.hosts = [Process(self.clock, cores) for _ in range(case.hosts)] or [self.driver]
        self.replicas = [Replica(self.clock, case) for _ in range(case.replicas)]
        self._lengths = random.Random(seed)
        self._left: dict[int, int] = {}
        self._handed = self._turn = 0
        self.ends: list[float] = []
        self._next = 0
        """The step that trains next."""
        self._trains = False

    def begin(self) -> None:
        for _ in range(self.case.ahead + 1):
            self._hand_out()

    def _hand_out(self) -> None:
        step, self._handed = self._handed, self._handed + 1
        trees = self._left[step] = -(-self.case.trees // self.case.bundle)
        for number in range(trees):
            self._decide(step, self.hosts[number % len(self.hosts)], self.case.stages)

    def _costs(self, process: str) -> Costs:
        return self.case.costs.get(process, FREE)

    def _decide(self, step: int, host: Process, stages: int) -> None:
        """Play the decisions of a tree that are left."""
        case = self.case
        if not stages:
            host.do(self._costs("host").of(trees=case.bundle), partial(self._take, step))
            return
        requests = case.branches * case.bundle
        halves = (requests / 2, requests * case.prompt / 2, requests * case.answer / 2)
        of_host, of_engine = (self._costs(name).of(0, *halves) for name in ("host", "engine"))
        left = [case.branches]

        def answered() -> None:
            left[0] -= 1
            if not left[0]:
                self.engine.do(of_engine, lambda: host.do(of_host, waiting))

        def waiting() -> None:
            self.clock.after(case.wait, partial(self._decide, step, host, stages - 1))

        def draw() -> None:
            for _ in range(case.branches):
                self._turn += 1
                self.replicas[self._turn % case.replicas].draw(self._length(), case.bundle, answered)

        host.do(
            of_host,
            lambda: self.engine.do(of_engine + self._costs("engine").tree * case.bundle / case.stages, draw),
        )

    def _length(self) -> float:
        case = self.case
        if not case.spread:
            return case.answer
        drawn = case.answer * self._lengths.lognormvariate(-(case.spread**2) / 2, case.spread)
        return min(drawn, case.longest)

    def _take(self, step: int) -> None:
        case = self.case
        actions = case.bundle * case.stages * case.branches
        seconds = self._costs("driver").of(case.bundle, actions, actions * case.prompt, actions * case.answer)

        def taken() -> None:
            self._left[step] -= 1
            self._train()

        self.driver.do(seconds, taken)

    def _train(self) -> None:
        """Train the step that is due, if all of its trees are there and no other trains."""
        if self._trains or self._left.get(self._next) != 0:
            return
        self._trains, case = True, self.case
        actions = case.trees * case.stages * case.branches
        counts = (case.trees, actions, actions * case.prompt, actions * case.answer)
        credit, record = (self._costs(name).of(*counts) for name in ("credit", "record"))

        def ended() -> None:
            self.ends.append(self.clock.now)
            self._next, self._trains = self._next + 1, False
            self._hand_out()
            self._train()

        def synced() -> None:
            self.clock.after(case.sync, lambda: self.driver.do(record, ended))

        self.driver.do(credit, lambda: self.trainer.do(case.update, synced))

    def busy(self) -> dict[str, float]:
        """Seconds that each kind of process has worked."""
        kinds = {
            "driver": [self.driver],
            "engine host": [self.engine],
            "rollout hosts": self.hosts,
            "replicas": self.replicas,
            "trainer": [self.trainer],
        }
        return {name: sum(each.busy for each in kind) / len(kind) for name, kind in kinds.items()}


def simulate(case: Case, steps: int = 6) -> Result:
    """The mean step of so many, after the first ones, which were handed out at once."""
    run, warm = Run(case), 1 + case.ahead
    run.begin()
    run.clock.run(lambda: len(run.ends) >= warm)
    began, before = run.ends[-1] if run.ends else 0.0, run.busy()
    run.clock.run(lambda: len(run.ends) >= warm + steps)
    busy = {name: (seconds - before[name]) / steps for name, seconds in run.busy().items()}
    return Result((run.ends[-1] - began) / steps, busy)
