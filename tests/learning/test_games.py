"""Every estimator solves two tiny games on three seeds, and what must fail fails."""

from __future__ import annotations

import pytest

from tests.learning.games import BRANCHES, CHAINS, TREE, game, learn

pytestmark = pytest.mark.learning

SEEDS = (0, 1, 2)
ROLE = {"type": "whiten", "scope": "role", "per": "token", "eps": 1e-8}
FAMILY = {
    "at_grpo": (BRANCHES, {}),
    "grpo": (CHAINS, {}),
    "dr_grpo": (CHAINS, {}),
    "rloo": (CHAINS, {}),
    "reinforce": (CHAINS, {}),
    "magrpo": (TREE, {}),
    "marloo": (TREE, {}),
    "mareinforce": (TREE, {}),
    "maremax": (TREE, {}),
    "reinforce_pp": (CHAINS, {"truncated": "keep"}),
    "reinforce_pp_baseline": (CHAINS, {}),
    "rae": (CHAINS, {}),
    "gae": (CHAINS, {"normalise": ROLE}),
    "compose": (
        TREE,
        {"group": "decision", "return": "tree", "baseline": "loo", "normalise": {"type": "none"}},
    ),
}
"""The way of sampling, and settings besides the defaults."""
PER_ROLE = (
    "at_grpo",
    "reinforce",
    "magrpo",
    "marloo",
    "mareinforce",
    "maremax",
    "reinforce_pp_baseline",
    "gae",
    "compose",
)
"""Estimators that ask what a role's own action changed: an idle role has nothing to learn from them."""


def run_of(name, algorithm, seed, **tables):
    sampler, settings = FAMILY[algorithm]
    return game(name, sampler, {"type": algorithm, **settings}, seed, **tables)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("algorithm", FAMILY)
def test_the_matrix_game_is_solved(algorithm, seed):
    learning_curve = learn(run_of("matrix", algorithm, seed))
    assert learning_curve.before <= 0.4
    assert learning_curve.after >= 0.9, learning_curve


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("algorithm", FAMILY)
def test_the_hand_over_is_solved(algorithm, seed):
    learning_curve = learn(run_of("hand_over", algorithm, seed))
    assert learning_curve.before <= 0.4
    assert learning_curve.after >= 0.9, learning_curve
    assert learning_curve.moved["giver"] > 0.5
    if algorithm in PER_ROLE:
        assert learning_curve.moved["taker"] <= 0.05, learning_curve


@pytest.mark.parametrize("seed", SEEDS)
def test_late_pay_is_invisible_to_immediate_credit_and_not_to_the_trees(seed):
    schedule = {"steps": 30, "tasks_per_step": 6}
    blind = learn(run_of("late_hand_over", "at_grpo", seed, schedule=schedule))
    assert blind.after <= 0.4, blind
    sees = learn(run_of("late_hand_over", "magrpo", seed, schedule=schedule))
    assert sees.after >= 0.9, sees


@pytest.mark.parametrize("how", ["flipped", "shuffled"])
@pytest.mark.parametrize("algorithm", ["at_grpo", "grpo", "magrpo"])
@pytest.mark.parametrize("name", ["matrix", "hand_over"])
def test_wrong_credit_learns_nothing(name, algorithm, how):
    sampler, settings = FAMILY[algorithm]
    spoiled = {"type": "tests.learning.games:Spoiled", "how": how, "inner": {"type": algorithm, **settings}}
    learning_curve = learn(game(name, sampler, spoiled, 0))
    assert learning_curve.after < 0.9, learning_curve


@pytest.mark.torch
@pytest.mark.parametrize(("name", "algorithm"), [("matrix", "magrpo"), ("hand_over", "at_grpo")])
def test_a_small_transformer_solves_them_too(name, algorithm):
    model = {"init": "qwen3", "hidden_size": 32, "layers": 1, "heads": 2, "head_dim": 16, "mlp_size": 64}
    roles = ("row", "column") if name == "matrix" else ("giver", "taker")
    policies = {
        role: {"model": {**model, "context": 16}, "optimizer": {"learning_rate": 3e-3}} for role in roles
    }
    learning_curve = learn(run_of(name, algorithm, 0, policies=policies, engine="hf", trainer="torch"))
    assert learning_curve.before <= 0.4
    assert learning_curve.after >= 0.9, learning_curve
