"""What `check_environment` catches."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest

from coterie import TEAM, Brief, Plugin, Step, Task, Work
from coterie.core.errors import ConfigError, PolicyFault, SystemFault, UserError
from coterie.plugins.envs.plan_path import PlanPath
from coterie.testing import ConformanceError, build, check_environment
from tests.testing.support import caught


class Count(Plugin):
    """A sound environment: count down from 2, with a dict, a list and a number in the state."""

    roles: tuple[str, ...] = ()
    components: Any = {"right": "increment"}
    weights: Any = {"right": 1.0}

    def tasks(self, split: str, seed: int) -> Any:
        return [Task(id=f"{split}-{n}", payload={"left": 2, "split": split, "n": n}) for n in range(3)]

    def reset(self, task: Task, seed: int) -> Any:
        return {"left": task.payload["left"], "texts": [], "seed": seed}

    def acting_roles(self, state: Any) -> Any:
        return () if state["left"] == 0 else None

    def observe(self, state: Any, role: str) -> Any:
        return {"left": state["left"], "texts": list(state["texts"])}

    async def step(self, state: Any, actions: Any, ctx: Any) -> Step:
        right = all(action.parsed == str(state["left"] - 1) for action in actions.values())
        texts = [*state["texts"], *(action.text for action in actions.values())]
        after = {**state, "left": state["left"] - right, "texts": texts}
        return Step(state=after, scores={(TEAM, "right"): float(right)}, info={"texts": texts[-1]})

    def outcome(self, state: Any) -> Any:
        return {"success": float(state["left"] == 0)}


def check(env: Any, **keywords: Any) -> None:
    check_environment(env, **{"roles": ["one", "two"], "act": ["0", "1", "no"], "episodes": 12, **keywords})


def test_a_sound_one_passes():
    check(Count())
    check(
        Count(), order=[["one", "two"]], act=lambda role, seen, rng: str(seen["left"] - 1), disjoint="content"
    )


def test_an_outcome_may_have_no_number_now_and_then():
    class Sometimes(Count):
        def outcome(self, state: Any) -> Any:
            return {**super().outcome(state), "pace": float("nan")}

    class Never(Count):
        def outcome(self, state: Any) -> Any:
            return {"success": float("nan")}

    check(Sometimes())
    caught("success is nan", check, Never())


def test_a_turn_that_never_ends_is_caught_and_not_waited_for():
    async def nothing_happens(self: Any, state: Any, actions: Any, ctx: Any) -> Step:
        return Step(state=state)

    endless = variant(acting_roles=lambda self, state: ("one",), step=nothing_happens)
    caught("acting_roles: doesn't end a turn", check, endless)
    caught("in 30 stages of turn 1", check, endless, max_stages=30)
    caught("fix: return () from `acting_roles`", check, endless, max_stages=30)


def test_a_turn_may_be_as_long_as_the_bound():
    alone = variant(acting_roles=lambda self, state: ("one",) if len(state["texts"]) < 30 else ())
    check(alone, max_stages=30, episodes=2)
    caught("doesn't end a turn", check, alone, max_stages=29)


def test_a_step_may_be_brought_down_by_what_it_can_read():
    """A run scores it with the floors; what it can't read it has to score itself."""

    async def fragile(self: Any, state: Any, actions: Any, ctx: Any) -> Step:
        if any(action.text == "no" for action in actions.values()):
            raise PolicyFault("the program killed its sandbox twice")
        return await Count.step(self, state, actions, ctx)

    check(variant(step=fragile))

    async def unread(self: Any, state: Any, actions: Any, ctx: Any) -> Step:
        if any(action.parsed is None for action in actions.values()):
            raise PolicyFault("unreadable")
        return await Count.step(self, state, actions, ctx)

    caught("raised PolicyFault", check, variant(step=unread))


def variant(**members: Any) -> Any:
    return type("Broken", (Count,), members)()


async def mutates(self, state, actions, ctx):
    step = await Count.step(self, state, actions, ctx)
    state["texts"].append("more")
    return step


async def shares(self, state, actions, ctx):
    """Share one list between all branches."""
    step = await Count.step(self, state, actions, ctx)
    self.log = getattr(self, "log", [])
    self.log.append(len(self.log))
    return dataclasses.replace(step, state={**step.state, "log": self.log})


async def draws(self, state, actions, ctx):
    step = await Count.step(self, state, actions, ctx)
    return dataclasses.replace(step, scores={(TEAM, "right"): random.random()})


async def cant_read(self, state, actions, ctx):
    return await Count.step(self, state, {r: a for r, a in actions.items() if a.parsed.strip()}, ctx)


async def lost(self, state, actions, ctx):
    raise SystemFault("the sandbox is gone")


def scoring(scores):
    async def step(self, state, actions, ctx):
        return dataclasses.replace(await Count.step(self, state, actions, ctx), scores=scores)

    return step


def with_state(change):
    async def step(self, state, actions, ctx):
        step = await Count.step(self, state, actions, ctx)
        return dataclasses.replace(step, state=change(step.state))

    return step


def informed(info):
    async def step(self, state, actions, ctx):
        return dataclasses.replace(await Count.step(self, state, actions, ctx), info=info)

    return step


class Address:
    """Objects that are equal by identity alone."""


class Opaque:
    def __init__(self) -> None:
        self.values = [1]


@pytest.mark.parametrize(("members", "message"), [
    ({"step": mutates}, "step: changed the state that it was given"),
    ({"step": shares}, "when a sibling was stepped"),
    ({"step": draws}, "gave another scores"),
    ({"step": cant_read}, "can't be read"),
    ({"step": lost}, "raised SystemFault"),
    ({"step": lambda self, state, actions, ctx: Step(state=state)}, "is not asynchronous"),
    ({"step": scoring({(TEAM, "style"): 1.0})}, "not among the components"),
    ({"step": scoring({("three", "right"): 1.0})}, "does not act in this stage"),
    ({"step": scoring({(TEAM, "right"): float("nan")})}, "is nan"),
    ({"step": scoring({(TEAM, "right"): "1"})}, "is '1'"),
    ({"step": scoring({"right": 1.0})}, "names no score"),
    ({"step": informed({"who": Address()})}, "plain data"),
    ({"step": informed("text")}, "info is a str"),
    ({"step": with_state(lambda state: {**state, "f": (lambda: 1)})}, "can't be"),
    ({"step": with_state(lambda state: {**state, "own": Opaque()})}, "digest"),
    ({"digest": lambda self, state: str(id(state))}, "another"),
    ({"digest": lambda self, state: 7}, "digest: returned 7"),
    ({"observe": lambda self, state, role: state}, "that a caller can change"),
    ({"observe": lambda self, state, role: {"texts": (state["texts"],)}}, "that a caller can change"),
    ({"observe": lambda self, state, role, seen=[]: seen}, "that a caller can change"),
    ({"observe": lambda self, state, role: state.pop("seed")}, "observe"),
    ({"observe": lambda self, state, role: random.random()}, "when called twice"),
    ({"reset": lambda self, task, seed: {"left": 2, "texts": [], "x": random.random()}}, "when called twice"),
    ({"reset": lambda self, task, seed: {"left": 2, "t": [task.payload.update(n=9)]}}, "changed the task"),
    ({"acting_roles": lambda self, state: ()}, "over before any role acts"),
    ({"acting_roles": lambda self, state: ("three",)}, "named 'three'"),
    ({"acting_roles": lambda self, state: ["one"]}, "returned ['one']"),
    ({"acting_roles": lambda self, state: state["texts"].append("x") or ("one",)}, "changed the state"),
    ({"outcome": lambda self, state: {"won": 1.0}}, "has no `success`"),
    ({"outcome": lambda self, state: {"success": 2}}, "success is 2"),
    ({"outcome": lambda self, state: {"success": 1, "ratio": float("inf")}}, "ratio is inf"),
    ({"outcome": lambda self, state: {"success": float(len(state.pop("texts")) > 0)}}, "outcome"),
    ({"diagnose": lambda self, state, role: None}, "diagnose: returned None"),
    ({"diagnose": lambda self, state, role: str(state.update(left=1))}, "diagnose: changed the state"),
    ({"demonstrate": lambda self, state, role, noise, rng: str(random.random())}, "doesn't repeat"),
    ({"demonstrate": lambda self, state, role, noise, rng: 1}, "demonstrate: returned 1"),
    ({"brief": lambda self, task: "win", "work": lambda self, role, info: Work()}, "brief: returned 'win'"),
    ({"brief": lambda self, task: Brief(), "work": lambda self, role, info: {}}, "work: returned {}"),
    ({"brief": lambda self, task: Brief(), "work": lambda self, role, info: Work(output=1)}, "output is 1"),
    ({"brief": lambda self, task: Brief(), "work": lambda self, role, info: info["none"]}, "info.get"),
    ({"vocabulary": lambda self: ["two words"]}, "is no word"),
    ({"components": {"right": "gain"}}, "is of kind 'gain'"),
    ({"components": {"a.b": "potential"}}, "is no name of a component"),
    ({"weights": {"style": 1.0}}, "a weight for 'style'"),
    ({"roles": ("three",)}, "doesn't know the role"),
])  # fmt: skip
def test_a_broken_one_is_caught(members, message):
    caught(message, check, variant(**members))


def test_a_game_that_gets_no_answer_is_told_to_start_what_it_asks():
    with pytest.raises(ConformanceError, match="start or repair what it asks"):
        check(variant(step=lost))


# ------------------------------------------------------------------------------------- memory and cycles


def counts(self, state, role):
    self.seen = getattr(self, "seen", 0) + (self.last is not state if hasattr(self, "last") else 1)
    self.last = state
    return {"left": state["left"], "texts": list(state["texts"]), "seen": self.seen}


def tallied(self, state):
    self.ended = getattr(self, "ended", set()) | {str(state)}
    return {"success": float(state["left"] == 0), "ended_so_far": float(len(self.ended))}


def looked_up(self, task, seed):
    self.starts = {**getattr(self, "starts", {}), task.id: 2}
    return {**Count.reset(self, task, seed), "id": task.id}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"observe": counts}, "observe: gives something else for the same state when it is called again"),
        ({"outcome": tallied}, "outcome: gives something else for the same state"),
        (
            {
                "reset": looked_up,
                "observe": lambda self, state, role: {"left": state["left"], "of": self.starts[state["id"]]},
            },
            "observe: raises AttributeError",
        ),
    ],
)
def test_what_is_kept_on_self_is_caught(members, message):
    caught(message, check, variant(**members), act=lambda role, seen, rng: str(seen["left"] - 1))


def test_a_cache_that_changes_nothing_passes():
    def observe(self: Any, state: Any, role: str) -> Any:
        self.cache = getattr(self, "cache", {})
        return dict(self.cache.setdefault(state["left"], {"left": state["left"]}))

    check(variant(observe=observe))


class Walk(Plugin):
    """A way of four places. `right` and `left` go along it; the last place ends the game."""

    roles: tuple[str, ...] = ()
    components: Any = {"nearer": "increment"}
    weights: Any = {}
    pays_back: float = 0.0
    """What a step back pays."""
    ends: bool = True

    def tasks(self, split: str, seed: int) -> Any:
        return [Task(id=f"{split}-{n}", payload=0) for n in range(3)]

    def reset(self, task: Task, seed: int) -> Any:
        return 0

    def acting_roles(self, state: Any) -> Any:
        return () if state == 3 and self.ends else None

    def observe(self, state: Any, role: str) -> Any:
        return state

    async def step(self, state: Any, actions: Any, ctx: Any) -> Step:
        move = sum({"right": 1, "left": -1}.get(action.parsed, 0) for action in actions.values())
        after = min(max(state + move, 0), 3)
        pays = float(after - state) if after > state else self.pays_back * (state - after)
        return Step(state=after, scores={(TEAM, "nearer"): pays})

    def outcome(self, state: Any) -> Any:
        return {"success": float(state == 3)}


def walk(env: Any, **keywords: Any) -> None:
    check_environment(env, **{"roles": ["one"], "act": ["right", "left", "stay"], "turns": 5, **keywords})


def walking(**members: Any) -> Any:
    return type("Walking", (Walk,), members)()


@pytest.mark.parametrize("roles", [["one"], ["one", "two"]])
@pytest.mark.parametrize("seed", range(2))
def test_a_gain_that_can_be_had_again_and_again_is_caught(roles, seed):
    caught("'nearer' can be earned again and again", walk, Walk(), roles=roles, seed=seed)
    caught("not_summable = ('nearer',)", walk, walking(not_summable=()), roles=roles, seed=seed)
    caught("repeatable=['nearer']", walk, walking(pays_back=-0.9), roles=roles, seed=seed)


async def bonus(self, state, actions, ctx):
    """A step that pays for good form, wherever it leads."""
    step = await Walk.step(self, state, actions, ctx)
    (role,) = actions
    return dataclasses.replace(step, scores={**step.scores, (role, "form"): 0.1})


async def lucky(self, state, actions, ctx):
    """A step that pays by chance, and as often takes."""
    step = await Walk.step(self, state, actions, ctx)
    return dataclasses.replace(step, scores={(TEAM, "nearer"): 1.0 if ctx.seed % 2 else -1.0})


def test_a_bonus_of_form_is_told_with_its_component():
    members = {"components": {"nearer": "increment", "form": "increment"}, "step": bonus, "pays_back": -1.0}
    caught("'form' can be earned again and again", walk, walking(**members))
    walk(walking(**members), repeatable=["form"])
    walk(walking(**members, weights={"form": 0.0}))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "members",
    [
        {"pays_back": -1.0},
        {"pays_back": -2.0},
        {"components": {"nearer": "potential"}},
        {"not_summable": ("nearer",)},
        {"weights": {"nearer": 0.0}},
        {"weights": {"nearer": -1.0}},
        {"ends": False},  # a game without an end is played on whatever the gains
        {"step": lucky},
    ],
)
def test_gains_that_going_round_does_not_raise_pass(members, seed):
    walk(walking(**members), seed=seed)


class Repeats(PlanPath):
    """Plan-Path without its declaration. A state counts the turns, so none has a digest twice."""

    not_summable = ()


@pytest.mark.parametrize("team", ["progress", "potential"])
def test_the_gains_of_plan_path_are_found(team):
    table = {"type": f"{__name__}:Repeats", "size": 4, "team": team}
    game = build("environment", table, order=["solver"])
    role = build("role", "plan_path_solver", name="solver", env=table)
    settings = {"roles": ["solver"], "act": ["U", "R", "D", "L"], "role_plugins": {"solver": role}}
    if team == "progress":
        caught("can be earned again and again", check_environment, game, **settings)
    else:
        check_environment(game, **settings)


def test_a_gain_on_purpose_passes():
    walk(Walk(), repeatable=["nearer"])
    with pytest.raises(UserError, match="did you mean 'nearer'"):
        walk(Walk(), repeatable=["nearest"])


def tasks(make):
    return {"tasks": lambda self, split, seed: make(split)}


COUNTER = itertools.count()


@pytest.mark.parametrize(("make", "message"), [
    (lambda split: [], "has no task"),
    (lambda split: ["task"], "a task is a str"),
    (lambda split: [Task(id=7)], "is no text"),
    (lambda split: [Task(id=split), Task(id=split)], "is twice in 'train'"),
    (lambda split: {"train": []}[split], "has no task"),
    (lambda split: {"train": [Task(id="a")]}[split], "tasks: raised KeyError"),
    (lambda split: [Task(id="a", payload={"left": 2})], "is in 'train' and in 'val'"),
    (lambda split: Drawn(split), "another task when read twice"),
    (lambda split: [Task(id=split, payload=lambda: 1)], "can't be pickled"),
])  # fmt: skip
def test_broken_tasks_are_caught(make, message):
    caught(message, check, variant(**tasks(make)))


class Drawn(list):
    def __init__(self, split: str) -> None:
        super().__init__([split])

    def __getitem__(self, index: Any) -> Task:
        return Task(id=list.__getitem__(self, index), payload={"left": 2, "n": next(COUNTER)})


def test_content_in_two_splits_is_caught_on_request():
    same = variant(**tasks(lambda split: [Task(id=split, payload={"left": 2})]))
    check(same)
    caught("the same problem as a task of 'train'", check, same, disjoint="content")


class Recorded(Count):
    """A sound environment with tasks as data."""

    def record(self, task: Task) -> Any:
        return dict(task.payload)

    def task_of(self, record: Any, id: str) -> Task:
        if "left" not in record:
            raise ValueError("no field 'left'")
        return Task(id=id, payload={name: record[name] for name in ("left", "split", "n")})

    def fingerprints(self, task: Task) -> Any:
        return {"content": f"{task.payload['split']}{task.payload['n']}", "solution": task.payload["split"]}

    def picture(self, task: Task) -> str:
        return "*" * task.payload["left"]


def test_a_sound_one_with_tasks_as_data_passes():
    check(Recorded())


@pytest.mark.parametrize(("members", "message"), [
    ({"record": lambda self, task: [1]}, "record: returned [1]"),
    ({"record": lambda self, task: {**task.payload, "x": {1, 2}}}, "record: raised TypeError"),
    ({"record": lambda self, task: {**task.payload, "x": float("nan")}}, "record: raised ValueError"),
    ({"record": lambda self, task: {**task.payload, "x": (1, 2)}}, "reads otherwise"),
    ({"record": lambda self, task: {**task.payload, 1: 2}}, "reads otherwise"),
    ({"record": lambda self, task: {**task.payload, "x": random.random()}}, "when called twice"),
    ({"record": lambda self, task: dict(task.payload, x=task.payload.update(n=9))}, "changed the task"),
    ({"record": lambda self, task: {**task.payload, "n": 1}}, "of the record of 'train-0' is another task"),
    ({"task_of": lambda self, record, id: Task(id="x", payload=record)}, "is another task"),
    ({"task_of": lambda self, record, id: Task(id=id, payload=record)}, "given one more field, is another"),
    ({"task_of": lambda self, record, id: record}, "is another task"),
    ({"task_of": lambda self, record, id: Recorded.task_of(self, {**record, "left": record["left"]}, id)},
     "raised KeyError on a record that is no task"),
    ({"fingerprints": lambda self, task: {"solution": "1"}}, "lack `content`"),
    ({"fingerprints": lambda self, task: {"content": 7}}, "texts by name"),
    ({"fingerprints": lambda self, task: {"content": str(random.random())}}, "when called twice"),
    ({"fingerprints": lambda self, task: {"content": str(task.payload["n"])}}, "have the same content"),
    ({"fingerprints": lambda self, task: {"content": task.id, "solution": "1"}}, "have the same solution"),
    ({"picture": lambda self, task: ["*"]}, "picture: returned ['*']"),
])  # fmt: skip
def test_broken_tasks_as_data_are_caught(members, message):
    caught(message, check, type("Broken", (Recorded,), members)())


@pytest.mark.parametrize(("answers", "message"), [
    (lambda self, task, played: 7, "final_answer: returned 7"),
    (lambda self, task, played: str(random.random()), "final_answer: differs when called twice"),
    (lambda self, task, played: played[99], "final_answer: raised IndexError"),
])  # fmt: skip
def test_what_is_no_final_answer_is_caught(answers, message):
    caught(message, check, variant(final_answer=answers))
    check(variant(final_answer=lambda self, task, played: played[-1][0].keys() and None))


@pytest.mark.parametrize("method", ["record", "task_of"])
def test_a_record_without_a_way_back_is_caught(method):
    caught(f"has `{method}` alone", check, variant(**{method: getattr(Recorded, method)}))


def test_a_misspelt_member_is_caught():
    caught("`vocabulry`, which nothing reads", check, variant(vocabulry=lambda self: ["one"]))
    caught("did you mean `not_summable`", check, variant(not_sumable=("right",)))


def test_what_is_lacking_is_named():
    caught("lacks acting_roles, outcome", check, type("Bare", (), {
        **{name: getattr(Count, name) for name in ("tasks", "reset", "observe", "step")},
        "roles": (), "components": {}, "weights": {}})())  # fmt: skip


def test_a_split_may_be_refused():
    def refuses(self: Any, split: str, seed: int) -> Any:
        if split == "test":
            raise ConfigError("no such file")
        return Count.tasks(self, split, seed)

    check(variant(tasks=refuses))
