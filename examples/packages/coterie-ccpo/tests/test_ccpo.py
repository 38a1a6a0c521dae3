"""CCPO's credit by hand, the chains without a role, and steps in which nothing can be compared."""

import json
import math
from statistics import fmean

import coterie_ccpo
import pytest

import coterie
from coterie import Batch, RewardWeights
from coterie.testing import (
    J,
    build,
    check_environment,
    check_estimator,
    check_plugin,
    check_role,
    check_sampler,
    coterie_run,
    play_episode,
    tree_literals,
)

ORDER = ("thinker", "solver")
SMOKE = coterie.load("ccpo-smoke").config


def step(team, alone):
    """A step of one task: the returns of the team's chains, and of the chains without the thinker."""
    returns = [value for pair in zip(team, alone, strict=True) for value in pair]
    forest = tree_literals(
        *([J(0.0, [J(value)])] for value in returns),
        order=ORDER,
        logprobs={f"{chain}:thinker0": () for chain in range(1, len(returns), 2)},
    )
    return Batch(trees=forest.trees, scores=forest.scores, annotations={}, reward_weights=RewardWeights())


def credit(team, alone, state=None, type="coterie_ccpo.estimator:CCPO", **settings):
    """(advantages by (role, chain of the team), the next state)."""
    estimator = build("estimator", {"type": type, **settings})
    given, state = estimator(step(team, alone), state)
    assert all(key.chain % 2 == 0 for key in given.advantage)  # chains without a role aren't trained
    return {(key.role, key.chain // 2): value for key, value in given.advantage.items()}, state


def test_a_success_that_the_solver_doesnt_have_alone_pays_the_thinker_more():
    given, _ = credit(team=[1.0, -1.0], alone=[-1.0, -1.0])
    assert given["thinker", 0] == pytest.approx(1.1)  # rewards 1.2 and -1, mean .1
    assert given["thinker", 1] == pytest.approx(-1.1)
    assert (given["solver", 0], given["solver", 1]) == (1.0, -1.0)


def test_a_failure_where_the_solver_alone_succeeds_costs_the_thinker_more():
    given, _ = credit(team=[1.0, -1.0], alone=[1.0, 1.0])
    assert given["thinker", 1] == pytest.approx(-1.1)  # rewards 1 and -1.2, mean -.1


def test_the_formula_on_other_numbers():
    team, alone, weight = [0.9, 0.1, 0.4, 0.8], [0.2, 0.6, 0.3, 0.1], 0.5
    rewards = [r + weight * (r - fmean(alone)) / 2 for r in team]
    given, _ = credit(team, alone, bonus="difference", weight=weight)
    for chain, reward in enumerate(rewards):
        assert given["thinker", chain] == pytest.approx(reward - fmean(rewards))
        assert given["solver", chain] == pytest.approx(team[chain] - fmean(team))
    assert sum(given["thinker", chain] for chain in range(4)) == pytest.approx(0.0)


@pytest.mark.parametrize("bonus", ["event", "difference"])
def test_without_a_weight_it_is_the_return_less_its_mean(bonus):
    given, _ = credit([1.0, 0.0, 0.5], [-1.0, 0.2, 0.9], bonus=bonus, weight=0.0)
    assert [given["thinker", chain] for chain in range(3)] == pytest.approx([0.5, -0.5, 0.0])


def test_equal_returns_give_no_credit():
    given, _ = credit([1.0, 1.0], [-1.0, -1.0])
    assert set(given.values()) == {0.0}


def test_what_is_unknown_leaves_out_what_needs_it():
    given, _ = credit([1.0, -1.0, None], [None, None, None])
    assert set(given) == {("solver", 0), ("solver", 1)}
    given, _ = credit([1.0, None], [-1.0, -1.0])
    assert given == {}  # one chain of the team is left
    given, _ = credit([1.0, -1.0], [None, -1.0])
    assert given["thinker", 0] == pytest.approx(1.1)  # one known outcome without the thinker is enough


def test_history_waits_for_ten_comparisons():
    given, state = credit([1.0, -1.0], [-1.0, -1.0], type="coterie_ccpo.history:CCPOHistory")
    assert given["thinker", 0] == 1.0  # gains 2 and 0, mean 1
    assert state == {"thinker": {"count": 2, "gain": [1.0, 1.0], "team": [0.0, 1.0], "alone": [-1.0, 0.0]}}


def test_history_by_its_formulas():
    seen = {"thinker": {"count": 10, "gain": [0.5, 0.25], "team": [0.2, 0.64], "alone": [-0.2, 0.0]}}
    team, alone = [1.0, -1.0], [-1.0, 1.0]
    state = json.loads(json.dumps(seen))
    given, after = credit(team, alone, state, type="coterie_ccpo.history:CCPOHistory", sharpness=0.5)
    eps = 1e-6
    thinker = [math.tanh(0.5 * (r - s - 0.5) / (0.5 + eps)) for r, s in zip(team, alone, strict=True)]
    g = 1 / (1 + math.exp(-0.5 / (0.5 + eps)))
    solver = [
        g * (r - 0.2) / (0.8 + eps) + (1 - g) * (s + 0.2) / (1 + eps)
        for r, s in zip(team, alone, strict=True)
    ]
    for chain in range(2):
        assert given["thinker", chain] == pytest.approx(thinker[chain] - fmean(thinker))
        assert given["solver", chain] == pytest.approx(solver[chain] - fmean(solver))
    assert after["thinker"]["count"] == 12
    assert after["thinker"]["gain"] == pytest.approx([0.99 * 0.5, 0.99 * 0.25 + 0.01 * 4.0])


def test_the_sampler_leaves_one_role_out_of_every_second_chain():
    asked = []

    def answers(request, prompt):
        asked.append((request.key.chain, request.key.role))
        return "ash"

    tables = {"env": SMOKE.env, "sampler": {"type": "ccpo", "chains": 2, "remove": ["thinker"]}}
    roles = {role: {"type": "ccpo_writer"} for role in ORDER}
    run = coterie_run(answers, order=ORDER, roles=roles, algorithm={"type": "ccpo"}, **tables)
    trees, scores = play_episode(run)
    assert {chain for chain, role in asked if role == "thinker"} == {0, 2}
    assert {chain for chain, role in asked if role == "solver"} == {0, 1, 2, 3}
    hints = [list(tree.nodes())[1].decisions["solver"].observation for tree in trees if tree.chain == 1]
    assert hints and set(hints) <= {"solver number 0", "solver number 1", "solver hint none"}
    assert len({key.chain for key, *_ in scores}) == 4


@pytest.mark.parametrize("estimator", ["ccpo", "ccpo_history"])
def test_the_kit_on_the_estimators(estimator):
    check_estimator(build("estimator", estimator))


def test_the_kit_on_the_rest():
    check_sampler(build("sampler", {"type": "ccpo", "chains": 2, "remove": ["executor"]}))
    roles = {role: build("role", "ccpo_writer", name=role, env=SMOKE.env) for role in ORDER}
    environment = build("environment", SMOKE.env, order=ORDER)
    check_environment(environment, roles=ORDER, act=["ash", "birch", "oak"], role_plugins=roles)
    check_role(roles["solver"], observations=["solver hint ash"], good=["elm"])
    check_plugin(coterie_ccpo)


def test_the_smoke_recipe_learns_to_hint(tmp_path):
    result = coterie.train("ccpo-smoke", out=tmp_path / "run")
    assert result.metrics["eval/success"] > 0.9
    assert result.metrics["ccpo/thinker/helped"] > 0
