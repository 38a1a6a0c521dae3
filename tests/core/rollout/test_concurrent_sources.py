"""Reward sources are asked at the same time, under a bound each, and may hold connections."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter

import pytest

from coterie import Plugin, SystemFault
from coterie.core.errors import PluginError
from coterie.core.rollout.rewards import branch_rewards
from coterie.core.types import TEAM
from coterie.testing import coterie_run, play_episode


class Judge(Plugin):
    """Counts how many calls are under way; answers at the same time what it was asked at the same time."""

    scope = "action"
    components = {"judged": "increment"}
    weights = {}
    policy_fault = 0.0
    under_way, most, events = 0, 0, []

    async def open(self):
        type(self).events.append("open")

    async def close(self):
        type(self).events.append("close")

    async def score(self, view):
        of = type(self)
        of.under_way += 1
        of.most = max(of.most, of.under_way)
        await asyncio.sleep(0.002 + random.random() / 200)
        of.under_way -= 1
        return {(view.role, "judged"): float(view.action.text)}


class Serial(Judge):
    concurrency = 1
    under_way, most, events = 0, 0, []


class Joint(Judge):
    scope = "joint"
    components = {"all": "increment"}
    under_way, most, events = 0, 0, []

    async def score(self, view):
        await super().score(type("V", (), {"role": "one", "action": view.actions["one"]}))
        return {(TEAM, "all"): 1.0}


class Late(Judge):
    scope = "episode"
    components = {"late": "increment"}
    under_way, most, events = 0, 0, []

    async def score(self, view):
        await super().score(type("V", (), {"role": "one", "action": type("A", (), {"text": "0"})}))
        return {(TEAM, "late"): 1.0}


class Broken(Judge):
    under_way, most, events = 0, 0, []

    async def score(self, view):
        if view.action.text == "1":
            return "nonsense"
        await asyncio.sleep(0.05)
        type(self).events.append("went on")
        return {}


def rewards(*sources, **settings):
    return {of.__name__.lower(): {"type": f"{__name__}:{of.__name__}", **settings} for of in sources}


@pytest.fixture(autouse=True)
def _fresh():
    for of in (Judge, Serial, Joint, Late, Broken):
        of.under_way, of.most, of.events = 0, 0, []


def played(table, branches=8, **tables):
    texts = {"one": [str(i) for i in range(branches)]}
    sampler = {"branches": branches, "expand": "best"}
    return play_episode(coterie_run(texts, order=["one"], rewards=table, **{"sampler": sampler, **tables}))


def test_the_branches_of_a_node_are_asked_at_the_same_time():
    trees, scores = played(rewards(Judge, Joint))
    assert (Judge.most, Joint.most) == (8, 8)
    key = trees[0].root.key
    assert [scores.at(key.of_branch("one", b))["one", "judged"].value for b in range(8)] == list(range(8))


@pytest.mark.parametrize("bound", [1, 3])
def test_under_the_bound_of_the_configuration(bound):
    played(rewards(Judge, concurrency=bound))
    assert Judge.most == bound


def test_the_bound_covers_all_episodes_of_the_process():
    sampler = {"branches": 1, "chains": 6}
    played(rewards(Judge, concurrency=2), sampler=sampler, algorithm={"type": "grpo"})
    assert Judge.most == 2


def test_a_source_may_ask_to_be_asked_one_by_one_and_a_configuration_knows_better():
    played(rewards(Serial))
    assert Serial.most == 1
    played(rewards(Serial, concurrency=4))
    assert Serial.most == 4


def plain(view):
    return 1.0


async def waiting(view):
    return 1.0


def test_what_waits_for_nothing_is_asked_one_by_one():
    functions = {
        name: {"type": "function", "function": f"{__name__}:{name}", "components": {name: "increment"}}
        for name in ("plain", "waiting")
    }
    run = coterie_run(rewards={"environment": {"type": "environment"}, **functions, **rewards(Judge)})
    assert {source.name: source.concurrency for source in run.reward_sources} == {
        "environment": 1,
        "plain": 1,
        "waiting": 64,
        "judge": 64,
    }


def test_paths_are_asked_about_at_the_same_time():
    sampler = {"branches": 4, "expand": "all"}
    played(rewards(Late), branches=4, sampler=sampler, algorithm={"type": "magrpo"})
    assert Late.most == 4


def test_scores_stand_in_one_order_however_long_the_calls_take():
    orders = set()
    for _ in range(3):
        _, scores = played(rewards(Joint, Judge))
        orders.add(tuple((key, role, component) for key, role, component, _ in scores))
    assert len(orders) == 1


def test_sources_open_and_close_with_the_run_once():
    played(rewards(Judge, Joint))
    assert Judge.events == Joint.events == ["open", "close"]


def test_after_a_broken_contract_no_call_goes_on():
    with pytest.raises(PluginError, match="nonsense"):
        played(rewards(Broken))
    assert Broken.events == ["open", "close"]


class Refuses(Late):
    async def score(self, view):
        raise PluginError("this source needs a newer judge")


def test_what_a_source_refuses_has_its_path():
    with pytest.raises(PluginError, match="needs a newer judge") as caught:
        played(rewards(Refuses), sampler={"branches": 1, "chains": 6}, algorithm={"type": "grpo"})
    assert caught.value.path == "rewards.refuses"


class LateBroken(Late):
    async def score(self, view):
        return "nonsense"


def test_a_source_that_breaks_its_contract_in_every_rollout_is_told_once(caplog):
    """asyncio would print a traceback for each of the other rollouts."""
    sampler = {"branches": 1, "chains": 6}
    with pytest.raises(PluginError, match="nonsense"):
        played(rewards(LateBroken), sampler=sampler, algorithm={"type": "grpo"})
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_a_run_may_be_opened_in_two_event_loops():
    """Each has its own semaphores: one of a closed loop would never be released."""
    run = coterie_run(
        {"one": ["1", "2", "3"]},
        order=["one"],
        rewards=rewards(Judge, concurrency=1),
        sampler={"branches": 3},
    )
    for _ in range(2):
        trees, scores = play_episode(run)
        assert branch_rewards(trees[0].root, "one", scores, run.reward_weights) == [1.0, 2.0, 3.0]


def fails_on_odd(view):
    if int(view.action.text) % 2:
        raise SystemFault("lost")
    return float(view.action.text)


def test_a_failure_stays_with_its_own_call():
    table = {"judge": {"type": "function", "function": f"{__name__}:fails_on_odd", "scope": "action"}}
    trees, scores = played(table, schedule={"max_missing": 1.0})
    weights = coterie_run(order=["one"], rewards=table).reward_weights
    rewarded = branch_rewards(trees[0].root, "one", scores, weights)
    assert Counter(value is None for value in rewarded) == {True: 4, False: 4}
    assert rewarded[::2] == [0.0, 2.0, 4.0, 6.0]
