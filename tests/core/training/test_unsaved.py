"""Where `schedule.checkpoint_every` is `auto`, time makes a run save, and nothing else of it changes."""

from __future__ import annotations

import random

import pytest

import coterie
from coterie.api.checkpoints import CheckpointStore
from coterie.core.training import schedule
from coterie.core.training.schedule import MOST_LOST, Unsaved
from tests.test_resume import MATRIX, same

AUTO = ("schedule.checkpoint_every=auto",)


class Clock:
    """`time.perf_counter` of the schedule, by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(schedule.time, "perf_counter", lambda: self.now)


def losses(clock: Clock, steps: list[float], saving: float, evaluate: int = 0) -> tuple[list[float], int]:
    """Seconds that a kill at the end of each step would lose, and how often a run of these steps saves."""
    unsaved, lost, saves, since = Unsaved(), [], 0, clock.now
    for step, seconds in enumerate(steps, 1):
        clock.now += seconds
        lost.append(clock.now - since)
        kinds = [evaluate > 0 and number % evaluate == 0 for number in (step, step + 1)]
        if unsaved.due(*kinds):
            began = clock.now
            clock.now += saving
            unsaved.saved(began)
            saves, since = saves + 1, clock.now
    return lost, saves


def test_five_minutes_may_be_lost():
    assert MOST_LOST == 300


@pytest.mark.parametrize("step", [0.01, 1.0, 7.0, 149.0, 151.0, 299.0, 301.0, 1000.0])
@pytest.mark.parametrize("saving", [0.0, 5.0])
def test_a_kill_loses_at_most_five_minutes_or_one_step(monkeypatch, step, saving):
    steps = [step] * max(4, int(2000 / step))
    lost, saves = losses(Clock(monkeypatch), steps, saving)
    assert max(lost) <= max(MOST_LOST, step) + 1e-6
    fewest = sum(steps) / max(MOST_LOST, step)
    assert saves <= 2 * fewest + 1 and (step > 10 or saves <= 1.1 * fewest + 1), "no more often than that"


def test_steps_of_different_lengths_and_evaluations_are_foreseen(monkeypatch):
    draws = random.Random(7)
    steps = [draws.uniform(5, 15) + (200 if step % 20 == 0 else 0) for step in range(1, 400)]
    lost, saves = losses(Clock(monkeypatch), steps, 2.0, evaluate=20)
    assert max(lost) <= MOST_LOST + 10, "the next step may be longer than those before it"
    assert saves <= 3 * sum(steps) / MOST_LOST, "a long evaluation doesn't make every step save"


def test_a_step_that_hung_once_makes_few_others_save(monkeypatch):
    lost, saves = losses(Clock(monkeypatch), [1.0] * 10 + [2000.0] + [1.0] * 3000, 0.1)
    assert 10 <= saves <= 40 and sorted(lost)[-2] <= MOST_LOST


def folders(tmp_path, *overrides):
    """Of two runs: one saves by time after every step, the other at its end alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "MOST_LOST", 0.0)
        coterie.train(MATRIX, overrides=[*AUTO, *overrides], out=tmp_path / "often")
    coterie.train(MATRIX, overrides=["schedule.checkpoint_every=0", *overrides], out=tmp_path / "rarely")
    return tmp_path / "often", tmp_path / "rarely"


def test_checkpoints_by_time_change_no_row_no_rollout_and_no_weight(tmp_path):
    often, rarely = folders(tmp_path, "schedule.keep_checkpoints=99", "schedule.evaluate_every=0")
    same(often, rarely)
    assert CheckpointStore(often / "checkpoints", keep=99).steps() == [0, 1, 2, 3, 4]
    assert CheckpointStore(rarely / "checkpoints", keep=99).steps() == [0, 4]


def test_the_newest_two_and_the_best_are_kept(tmp_path):
    often, rarely = folders(tmp_path, "schedule.steps=9")
    same(often, rarely)
    store = CheckpointStore(often / "checkpoints", keep=2)
    assert store.marks() == CheckpointStore(rarely / "checkpoints", keep=2).marks() == {"best": 6}
    assert store.steps() == [6, 8, 9]


def test_a_short_run_saves_at_its_begin_and_end_alone(tmp_path):
    coterie.train(MATRIX, overrides=[*AUTO, "schedule.evaluate_every=0"], out=tmp_path / "run")
    assert CheckpointStore(tmp_path / "run" / "checkpoints", keep=9).steps() == [0, 4]
