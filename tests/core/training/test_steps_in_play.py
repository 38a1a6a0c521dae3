"""Steps ahead, pinned: bit for bit what a plain sequential loop gives, whatever takes how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.training.steps_ahead import asynchronous, oracle

MATRIX = str(Path(__file__).parents[2] / "recipes" / "matrix.yaml")
TINY = [
    "schedule.steps=5", "schedule.tasks_per_step=2", "schedule.evaluate_every=2", "schedule.evaluate_tasks=2",
    "loss.entropy=0.3",  # moves the weights of a model that earns nothing yet
]  # fmt: skip


@pytest.mark.parametrize("ahead", [0, 1, 2, 4])
def test_tables_equal_the_oracle(tmp_path, ahead):
    settings = ["schedule.steps=8"]
    expected = oracle(MATRIX, ahead, tmp_path, *settings)
    asynchronous(MATRIX, ahead, 1, *settings).same(expected)
    if ahead:
        assert oracle(MATRIX, ahead - 1, tmp_path, *settings).weights != expected.weights


RATES = [f"policies.{role}.optimizer.learning_rate=0.1" for role in ("planner", "executor")]


@pytest.mark.parametrize(
    "overlays, rates", [([], []), (["per_role"], []), (["l1", "per_role"], RATES)], ids=["full", "roles", "lora"]
)
@pytest.mark.parametrize("ahead", [1, 2])
def test_tensors_equal_the_oracle(tmp_path, ahead, overlays, rates):
    named = {"scale": "smoke", "overlays": overlays}
    settings = [*TINY, *rates]
    expected = oracle("plan_path", ahead, tmp_path, *settings, **named)
    asynchronous("plan_path", ahead, 1, *settings, **named).same(expected)
    if ahead == 1:
        assert oracle("plan_path", 0, tmp_path, *settings, **named).weights != expected.weights
