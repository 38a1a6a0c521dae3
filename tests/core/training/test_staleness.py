"""Staleness in updates and in optimiser steps, and the long tail of a step's play."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

import coterie
from coterie.api.checkpoints import CheckpointStore
from coterie.api.open_run import open_run
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.loop import train
from coterie.core.training.samples import staleness_metrics
from coterie.core.training.state import RunState
from coterie.core.training.steps_in_play import StepRollouts
from tests.core.training.steps_ahead import Record, asynchronous, made
from tests.core.training.test_steps_in_play import MATRIX, drawn_versions

STEPS = ["trainer.minibatch_size=8", "trainer.epochs=2", "schedule.evaluate_every=0"]


def test_by_hand():
    """Updates of 4, 2 and 6 optimiser steps, the newest first: tokens 1 update old lack 4, 3 updates 12."""
    tokens = Counter({0: 3, 1: 5, 3: 2})
    wanted = {
        "staleness/mean": 1.1,
        "staleness/max": 3.0,
        "staleness/share/0": 0.3,
        "staleness/share/1": 0.5,
        "staleness/share/3": 0.2,
    }
    assert staleness_metrics(tokens, [4.0, 2.0, 6.0]) == {**wanted, "staleness/optimizer_steps": 4.4}
    assert staleness_metrics(tokens, [4.0, 2.0]) == wanted, "nobody knows the third"
    assert staleness_metrics(Counter({0: 2}), [])["staleness/optimizer_steps"] == 0.0
    assert staleness_metrics(Counter(), [4.0]) == {}


@pytest.mark.parametrize(
    "ended, tail",
    [([4.0], 1.0), ([1.0, 2.0, 8.0], 0.75), ([float(n) for n in range(1, 11)], 0.1),
     ([*[2.0] * 17, 4.0, 9.0, 10.0], 0.6), ([0.0], 1.0)],
)  # fmt: skip
def test_the_long_tail_by_hand(ended, tail):
    """10 trees: without the last one. 20 trees: without the last two."""
    assert StepRollouts([], ended, 0.0).long_tail == pytest.approx(tail)


def expected(record: Record, policy: str) -> list[float]:
    """By step, the mean over tokens (a call is one) of the optimiser steps since the version that drew it."""
    done, wanted = [0.0], []
    for row, drawn in zip(record.rows, drawn_versions(record).values(), strict=True):
        since = [done[-1] - done[version] for name, version in drawn if name == policy]
        wanted.append(sum(since) / len(since))
        done.append(done[-1] + row[f"policy/{policy}/optimizer_steps"])
    return wanted


@pytest.mark.parametrize("play", ["pinned", "in_flight"])
def test_a_run_counts_what_lies_between_the_versions(play):
    record = asynchronous(MATRIX, 2, 3, "schedule.steps=6", f"schedule.play={play}", *STEPS, most=0.004)
    for policy in ("row", "column"):
        assert {row[f"policy/{policy}/optimizer_steps"] for row in record.rows} == {4.0}, (
            "2 minibatches, twice"
        )
        found = [row[f"policy/{policy}/staleness/optimizer_steps"] for row in record.rows]
        assert found == pytest.approx(expected(record, policy))
        assert play == "in_flight" or found == [0.0, 4.0, 8.0, 8.0, 8.0, 8.0]


def test_a_resume_knows_the_optimiser_steps_before_it(tmp_path):
    settings = [*STEPS, "schedule.max_staleness=2"]
    coterie.train(MATRIX, overrides=[*settings, "schedule.steps=3"], out=tmp_path / "run")
    meta = CheckpointStore(tmp_path / "run" / "checkpoints", keep=9).latest().meta
    assert meta["optimizer_steps"] == {"row": [4.0, 4.0], "column": [4.0, 4.0]}, "no more than may be needed"
    coterie.train(resume=tmp_path / "run", overrides=["schedule.steps=5"])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line)["policy/row/staleness/optimizer_steps"] for line in lines]
    assert found == [0.0, 4.0, 8.0, 8.0, 8.0]
    state = RunState()
    state.restore(3, json.loads(json.dumps(meta)))
    assert state.optimizer_steps == meta["optimizer_steps"]
    assert "optimizer_steps" not in RunState().as_meta()


@pytest.mark.torch
def test_a_run_of_tensors_tells_mismatch_and_clips_by_age():
    pytest.importorskip("transformers")
    settings = ["schedule.steps=3", "schedule.tasks_per_step=2", "schedule.evaluate_every=0",
                "loss.entropy=0.3", "trainer.epochs=2"]  # fmt: skip
    record = asynchronous("plan_path", 2, 1, *settings, scale="smoke")
    for number, row in enumerate(record.rows):
        for policy in {name.split("/")[1] for name in row if name.startswith("policy/")}:
            told = {name for name in row if name.startswith(f"policy/{policy}/") and "/staleness/" in name}
            of = {name.removeprefix(f"policy/{policy}/") for name in told}
            by_age = {f"{name}/staleness/{number}" for name in ("mismatch", "clip_fraction") if number}
            assert {name for name in of if not name.startswith("staleness/")} == by_age
            taken = sum(earlier[f"policy/{policy}/optimizer_steps"] for earlier in record.rows[:number])
            assert row[f"policy/{policy}/staleness/optimizer_steps"] == taken
            assert taken == 0 or taken > number, "an update makes several"


class Silent(TabularTrainer):
    """Says every other time how many steps it took."""

    async def update(self, samples, step):
        updated = await super().update(samples, step)
        return {
            policy: {name: value for name, value in metrics.items() if step % 2 or name != "optimizer_steps"}
            for policy, metrics in updated.items()
        }


def test_what_a_trainer_does_not_report_is_left_out():
    name = "policy/row/staleness/optimizer_steps"
    record = asynchronous(MATRIX, 1, 1, "schedule.steps=5", f"trainer.type={__name__}:Silent",
                          "schedule.evaluate_every=0")  # fmt: skip
    assert [row.get(name) for row in record.rows] == [0.0, None, 1.0, None, 1.0]


def test_every_row_has_its_long_tail(tmp_path: Path):
    """N = 0 too: it says what steps ahead would fill."""
    tails, run = [], made(MATRIX, Record(), "schedule.steps=2")

    async def go():
        try:
            await open_run(run)
            row = await train(run)
            tails.append((row["time/long_tail"], "time/play" in row))
        finally:
            await run.close()

    asyncio.run(go())
    assert 0.0 <= tails[0][0] <= 1.0 and not tails[0][1]
