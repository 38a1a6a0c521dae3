"""The file without the framework is AT-GRPO: its advantages are the framework's, and it learns."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from coterie.testing.support.trees import Forest, J
from examples import minimal_at_grpo as example
from tests.plugins.algos.support import advantages

SOURCE = Path(example.__file__)
LEFT, UP = 2, 0


def uniform() -> dict[str, dict]:
    return {name: {} for name in example.POLICY_OF.values()}


def play(seed: int, policies: dict | None = None, branches: int = example.K):
    """(first state, groups, last state) of one environment."""
    rng = np.random.default_rng(seed)
    start = example.reset(rng)
    return start, *example.rollout(policies or uniform(), start, rng, branches)


def credit(start: example.State, groups: list[example.Group]) -> dict[str, float]:
    """The framework's advantages of the same branches, each scored in the state in which it was sampled."""
    state, stages = start, []
    for group in groups:
        assert group.prompt == example.observe(state, group.role)
        outcomes = [example.transition(state, group.role, tokens) for tokens in group.tokens_K_T]
        rewards = [example.ALPHA * team + local for _, team, local in outcomes]
        best = rewards.index(max(rewards))
        stages.append((group.role, best, [(team, local) for _, team, local in outcomes]))
        state = outcomes[best][0]
    joints: list[J] = []
    for role, best, pays in reversed(stages):
        joints = [
            J(team, joints if branch == best else (), role_gain={role: local})
            for branch, (team, local) in enumerate(pays)
        ]
    forest = Forest(order=tuple((role,) for role in example.ROLES)).grow(joints)
    return advantages("at_grpo", forest, alpha=example.ALPHA)


def by_place(groups: list[example.Group]) -> dict[str, float]:
    """The example's advantages, named like the framework's branches (see `support.place`)."""
    table, path = {}, "0"
    for group in groups:
        for branch, advantage in enumerate(group.advantages_K):
            table[f"{path}:{group.role}{branch}"] = advantage
        path += f".{group.rewards_K.argmax()}"
    return table


# --------------------------------------------------------------------------------------------- the file


def test_it_has_at_most_150_lines_and_imports_numpy_only():
    text = SOURCE.read_text()
    assert len(text.splitlines()) <= 150
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) == {"numpy"}


def test_it_learns(tmp_path):
    run = subprocess.run(
        [sys.executable, "-I", str(SOURCE), "0"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    before, after = map(float, re.fullmatch(r"success (\S+) -> (\S+)\n", run.stdout).groups())
    assert after - before > 0.5
    assert 1 - after < (1 - before) / 5


def test_one_policy_can_play_both_roles(monkeypatch):
    monkeypatch.setattr(example, "POLICY_OF", dict.fromkeys(example.ROLES, "team"))
    monkeypatch.setattr(example, "STEPS", 2)
    policies = uniform()
    example.train(policies, np.random.default_rng(0))
    moved = {prompt[0] for prompt, logits in policies["team"].items() if logits.any()}
    assert list(policies) == ["team"] and moved == set(example.ROLES)


# ---------------------------------------------------------------------------------------------- the game


def walker(cell, mirrored=False, proposal=()):
    return example.State(cell, (0, 1), mirrored, proposal)


@pytest.mark.parametrize(
    "role, mirrored, tokens, after, team, local",
    [
        ("executor", False, (LEFT, UP, LEFT), (1, 0), 1 / 3, 1.0),
        ("executor", True, (LEFT, UP, LEFT), (3, 3), 0.0, 2 / 3),  # right, down, the wall; never below 0
        ("executor", False, (UP, UP, LEFT), (0, 1), 1.0, 1.0),
        ("planner", False, (LEFT, UP, LEFT), (2, 2), 1 / 3, 1.0),  # what the proposal would earn
        ("planner", True, (LEFT, UP, LEFT), (2, 2), 1 / 3, 1.0),  # it presses no button
    ],
)
def test_what_an_action_is_worth(role, mirrored, tokens, after, team, local):
    state, *pays = example.transition(walker((2, 2), mirrored), role, np.array(tokens))
    assert state == walker(after, mirrored, tokens if role == "planner" else ())
    assert pays == pytest.approx([team, local])


def test_the_walk_ends_at_the_goal():
    assert example.transition(walker((1, 1)), "executor", np.array([UP, UP, UP])) == (walker((0, 1)), 1, 1)


# -------------------------------------------------------------------------------------------- advantages


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("branches", [2, 3, 4, 7])
def test_advantages_are_the_frameworks(monkeypatch, alpha, branches):
    monkeypatch.setattr(example, "ALPHA", alpha)
    policies = uniform()
    for seed in range(10):
        start, groups, last = play(seed, policies, branches)
        assert len(groups) == example.TURNS * len(example.ROLES) or last.cell == last.goal
        expected, table = credit(start, groups), by_place(groups)
        assert list(table) == list(expected)
        assert list(table.values()) == pytest.approx(list(expected.values()), rel=0, abs=1e-12)
        for name, policy in policies.items():  # later seeds play other policies than the uniform ones
            example.update(policy, [group for group in groups if example.POLICY_OF[group.role] == name])


class Sure(dict):
    """A policy that samples the same action in every branch."""

    def setdefault(self, prompt, default):
        return 1000.0 * np.eye(example.V)[[LEFT, UP, UP]]


@pytest.mark.parametrize("alpha", [0.1, 0.7, 1.0])
@pytest.mark.parametrize("branches", [2, 3, 4, 7])
def test_siblings_with_equal_rewards_have_no_advantage(monkeypatch, alpha, branches):
    monkeypatch.setattr(example, "ALPHA", alpha)
    for seed in range(10):
        start, groups, _ = play(seed, {name: Sure() for name in example.ROLES}, branches)
        assert not any(group.advantages_K.any() for group in groups)
        assert not any(credit(start, groups).values())


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.1 + 0.2, 0.3, 1.0]), min_size=2, max_size=8)
    | st.lists(st.sampled_from([0.1 + 0.2, 0.3]), min_size=2, max_size=8)
)
@settings(max_examples=60, deadline=None)
def test_advantages_of_any_rewards_are_the_frameworks(rewards):
    """Rewards that differ by rounding (0.1 + 0.2 and 0.3) are equal, and equal ones have no advantage."""
    expected = list(advantages("at_grpo", Forest().grow([J(reward) for reward in rewards])).values())
    numbers = example.advantages(np.array(rewards))
    assert numbers.tolist() == pytest.approx(expected, rel=0, abs=1e-12)
    if max(rewards) - min(rewards) < 1e-12:
        assert not numbers.any() and not any(expected)


def full_episode():
    """The first seed whose episode has all four decisions, each with unequal rewards."""
    for seed in range(1000):
        _, groups, _ = play(seed)
        if len(groups) == 4 and all(np.ptp(group.rewards_K) > 0 for group in groups):
            return seed, groups
    raise AssertionError("no such episode")


@pytest.mark.parametrize("decision", range(4))
def test_a_branchs_reward_moves_the_advantages_of_its_decision_only(monkeypatch, decision):
    """A role that acts later is paid for its own branches: in the public code they share one reward."""
    seed, before = full_episode()
    worst = int(before[decision].rewards_K.argmin())  # not the committed branch, so the play stays the same
    transition, calls = example.transition, iter(range(1000))

    def docked(state, role, tokens):
        after, team, local = transition(state, role, tokens)
        return after, team, local - 0.25 * (next(calls) == decision * example.K + worst)

    monkeypatch.setattr(example, "transition", docked)
    _, after, _ = play(seed)
    assert [(group.turn, group.role) for group in after] == list(product(range(2), example.ROLES))
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        assert (old.tokens_K_T == new.tokens_K_T).all() and old.prompt == new.prompt
        changed = old.rewards_K != new.rewards_K
        assert np.flatnonzero(changed).tolist() == [worst] * (index == decision)
        assert (old.advantages_K == new.advantages_K).all() == (index != decision)
        if index == decision:
            assert new.advantages_K[worst] < old.advantages_K[worst]


# ------------------------------------------------------------------------------- log-probs and the update


def drawn(seed: int, temperature: float, branches: int, monkeypatch):
    """(policy, first group) of a planner with random logits, sampled at a temperature."""
    monkeypatch.setattr(example, "TEMPERATURE", temperature)
    rng = np.random.default_rng(seed)
    start = example.reset(rng)
    prompt = example.observe(start, "planner")
    policy = {prompt: rng.normal(size=(example.T, example.V))}
    groups, _ = example.rollout({"planner": policy, "executor": {}}, start, rng, branches)
    return policy, groups[0]


def probabilities(logits: np.ndarray, temperature: float) -> np.ndarray:
    odds = np.exp(logits / temperature)
    return odds / odds.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_log_probs_are_those_of_the_samples_at_the_sampling_temperature(monkeypatch, temperature):
    policy, group = drawn(0, temperature, 5000, monkeypatch)
    expected = probabilities(policy[group.prompt], temperature)
    positions = np.arange(example.T)
    assert np.exp(group.logprobs_K_T) == pytest.approx(expected[positions, group.tokens_K_T])
    shares = np.eye(example.V)[group.tokens_K_T].mean(axis=0)
    assert np.abs(shares - expected).max() < 0.03  # four standard errors


@pytest.mark.parametrize("drift", [0.0, 0.5])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_update_is_the_gradient_of_the_clipped_objective(monkeypatch, temperature, drift):
    policy, group = drawn(1, temperature, example.K, monkeypatch)
    assert np.ptp(group.rewards_K) > 0
    logits = policy[group.prompt] + drift * np.random.default_rng(2).normal(size=(example.T, example.V))
    ratios = []

    def objective(values: np.ndarray) -> float:
        chosen = np.log(probabilities(values, temperature))[np.arange(example.T), group.tokens_K_T]
        ratio = np.exp(chosen - group.logprobs_K_T)
        ratios.append(ratio)
        clipped = ratio.clip(1 - example.CLIP, 1 + example.CLIP)
        advantage = group.advantages_K[:, None]
        return float(np.minimum(ratio * advantage, clipped * advantage).mean())

    gradient = np.zeros_like(logits)
    for index in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[index] = 1e-6
        gradient[index] = (objective(logits + step) - objective(logits - step)) / 2e-6
    policy[group.prompt] = logits.copy()
    example.update(policy, [group])
    moved = (policy[group.prompt] - logits) / example.LEARNING_RATE
    assert moved == pytest.approx(gradient, abs=1e-7)
    outside = np.abs(ratios[0] - 1) > example.CLIP
    assert outside.any() == (drift > 0)
