"""A system fault makes a score missing, an output that breaks a reward source earns the floor."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest

from coterie import Plugin, PluginConfig, PolicyFault, SystemFault
from coterie.core.errors import ConfigError, PluginError, TooManyMissing
from coterie.core.protocols import SiblingsView
from coterie.core.rollout.rewards import LARGEST_SCORE, branch_rewards
from coterie.core.types import TEAM, Key, RewardWeights, Score, Scores
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import EchoRole


def source(name, **settings):
    return {"type": "function", "function": f"tests.core.rollout.test_rewards:{name}", **settings}


def values(run, role="one"):
    trees, scores = play_episode(run)
    return branch_rewards(trees[0].root, role, scores, run.reward_weights), scores


def flaky(view):
    if view.actions.get("one") and view.actions["one"].text == "1":
        raise SystemFault("503 from the judge")
    return 1.0


def buggy(view):
    return {"not": "a number"}["other"]


def times_out_on_one(view):
    if view.actions.get("one") and view.actions["one"].text == "1":
        raise PolicyFault("verifier timed out on the output")
    return 0.0


def nan(view):
    return float("nan")


def inf(view):
    return float("inf")


def huge(view):
    return 1e308  # a sum of two is infinite


def minus_inf(view):
    return float("-inf")


def last_number(view):
    """The number that was written last; the view's last joint action must be the path's."""
    node, index = view.path[-1]
    assert view.leaf is node.joints[index] and view.leaf.child is None
    branch = view.leaf.branches[next(iter(node.decisions))]
    return float(node.decisions[next(iter(node.decisions))].branches[branch].text)


def by_action(view):
    return {(view.role, "style"): float(len(view.action.text))}


async def ranked(view):
    return [{(view.role, "rank"): float(-int(action.text))} for action in view.actions]


async def short_ranking(view):
    return [{(view.role, "rank"): 1.0}]


def ending(view):
    return float(view.leaf.truncated)


def test_a_system_fault_makes_one_score_missing_and_no_others():
    rewards, scores = values(
        coterie_run(rewards={"r": source("flaky")}, order=["one"], schedule={"max_missing": 0.5})
    )
    assert rewards == [1.0, None, 1.0]
    assert [score.reason.rpartition("SystemFault: ")[2] for *_, score in scores] == [
        "",
        "503 from the judge",
        "",
    ]


def test_an_exception_of_a_source_makes_the_score_missing_with_its_reason():
    rewards, scores = values(
        coterie_run(rewards={"r": source("buggy")}, order=["one"], schedule={"max_missing": 1.0})
    )
    assert rewards == [None] * 3
    assert "KeyError" in next(iter(scores))[3].reason


def test_too_many_missing_scores_stop_the_run_with_the_reason():
    with pytest.raises(TooManyMissing, match=r"(?s)3 of 3 scores.*KeyError"):
        play_episode(coterie_run(rewards={"r": source("buggy")}, order=["one"]))


def test_an_output_that_hangs_the_verifier_earns_less_than_a_wrong_one():
    rewards, _ = values(coterie_run(rewards={"r": source("times_out_on_one", floor=-1.0)}, order=["one"]))
    assert rewards == [0.0, -1.0, 0.0]


@pytest.mark.parametrize(("name", "reason"), [
    ("nan", "nan"), ("inf", "inf"), ("minus_inf", "-inf"), ("huge", "1e+308"),
])  # fmt: skip
def test_what_is_not_finite_is_missing(name, reason):
    rewards, scores = values(
        coterie_run(rewards={"r": source(name)}, order=["one"], schedule={"max_missing": 1.0})
    )
    assert rewards == [None] * 3
    assert {(score.value, score.reason) for _, _, _, score in scores} == {
        (None, f"{reason} is no number up to 1e100")
    }


def largest(view):
    """The largest score, its opposite, and one that is too large."""
    return LARGEST_SCORE * {"0": 1, "1": -1, "2": 1.001}[view.actions["one"].text]


def test_the_largest_score_counts_and_a_larger_one_is_missing():
    run = coterie_run(rewards={"r": source("largest")}, order=["one"], schedule={"max_missing": 0.5})
    assert values(run)[0] == [LARGEST_SCORE, -LARGEST_SCORE, None]


class Answers(Plugin):
    """A reward source with the answer that a test sets, bare or in a table."""

    class Config(PluginConfig):
        scope: Literal["action", "joint", "siblings", "episode"] = "joint"
        bare: bool = False

    components = {"r": "increment"}
    weights = {}
    policy_fault = 0.0
    answer: Any = None

    @property
    def scope(self):
        return self.config.scope

    async def score(self, view):
        return Answers.of(view, self.config.bare)

    @staticmethod
    def of(view, bare):
        answer = Answers.answer if bare else {(getattr(view, "role", TEAM), "r"): Answers.answer}
        return [answer] * len(view.actions) if isinstance(view, SiblingsView) else answer


def bare_answer(view):
    return Answers.of(view, True)


def answer_in_a_table(view):
    return Answers.of(view, False)


class Scalar:
    """What a library's tensor without dimensions is."""

    def __float__(self):
        return 0.5

    def __repr__(self):  # the test's id
        return "Scalar()"


class Broken:
    def __float__(self):
        raise RuntimeError("it is on another device")

    def __repr__(self):
        return "Broken()"


SCOPES = ["joint", "action", "siblings", "episode"]


def scored_by(name, answer, scope, monkeypatch):
    """{value of the component `r`} in a run whose source `r` answers so."""
    monkeypatch.setattr(Answers, "answer", answer)
    tables = {
        "class": {"type": f"{__name__}:Answers"},
        "bare class": {"type": f"{__name__}:Answers", "bare": True},
        "function": source("answer_in_a_table", components={"r": "increment"}),
        "bare function": source("bare_answer", components={"r": "increment"}),
    }
    run = coterie_run(
        order=["one"],
        rewards={"environment": {"type": "environment"}, "r": {**tables[name], "scope": scope}},
        sampler={"branches": 1, "chains": 2},
        algorithm={"type": "reinforce_pp", "beta": 0.0, "truncated": "keep"},
    )
    return {score.value for _, _, component, score in play_episode(run)[1] if component == "r"}


NUMBERS = [
    (0.5, 0.5), (1, 1.0), (True, 1.0), (np.float32(0.5), 0.5), (np.bool_(True), 1.0), (np.array(0.5), 0.5),
    (Scalar(), 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("scope", "name", "answer", "value"), [
    *(("joint", name, *number) for name in ("class", "function", "bare function") for number in NUMBERS),
    *((scope, "bare function", np.float32(0.5), 0.5) for scope in SCOPES if scope != "joint"),
])  # fmt: skip
def test_what_converts_to_a_number_is_a_score(name, answer, value, scope, monkeypatch):
    assert scored_by(name, answer, scope, monkeypatch) == {value}


NO_NUMBERS = ("0.9", [0.9], np.ones(2), 10**400, 1j, Broken())


@pytest.mark.parametrize(("scope", "name", "answer"), [
    *(("joint", name, answer) for name in ("class", "bare class", "function", "bare function")
      for answer in NO_NUMBERS),
    *((scope, name, "0.9") for scope in SCOPES[1:] for name in ("bare class", "bare function")),
    *((scope, "bare class", answer) for scope in SCOPES for answer in (0.9, None)),
], ids=lambda part: f"{part!r:.20}")  # fmt: skip
def test_what_is_no_score_names_its_source(name, answer, scope, monkeypatch):
    """A program that returns "0.9", or a class that returns a bare number: never a crash without a name."""
    with pytest.raises(PluginError) as caught:
        scored_by(name, answer, scope, monkeypatch)
    function = "function" in name
    assert caught.value.path == ("rewards.r.function" if function else "rewards.r")
    assert ("answer" if function else f"reward '{__name__}:Answers'") in caught.value.what
    assert caught.value.fix or caught.value.why


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_step_that_emits_no_finite_number_leaves_the_score_missing(monkeypatch, value):
    run = coterie_run(order=["one"], schedule={"max_missing": 1.0})
    step = run.environment.step

    async def emits(state, actions, ctx):
        played = await step(state, actions, ctx)
        return dataclasses.replace(played, scores={**played.scores, (TEAM, "sum"): value})

    monkeypatch.setattr(run.environment, "step", emits)
    assert values(run)[0] == [None] * 3


def test_sources_of_all_scopes_add_scores():
    run = coterie_run(
        order=["one"],
        rewards={
            "environment": {"type": "environment", "weights": {"sum": 0, "own": 0}},
            "a": source("by_action", scope="action", components={"style": "increment"}),
            "s": source(
                "ranked",
                scope="siblings",
                components={"rank": "increment"},
            ),
            "e": source("ending", scope="episode", components={"ended": "potential"}),
        },
        sampler={"branches": 1, "chains": 2},
        algorithm={"type": "grpo"},
    )
    trees, scores = play_episode(run)
    root = trees[0].root
    assert branch_rewards(root, "one", scores, run.reward_weights) == [1.0 + 1.0]
    assert scores.at(root.key.of_branch("one", 0))["one", "rank"].value == 0.0
    ((leaf, _),) = trees[0].leaves()
    assert scores.at(leaf)[TEAM, "ended"].value == 1.0


@pytest.mark.parametrize("expand", ["best", "sampled"])
def test_siblings_are_not_compared_by_what_only_one_of_them_gets(expand):
    """Of four branches (.6, .3, 1.1, .7) the one that was played on would get 3 more."""
    reward = {"e": source("ending", scope="episode", components={"ended": "increment"})}
    with pytest.raises(ConfigError, match="by a score of the whole episode") as error:
        coterie_run(rewards=reward, sampler={"branches": 4, "expand": expand})
    assert error.value.path == "rewards.e"
    assert "sampler.expand to sampled" not in str(error.value) and "sampler.branches=1" in str(error.value)
    coterie_run(rewards=reward, sampler={"branches": 1, "chains": 4}, algorithm={"type": "grpo"})
    coterie_run(rewards=reward, sampler={"branches": 4, "expand": "all"}, algorithm={"type": "magrpo"})


def test_an_episodes_score_is_at_its_end_and_nowhere_else():
    """Two roles and two turns: eight leaves of a tree that plays everything on, four nodes a path."""
    run = coterie_run(
        rewards={"last": source("last_number", scope="episode")},
        sampler={"branches": 2, "expand": "all"},
        algorithm={"type": "magrpo"},
        order=["one", "two"],
        max_turns=2,
    )
    trees, scores = play_episode(run)
    leaves = {key: float(key.joint) for tree in trees for key, _ in tree.leaves()}  # branch b writes b
    assert len(leaves) == 16 and {len(key.path) for key in leaves} == {3}
    placed = {
        key: score.value for key, role, component, score in scores if (role, component) == (TEAM, "last")
    }
    assert placed == leaves and len(scores) == 16


def test_selection_by_a_score_of_the_whole_episode_is_refused():
    with pytest.raises(ConfigError, match="can't be chosen by a score of the whole episode") as error:
        coterie_run(rewards={"e": source("ending", scope="episode", components={"ended": "potential"})})
    assert error.value.path == "rewards.e"
    coterie_run(
        rewards={
            "environment": {"type": "environment"},
            "e": source("ending", scope="episode", components={"ended": "potential"})
            | {"weights": {"ended": 0}},
        }
    )


def test_truncated_sampling_warns(caplog):
    coterie_run(sampler={"sampling": {"top_p": 0.9}})
    assert "role 'one' samples with top_p/top_k" in caplog.text
    caplog.clear()
    coterie_run()
    assert caplog.text == ""


def test_a_ranking_of_too_few_breaks_the_contract_and_ends_the_run():
    run = coterie_run(
        rewards={"s": source("short_ranking", scope="siblings", components={"rank": "increment"})},
        order=["one"],
        schedule={"max_missing": 1.0},
    )
    with pytest.raises(PluginError, match="a list of 3 scores, one per action") as caught:
        values(run)
    assert caught.value.path == "rewards.s.function"


def test_an_environment_that_raises_loses_that_joint_only():
    run = coterie_run(env={"fail_on": "1"}, order=["one"], schedule={"max_missing": 0.5})
    trees, scores = play_episode(run)
    assert (
        trees[0]
        .root.joints[1]
        .fault.reason.endswith("NumberGame' of coterie: step raised SystemFault: the world broke")
    )
    assert branch_rewards(trees[0].root, "one", scores, run.reward_weights) == [0.0, None, pytest.approx(2.2)]


def test_an_unparsable_action_is_played_and_scored():
    run = coterie_run(answers=answers_bad, order=["one"])
    trees, scores = play_episode(run)
    fault = trees[0].root.decisions["one"].branches[1].fault
    assert (fault.kind, fault.reason) == ("policy", "said bad")
    assert branch_rewards(trees[0].root, "one", scores, run.reward_weights)[1] == 0.0


def test_a_parser_that_breaks_on_a_text_makes_it_unparsable():
    run = coterie_run(
        order=["one"],
        team={
            "order": ["one"],
            "max_turns": 1,
            "roles": {"one": {"type": "tests.core.rollout.test_rewards:Fragile", "policy": "p"}},
        },
    )
    trees, _ = play_episode(run)
    faults = [action.fault for action in trees[0].root.decisions["one"].branches]
    assert faults[0] is None and faults[1].kind == "policy" and "ZeroDivisionError" in faults[1].reason


class Fragile(EchoRole):
    def parse(self, text, observation):
        return 1 / (1 - int(text))


def answers_bad(request, text):
    return "bad" if request.key.branch == 1 else str(request.key.branch)


def test_reward_weights_by_hand():
    reward_weights = RewardWeights(weights={"a": 2.0, "b": 0.5, "zero": 0.0}, team_weight=0.1)
    scores = {
        (TEAM, "a"): Score(1.0),
        ("x", "b"): Score(4.0),
        ("y", "b"): Score(100.0),
        (TEAM, "zero"): Score(None),
    }
    assert reward_weights.reward(scores, "x") == pytest.approx(0.1 * 2.0 + 0.5 * 4.0)
    assert reward_weights.reward({**scores, ("x", "a"): Score(None)}, "x") is None


def test_a_score_is_added_once():
    scores = Scores()
    scores.add(Key("t"), TEAM, "a", Score(1.0))
    with pytest.raises(ValueError, match="twice"):
        scores.add(Key("t"), TEAM, "a", Score(2.0))


def test_two_sources_of_one_component_are_refused():
    with pytest.raises(ConfigError, match="also comes from"):
        coterie_run(
            rewards={
                "a": source("nan", components={"x": "increment"}),
                "b": source("nan", components={"x": "potential"}),
            }
        )
    with pytest.raises(ConfigError, match="unknown component 'summ'") as error:
        coterie_run(rewards={"environment": {"type": "environment", "weights": {"summ": 1}}})
    assert error.value.path == "rewards.environment.weights.summ" and "'sum'" in error.value.fix
