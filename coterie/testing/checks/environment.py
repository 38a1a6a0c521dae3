"""`check_environment`: states are values, steps repeat, and scores are declared."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from coterie.core.errors import UserError
from coterie.core.protocols import StepContext
from coterie.core.storage.jsonl import to_json
from coterie.core.types import Action, Step, Task
from coterie.core.types.digest import digest
from coterie.core.types.seeding import generator
from coterie.testing.checks.environment_data import check_data_methods
from coterie.testing.support.episodes import (
    Act,
    Moment,
    Players,
    following,
    moment,
    players,
    stepped,
    unreadable,
)
from coterie.testing.support.failure import (
    ConformanceError,
    finite,
    guarded,
    require,
    require_components,
    require_kind,
    require_scores,
)
from coterie.testing.support.values import copied, fingerprint, pickled, spoil

_LOOKED_AT = 50
"""Tasks of a split that are looked at."""
_A_VALUE = "states are values: make a new one (`dataclasses.replace`), and copy what is mutable"


def check_environment(
    env: Any,
    *,
    roles: Sequence[str],
    act: Act,
    order: Sequence[str | Sequence[str]] | None = None,
    seats: Mapping[str, Any] | None = None,
    turns: int = 3,
    episodes: int = 20,
    seed: int = 0,
    splits: Sequence[Literal["train", "val", "test"]] = ("train", "val", "test"),
    disjoint: Literal["id", "content"] = "id",
) -> None:
    """Check an environment by playing it.

    - It has what `protocols.Environment` asks for; components are of a known kind, weights are numbers.
    - Tasks: ids are unique and in one split only (with `disjoint="content"`, so are payloads); a task that is
      asked for twice is equal; tasks can be pickled. Splits other than train may be refused with a UserError.
    - Equal states have equal digests: after a second reset, and after a way through pickle.
    - A state is a value: `stage`, `observe`, `step` and `outcome` leave it as it was, and what `observe`
      handed out may be overwritten without harm. A branch that is stepped changes nothing in its siblings.
    - A step repeats: the same state, actions and `ctx.seed` give the same state, scores and info.
    - `stage` names roles of the team, or () or None; somebody acts at the start.
    - Scores are {(role that acted or TEAM, declared component): finite number or None}; info is plain data.
    - Actions that can't be read (a policy fault) are stepped like others: what the output causes is scored.
    - `outcome` has finite numbers, and `success` from 0 to 1.
    - What it has of the optional part works: `digest`, `diagnose`, `vocabulary`, `demonstrate`.
    - So do tasks as data: `record` is JSON; `task_of` makes the same task of it, with more fields, too,
      and raises nothing but ValueError where it is none; `fingerprints` are texts, `content` among them, and
      no two splits share one; `picture` is a text.

    Args:
        roles: who plays.
        act: (role, observation, generator) -> a text, or what a parser would make of it; or a list of those
            to draw from.
        order: `team.order`; by default one stage a role.
        seats: role -> Role whose `parse` reads the texts; without it `parsed` is what `act` returns.
        turns: `team.max_turns`.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(env, "environment")
    with guarded(name):
        require_components(env, name)
        own = tuple(env.roles)
    strange = [role for role in roles if own and role not in own]
    require(not strange, f"doesn't know the role '{', '.join(strange)}'", where=f"{name}.roles")
    found = _tasks(env, name, splits, seed, disjoint)
    check_data_methods(env, name, found)
    tasks = found[splits[0]]
    referee = _Referee(env, name, players(roles, act, order, seats), turns)

    async def play() -> None:
        for number in range(episodes):
            rng = generator(seed, f"episode {number}", "check_environment")
            await referee.episode(tasks[number % len(tasks)], rng)

    asyncio.run(play())
    _vocabulary(env, name)


def _tasks(env: Any, name: str, splits: Sequence[str], seed: int, disjoint: str) -> dict[str, list[Task]]:
    """The first tasks of every split."""
    where = f"{name}.tasks"
    found: dict[str, list[Task]] = {}
    ids: dict[str, str] = {}
    contents: dict[str, str] = {}
    for split in splits:
        try:
            with guarded(where):
                source = env.tasks(split, seed)
                count = min(len(source), _LOOKED_AT)
                first, again = ([source[index] for index in range(count)] for _ in range(2))
        except ConformanceError as error:
            if isinstance(error.__cause__, UserError) and split != splits[0]:
                continue  # there is no such split, and it says so
            raise
        require(first, f"the split '{split}' has no task", where=where)
        for task, same in zip(first, again, strict=True):
            _sound_task(task, same, where)
            other = ids.setdefault(task.id, split)
            fix = "write the split's name into the id: draws are keyed by it"
            require(
                other == split, f"the id '{task.id}' is in '{other}' and in '{split}'", where=where, fix=fix
            )
            if disjoint == "content":
                other = contents.setdefault(fingerprint(task.payload), split)
                what, fix = (
                    f"'{task.id}' is the same problem as a task of '{other}'",
                    "split by a hash of the content",
                )
                require(other == split, what, where=where, fix=fix)
        twice = [one for one, times in Counter(task.id for task in first).items() if times > 1]
        require(not twice, f"the id {twice[:1]} is twice in '{split}'", where=where)
        found[split] = first
    return found


def _sound_task(task: Any, same: Any, where: str) -> None:
    require(isinstance(task, Task), f"a task is a {type(task).__name__}", where=where, fix="coterie.Task")
    text = isinstance(task.id, str) and bool(task.id)
    require(text, f"the id {task.id!r} is no text", where=where, fix='e.g. "train-7"')
    there = fingerprint(copied(task, where))
    mark = fingerprint(task)
    require(mark == fingerprint(same), f"'{task.id}' is another task when asked for twice", where=where)
    require(mark == there, f"'{task.id}' is another after pickling", where=where)


class _Referee:
    """Plays episodes and watches every call."""

    def __init__(self, env: Any, name: str, team: Players, turns: int) -> None:
        self.env, self.name, self.team, self.turns = env, name, team, turns

    async def episode(self, task: Task, rng: np.random.Generator) -> None:
        state = self._reset(task, int(rng.integers(2**63)))
        now = moment(self.env, state, 0, 0, self.team)
        require(now is not None, f"'{task.id}' is over before anybody acts", where=f"{self.name}.stage")
        while now is not None:
            with self._untouched(now.state, "stage"):
                moment(self.env, now.state, now.turn, now.stage, self.team)
            seen = {role: self._observe(now.state, role) for role in now.roles}
            actions, others = self.team.actions(seen, rng), self.team.actions(seen, rng)
            actions |= {role: unreadable() for role in now.roles if rng.random() < 0.15}
            others |= {now.roles[int(rng.integers(len(now.roles)))]: unreadable()}
            ctx = StepContext(task=task, turn=now.turn, seed=int(rng.integers(2**63)))
            await self._demonstrate(now.state, now.roles, int(rng.integers(2**63)))
            step = await self._step(now, actions, others, ctx)
            for role in now.roles:
                await self._diagnose(step.state, role)
            after = following(self.env, now, step, self.turns, self.team)
            if after is None:
                self._outcome(step.state)
            now = after

    # ---- states --------------------------------------------------------------------------------------------

    def digest(self, state: Any) -> str:
        """As the sampler has it."""
        own = getattr(self.env, "digest", None)
        where = f"{self.name}.digest" if own is not None else f"a state of {self.name}"
        with guarded(where, "" if own is not None else "give the environment a `digest(state) -> str`"):
            found = own(state) if own is not None else digest(state)
        require(isinstance(found, str), f"returned {found!r}", where=where, fix="a text")
        return found

    @contextmanager
    def _untouched(self, state: Any, what: str) -> Iterator[None]:
        """Nothing inside may change the state."""
        before = self.digest(state), fingerprint(state)
        yield
        after = self.digest(state), fingerprint(state)
        require(
            before == after, "changed the state that it was given", where=f"{self.name}.{what}", fix=_A_VALUE
        )

    def _reset(self, task: Task, seed: int) -> Any:
        where = f"{self.name}.reset"
        mark = fingerprint(task)
        with guarded(where):
            first, second = self.env.reset(task, seed), self.env.reset(task, seed)
        same = self.digest(first) == self.digest(second) and fingerprint(first) == fingerprint(second)
        require(same, "gives another state when called twice", where=where, fix="draw from `seed` alone")
        require(fingerprint(task) == mark, "changed the task", where=where, fix="copy what is mutable in it")
        self._survives_pickling(first, where)
        return first

    def _survives_pickling(self, state: Any, where: str) -> None:
        there = copied(state, where)
        require(
            self.digest(there) == self.digest(state),
            "a state that was pickled and read back has another digest",
            where=where,
            fix="digest the values inside, never ids, addresses or the order of a set",
        )

    # ---- seeing --------------------------------------------------------------------------------------------

    def _observe(self, state: Any, role: str) -> Any:
        where = f"{self.name}.observe"
        with self._untouched(state, "observe"), guarded(where):
            seen, lent = self.env.observe(state, role), self.env.observe(state, role)
        pickled(seen, where)
        mark = fingerprint(seen)
        same = mark == fingerprint(lent)
        require(
            same, "shows something else when asked twice", where=where, fix="no draws here: use the state's"
        )
        before = fingerprint(state)
        spoil(lent)
        with guarded(where):
            again = self.env.observe(state, role)
        unharmed = before == fingerprint(state) and mark == fingerprint(again) == fingerprint(seen)
        require(
            unharmed,
            "hands out parts of the state (or of itself) that whoever gets them can change",
            where=where,
            fix="copy lists, dicts and arrays, or hold them as tuples",
        )
        return again

    async def _diagnose(self, state: Any, role: str) -> None:
        own = getattr(self.env, "diagnose", None)
        if own is not None:
            where = f"{self.name}.diagnose"
            with self._untouched(state, "diagnose"), guarded(where):
                said = own(state, role)
                said = await said if inspect.isawaitable(said) else said
            require(isinstance(said, str), f"returned {said!r}", where=where, fix="a text, empty for nothing")

    async def _demonstrate(self, state: Any, roles: Sequence[str], seed: int) -> None:
        own = getattr(self.env, "demonstrate", None)
        for role in roles if own is not None else ():
            where = f"{self.name}.demonstrate"
            with self._untouched(state, "demonstrate"), guarded(where):
                texts = [own(state, role, 0.5, np.random.default_rng(seed)) for _ in range(2)]  # type: ignore[misc]
            require(isinstance(texts[0], str), f"returned {texts[0]!r}", where=where, fix="a message's text")
            require(texts[0] == texts[1], "doesn't repeat", where=where, fix="draw from `rng` alone")

    # ---- stepping ------------------------------------------------------------------------------------------

    async def _step(
        self, now: Moment, actions: Mapping[str, Action], others: Mapping[str, Action], ctx: StepContext
    ) -> Step:
        """Step; step a sibling branch from the same state; step the first again from a copy."""
        where = f"{self.name}.step"
        there = Moment(copied(now.state, where), now.turn, now.stage, now.roles)
        given = fingerprint(actions)
        with self._untouched(now.state, "step"):
            step = await stepped(self.env, now, actions, ctx)
            self._sound(step, now.roles, where)
            mark = self._mark(step)
            sibling = await stepped(self.env, now, others, ctx)
            self._sound(sibling, now.roles, where)
            require(
                self._mark(step) == mark,
                "a state that one branch reached changed when a sibling was stepped",
                where=where,
                fix=_A_VALUE,
            )
        require(fingerprint(actions) == given, "changed the actions", where=where, fix="copy them")
        again = self._mark(await stepped(self.env, there, actions, ctx))
        for part, one, other in zip(("state", "scores", "info", "turn_over"), mark, again, strict=True):
            require(
                one == other,
                f"the same state, actions and seed gave another {part}",
                where=where,
                fix="draw from `ctx.seed` alone, and keep no memory outside the state",
            )
        return step

    def _mark(self, step: Step) -> tuple[Any, ...]:
        scores = sorted((str(place), value) for place, value in step.scores.items())
        return (
            (self.digest(step.state), fingerprint(step.state)),
            scores,
            fingerprint(step.info),
            step.turn_over,
        )

    def _sound(self, step: Step, acted: tuple[str, ...], where: str) -> None:
        require_scores(step.scores, self.env, acted, where)
        require(isinstance(step.turn_over, bool), f"turn_over is {step.turn_over!r}", where=where)
        require(
            isinstance(step.info, Mapping),
            f"info is a {type(step.info).__name__}",
            where=where,
            fix="a table",
        )
        with guarded(f"{where}: info", "plain data: texts, numbers, lists and tables"):
            to_json({"info": step.info})
        self._survives_pickling(step.state, where)

    def _outcome(self, state: Any) -> None:
        where = f"{self.name}.outcome"
        with self._untouched(state, "outcome"), guarded(where):
            found, again = dict(self.env.outcome(state)), dict(self.env.outcome(state))
        require("success" in found, "has no `success`", where=where, fix="0 or 1, or a share")
        for metric, value in found.items():
            require(finite(value), f"{metric} is {value!r}", where=where, fix="a finite number")
        require(0 <= found["success"] <= 1, f"success is {found['success']}", where=where, fix="from 0 to 1")
        require(found == again, "gives other numbers when asked twice", where=where)


def _vocabulary(env: Any, name: str) -> None:
    own = getattr(env, "vocabulary", None)
    if own is not None:
        where = f"{name}.vocabulary"
        with guarded(where):
            words = list(own())
        wrong = [word for word in words if not isinstance(word, str) or word.split() != [word]]
        require(not wrong, f"{wrong[:1]!r} is no word", where=where, fix="what stands between white space")
