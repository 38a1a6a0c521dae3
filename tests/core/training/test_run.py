"""A run changes in its state alone, and a checkpoint keeps all of it."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import math
from collections import deque

import numpy as np
import pytest

from coterie.api.open_run import open_run
from coterie.core.errors import PluginError
from coterie.core.loop import train
from coterie.core.training import evaluation
from coterie.core.training.evaluation import Evaluation
from coterie.core.training.state import CurriculumState, RunState
from coterie.stats import Interval
from coterie.testing import coterie_run


def trained(run):
    async def go():
        try:
            await open_run(run)
            return await train(run)
        finally:
            await run.close()

    return asyncio.run(go())


def test_training_changes_the_state_and_no_field():
    run = coterie_run(answers="1", trackers={}, schedule={"steps": 2})
    before = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    row = trained(run)
    for name, value in before.items():
        assert getattr(run, name) is value, name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(run, name, value)
    assert (run.state.step, run.state.tokens) == (2, row["tokens/total"]) and run.state.seconds > 0


def test_metrics_change_nothing_and_finish_counts_the_step(monkeypatch):
    """`metrics` twice gives the same row; tokens, step and what `watch` adds come with `finish`."""
    run = dataclasses.replace(
        coterie_run(answers="1", trackers={}), watch=lambda step, row: {"signal/x": step}
    )
    metrics, seen = type(run).metrics, []

    def twice(self, *arguments):
        before, laps = copy.deepcopy(self.state), dict(arguments[1].laps)
        first, second = (metrics(self, *arguments) for _ in range(2))
        assert self.state == before and arguments[1].laps == laps
        assert {k: v for k, v in first.items() if "time/" not in k} == {
            k: v for k, v in second.items() if "time/" not in k
        }
        seen.append(first)
        return first

    monkeypatch.setattr(type(run), "metrics", twice)
    row = trained(run)
    assert row == {**seen[-1], "signal/x": run.state.step}
    assert run.state.tokens == row["tokens/total"] == sum(each["tokens/generated"] for each in seen) > 0


def test_the_jobs_of_a_step_depend_on_the_step_alone():
    run = coterie_run(answers="1", trackers={}, schedule={"steps": 3, "tasks_per_step": 2})
    before = [run.jobs(step) for step in (1, 2, 3)]
    trained(run)
    assert [run.jobs(step) for step in (1, 2, 3)] == before
    names = [[(job.task.id, job.epoch, job.chain) for job in jobs] for jobs in before]
    assert len({tuple(step) for step in names}) == 3
    assert run.jobs(1, 1) == before[0][: len(before[0]) // 2]


def test_a_loop_without_steps_leaves_no_row():
    run = coterie_run(answers="1", trackers={}, schedule={"steps": 0})
    assert trained(run) == {} and run.state == RunState()


@pytest.mark.parametrize("state", [
    RunState(),
    RunState(
        step=3, tokens=70, seconds=1.5, best=0.25, best_step=2, credit_state={"mean": [1.0]},
        curriculum=CurriculumState(level=1, episodes=4, latest=deque([0.0, 1.0])),
    ),
])  # fmt: skip
def test_a_checkpoints_meta_restores_the_state(state):
    restored = RunState()
    restored.restore(state.step, json.loads(json.dumps(state.as_meta())))
    assert restored == state


def test_closing_undoes_what_was_opened_before_the_failure(monkeypatch):
    """A trainer that fails to open leaves neither engine nor sandbox open."""
    events = []
    run = coterie_run(answers="1", trackers={})

    def noted(thing, name, fails=False):
        async def call(*arguments):
            events.append(name)
            if fails:
                raise MemoryError("no room")

        monkeypatch.setattr(thing, name.rpartition(".")[2], call)

    for part in ("engine", "executor"):
        noted(getattr(run, part), f"{part}.open")
        noted(getattr(run, part), f"{part}.close")
    noted(run.trainer, "trainer.open", fails=True)
    noted(run.trainer, "trainer.close")
    with pytest.raises(MemoryError, match="no room") as caught:
        trained(run)
    assert any(note.startswith("in trainer 'none' of coterie: open (") for note in caught.value.__notes__)
    assert events == [
        "engine.open", "executor.open", "trainer.open", "trainer.close", "executor.close", "engine.close"
    ]  # fmt: skip


def test_the_best_step_is_the_first_of_the_best(monkeypatch):
    """Success on val of .5, .75, .75 and .25 in four steps."""
    successes = iter([0.5, 0.75, 0.75, 0.25])
    run = coterie_run(answers="1", trackers={}, schedule={"steps": 4, "evaluate_every": 1})

    async def evaluated(run, split, tasks, **settings):
        interval = Interval(next(successes), 0.0, 1.0, len(tasks))
        return Evaluation(interval, {}, {}, "", split, {})

    monkeypatch.setattr(evaluation, "evaluate", evaluated)
    row = trained(run)
    assert (run.state.best, run.state.best_step) == (0.75, 2) and row["eval/success"] == 0.25


def test_a_close_that_awaits_a_task_it_cancelled_is_told_too(monkeypatch, caplog):
    run = coterie_run(answers="1", trackers={}, schedule={"steps": 1, "evaluate_every": 0})

    async def close():
        task = asyncio.ensure_future(asyncio.sleep(1))
        await asyncio.sleep(0)
        task.cancel()
        await task

    monkeypatch.setattr(run.trainer, "close", close)
    trained(run)
    assert "trainer 'none' of coterie: close raised CancelledError" in caplog.text


def test_a_failing_close_is_told_and_hides_nothing(monkeypatch, caplog):
    run = coterie_run(answers="1", trackers={}, schedule={"steps": 1})

    async def fails(*arguments):
        raise OSError("at its end")

    async def breaks(*arguments):
        raise ValueError("in the middle")

    monkeypatch.setattr(run.engine, "close", fails)
    monkeypatch.setattr(run.trainer, "update", breaks)
    with pytest.raises(ValueError, match="in the middle") as caught:
        trained(run)
    assert caught.value.__notes__[0].startswith("in trainer 'none' of coterie: update (")
    assert "close raised OSError: at its end" in caplog.text


@pytest.mark.parametrize(
    ("part", "method", "kind"),
    [("engine", "codec", "Codec"), ("engine", "generate", "Call"), ("trainer", "weights", "Weights"),
     ("sampler", "for_evaluation", "Sampler")],
)  # fmt: skip
def test_a_method_that_forgets_to_return_what_it_makes_is_named(monkeypatch, part, method, kind):
    run = coterie_run(answers="1", trackers={}, schedule={"steps": 1, "evaluate_every": 1})
    plugin = run.rollout_side.sampler if part == "sampler" else getattr(run, part)

    async def later(*arguments):
        return None

    monkeypatch.setattr(plugin, method, later if method == "generate" else lambda *arguments: None)
    with pytest.raises(PluginError, match=f"of coterie: {method} returned None") as caught:
        trained(run)
    assert caught.value.fix == f"return a coterie.{kind}"


def updated_with(monkeypatch, metrics):
    """Train for a step, in which the trainer's update returns these metrics."""
    run = coterie_run(answers="1", trackers={}, schedule={"steps": 1, "evaluate_every": 0})
    rows = []

    async def update(*arguments):
        return metrics

    monkeypatch.setattr(run.trainer, "update", update)
    trained(dataclasses.replace(run, progress=lambda step, expected, row: rows.append(row)))
    return rows[0]


@pytest.mark.parametrize(("metrics", "said", "fix"), [
    (None, "None", "return a mapping"),
    ({"p": ["loss"]}, "{'p': ['loss']}", "return {policy: {name: number}}, of policies of the run: p"),
    ({"p": None}, "{'p': None}", "return {policy: {name: number}}, of policies of the run: p"),
    ({"loss": 0.5}, "{'loss': 0.5}", "return {policy: {name: number}}, of policies of the run: p"),
    ({"other": {"loss": 1.0}}, "{'other': {'loss': 1.0}}", "of policies of the run: p"),
    ({"p": {"loss": 1.0, "optimizer_steps": "two"}}, "{'p': {'optimizer_steps': 'two'}}", "are numbers"),
    ({"p": {"loss": "low"}}, "{'p': {'loss': 'low'}}", "metrics are numbers by name; NaN: there is none"),
    ({"p": {"loss": None}}, "{'p': {'loss': None}}", "metrics are numbers by name; NaN: there is none"),
    ({"p": {"loss": [1.0, 2.0]}}, "{'p': {'loss': [1.0, 2.0]}}", "metrics are numbers by name"),
    ({"p": {3: 1.0}}, "{'p': {3: 1.0}}", "metrics are numbers by name"),
])  # fmt: skip
def test_metrics_of_an_update_that_are_no_numbers_of_the_runs_policies_are_refused(
    monkeypatch, metrics, said, fix
):
    with pytest.raises(PluginError) as caught:
        updated_with(monkeypatch, metrics)
    assert caught.value.what == f"trainer 'none' of coterie: update returned {said}"
    assert caught.value.path == "trainer" and fix in caught.value.fix


def test_a_policys_metrics_may_be_nan_and_numbers_of_any_type(monkeypatch):
    row = updated_with(monkeypatch, {"p": {"loss": float("nan"), "entropy": np.float32(0.5), "tokens": 3}})
    assert math.isnan(row["policy/p/loss"]) and row["policy/p/entropy"] == 0.5 and row["policy/p/tokens"] == 3
