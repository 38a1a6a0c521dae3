"""Advantages against TRL's and CoMLRL's own, as tests/golden recorded them; and where ours mean to differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coterie.testing.support.trees import Forest
from tests.golden.replay import EXACT, Record, branches, chains, completion, paths, records, roles, tree
from tests.plugins.algos.support import ALL, CROSS, advantages, credit, estimator

TRL = {record["name"]: record for record in records("trl")["advantages"]}
COMLRL = {record["name"]: record for record in records("comlrl")["trees"]}

ADDED = {"eps": 1e-4}
"""TRL's normaliser is ours with this; it divides by a deviation with ddof 1."""
CLAMPED = {"type": "whiten", "ddof": 0, "eps": 1e-6, "eps_mode": "clamp"}
"""CoMLRL's."""
TRAINERS = {"MAGRPO": "magrpo", "MARLOO": "marloo", "MAREINFORCE": "mareinforce", "MAReMax": "maremax"}


# ----------------------------------------------------------------------------------------------------- TRL


def of_trl(record: Record, algorithm: str, **settings: Any) -> list[float | None]:
    """Our advantages of TRL's completions, in its order; None: no credit."""
    advantage = advantages(algorithm, chains(record["rewards"], record["siblings"]), **settings)
    return [advantage.get(completion(index, record["siblings"])) for index in range(len(record["rewards"]))]


@pytest.mark.parametrize(
    ("name", "algorithm", "settings"),
    [
        ("group", "grpo", {"normalise": {"type": "scale", "ddof": 1, "eps_mode": "add", **ADDED}}),
        ("group", "grpo", {}),
        ("none", "dr_grpo", {}),
        ("batch, groups of one mean", "grpo", {"normalise": {**ADDED, "scope": "global"}}),
        ("equal rewards", "grpo", {}),
        ("rloo", "rloo", {}),
        ("rloo, normalised", "rloo", {"normalise": {"type": "whiten", "scope": "global", **ADDED}}),
    ],
)
def test_trls_advantages(name, algorithm, settings):
    assert of_trl(TRL[name], algorithm, **settings) == pytest.approx(TRL[name]["advantages"], abs=EXACT)


def test_trl_scales_a_batch_by_the_spread_of_its_rewards_and_we_by_that_of_its_advantages():
    record = TRL["batch"]
    advantage = of_trl(record, "grpo", normalise={**ADDED, "scope": "global"})
    # The spread of the rewards has in it how far the tasks are apart, which the groups' baselines have taken
    # out: a batch of easy and hard tasks would move the weights less than one of either kind.
    groups = np.array(record["rewards"]).reshape(-1, record["siblings"])
    theirs = groups.std(ddof=1) + 1e-4
    ours = (groups - groups.mean(axis=1, keepdims=True)).std(ddof=1) + 1e-4
    assert ours < 0.99 * theirs
    assert np.array(advantage) * ours / theirs == pytest.approx(record["advantages"], abs=EXACT)


@pytest.mark.parametrize(("name", "algorithm"), [("missing", "grpo"), ("rloo, missing", "rloo")])
def test_a_missing_reward_is_out_of_the_baseline_in_trl_too(name, algorithm):
    record = TRL[name]
    advantage = of_trl(record, algorithm)
    both = [pair for pair in zip(advantage, record["advantages"], strict=True) if pair[0] is not None]
    assert [ours for ours, _ in both] == pytest.approx([theirs for _, theirs in both], abs=EXACT)
    # What has no reward, or is alone in its group, has no credit here and advantage 0 there, where the loss
    # goes on counting it (tests/plugins/losses/test_against_others.py).
    assert len(both) == 6
    assert [theirs for ours, theirs in zip(advantage, record["advantages"], strict=True) if ours is None] == [
        0
    ] * 6


# -------------------------------------------------------------------------------------------------- CoMLRL


def of_comlrl(record: Record, forest: Forest | None = None, **settings: Any) -> list[Any]:
    """Our advantages of CoMLRL's tree, by agent and node: an array over branches."""
    forest = forest or tree(record)
    plan = CROSS if forest.pairing == "cross" else ALL
    algorithm = estimator(TRAINERS[record["trainer"]], plan=plan, forest=forest, turns=3, **settings)
    advantage = credit(algorithm, forest).advantage
    return [
        [np.array([advantage[key] for key in node]) for node in branches(forest, role)]
        for role in roles(record)
    ]


def agree(ours: list[Any], record: Record, factor: float = 1.0) -> bool:
    """Whether all of CoMLRL's advantages are `factor` times ours."""
    theirs = [agent["advantages"] for agent in record["agents"]]
    assert [len(nodes) for nodes in ours] == [len(nodes) for nodes in theirs]
    return all(
        node == pytest.approx(np.array(ours[agent][index]) * factor, abs=EXACT)
        for agent, nodes in enumerate(theirs)
        for index, node in enumerate(nodes)
    )


@pytest.mark.parametrize(
    "name",
    [
        "one agent",
        "aligned, 1 turn",
        "aligned, 2 turns",
        "aligned, 3 turns",
        "MARLOO",
        "MAREINFORCE",
        "MAReMax",
        "equal rewards, normalised",
    ],
)
def test_comlrls_advantages(name):
    record = COMLRL[name]
    settings = {"normalise": CLAMPED} if "normalised" in name else {}
    assert agree(of_comlrl(record, **settings), record)


@pytest.mark.parametrize("name", ["MAGRPO", "MARLOO", "MAREINFORCE", "MAReMax"])
def test_comlrls_normaliser_makes_the_baselines_equal_and_so_does_ours(name):
    record = COMLRL[f"{name}, normalised"]
    assert agree(of_comlrl(record, normalise=CLAMPED), record)
    assert agree([agent["advantages"] for agent in record["agents"]], COMLRL["MAGRPO, normalised"])


@pytest.mark.parametrize("name", ["cross, 1 turn", "cross, 2 turns", "cross, 3 turns", "cross, 3 agents"])
def test_comlrl_credits_a_branch_with_the_sum_of_its_joints_and_we_with_their_mean(name):
    record = COMLRL[name]
    # A mean doesn't grow with how many branches the partners have: the step size needn't know of them.
    partners = record["settings"]["num_agents"] - 1
    assert agree(of_comlrl(record), record, factor=record["settings"]["num_generations"] ** partners)


def test_normalised_a_sum_and_a_mean_over_joints_are_the_same():
    record = COMLRL["cross, normalised"]
    assert agree(of_comlrl(record, normalise=CLAMPED), record)


def test_comlrl_ignores_its_discount():
    record = COMLRL["discount .5"]
    assert record["settings"]["discount"] == 0.5
    assert agree(of_comlrl(record, gamma=1.0), record)
    # Here a setting that is accepted is read (invariant 9).
    assert not agree(of_comlrl(record, gamma=0.5), record)


def test_as_it_comes_comlrl_normalises_and_ends_after_the_first_turn():
    record = COMLRL["as it comes"]
    # Its documentation says that MAGRPO has no normaliser: ours has none until asked.
    assert agree(of_comlrl(record, normalise=CLAMPED), record)
    assert not agree(of_comlrl(record), record)
    # A node whose mean reward passes the threshold (default: -0.2) ends its episode, which every reward of
    # 0 or more does. Ours never ends one until asked, and then only the joint that earned enough.
    assert record["settings"]["num_turns"] == 2 and list(paths(record["tree"])) == [()]
    assert estimator("magrpo").stop_above is None


def test_crossed_is_taken_by_comlrl_for_cross_in_play_and_for_aligned_in_credit():
    record = COMLRL["crossed"]
    k, rewards = record["settings"]["num_generations"], np.array(record["tree"]["rewards"])
    assert len(rewards) == k**2
    # Branch i of both agents gets the return of joint i of the table, (0, i): one that it may not be part of.
    wrong = rewards[:k] - rewards.mean()
    assert agree([[wrong], [wrong]], record)
    table = rewards.reshape(k, k)
    ours = of_comlrl(record, tree(record, pairing="cross"))
    assert ours[0][0] == pytest.approx(table.mean(axis=1) - table.mean())
    assert ours[1][0] == pytest.approx(table.mean(axis=0) - table.mean())


def test_comlrl_pays_for_staying_unsolved_and_we_do_not():
    record = COMLRL["solved early"]
    assert record["tree"]["children"][0]["children"] == []  # joint 0 solved it (1.0) and was ended there
    assert all(agent["advantages"][0] == [-0.25, 0.25] for agent in record["agents"])
    # Rewards are the value of a state (here .5, then 1 or .75 and .75), and theirs are added up: two turns at
    # .75 are more than one at 1. Ours are differences, or an ended episode repeats its last one.
    forest = tree(record, potential=True)
    difference = of_comlrl(record, forest)
    repeat = of_comlrl(record, forest, fill="repeat")
    for role in range(2):
        assert difference[role][0] == pytest.approx([0.125, -0.125])  # 1 - .875, .75 - .875
        assert repeat[role][0] == pytest.approx([0.25, -0.25])  # 2.5 - 2.25, 2 - 2.25
