"""Steps ahead, pinned: bit for bit what a plain sequential loop gives, whatever takes how long."""

from __future__ import annotations

import asyncio
import gc
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st

from coterie.api.open_run import open_run
from coterie.backends.models import devices
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.compose import compose
from coterie.core.errors import ConfigError, PluginError, SystemFault
from coterie.core.loop import train
from coterie.recipes import load
from tests.core.training.steps_ahead import Record, asynchronous, made, oracle

MATRIX = str(Path(__file__).parents[2] / "recipes" / "matrix.yaml")
TINY = [
    "schedule.steps=5", "schedule.tasks_per_step=2", "schedule.evaluate_every=2", "schedule.evaluate_tasks=2",
    "loss.entropy=0.3",  # moves the weights of a model that earns nothing yet
]  # fmt: skip


@pytest.mark.parametrize("ahead", [0, 1, pytest.param(4, marks=pytest.mark.long)])
def test_tables_equal_the_oracle(tmp_path, ahead):
    expected = oracle(MATRIX, ahead, tmp_path, "schedule.steps=8")
    asynchronous(MATRIX, ahead, 1, "schedule.steps=8", most=0.004).same(expected)
    if ahead:
        assert oracle(MATRIX, ahead - 1, tmp_path, "schedule.steps=8").weights != expected.weights


RATES = [f"policies.{role}.optimizer.learning_rate=0.1" for role in ("planner", "executor")]


@pytest.mark.resume
@pytest.mark.parametrize(
    "ahead, overlays, rates",
    [(1, [], []), (2, ["per_role"], []), (1, ["l1", "per_role"], RATES), (2, ["l1", "per_role"], RATES)],
    ids=["full", "roles", "lora", "lora-2"],
)
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


@pytest.mark.resume
@settings(max_examples=8, deadline=None)
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


def opened(run, failing=0):
    """Train a run whose executor fails at every job of a step; (the error, the rows' steps, tasks left)."""
    steps, play = [], run.executor.play

    async def failing_play(job):
        if job.cohort == run.cohort(failing):
            raise RuntimeError("the game broke")
        return await play(job)

    run.executor.play = failing_play

    async def go():
        try:
            await open_run(run)
            with pytest.raises(RuntimeError, match="the game broke"):
                await train(replace(run, progress=lambda step, *_: steps.append(step)))
        finally:
            await run.close()
        return len(asyncio.all_tasks()) - 1

    return asyncio.run(go()), steps


def test_a_failure_in_a_step_ahead_is_raised_when_that_step_is_due(capfd, caplog):
    run = made(MATRIX, Record(), "schedule.steps=9", "schedule.max_staleness=3")
    assert opened(run, failing=4) == (0, [1, 2, 3])
    gc.collect()
    assert "never retrieved" not in capfd.readouterr().err + caplog.text


def test_weights_that_are_older_than_the_bound_are_refused():
    """An engine that goes on with old weights is told, not trained on."""
    run = made(MATRIX, Record(), "schedule.steps=9", "schedule.max_staleness=1", "schedule.play=in_flight",
               "schedule.evaluate_every=0")  # fmt: skip
    load, loads = run.engine.load_weights, []

    async def seldom(weights):
        loads.append(weights)
        if len(loads) <= 2:
            await load(weights)

    run.engine.load_weights = seldom

    async def go():
        try:
            await open_run(run)
            with pytest.raises(PluginError, match=r"2 updates old"):
                await train(run)
        finally:
            await run.close()

    asyncio.run(go())
    assert run.state.step == 2


def test_tokens_of_weights_that_are_not_there_yet_are_refused():
    run = made(MATRIX, Record(), "schedule.steps=9", "schedule.max_staleness=1", "schedule.play=in_flight")
    generate = run.engine.generate

    async def early(request):
        call = await generate(request)
        return replace(call, version=call.version + 1) if request.key.branch == 0 else call

    run.engine.generate = early

    async def go():
        try:
            await open_run(run)
            with pytest.raises(PluginError, match=r"hasn.t made yet"):
                await train(run)
        finally:
            await run.close()

    asyncio.run(go())


@pytest.mark.parametrize("device, deterministic, pinned", [
    ("cpu", "auto", True), ("cuda", "auto", False), ("cuda", "true", True), ("cpu", "false", False),
])  # fmt: skip
def test_auto_is_pinned_where_results_must_repeat(monkeypatch, device, deterministic, pinned):
    monkeypatch.setattr(devices, "device_of", lambda *arguments: SimpleNamespace(type=device))
    settings = [f"deterministic={deterministic}", "schedule.max_staleness=1"]
    assert compose(load("plan_path", scale="smoke", overrides=settings)).pinned is pinned
    assert compose(load("plan_path", scale="smoke", overrides=settings[:1])).pinned, "no step is ahead"


def test_a_row_says_who_waited_only_where_steps_are_ahead():
    names = {}
    for ahead in (0, 1):
        run = made(MATRIX, Record(), "schedule.steps=2", f"schedule.max_staleness={ahead}")
        seen = names.setdefault(ahead, [])
        run = replace(run, progress=lambda step, expected, row, seen=seen: seen.append(dict(row)))

        async def go(run=run):
            try:
                await open_run(run)
                await train(run)
            finally:
                await run.close()

        asyncio.run(go())
    new = names[1][1].keys() - names[0][1].keys()
    assert {name for name in new if name.startswith("time/")} == {
        "time/sync",
        "time/play",
        "time/engine_waited",
    }
    row = names[1][1]
    assert (
        row["time/engine_waited"] >= 0 and row["time/play"] > 0 and row["time/rollouts"] <= row["time/step"]
    )
    assert not any("staleness" in name for name in names[0][1])


def test_what_is_due_first_is_first_in_order():
    """The engine takes the first cohort of those that wait, by its name."""
    run = made(MATRIX, Record(), "schedule.max_staleness=2")
    assert run.cohort(9) < run.cohort(9, " evaluation") < run.cohort(10) < run.cohort(100)


def refusal(*overrides, **tables):
    with pytest.raises(ConfigError) as refused:
        compose(load(MATRIX, overrides=["schedule.max_staleness=2", *overrides]))
    return str(refused.value)


def test_what_cant_play_ahead_is_refused_with_what_to_do():
    fresh = refusal("loss.type=reinforce")
    assert "schedule.max_staleness" in fresh and "loss.correction" in fresh
    compose(load(MATRIX, overrides=["schedule.max_staleness=2", "loss={type: reinforce, correction: {}}"]))
    assert "deterministic is true" in refusal("schedule.play=in_flight", "deterministic=true")
    one = refusal("trainer.type=tests.core.training.test_steps_in_play:OneVersion")
    assert "keeps one version of the weights, and pinned steps ahead need 3" in one and "in_flight" in one
    assert "no effect" in refusal("schedule.max_staleness=0", "schedule.play=pinned")


class OneVersion(TabularTrainer):
    keep = None


def test_nothing_of_past_steps_is_kept():
    run = made(MATRIX, Record(), "schedule.steps=40", "schedule.max_staleness=3")

    async def go():
        try:
            await open_run(run)
            await train(run)
            assert sorted(run.state.pins) == [41, 42, 43], "what the steps of a longer run would be pinned to"
            for policy in ("row", "column"):
                assert sorted(run.trainer.policies[policy].kept) == [37, 38, 39]
                for version in (36, 37, 40):
                    with pytest.raises(SystemFault) if version == 36 else nullcontext():
                        await run.engine.lease(policy, version)
            active = run.engine_client.active_rollouts
            assert not run.in_play and active.live == active.waiting == 0
        finally:
            await run.close()

    asyncio.run(go())


def test_more_threads_than_cores_are_warned_of(monkeypatch, caplog):
    """Threads of two OpenMP pools wait for one another by spinning."""
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    asynchronous("plan_path", 1, 1, *TINY[1:], "schedule.steps=1", scale="smoke")
    assert caplog.text.count("each with 64 threads") == 1 and "OMP_NUM_THREADS=" in caplog.text
    caplog.clear()
    asynchronous("plan_path", 0, 1, *TINY[1:], "schedule.steps=1", scale="smoke")
    assert "threads" not in caplog.text
