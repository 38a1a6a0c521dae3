"""Credit by role and turn: numbers by hand, and those of the trainer and of the estimators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

import coterie
from coterie.analysis.credit.actions import credited_actions, return_kind_of
from coterie.analysis.credit.component_returns import Parts, Rules, component_returns
from coterie.analysis.credit.report import credit
from coterie.analysis.credit.table import turn_credits
from coterie.api.episodes import trees_of
from coterie.api.rollouts import rollout_rows
from coterie.core.training.samples import samples_of
from coterie.core.types import RewardWeights
from tests.analysis.credit.runs import hand_over
from tests.analysis.credit.synthetic import Team, recorded
from tests.core.toy_trees import toy

RULES = Rules({"format": 0.5}, team_weight=2.0)


def toy_actions(weights: RewardWeights | None = None):
    tree, scores, made, known = toy()
    rows = rollout_rows([tree], scores, made, weights or known)
    return list(credited_actions(trees_of(rows, step=4), RULES))


def by_place(turns):
    return {(turn.role, turn.turn): turn for turn in turns}


def test_the_toy_by_hand():
    weights = {("team", "progress"): 2.0, ("planner", "format"): 0.5, ("coder", "tests"): 1.0}
    turns = by_place(turn_credits(toy_actions(), "immediate", weights))
    assert list(turns) == [("planner", 0), ("planner", 1), ("coder", 0)]
    planner, coder = turns["planner", 0], turns["coder", 0]
    assert (planner.actions, planner.trained, planner.positive) == (2, 1, 1.0)
    assert (planner.groups, planner.alone) == (0, 1), "one of its two siblings has no value"
    assert (coder.trained, coder.mean, coder.spread, coder.positive) == (2, 0.0, 1.0, 0.5)
    assert (coder.groups, coder.flat) == (1, 0)
    # Values of the coder: 2 * .25 + 0 (recorded: .25), and 2 / 3 + 1.
    parts = {component.name: component for component in coder.components}
    assert parts["team.progress"].share == pytest.approx((2 / 3 - 0.5) / (5 / 3 - 0.5))
    assert parts["coder.tests"].share == pytest.approx(1 / (5 / 3 - 0.5))
    assert parts["coder.tests"].mean == 0.5 and parts["team.progress"].weight == 2.0
    of_planner = {component.name: component for component in planner.components}
    assert of_planner["planner.format"].missing == 0.5 and of_planner["planner.format"].mean == 1.0
    assert turns["planner", 1].trained == 0 and turns["planner", 1].mean is None


@pytest.mark.parametrize("length", ["token_mean", "sequence_mean", "sequence_sum"])
def test_gradient_tokens_weigh_what_the_trainer_gives_them(length):
    tree, scores, made, weights = toy()
    # The coder's second branch: one token of three without an advantage.
    second = tree.root.key.of_branch("coder", 1)
    made = replace(made, advantage={**made.advantage, second: np.array([0.5, 0.0, 1.0])})
    samples = samples_of([tree], made)
    rows = rollout_rows([tree], scores, made, weights)
    shared = [replace_policy(row) for row in rows]
    actions = list(credited_actions(trees_of(shared, step=4), RULES))
    turns = by_place(turn_credits(actions, "immediate", {}, length))
    every = [sample for of in samples.values() for sample in of]
    coefficients = coterie.token_coefficients(every, length)
    mass: dict[str, float] = {}
    for sample, of_sample in zip(every, coefficients, strict=True):
        role = sample.key.role
        mass[role] = mass.get(role, 0.0) + float(of_sample[sample.advantages != 0].sum())
    for role, of_role in mass.items():
        assert turns[role, 0].gradient == pytest.approx(of_role / sum(mass.values()), rel=1e-6)


def replace_policy(row):
    return {**row, "policy": "shared"} if "policy" in row else row


@pytest.mark.parametrize(
    ("sampler", "algorithm", "kind"),
    [("branches", "at_grpo", "immediate"), ("chains", "grpo", "to_go"), ("tree", "magrpo", "to_go")],
)
def test_the_parts_add_up_to_what_the_estimator_returned(sampler, algorithm, kind, tmp_path):
    late = sampler != "branches"
    report = credit(hand_over(tmp_path / "run", sampler, algorithm, late=late))
    assert report.exact and not any("more than the components" in note for note in report.notes)
    if late:  # at its first turn, the giver's reward is 0: what it earns comes later
        assert report.kind == kind
        giver = by_place(report.turns)["giver", 0]
        assert giver.flat < giver.groups
    for turn in report.turns:
        shares = [component.share for component in turn.components if component.share is not None]
        assert not shares or sum(shares) == pytest.approx(1.0)
    of_policy = {turn.policy: 0.0 for turn in report.turns}
    for turn in report.turns:
        of_policy[turn.policy] += turn.gradient or 0.0
    assert all(total == pytest.approx(1.0) or total == 0.0 for total in of_policy.values())


def toy_parts(rules):
    tree, scores, made, weights = toy()
    (again,) = trees_of(rollout_rows([tree], scores, made, weights))
    found = component_returns(again, rules)
    return {(role, b): parts for (node, role, b), parts in found.items() if node == again.root.key}


def test_the_ways_of_the_toy_by_hand():
    """The coder's branch 1 earns 2 / 3 of the team and 1 itself, then the team 2 at the second node."""
    found = toy_parts(RULES)["coder", 1]
    assert {kind: parts.value for kind, parts in found.items()} == pytest.approx(
        {"immediate": 5 / 3, "differences": 5 / 3, "to_go": 11 / 3, "episode": 11 / 3}
    )
    assert found["to_go"].by_component == pytest.approx(
        {("team", "progress"): 8 / 3, ("coder", "tests"): 1.0}
    )
    discounted = toy_parts(replace(RULES, gamma=0.5))["coder", 1]
    assert discounted["to_go"].value == pytest.approx(5 / 3 + 0.5 * 2)
    potential = toy_parts(replace(RULES, kinds={"progress": "potential"}))["coder", 1]
    assert potential["to_go"].value == pytest.approx(2 + 1), "the last potential, and what was paid besides"
    unpaid = toy_parts(replace(RULES, kinds={"progress": "counterfactual"}))["coder", 1]
    assert unpaid["to_go"].value == pytest.approx(1.0) and unpaid["immediate"].value == pytest.approx(5 / 3)
    alpha_0 = toy_parts(replace(RULES, team_weight=0.0))["coder", 1]
    assert alpha_0["immediate"].by_component == {("coder", "tests"): 1.0}
    assert toy_parts(RULES)["planner", 1]["immediate"].value is None, "its format is missing"


def test_what_came_before_is_part_of_an_episode_alone():
    trees, rules = recorded(Team("chains", siblings=2, tasks=1, steps=1), 0)
    tree = trees[1][0]
    tree.root.joints[0]["scores"]["team.pay"] = 3.0
    found = component_returns(tree, rules[1])
    (second,) = [parts for place, parts in found.items() if place[1] == "b"]
    assert second["episode"].value == pytest.approx(second["to_go"].value + 3.0)


def test_an_unknown_return_has_the_way_that_chains_and_trees_usually_have():
    actions = [replace(action, recorded=None) for action in toy_actions()]
    assert return_kind_of(actions) == ("immediate", False)
    assert return_kind_of([replace(action, forked=False) for action in actions]) == ("to_go", False)


def test_returns_of_floats_are_exact_and_returns_with_a_penalty_are_not():
    (action, *_) = toy_actions()
    made = replace(action, returns=dict.fromkeys(action.returns, Parts({("team", "progress"): 1.0})))
    assert return_kind_of([replace(made, recorded=1.0 + 1e-8)]) == ("immediate", True)
    assert return_kind_of([replace(made, recorded=1.01)]) == ("immediate", False)


@given(
    st.lists(st.tuples(*[st.floats(-3, 3).map(lambda x: round(x, 2))] * 3), min_size=2, max_size=8),
    st.tuples(st.floats(0.1, 2), st.floats(0.1, 2)),
)
def test_shares_are_those_of_a_linear_regression_on_the_value(scores, weights):
    (first, *_) = toy_actions()
    names = ("team", "x"), ("planner", "y")
    actions = [
        replace(
            first, recorded=None, advantage=z,
            returns=dict.fromkeys(
                first.returns, Parts({n: w * v for n, w, v in zip(names, weights, (x, y), strict=True)})
            ),
        )
        for x, y, z in scores
    ]  # fmt: skip
    (turn,) = turn_credits(actions, "immediate", dict(zip(names, weights, strict=True)))
    values = np.array([weights[0] * x + weights[1] * y for x, y, _ in scores])
    shares = {component.name: component.share for component in turn.components}
    if np.ptp(values) <= 1e-9:
        return
    for name, part in (("team.x", 0), ("planner.y", 1)):
        expected = np.polyfit(values, [weights[part] * each[part] for each in scores], 1)[0]
        assert shares[name] == pytest.approx(expected, abs=1e-6)
    assert turn.spread == pytest.approx(float(np.std([z for *_, z in scores])))
    assert turn.positive == sum(z > 0 for *_, z in scores) / len(scores)


def test_frozen_roles_have_no_advantage_but_a_value(tmp_path):
    policies = {
        "giver": {"model": {"init": "tabular"}},
        "taker": {"model": {"init": "tabular"}, "train": "none"},
    }
    report = credit(hand_over(tmp_path / "run", "chains", "grpo", policies=policies))
    taker = by_place(report.turns)["taker", 0]
    assert taker.trained == 0 and taker.mean is None and taker.gradient is None and taker.groups > 0


def test_steps_are_chosen_and_thinned_out_ones_said(tmp_path):
    schedule = {"steps": 6, "tasks_per_step": 4, "evaluate_every": 0, "record_every": 2}
    folder = hand_over(tmp_path / "run", "branches", "at_grpo", schedule=schedule)
    assert credit(folder).steps == [2, 4, 6] and credit(folder, last=2).steps == [4, 6]
    report = credit(folder, step=4)
    assert (
        report.steps == [4]
        and "one step in 2 is recorded (schedule.record_every), and counted" in report.notes
    )
    with pytest.raises(coterie.UserError, match="was not recorded"):
        credit(folder, step=3)
    with pytest.raises(coterie.UserError, match="two choices of steps"):
        credit(folder, step=4, last=1)


def test_weights_that_a_resume_changed_are_noted(tmp_path):
    schedule = {"steps": 2, "tasks_per_step": 2, "evaluate_every": 0, "checkpoint_every": 1}
    run = hand_over(tmp_path / "run", "branches", "at_grpo", schedule=schedule)
    note = "weights are those of step 1; others count from step 3 on"
    assert not any("weights" in each for each in credit(run).notes)
    changes = ["schedule.steps=3", "rewards.environment.weights.pay=2.0"]
    coterie.train(resume=run, overrides=changes, allow_change=True)
    assert any(note in each for each in credit(run).notes)
    assert not any("weights" in each for each in credit(run, last=1).notes)
