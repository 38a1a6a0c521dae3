"""What a source says of a failure belongs to whom the source speaks of."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from coterie import Plugin, PolicyFault, SystemFault
from coterie.api.rollouts import rollout_rows
from coterie.core.errors import PluginError
from coterie.core.protocols import Batch
from coterie.core.rollout.rewards import branch_rewards
from coterie.core.training.metrics import step_metrics
from coterie.core.types import TEAM
from coterie.testing import ConformanceError, check_reward, coterie_run, play_episode
from coterie.testing.support.toys import NumberGame

HANG, DOWN = "hang", "down"


def judged(text):
    """The number in a text; the judge hangs on one text and is down on another."""
    if text == HANG:
        raise PolicyFault("the verifier timed out")
    if text == DOWN:
        raise SystemFault("503")
    return float(text)


def of_action(view):
    return judged(view.action.text)


def of_roles(view):
    """Scores of the roles themselves, from a source of scope joint."""
    return {(role, "judge"): judged(action.text) for role, action in view.actions.items()}


def of_siblings(view):
    return [judged(action.text) for action in view.actions]


def of_another(view):
    return {("two", "judge"): 1.0, (TEAM, "judge"): 1.0}


ASKED = []


def counted(view):
    ASKED.append(view.action.text)
    return 1.0


def of_two_strangers(view):
    return {("nobody", "judge"): 1.0, ("someone", "judge"): 1.0}


def played(
    function, *texts, scope="action", kind="increment", floor=0.0, alpha=1.0, algorithm=None, **settings
):
    """A run of one role that writes these texts, one a turn, or one a branch; and its trees and scores."""
    chains = algorithm is not None
    run = coterie_run(
        {"one": lambda request, _: texts[len(request.key.path) if chains else request.key.branch]},
        order=["one"],
        max_turns=len(texts) if chains else 1,
        rewards={
            "judge": {
                "type": "function",
                "function": f"{__name__}:{function}",
                "scope": scope,
                "floor": floor,
                "components": {"judge": kind},
                **settings,
            }
        },
        sampler={"branches": 1 if chains else len(texts)},
        algorithm={"type": algorithm or "at_grpo", "alpha": alpha},
        schedule={"max_missing": 1.0},
    )
    return run, *play_episode(run)


def returns(*texts, scope, function, alpha=1.0, floor=0.0):
    """The return to go of each turn."""
    run, trees, scores = played(
        function, *texts, scope=scope, kind="potential", floor=floor, alpha=alpha, algorithm="reinforce"
    )
    batch = Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights)
    credit, _ = run.estimator(batch, None)
    return [credit.returns.get(node.key.of_branch("one", 0)) for node in trees[0].nodes()]


SCOPES = [("action", "of_action"), ("siblings", "of_siblings"), ("joint", "of_roles")]


@pytest.mark.parametrize(("scope", "function"), SCOPES)
@pytest.mark.parametrize("alpha", [0.0, 0.35, 1.0])
def test_hanging_the_verifier_never_beats_being_wrong(scope, function, alpha):
    wrong = returns("0.8", "0", scope=scope, function=function, alpha=alpha)
    hung = returns("0.8", HANG, scope=scope, function=function, alpha=alpha)
    assert hung == pytest.approx(wrong) == [0.0, -0.8]


@pytest.mark.parametrize(("scope", "function"), SCOPES[:2])
@pytest.mark.parametrize("alpha", [0.0, 0.35, 1.0])
def test_alpha_scales_no_floor_of_a_role(scope, function, alpha):
    run, trees, scores = played(function, "1", HANG, scope=scope, floor=-1.0, alpha=alpha)
    other = -1.0 if scope == "siblings" else 1.0  # one call ranks all siblings
    assert branch_rewards(trees[0].root, "one", scores, run.reward_weights) == [other, -1.0]
    assert list(scores.at(trees[0].root.key.of_branch("one", 1))) == [("one", "judge")]


@pytest.mark.parametrize(("scope", "function"), SCOPES)
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_lost_score_is_missing_whatever_alpha_is(scope, function, alpha):
    run, trees, scores = played(function, DOWN, "1", scope=scope, alpha=alpha)
    rewards = branch_rewards(trees[0].root, "one", scores, run.reward_weights)
    assert rewards[0] is None
    assert rewards[1] == (None if scope == "siblings" else 1.0)  # one call ranks all siblings


@pytest.mark.parametrize("alpha", [0.0, 0.35, 1.0])
def test_a_joint_source_that_scores_roles_says_so_and_its_floor_is_theirs(alpha):
    """Else a floor of -1 would cost alpha, and being wrong 1."""
    run, trees, scores = played(
        "of_roles", "-1", HANG, DOWN, scope="joint", floor=-1.0, alpha=alpha, per_role=["judge"]
    )
    rewards = branch_rewards(trees[0].root, "one", scores, run.reward_weights)
    assert rewards == [-1.0, -1.0, None]
    assert [list(scores.at(trees[0].root.key.of_joint(index))) for index in range(3)] == [
        [("one", "judge")]
    ] * 3


@pytest.mark.parametrize(("scope", "names"), [("joint", ["juge"]), ("action", ["judge"])])
def test_components_of_single_roles_are_checked(scope, names):
    with pytest.raises(PluginError, match="`per_role`") as error:
        played("of_action", "1", "2", scope=scope, per_role=names)
    assert error.value.path == "rewards.judge" and error.value.fix


class Fragile(NumberGame):
    """A game whose step is brought down by what the role wrote."""

    async def step(self, state, actions, ctx):
        if "one" in actions and actions["one"].text == HANG:
            raise PolicyFault("the program killed its sandbox twice")
        return await super().step(state, actions, ctx)


def fragile(*texts, floor, **tables):
    style = {"type": "function", "function": f"{__name__}:of_nothing", "scope": "action"}
    run = coterie_run(
        lambda request, _: texts[request.key.branch],
        env=f"{__name__}:Fragile",
        order=["one"],
        rewards={"environment": {"type": "environment", "floor": floor}, "style": style},
        max_turns=2,
        **tables,
    )
    return run, *play_episode(run)


def of_nothing(view):
    return 0.0


def test_a_step_that_the_output_brings_down_is_scored_and_no_accident():
    run, trees, scores = fragile("1", HANG, "-1", floor=-2.0, sampler={"branches": 3})
    root = trees[0].root
    rewards = branch_rewards(root, "one", scores, run.reward_weights)
    assert rewards == pytest.approx([1.1, -2.0 * 2, -1.1])  # `sum` and `own` have weight 1, `best` 0
    assert root.joints[1].fault.kind == "policy" and not root.joints[1].lost
    assert root.expanded == (0,)


def test_a_step_that_fails_gives_floors_to_the_roles_that_acted():
    run = coterie_run(
        {"one": HANG, "two": "1"},
        env=f"{__name__}:Fragile",
        order=["two", "one"],
        rewards={
            "judge": {
                "type": "function",
                "function": f"{__name__}:of_roles",
                "components": {"judge": "increment"},
                "per_role": ["judge"],
                "floor": -1.0,
            }
        },
        sampler={"branches": 1, "chains": 2},
        algorithm={"type": "grpo"},
    )
    trees, scores = play_episode(run)
    last = trees[0].root.joints[0].child
    assert list(scores.at(last.key.of_joint(0))) == [("one", "judge")]


def test_where_all_are_brought_down_the_episode_ends_unsolved_and_is_not_missing():
    run, trees, scores = fragile(HANG, HANG, floor=-1.0, sampler={"branches": 2})
    ((_, leaf),) = trees[0].leaves()
    assert leaf.outcome["success"] == 0.0 and leaf.truncated
    row = step_metrics(trees, scores, None, run.reward_weights)
    assert (row["episodes/missing"], row["success_committed"]) == (0.0, 0.0)


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "reinforce_pp"])
def test_a_chain_that_was_brought_down_is_trained_with_its_floor(algorithm):
    settings = {"beta": 0.0} if algorithm == "reinforce_pp" else {}
    texts = ["1", HANG]
    run = coterie_run(
        lambda request, _: texts[request.key.chain], env=f"{__name__}:Fragile", order=["one"],
        rewards={"environment": {"type": "environment", "floor": -1.0, "weights": {"own": 0}}},
        sampler={"branches": 1, "chains": 2}, algorithm={"type": algorithm, **settings},
    )  # fmt: skip
    trees, scores = play_episode(run)
    credit, _ = run.estimator(
        Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights), None
    )
    up, down = (credit.advantage[tree.root.key.of_branch("one", 0)] for tree in trees[:2])
    assert np.all(np.asarray(up) > 0) and np.all(np.asarray(down) < 0)


def of_the_team(view):
    return 1.0


def of_all(view):
    return {("one", "judge"): 1.0, (TEAM, "judge"): 1.0}


@pytest.mark.parametrize("function", ["of_the_team", "of_all"])
def test_a_team_score_of_a_component_of_single_roles_breaks_the_contract(function):
    """Else answers would count alpha, and a floor 1: hanging would beat being right at alpha 0."""
    with pytest.raises(PluginError, match="the team has no 'judge', which is `per_role`"):
        played(function, "1", "2", scope="joint", per_role=["judge"], alpha=0.0)


def none_of_them(view):
    return None


def test_no_score_of_components_of_single_roles_is_each_roles():
    _, trees, scores = played("none_of_them", "1", "2", scope="joint", per_role=["judge"])
    cell = scores.at(trees[0].root.key.of_joint(0))
    assert [owner for owner, _ in cell] == ["one"] and cell["one", "judge"].reason.endswith(": no score")


class Source(Plugin):
    scope = "joint"
    components: ClassVar = {"judge": "increment"}
    weights: ClassVar = {}
    policy_fault = -1.0

    async def score(self, view):
        return {}


def declared(**members):
    source = type("Declared", (Source,), {"__module__": __name__, **members})
    globals()["Declared"] = source
    return coterie_run(order=["one"], rewards={"judge": {"type": f"{__name__}:Declared"}})


def plain_open(self):
    pass


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"concurrency": 0}, "`concurrency` is 0"),
        ({"concurrency": -3}, "`concurrency` is -3"),
        ({"concurrency": None}, "`concurrency` is None"),
        ({"per_role": ("juge",)}, "`per_role` names 'juge'"),
        ({"per_role": ("judge",), "scope": "action"}, "scores one role's action"),
        ({"open": plain_open}, "`open` is no coroutine function"),
        ({"close": plain_open}, "`close` is no coroutine function"),
    ],
)
def test_what_a_class_says_of_its_calls_and_components_is_checked_when_it_is_built(members, message):
    with pytest.raises(PluginError, match=message) as error:
        declared(**members)
    assert error.value.path == "rewards.judge" and "Declared" in error.value.what
    with pytest.raises(ConformanceError, match=message):
        check_reward(globals()["Declared"](), views=["never looked at"])


def test_a_floor_that_a_negative_weight_turns_into_a_bonus_is_told(caplog):
    judge = {
        "type": "function",
        "function": f"{__name__}:of_the_team",
        "floor": -0.5,
        "weights": {"judge": -1},
    }
    coterie_run(order=["one"], rewards={"judge": judge})
    assert "rewards.judge: the floor -0.5 times the weight -1 of 'judge' is a bonus" in caplog.text


class OwnScores(Fragile):
    """A game that scores each role itself, as most games do."""

    components: ClassVar = {"wrong": "increment"}
    weights: ClassVar = {}
    per_role = ("wrong",)

    async def step(self, state, actions, ctx):
        step = await super().step(state, actions, ctx)
        return replace(step, scores={(role, "wrong"): -1.0 for role in actions})


@pytest.mark.parametrize("alpha", [0.0, 0.35, 1.0])
def test_bringing_down_a_game_that_scores_roles_does_not_beat_being_wrong(alpha):
    run = coterie_run(
        {"one": ["1", HANG]},
        env=f"{__name__}:OwnScores",
        order=["one"],
        rewards={"environment": {"type": "environment", "floor": -1.0}},
        sampler={"branches": 2},
        algorithm={"type": "at_grpo", "alpha": alpha},
    )
    trees, scores = play_episode(run)
    assert branch_rewards(trees[0].root, "one", scores, run.reward_weights) == [-1.0, -1.0]


def test_a_lost_score_of_weight_0_is_nothing_whatever_was_lost():
    judge = {"type": "function", "function": f"{__name__}:of_roles", "weights": {"judge": 0}}
    run = coterie_run(
        {"one": [DOWN, "1"]},
        order=["one"],
        rewards={"judge": judge, "environment": {"type": "environment"}},
        sampler={"branches": 2},
        schedule={"max_missing": 1},
    )
    trees, scores = play_episode(run)
    assert branch_rewards(trees[0].root, "one", scores, run.reward_weights) == [0.0, 1.1]


def test_a_score_for_another_role_at_a_roles_own_action_is_told():
    """It would count for nobody: `two` has branches of its own."""
    _, trees, scores = played("of_another", "1", "2")
    cell = scores.at(trees[0].root.key.of_branch("one", 0))
    assert [(owner, score.value) for (owner, _), score in cell.items()] == [("one", None)]
    assert "scored role 'two'" in cell["one", "judge"].reason


def test_two_roles_that_do_not_act_are_one_failure_and_no_crash():
    run, trees, scores = played("of_two_strangers", "1", "2", scope="joint")
    assert branch_rewards(trees[0].root, "one", scores, run.reward_weights) == [None, None]


def test_an_action_that_the_engine_lost_is_scored_by_no_source_and_costs_no_call():
    ASKED.clear()
    run = coterie_run(
        {"one": ["1", "2"]},
        order=["one"],
        rewards={"judge": {"type": "function", "function": f"{__name__}:counted", "scope": "action"}},
        sampler={"branches": 2},
        schedule={"max_missing": 1.0},
    )
    generate = run.engine.generate

    async def losing(request):
        if request.key.branch == 0:
            raise SystemFault("the connection was lost")
        return await generate(request)

    object.__setattr__(run.engine, "generate", losing)
    trees, scores = play_episode(run)
    lost = scores.at(trees[0].root.key.of_branch("one", 0))["one", "judge"]
    assert ASKED == ["2"] and lost.value is None and "connection was lost" in lost.reason


def test_a_rollout_file_says_which_scores_stand_for_the_roles_too():
    run, trees, scores = played("of_roles", "1", HANG, scope="joint", floor=-1.0)
    rows = [row for row in rollout_rows(trees, scores, None, run.reward_weights) if row["kind"] == "joint"]
    assert [(row["scores"], row["whole"]) for row in rows[:2]] == [
        ({"one.judge": 1.0}, []),
        ({"team.judge": -1.0}, ["judge"]),
    ]
