"""Steps ahead, pinned: bit for bit what a plain sequential loop gives, whatever takes how long."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.core.training.steps_ahead import asynchronous, oracle

MATRIX = str(Path(__file__).parents[2] / "recipes" / "matrix.yaml")
TINY = [
    "schedule.steps=5", "schedule.tasks_per_step=2", "schedule.evaluate_every=2", "schedule.evaluate_tasks=2",
    "loss.entropy=0.3",  # moves the weights of a model that earns nothing yet
]  # fmt: skip


@pytest.mark.parametrize("ahead", [0, 1, 2, 4])
def test_tables_equal_the_oracle(tmp_path, ahead):
    expected = oracle(MATRIX, ahead, tmp_path, "schedule.steps=8")
    asynchronous(MATRIX, ahead, 1, "schedule.steps=8").same(expected)
    if ahead:
        assert oracle(MATRIX, ahead - 1, tmp_path, "schedule.steps=8").weights != expected.weights


RATES = [f"policies.{role}.optimizer.learning_rate=0.1" for role in ("planner", "executor")]


@pytest.mark.parametrize(
    "overlays, rates",
    [([], []), (["per_role"], []), (["l1", "per_role"], RATES)],
    ids=["full", "roles", "lora"],
)
@pytest.mark.parametrize("ahead", [1, 2])
def test_tensors_equal_the_oracle(tmp_path, ahead, overlays, rates):
    named = {"scale": "smoke", "overlays": overlays}
    tiny = [*TINY, *rates]
    expected = oracle("plan_path", ahead, tmp_path, *tiny, **named)
    asynchronous("plan_path", ahead, 1, *tiny, **named).same(expected)
    if ahead == 1:
        assert oracle("plan_path", 0, tmp_path, *tiny, **named).weights != expected.weights


def drawn_versions(record):
    """By step, (policy, version) of every call."""
    return {
        step: [
            (decision.policy, call.version)
            for tree in trees
            for node in tree.nodes()
            for decision in node.decisions.values()
            for action in decision.branches
            for call in action.calls
        ]
        for step, trees, _ in record.trees
    }


@settings(max_examples=12, deadline=None)
@given(ahead=st.integers(0, 4), seed=st.integers(0, 999), play=st.sampled_from(["in_flight", "pinned"]))
def test_versions_are_within_the_bound_and_no_prompt_is_skipped(ahead, seed, play):
    """Whatever takes how long: each step's keys are the synchronous run's, and no token is too old."""
    chosen = [f"schedule.play={play}"] if ahead else []
    record = asynchronous(MATRIX, ahead, seed, "schedule.steps=6", *chosen, most=0.004)
    plain = asynchronous(MATRIX, 0, seed, "schedule.steps=6", most=0.0)
    for (step, trees, _), (same_step, others, _) in zip(record.trees, plain.trees, strict=True):
        assert step == same_step
        for tree, other in zip(trees, others, strict=True):
            assert [node.key for node in tree.nodes()] == [node.key for node in other.nodes()]
    for step, drawn in drawn_versions(record).items():
        ages = {step - 1 - version for _, version in drawn}  # every update of this game changes the weights
        assert ages <= set(range(ahead + 1))
        if play == "pinned":
            assert ages == {min(ahead, step - 1)}
        row = record.rows[step - 1]
        if ahead:
            for policy in ("row", "column"):
                ages = [step - 1 - version for name, version in drawn if name == policy]
                assert row[f"policy/{policy}/staleness/max"] == max(ages)
                assert row[f"policy/{policy}/staleness/mean"] == pytest.approx(sum(ages) / len(ages))
                assert row[f"policy/{policy}/staleness/share/{ages[0]}"] == ages.count(ages[0]) / len(ages)
