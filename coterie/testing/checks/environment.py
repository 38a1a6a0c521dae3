"""`check_environment`: states are values, steps repeat, scores are declared."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from coterie.core.protocols import StepContext
from coterie.core.protocols.environment import DigestsStates
from coterie.core.types import MAX_STAGES, Action, Score, Step, Task
from coterie.core.types.digest import digest
from coterie.core.types.seeding import generator
from coterie.discovery.members import Demonstrates, Diagnoses
from coterie.testing.support.cycles import check_cycles
from coterie.testing.support.environment_members import (
    SeenDigests,
    check_data_methods,
    check_final_answer,
    check_work,
    checked_tasks,
    warn_of_shared_problems,
)
from coterie.testing.support.episodes import (
    Act,
    PendingStage,
    Players,
    check_named,
    check_step,
    episode,
    following_stage,
    initial_stage,
    players,
    stepped,
    unreadable,
)
from coterie.testing.support.failure import (
    check_vocabulary,
    finite,
    guarded,
    require,
    require_components,
    require_kind,
)
from coterie.testing.support.kept_state import twice
from coterie.testing.support.memory import check_memory, mark_of
from coterie.testing.support.opening import opened
from coterie.testing.support.promises import promise
from coterie.testing.support.talk import check_talk
from coterie.testing.support.time_limit import in_time
from coterie.testing.support.values import copied, fingerprint, pickled, spoil, unchanged

_AGAIN = 3
"""Episodes that are played twice, to see what an environment keeps on itself."""
_ACTING = "acting_roles names roles of the team, and leaves the state alone"
_FIX_STATE = "states are values: make a new one (`dataclasses.replace`), and copy what is mutable"


def check_environment(
    env: Any,
    *,
    roles: Sequence[str],
    act: Act,
    order: Sequence[str | Sequence[str]] | None = None,
    role_plugins: Mapping[str, Any] | None = None,
    turns: int = 3,
    max_stages: int = MAX_STAGES,
    episodes: int = 20,
    seed: int = 0,
    splits: Sequence[Literal["train", "val", "test"]] = ("train", "val", "test"),
    disjoint: Literal["id", "content"] | None = None,
    repeatable: Sequence[str] = (),
    keeps: Sequence[str] = (),
    engine: Any = None,
) -> None:
    """Check an environment by playing episodes.

    - It has the members of `protocols.Environment`; components are of a known kind, weights are numbers.
    - Tasks: ids are unique and in one split only (with `disjoint="content"`, so are payloads); reading a task
      twice gives equal tasks; pickle can write them. Later splits may be refused with a UserError. It warns
      of problems that two splits share under different ids.
    - Equal states have equal digests, also through pickle; states that look different have different ones.
    - A state is a value: `acting_roles`, `observe`, `step` and `outcome` leave it unchanged, and overwriting
      what `observe` returned does no harm. Stepping a branch changes nothing in its siblings.
    - A step repeats: the same state, actions and `ctx.seed` give the same state, scores and info.
    - It remembers nothing: its methods give the same for a state in any order, and on another instance. It
      warns of attributes that change whenever the same episodes are played.
    - No increment that may be summed over turns can be earned again and again, by a way back to a state or by
      whatever is said: random actions look for both, where the game ends episodes by itself.
    - `acting_roles` names roles of the team, or returns () or None; some at first. Every turn ends.
    - Scores are {(role that acted or TEAM, declared component): number to 1e100, or None}; info is plain.
    - Unreadable actions are stepped too. `outcome` has finite numbers (NaN: none), `success` from 0 to 1.
    - Optional members: `digest`, `diagnose`, `vocabulary`, `demonstrate`, `final_answer`, `open` and `close`.
    - Tasks as data, where the environment has them: `record` gives JSON; `task_of` makes the same task of a
      record, ignores further fields, and raises only ValueError where the record is no task; `fingerprints`
      are texts, `content` among them, and no two splits share one; `picture` is a text.

    Args:
        roles: the roles that play.
        act: (role, observation, generator) -> a text, or a parser's result; or a list of those to draw from.
        order: `team.order`; by default each role is a stage of its own.
        role_plugins: role -> Role whose `parse` reads the texts; without one `parsed` is what `act` returns.
        turns, max_stages: `team.max_turns`, `team.max_stages`.
        episodes, seed: number of episodes to play; seed of the tasks and of all draws.
        splits: splits whose tasks are checked; episodes play the tasks of the first.
        disjoint: what no two splits may share: ids (other problems are not warned of), or payloads as well.
        repeatable, keeps: increments to earn again and again, and attributes that change in play, on purpose.
        engine: the `EngineClient` of a chat model with `use_engine`.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(env, "environment")
    _check_declared(env, name, roles)
    tasks_of_splits = checked_tasks(env, name, splits, seed, disjoint)
    check_data_methods(env, name, tasks_of_splits)
    checker = _EpisodeChecker(env, name, players(roles, act, order, role_plugins, max_stages), turns)
    asyncio.run(_play(checker, tasks_of_splits, episodes, seed, (disjoint, repeatable, keeps), engine))


async def _play(
    checker: _EpisodeChecker,
    tasks_of_splits: Mapping[str, Sequence[Task]],
    episodes: int,
    seed: int,
    meant: tuple[str | None, Sequence[str], Sequence[str]],
    engine: Any,
) -> None:
    env, name, team, turns = checker.env, checker.name, checker.team, checker.turns
    tasks = next(iter(tasks_of_splits.values()))
    disjoint, repeatable, keeps = meant
    async with opened(env, engine):
        await checker.episodes(tasks, episodes, seed)
        await check_memory(env, name, tasks, team, turns, seed)
        await check_cycles(env, name, tasks, team, seed, repeatable)
        promise("talk is not paid")
        await check_talk(env, name, tasks, team, seed, repeatable)
        for _ in twice(env, keeps, "check_environment"):
            for number, task in enumerate(tasks[:_AGAIN]):
                rng = generator(seed, f"kept {number}", "check_environment")
                played = await episode(env, task, team, turns, rng)
                env.outcome(played[-1].step.state)
        promise("no problem is in two splits")
        if disjoint is None:
            warn_of_shared_problems(env, name, tasks_of_splits, team)
    promise("the vocabulary is words")
    check_vocabulary(env, name)


def _check_declared(env: Any, name: str, roles: Sequence[str]) -> None:
    promise("components and roles are declared")
    with guarded(name):
        require_components(env, name)
        known_roles = tuple(env.roles)
    unknown = [role for role in roles if known_roles and role not in known_roles]
    require(
        not unknown,
        f"doesn't know the role '{', '.join(unknown)}'",
        f"{name}.roles",
        fix="name every role that `observe` accepts, or leave it empty for any",
    )


class _EpisodeChecker:
    """Plays episodes and checks every call of the environment."""

    def __init__(self, env: Any, name: str, team: Players, turns: int) -> None:
        self.env, self.name, self.team, self.turns = env, name, team, turns
        self._seen = SeenDigests(name)
        self._scores: list[Any] = []

    async def episodes(self, tasks: Sequence[Task], count: int, seed: int) -> None:
        for number in range(count):
            rng = generator(seed, f"episode {number}", "check_environment")
            await self.episode(tasks[number % len(tasks)], rng)
        promise("some score is a number")
        given = [value.value if isinstance(value, Score) else value for value in self._scores]
        require(
            not given or any(value is not None for value in given),
            f"gave None for each of {len(given)} scores: a run would call all of them missing",
            f"{self.name}.step",
            fix="a number for what was judged; None only where the judgement failed, and no entry for none",
        )

    async def episode(self, task: Task, rng: np.random.Generator) -> None:
        state = self._reset(task, int(rng.integers(2**63)))
        played: list[tuple[dict[str, Action], Any]] = []
        promise(_ACTING)
        pending = initial_stage(self.env, state, self.team)
        require(
            pending is not None,
            f"'{task.id}' is over before any role acts",
            f"{self.name}.acting_roles",
            fix="return () only in final states",
        )
        while pending is not None:
            promise(_ACTING)
            with self._unchanged(pending.state, "acting_roles"):
                check_named(self.env, pending.state, self.team)
            observations = {role: self._observe(pending.state, role) for role in pending.roles}
            self._seen.note(task.id, self.digest(pending.state), observations)
            actions, alternatives = (self.team.actions(observations, rng) for _ in range(2))
            actions |= {role: unreadable() for role in pending.roles if rng.random() < 0.15}
            alternatives |= {pending.roles[int(rng.integers(len(pending.roles)))]: unreadable()}
            ctx = StepContext(task=task, turn=pending.turn, seed=int(rng.integers(2**63)))
            self._demonstrate(pending.state, pending.roles, int(rng.integers(2**63)))
            step = await self._step(pending, actions, alternatives, ctx)
            for role in pending.roles:
                await self._diagnose(step.state, role)
            check_work(self.env, self.name, task, pending.roles, step.info, self.team.order)
            promise(_ACTING)
            after = following_stage(self.env, pending, step, self.turns, self.team)
            played.append((actions, step.info))
            if after is None:
                self._outcome(step.state)
                check_final_answer(self.env, self.name, task, played)
            pending = after

    # ---- states --------------------------------------------------------------------------------------------

    def digest(self, state: Any) -> str:
        """The state's digest, by the environment's `digest` or by the core's, as a sampler computes it."""
        digests = isinstance(self.env, DigestsStates)
        where = f"{self.name}.digest" if digests else f"a state of {self.name}"
        fix = "" if digests else "give the environment a `digest(state) -> str`"
        with guarded(where, fix):
            text = self.env.digest(state) if digests else digest(state)
        require(isinstance(text, str), f"returned {text!r}", where, fix="a text")
        return text

    @contextmanager
    def _unchanged(self, state: Any, method: str) -> Iterator[None]:
        """Raise if the block changes the state."""
        before = self.digest(state), fingerprint(state)
        yield
        after = self.digest(state), fingerprint(state)
        require(
            before == after, "changed the state that it was given", f"{self.name}.{method}", fix=_FIX_STATE
        )

    def _reset(self, task: Task, seed: int) -> Any:
        promise("equal resets give equal states")
        where = f"{self.name}.reset"
        with unchanged(task, "the task", where, "copy what is mutable in it"), guarded(where):
            first, second = self.env.reset(task, seed), self.env.reset(task, seed)
        same = self.digest(first) == self.digest(second) and fingerprint(first) == fingerprint(second)
        require(same, "gives another state when called twice", where, fix="draw from `seed` alone")
        self._check_pickling(first, where)
        return first

    def _check_pickling(self, state: Any, where: str) -> None:
        copy = copied(state, where)
        require(
            self.digest(copy) == self.digest(state),
            "a state that was pickled and read back has another digest",
            where,
            fix="digest the values inside, never ids, addresses or the order of a set",
        )

    # ---- observing ----------------------------------------------------------------------------------------

    def _observe(self, state: Any, role: str) -> Any:
        promise("an observation repeats, and is no part of the state")
        where = f"{self.name}.observe"
        with self._unchanged(state, "observe"), guarded(where):
            observation, second = self.env.observe(state, role), self.env.observe(state, role)
        pickled(observation, where)
        mark = fingerprint(observation)
        require(
            mark == fingerprint(second),
            "shows something else when called twice",
            where,
            fix="no draws in `observe`: draw in `reset` or `step`, and keep the draw in the state",
        )
        before = fingerprint(state)
        spoil(second)
        with guarded(where):
            again = self.env.observe(state, role)
        unharmed = before == fingerprint(state) and mark == fingerprint(again) == fingerprint(observation)
        require(
            unharmed,
            "returns parts of the state (or of itself) that a caller can change",
            where,
            fix="copy lists, dicts and arrays, or hold them as tuples",
        )
        return again

    async def _diagnose(self, state: Any, role: str) -> None:
        if isinstance(self.env, Diagnoses):
            promise("a diagnosis is a text")
            where = f"{self.name}.diagnose"
            with self._unchanged(state, "diagnose"), guarded(where):
                diagnosis = self.env.diagnose(state, role)
                text = await in_time(diagnosis) if inspect.isawaitable(diagnosis) else diagnosis
            require(isinstance(text, str), f"returned {text!r}", where, fix="a text, empty for nothing")

    def _demonstrate(self, state: Any, roles: Sequence[str], seed: int) -> None:
        if not isinstance(self.env, Demonstrates):
            return
        demonstrate = self.env.demonstrate
        promise("a demonstration is a text, and repeats")
        where = f"{self.name}.demonstrate"
        for role in roles:
            with self._unchanged(state, "demonstrate"), guarded(where):
                texts = [demonstrate(state, role, 0.5, np.random.default_rng(seed)) for _ in range(2)]
            require(isinstance(texts[0], str), f"returned {texts[0]!r}", where, fix="a message's text")
            require(texts[0] == texts[1], "doesn't repeat", where, fix="draw from `rng` alone")

    # ---- stepping ------------------------------------------------------------------------------------------

    async def _step(
        self,
        pending: PendingStage,
        actions: Mapping[str, Action],
        alternatives: Mapping[str, Action],
        ctx: StepContext,
    ) -> Step:
        """Step; step a sibling branch from the same state; step the first again from a copy."""
        promise("a step takes any action, and gives declared scores and plain info")
        where = f"{self.name}.step"
        copy = PendingStage(copied(pending.state, where), pending.turn, pending.stage, pending.roles)
        with unchanged(actions, "the actions", where, "copy them"), self._unchanged(pending.state, "step"):
            step = await stepped(self.env, pending, actions, ctx)
            check_step(self.env, step, pending.roles, where)
            self._scores += step.scores.values()
            self._check_pickling(step.state, where)
            mark = self._mark(step)
            sibling = await stepped(self.env, pending, alternatives, ctx)
            check_step(self.env, sibling, pending.roles, where)
            self._check_pickling(sibling.state, where)
            promise("a state is a value: no step changes it, nor a sibling's")
            require(
                self._mark(step) == mark,
                "a state that one branch reached changed when a sibling was stepped",
                where,
                fix=_FIX_STATE,
            )
        promise("a step repeats")
        again = self._mark(await stepped(self.env, copy, actions, ctx))
        for part, before, after in zip(("state", "scores", "info", "turn_over"), mark, again, strict=True):
            require(
                before == after,
                f"the same state, actions and seed gave another {part}",
                where,
                fix="draw from `ctx.seed` alone, and keep nothing outside the state",
            )
        return step

    def _mark(self, step: Step) -> tuple[Any, ...]:
        state, *others = mark_of(step)
        return (self.digest(step.state), state), *others

    def _outcome(self, state: Any) -> None:
        promise("an outcome is finite numbers, success from 0 to 1")
        where = f"{self.name}.outcome"
        with self._unchanged(state, "outcome"), guarded(where):
            outcome, again = self.env.outcome(state), self.env.outcome(state)
        table = isinstance(outcome, Mapping) and isinstance(again, Mapping)
        require(table, f"returned {outcome!r}", where, fix='a table: return {"success": 1.0}')
        require("success" in outcome, "has no `success`", where, fix="0 or 1, or a share")
        for metric, value in outcome.items():
            none = isinstance(value, float) and math.isnan(value)
            fix = "a finite number" if metric == "success" else "a finite number; NaN: there is none"
            require(none or finite(value), f"{metric} is {value!r}", where, fix=fix)
        require(0 <= outcome["success"] <= 1, f"success is {outcome['success']}", where, fix="from 0 to 1")
        same = fingerprint(outcome) == fingerprint(again)
        require(same, "gives other numbers when called twice", where, fix="no draws")
