"""Steps ahead, in flight: keys and ages of tokens are as counted here, apart from the framework."""

from __future__ import annotations

import asyncio
import functools
import random
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from coterie.api.open_run import open_run
from coterie.backends.engines.scripted import ScriptedEngine
from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.errors import SystemFault
from coterie.core.loop import train
from coterie.core.plugins import Plugin
from coterie.core.types import TEAM, Step, Task
from coterie.testing.support.toys import ROLE, NumberTasks
from tests.core.training.steps_ahead import Record, delayed, made

HERE = "tests.core.training.test_in_flight"
STEPS = 9
EVALUATE = 2
SECONDS = 60.0
"""Far more than a run takes: a run that takes longer hangs."""
POLICIES = {"ann": "often", "bob": "seldom", "cat": "frozen", "dan": "often"}


class Rounds(Plugin):
    """Who acts when depends on the task alone. Bob acts in tasks 0 and 3, so that some steps lack him."""

    roles = ("ann", "bob", "cat", "dan")
    components = {"pay": "increment"}
    weights = {}

    def tasks(self, split: str, seed: int) -> NumberTasks:
        return NumberTasks(split, 5)

    def reset(self, task: Task, seed: int) -> Any:
        return task.payload, ()

    def acting_roles(self, state: Any) -> tuple[str, ...]:
        stages = ((("ann", "cat"), ("bob", "dan")), (("ann",),), (("cat",), ("dan",), ("ann",)))[state[0] % 3]
        return stages[len(state[1])] if len(state[1]) < len(stages) else ()

    def observe(self, state: Any, role: str) -> str:
        return f"{role} {len(state[1])}"

    async def step(self, state: Any, actions: Mapping[str, Any], ctx: Any) -> Step:
        pay = sum(action.text.startswith("a") for action in actions.values())
        return Step(state=(state[0], (*state[1], pay)), scores={(TEAM, "pay"): float(pay)})

    def outcome(self, state: Any) -> Mapping[str, float]:
        return {"success": float(sum(state[1]) > 1)}

    def vocabulary(self) -> tuple[str, ...]:
        return ("a", "b", *self.roles, *"0123")


class Failing(Plugin):
    """Scores what each role writes. Which scores are missing is a hash of the place, and neither of the
    weights nor of who is faster; one of two is raised and one is None."""

    scope = "action"
    components = {"taste": "increment"}
    weights = {}
    policy_fault = 0.0

    async def score(self, view: Any) -> Mapping[tuple[str, str], float | None]:
        drawn = zlib.crc32(f"{view.task.id} {view.role} {len(view.state[1])}".encode()) % 6
        if drawn == 0:
            raise SystemFault("the judge is away")
        return {(view.role, "taste"): None if drawn == 1 else float(view.action.text.startswith("b"))}


class Book:
    """What the test itself knows of one run: versions of the engine, and updates that changed weights."""

    def __init__(self) -> None:
        self.loaded: Counter[str] = Counter()
        self.updates: Counter[str] = Counter()
        self.drawn: dict[Any, list[int]] = {}
        """By key of a call of training: the version in the engine when each of its tokens was drawn."""
        self.evaluated: list[tuple[int, int]] = []
        """Of each call of an evaluation: the version in the engine, and the updates that were made."""

    def token(self, request: Any) -> None:
        policy, version = request.policy, self.loaded[request.policy]
        if request.key.task.startswith("val"):
            self.evaluated.append((version, self.updates[policy]))
        else:
            self.drawn.setdefault(request.key, []).append(version)


class Tables(TabularEngine):
    book: Book

    async def load_weights(self, weights: Any) -> None:
        await super().load_weights(weights)
        self.book.loaded[weights.policy] = weights.version

    def _generate(self, policy: str, requests: Any) -> list[Any]:
        calls = super()._generate(policy, requests)
        for request, call in zip(requests, calls, strict=True):
            for _ in call.token_ids:
                self.book.token(request)
        return calls


class Words(ScriptedEngine):
    """Words follow from the request's seed alone; the weights may change between two of them."""

    book: Book

    async def load_weights(self, weights: Any) -> None:
        await super().load_weights(weights)
        self.book.loaded[weights.policy] = weights.version

    async def generate(self, request: Any) -> Any:
        draws = random.Random(request.seed)
        call = await super().generate(request)
        ids = self._codec.ids(" ".join(draws.choice("ab") for _ in range(draws.randint(2, 4))))
        runs: list[tuple[int, int]] = []
        for _ in ids:
            version = call.version if request.version is not None else self._versions.version(request.policy)
            self.book.token(request)
            before = runs.pop()[1] if runs and runs[-1][0] == version else 0
            runs.append((version, before + 1))
            await asyncio.sleep(draws.choice([0, 0, 0.003]))
        return replace(call, token_ids=ids, logprobs=(-0.7,) * len(ids), version=min(runs)[0],
                       version_runs=tuple(runs) if len(runs) > 1 else ())  # fmt: skip


class Counts(TabularTrainer):
    """Counts updates alone: the words of a script are no rows of a table."""

    def _update(self, name: str, policy: Any, samples: Any, step: int) -> dict[str, float]:
        policy.version += 1
        return {"optimizer_steps": 1.0}


def unused(request: Any, text: str) -> str:
    return ""


def table(engine: str, seed: int) -> dict[str, Any]:
    plays, trains = {
        "tabular": ({"type": f"{HERE}:Tables"}, {"type": "tabular", "learning_rate": 3.0}),
        "scripted": ({"type": f"{HERE}:Words", "play": f"{HERE}:unused"}, {"type": f"{HERE}:Counts"}),
    }[engine]
    return {
        "seed": seed,
        "env": {"type": f"{HERE}:Rounds"},
        "team": {
            "order": [*POLICIES],
            "roles": {role: {"type": ROLE, "policy": policy} for role, policy in POLICIES.items()},
        },
        "policies": {
            name: {"model": {"init": "tabular"}, "train": "none" if name == "frozen" else "full"}
            for name in dict.fromkeys(POLICIES.values())
        },
        "rewards": {
            "environment": {"type": "environment"},
            "taste": {"type": f"{HERE}:Failing", "max_missing": 1.0},
        },
        "sampler": {"branches": 2, "sampling": {"max_new_tokens": 2}},
        "algorithm": "at_grpo",
        "engine": plays,
        "trainer": trains,
        "schedule": {"steps": STEPS, "tasks_per_step": 1, "evaluate_every": EVALUATE, "evaluate_tasks": 3},
    }


def played(engine: str, seed: int, ahead: int, delays: int | None) -> tuple[Record, Book]:
    """A run in flight, with delays unless `delays` is None."""
    record, book = Record(), Book()
    chosen = ["schedule.play=in_flight"] if ahead else []
    run = made(table(engine, seed), record, f"schedule.max_staleness={ahead}", *chosen)
    run.engine.book = book
    update = run.trainer.update

    async def counted(samples: Any, step: int) -> Any:
        updated = await update(samples, step)
        book.updates.update(policy for policy in updated if updated[policy]["optimizer_steps"])
        return updated

    run.trainer.update = counted
    if delays is not None:
        delayed(run, delays, 0.008)

    async def go() -> None:
        try:
            await open_run(run)
            await asyncio.wait_for(train(run), SECONDS)
        finally:
            await run.close()

    asyncio.run(go())
    return record, book


@functools.cache
def synchronous(engine: str, seed: int) -> Record:
    return played(engine, seed, 0, None)[0]


def trained(trees: Any, credit: Mapping[Any, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(policy, key, action) of every branch that an update gets."""
    for tree in trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                for branch, action in enumerate(decision.branches):
                    key = node.key.of_branch(role, branch)
                    if POLICIES[role] != "frozen" and key in credit:
                        yield POLICIES[role], key, action


def places(engine: str, record: Record) -> list[Any]:
    """By step, the keys of all nodes and of what is trained.

    Which branch an episode goes on with follows from the weights of a table, and is left out of its keys.
    """

    def place(key: Any) -> Any:
        return key if engine == "scripted" else key._replace(path=(len(key.path),))

    return [
        (step, [place(node.key) for tree in trees for node in tree.nodes()],
         [place(key) for _, key, _ in trained(trees, credit)])
        for step, trees, credit in record.trees
    ]  # fmt: skip


def check_ages(record: Record, book: Book, ahead: int) -> set[int]:
    """Each token's age is within the bound, and each row says what was counted; all ages."""
    updates: Counter[str] = Counter()
    steps: dict[str, list[float]] = {"often": [], "seldom": []}  # of the optimiser, by update
    seen: set[int] = set()
    for (_, trees, credit), row in zip(record.trees, record.rows, strict=True):
        ages: dict[str, Counter[int]] = {}
        for policy, key, action in trained(trees, credit):
            for index, call in enumerate(action.calls):
                drawn = book.drawn[key.of_call(index)]
                said = [
                    version
                    for version, n in call.version_runs or ((call.version, len(call.token_ids)),)
                    for _ in range(n)
                ]
                assert said == drawn
                ages.setdefault(policy, Counter()).update(updates[policy] - version for version in drawn)
        expected = {}
        for policy, counted in ages.items():
            seen |= counted.keys()
            name, total = f"policy/{policy}/staleness", counted.total()
            expected[f"{name}/max"] = max(counted)
            expected[f"{name}/mean"] = sum(age * n for age, n in counted.items()) / total
            expected |= {f"{name}/share/{age}": n / total for age, n in counted.items()}
            between = sum(n * sum(steps[policy][len(steps[policy]) - age :]) for age, n in counted.items())
            expected[f"{name}/optimizer_steps"] = between / total
        said = {name: value for name, value in row.items() if "/staleness/" in name}
        assert said == pytest.approx(expected if ahead else {})
        updates.update(ages.keys())
        for policy in ages:
            steps[policy].append(row[f"policy/{policy}/optimizer_steps"])
    assert seen <= set(range(ahead + 1))
    assert updates == book.updates and set(updates) == {"often", "seldom"}
    assert updates["seldom"] < updates["often"] < STEPS, "steps that train one policy and not the other"
    return seen


def checked(engine: str, seed: int, ahead: int, delays: int) -> set[int]:
    record, book = played(engine, seed, ahead, delays)
    plain = synchronous(engine, seed)
    assert places(engine, record) == places(engine, plain)
    assert [row["step"] for row in record.rows] == list(range(1, STEPS + 1))
    for name in ("tokens/generated", "eval/tasks") if engine == "scripted" else ("eval/tasks",):
        assert [row.get(name) for row in record.rows] == [row.get(name) for row in plain.rows], name
    evaluations = [row["step"] for row in record.rows if "eval/success" in row]
    assert evaluations == list(range(EVALUATE, STEPS + 1, EVALUATE))
    assert book.evaluated and all(version == updates for version, updates in book.evaluated)
    return check_ages(record, book, ahead)


@pytest.mark.parametrize("engine", ["tabular", "scripted"])
def test_one_run_in_flight_is_as_counted(engine):
    assert max(checked(engine, 0, 2, 1)) > 0, "no step was ahead"


@pytest.mark.resume
@settings(max_examples=40, deadline=None)
@given(
    engine=st.sampled_from(["tabular", "scripted"]), seed=st.integers(0, 3), ahead=st.integers(0, 4),
    delays=st.integers(0, 9999),
)  # fmt: skip
def test_runs_in_flight_are_as_counted_whatever_takes_how_long(engine, seed, ahead, delays):
    checked(engine, seed, ahead, delays)
