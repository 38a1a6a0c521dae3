"""What the kit says of pay for talk, problems that splits share, digests, and state on `self`."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest

from coterie import TEAM, Step, Task
from coterie.core.errors import UserError
from coterie.testing import ConformanceWarning, check_environment, check_reward
from tests.testing.support import caught
from tests.testing.test_environments import Count, Walk


class Chat(Count):
    """A sound game whose step also scores `extra`, by what a subclass pays."""

    components: Any = {"right": "increment", "extra": "increment"}
    weights: Any = {}

    def pays(self, state: Any, actions: Any) -> float:
        return 0.0

    async def step(self, state: Any, actions: Any, ctx: Any) -> Step:
        step = await super().step(state, actions, ctx)
        extra = {(TEAM, "extra"): self.pays(state, actions)}
        return dataclasses.replace(step, scores={**step.scores, **extra})


def chat(pays: Any, **members: Any) -> Any:
    return type("Chatty", (Chat,), {"pays": lambda self, state, actions: pays(state, actions), **members})()


def check(env: Any, **keywords: Any) -> None:
    """Check without a warning."""
    settings = {"roles": ["one"], "act": ["0", "1", "no", "oh well"], "episodes": 3, **keywords}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConformanceWarning)
        check_environment(env, **settings)


def read(actions: Any) -> bool:
    return all(action.fault is None for action in actions.values())


def words(actions: Any) -> int:
    return sum(len(action.text.split()) for action in actions.values())


@pytest.mark.parametrize(("pays", "how"), [
    (lambda state, actions: 0.1 * (len(state["texts"]) < 5), "for any answer"),
    (lambda state, actions: 0.1 * (len(state["texts"]) < 5 and read(actions)), "for any answer"),
    (lambda state, actions: min(0.1 * words(actions), 0.5), "for words that say nothing"),
    (lambda state, actions: 0.01 * words(actions) * read(actions), "for words that say nothing"),
])  # fmt: skip
def test_pay_for_talk_is_caught(pays, how):
    caught(f"'extra' is paid {how}", check, chat(pays))
    check(chat(pays), repeatable=["extra"])
    check(chat(pays, not_summable=("extra",)))
    check(chat(pays, components={"right": "increment", "extra": "potential"}))


@pytest.mark.parametrize("pays", [
    lambda state, actions: 0.1 * ("1" in [action.text for action in actions.values()]),  # one answer alone
    lambda state, actions: 0.1 * (len(state["texts"]) < 2),  # twice
    lambda state, actions: -0.1,
    lambda state, actions: -0.01 * words(actions),
    lambda state, actions: 1.0 if len(state["texts"]) % 2 else -1.0,
])  # fmt: skip
def test_pay_for_what_is_said_passes(pays):
    check(chat(pays))


def test_a_game_without_an_end_may_pay_for_talk():
    check(chat(lambda state, actions: 0.1, acting_roles=lambda self, state: None))


# -------------------------------------------------------------------------------------------------- digests


def test_a_digest_that_leaves_out_what_is_seen_is_caught():
    def broken(digest: Any) -> Any:
        return type("Broken", (Count,), {"digest": lambda self, state: digest(state)})()

    caught(
        "digest: is 'same' for two states of 'train-0' that show 'one'", check, broken(lambda state: "same")
    )
    caught("digest: is '", check, broken(lambda state: str(state["left"])))
    check(broken(str))


# ----------------------------------------------------------------------------------------------- splits


def problems(make: Any, **members: Any) -> Any:
    """An environment whose tasks are (id, payload)."""

    def tasks(self: Any, split: str, seed: int) -> Any:
        return [Task(id=id_, payload={"left": 2, **payload}) for id_, payload in make(split)]

    def observe(self: Any, state: Any, role: str) -> Any:
        return {**state, "texts": list(state["texts"])}

    def reset(self: Any, task: Task, seed: int) -> Any:
        return {"texts": [], **task.payload}

    return type("Split", (Count,), {"tasks": tasks, "observe": observe, "reset": reset, **members})()


def same(split: str) -> Any:
    return [(f"{split}-{n}", {"n": n}) for n in range(3)]


def test_problems_that_two_splits_share_under_other_ids_are_told():
    with pytest.warns(ConformanceWarning, match="'val-0' is the problem of 'train-0': 3 of 3 tasks of 'val'"):
        check_environment(problems(same), roles=["one"], act=["0", "1"], episodes=1)
    check(problems(same), disjoint="id")
    caught("the same problem as a task of 'train'", check, problems(same), disjoint="content")


@pytest.mark.parametrize("env", [
    problems(lambda split: [(f"{split}-{n}", {"n": n, "of": split}) for n in range(3)]),
    problems(lambda split: [(f"{split}-{n}", {}) for n in range(3)]),  # the payload is no content
    problems(same, reset=lambda self, task, seed: {"texts": [], "seed": seed, **task.payload}),  # drawn
    problems(same, observe=lambda self, state, role: state["left"]),  # n is for the sake of the id
])  # fmt: skip
def test_problems_that_differ_or_are_drawn_are_not_told(env):
    check(env)


# ------------------------------------------------------------------------------------------- state on self


def logs(self: Any, state: Any) -> Any:
    self.log = [*getattr(self, "log", []), state["left"]]
    return Count.outcome(self, state)


def cached(self: Any, state: Any) -> Any:
    self.cache = {**getattr(self, "cache", {}), str(state): 1}
    return Count.outcome(self, state)


def of_class(self: Any, state: Any) -> Any:
    type(self).seen.append(state["left"])
    return Count.outcome(self, state)


def test_state_that_no_method_reads_is_told():
    env = type("Logs", (Count,), {"outcome": logs})
    with pytest.warns(ConformanceWarning, match=r"Logs: keeps `log` on itself.*\n  fix: put it into"):
        check_environment(env(), roles=["one"], act=["0", "1"], episodes=1)
    check(env(), keeps=["log"])
    with pytest.raises(UserError, match="did you mean 'log'"):
        check(env(), keeps=["lag"])
    with pytest.warns(ConformanceWarning, match="keeps `seen` on itself"):
        env = type("Shared", (Count,), {"outcome": of_class, "seen": []})
        check_environment(env(), roles=["one"], act=["0", "1"], episodes=1)
    check(type("Caches", (Count,), {"outcome": cached})())


# --------------------------------------------------------------------------------------- reward sources


class Praise:
    """A reward source that pays each answer of one word."""

    scope = "action"
    components: Any = {"praise": "increment"}
    weights: Any = {}
    policy_fault = 0.0

    async def score(self, view: Any) -> Any:
        return {(view.role, "praise"): 1.0}


def score(source: Any, environment: Any, **keywords: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConformanceWarning)
        act = ["right", "left", "stay"]
        check_reward(source, environment=environment, roles=["one"], act=act, episodes=1, **keywords)


@pytest.mark.parametrize("scope", ["action", "joint"])
def test_a_source_whose_pay_comes_back_is_told(scope):
    async def joint(self: Any, view: Any) -> Any:
        return {(TEAM, "praise"): 1.0}

    members = {"scope": scope} | ({"score": joint} if scope == "joint" else {})
    source = type("Praises", (Praise,), members)
    with pytest.warns(ConformanceWarning, match="Praises.score: 'praise' can be earned again and again"):
        check_reward(source(), environment=Walk(), roles=["one"], act=["right", "left", "stay"], episodes=1)
    score(source(), Walk(), repeatable=["praise"])
    score(source(), Count())  # what was said stays in the state: nothing leads back
    score(type("Level", (source,), {"components": {"praise": "potential"}})(), Walk())


def test_a_source_that_pays_for_the_way_only_passes():
    async def nearer(self: Any, view: Any) -> Any:
        return {(TEAM, "praise"): float(view.after - view.state)}

    score(type("Nearer", (Praise,), {"scope": "joint", "score": nearer})(), Walk())


def test_a_source_that_counts_on_itself_is_told():
    async def counts(self: Any, view: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return {(view.role, "praise"): 0.0}

    source = type("Counts", (Praise,), {"score": counts})
    with pytest.warns(ConformanceWarning, match="Counts: keeps `calls` on itself"):
        check_reward(source(), environment=Count(), roles=["one"], act=["1"], episodes=1)
    score(source(), Count(), keeps=["calls"])
