"""`schedule.tokens`: a run, also a resumed one, ends after the step that spends its token budget."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie
from coterie.api.checkpoints import CheckpointStore
from coterie.core.errors import ConfigError, RunFolderError
from coterie.core.training.schedule import End
from tests.test_resume import MATRIX, rows, same, weights

STEP = 32
"""Tokens of a step: 4 tasks, 2 roles, 4 branches of one token."""

TORCH = [
    "engine=hf",
    "trainer={type: torch, device: cpu}",
    "chat=plain",
    *(
        f"policies.{name}={{model: {{init: qwen3, hidden_size: 8, layers: 1, heads: 1, head_dim: 8, "
        "mlp_size: 8, context: 16}, optimizer: {learning_rate: 0.01, schedule: linear, final_share: 0}}"
        for name in ("row", "column")
    ),
]


def budget(tokens: int, *overrides: str) -> list[str]:
    return ["schedule.steps=null", f"schedule.tokens={tokens}", *overrides]


def horizon(value: object) -> list[str]:
    return [f"policies.{name}.optimizer.horizon={value}" for name in ("row", "column")]


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (STEP, 1), (STEP + 1, 2), (3 * STEP, 3)])
def test_the_run_ends_after_the_step_that_spends_the_budget(tmp_path: Path, tokens: int, steps: int) -> None:
    progress: list[tuple[int, int]] = []
    result = coterie.train(
        MATRIX,
        overrides=budget(tokens),
        out=tmp_path / "run",
        progress=lambda done, total, metrics: progress.append((done, total)),
    )
    assert (result.step, result.steps, result.tokens, result.finished) == (steps, None, steps * STEP, True)
    assert [row["tokens/total"] for row in rows(tmp_path / "run")] == [STEP * (n + 1) for n in range(steps)]
    assert weights(tmp_path / "run")["step"] == steps
    # All steps have the same number of tokens, so the first step predicts the length.
    assert progress == [(n + 1, steps) for n in range(steps)]


def test_steps_bound_a_budget(tmp_path: Path) -> None:
    result = coterie.train(
        MATRIX, overrides=["schedule.steps=2", "schedule.tokens=1000"], out=tmp_path / "run"
    )
    assert (result.step, result.steps, result.tokens, result.finished) == (2, 2, 2 * STEP, True)


def test_stopped_and_resumed_is_the_same_run(tmp_path: Path) -> None:
    coterie.train(MATRIX, overrides=budget(5 * STEP - 1), out=tmp_path / "whole")
    part = coterie.train(MATRIX, overrides=budget(2 * STEP), out=tmp_path / "part")
    assert part.finished and part.step == 2
    rest = coterie.train(resume=tmp_path / "part", overrides=[f"schedule.tokens={5 * STEP - 1}"])
    assert (rest.step, rest.tokens, rest.finished) == (5, 5 * STEP, True)
    same(tmp_path / "whole", tmp_path / "part")
    before = (tmp_path / "part" / "metrics.jsonl").read_bytes()
    again = coterie.train(resume=tmp_path / "part")  # the run folder has the larger budget now
    assert (again.step, again.tokens, again.finished, again.seconds) == (5, 5 * STEP, True, 0.0)
    assert (tmp_path / "part" / "metrics.jsonl").read_bytes() == before


@pytest.mark.torch
def test_a_decay_over_the_budget_is_one_over_its_steps(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sizes = [*TORCH, "schedule.evaluate_every=0"]
    coterie.train(MATRIX, overrides=[*sizes, *horizon(4)], out=tmp_path / "steps")
    coterie.train(MATRIX, overrides=[*sizes, *budget(4 * STEP), *horizon("budget")], out=tmp_path / "tokens")
    rates = [row["policy/row/learning_rate"] for row in rows(tmp_path / "tokens")]
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    same(tmp_path / "steps", tmp_path / "tokens")

    coterie.train(
        MATRIX,
        overrides=[*sizes, *budget(4 * STEP), *horizon("budget"), "schedule.steps=2"],
        out=tmp_path / "part",
    )
    with pytest.raises(RunFolderError, match="budget that its learning rates decay over"):
        coterie.train(resume=tmp_path / "part", overrides=[f"schedule.tokens={8 * STEP}"])
    coterie.train(resume=tmp_path / "part", overrides=["schedule.steps=9"])
    same(tmp_path / "steps", tmp_path / "part")


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["schedule.steps=null"], "schedule.steps"),
        (["schedule.tokens=0"], "schedule.tokens"),
        (["policies.row.optimizer={schedule: linear, horizon: budget}"], "policies.row.optimizer.horizon"),
        (["policies.row.optimizer={schedule: linear, horizon: 0}"], "policies.row.optimizer.horizon"),
        (["policies.row.optimizer={schedule: linear, horizon: half}"], "policies.row.optimizer.horizon"),
        (
            ["schedule.tokens=9", "policies.row.optimizer={horizon: budget}"],
            "policies.row.optimizer.horizon",  # the rate is constant
        ),
        (
            ["schedule.tokens=9", "policies.row.optimizer={schedule: linear, horizon: budget}"],
            "policies.row.optimizer.horizon",  # the trainer has no schedules
        ),
    ],
)
def test_settings_without_a_meaning_are_refused(tmp_path: Path, overrides: list[str], path: str) -> None:
    with pytest.raises(ConfigError) as error:
        coterie.train(MATRIX, overrides=overrides, out=tmp_path / "run")
    assert error.value.path == path and not (tmp_path / "run").exists()


def test_a_budget_that_nothing_spends_is_refused() -> None:
    End(steps=5, tokens=10).check(0)
    End(steps=None, tokens=10).check(1)
    with pytest.raises(ConfigError, match="never be spent"):
        End(steps=None, tokens=10).check(0)


@pytest.mark.parametrize(
    ("end", "done", "tokens", "steps"),
    [
        (End(60, None), 12, 5000, 60),
        (End(60, 1000), 0, 0, 60),
        (End(None, 1000), 0, 0, 1),
        (End(None, 1000), 3, 250, 12),
        (End(10, 1000), 3, 250, 10),
        (End(None, 1000), 3, 999, 4),
        (End(10, 1000), 3, 1001, 3),
    ],
)
def test_the_expected_length_of_a_run(end: End, done: int, tokens: int, steps: int) -> None:
    assert end.expected(done, tokens) == steps


def test_the_budget_is_in_the_checkpoint(tmp_path: Path) -> None:
    coterie.train(MATRIX, overrides=["schedule.steps=3"], out=tmp_path / "run")
    latest = CheckpointStore(tmp_path / "run" / "checkpoints", keep=9).latest()
    assert latest is not None and latest.meta["tokens"] == 3 * STEP
