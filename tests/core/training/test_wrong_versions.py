"""Engines, trainers and executors that get versions wrong are named; nothing is trained on in silence."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace

import pytest

from coterie.api.open_run import open_run
from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.executors.local import LocalExecutor
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.errors import PluginError, TooManyMissing
from coterie.core.loop import train
from coterie.core.rollout.engine_client import LocalEngineClient
from tests.core.training.steps_ahead import Record, made
from tests.core.training.test_steps_in_play import MATRIX

AHEAD = ["schedule.steps=6", "schedule.max_staleness=2", "schedule.evaluate_every=0"]
HERE = "tests.core.training.test_wrong_versions"


def refused(*overrides, change=lambda run: None):
    run = made(MATRIX, Record(), *AHEAD, *overrides)
    change(run)

    async def go():
        try:
            await open_run(run)
            with pytest.raises(PluginError) as error:
                await train(run)
        finally:
            await run.close()
        return str(error.value)

    return asyncio.run(go()), run.state.step


class Runs(TabularEngine):
    made = ()

    async def generate(self, request):
        call = await super().generate(request)
        return replace(call, version_runs=self.made(call.version, len(call.token_ids)))


@pytest.mark.parametrize("runs", [
    lambda v, n: ((v, n + 1),), lambda v, n: ((v, n), (v + 1, 0)), lambda v, n: ((v, 2 * n), (v, -n)),
    lambda v, n: ((v, float(n)),), lambda v, n: [(v, n)], lambda v, n: None, lambda v, n: "0,1",
    lambda v, n: (v, n), lambda v, n: ((v, n, n),), lambda v, n: ((v - 1, n),), lambda v, n: ((v + 1, n),),
    lambda v, n: (pair for pair in [(v, n)]),
])  # fmt: skip
@pytest.mark.parametrize("play", ["in_flight", "pinned"])
def test_runs_of_versions_add_up_to_the_call(monkeypatch, runs, play):
    monkeypatch.setattr(Runs, "made", staticmethod(runs))
    said, step = refused(f"engine={HERE}:Runs", f"schedule.play={play}")
    assert "generate returned" in said and "version_runs are pairs" in said and step == 0


def test_a_pinned_call_has_no_runs(monkeypatch):
    monkeypatch.setattr(Runs, "made", staticmethod(lambda v, n: ((v, n),)))
    assert "() where Request.version names one" in refused(f"engine={HERE}:Runs")[0]


@pytest.mark.parametrize("version", ["0", None, 0.0])
def test_versions_are_integers(version):
    def change(run):
        generate = run.engine.generate

        async def odd(request):
            return replace(await generate(request), version=version)

        run.engine.generate = odd

    said, _ = refused("schedule.play=in_flight", change=change)
    assert "Call.version is Weights.version" in said


class Later(TabularEngine):
    """Draws with other weights than it is asked for, and says so."""

    finish = None

    async def generate(self, request):
        call = await super().generate(request)
        return replace(call, version=call.version + 1, finish=self.finish or call.finish)


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_engine_that_draws_with_another_version_than_it_is_asked_for_is_named(ahead):
    said, step = refused(f"engine={HERE}:Later", f"schedule.max_staleness={ahead}")
    assert said.startswith(f"engine: engine '{HERE}:Later' of tests: generate returned"), said
    assert "a call of version 1 of policy" in said and "Request.version (0)" in said and step == 0


def test_an_aborted_call_of_another_version_is_lost_as_any_aborted_one_is(monkeypatch):
    monkeypatch.setattr(Later, "finish", "abort")
    run = made(MATRIX, Record(), "schedule.steps=1", f"engine={HERE}:Later")

    async def go():
        try:
            await open_run(run)
            with pytest.raises(TooManyMissing, match="the engine aborted the call"):
                await train(run)
        finally:
            await run.close()

    asyncio.run(go())


class ClientOfLater(LocalEngineClient):
    async def generate(self, request):
        call = await super().generate(request)
        return replace(call, version=call.version + 1)


class WithItsClient(LocalExecutor):
    """Plays with an engine client of its own."""

    async def open(self, ctx):
        await super().open(replace(ctx, engine=ClientOfLater(ctx.engine.engine)))


def test_an_executors_client_that_answers_with_another_version_is_named():
    said, step = refused(f"executor={HERE}:WithItsClient")
    assert "plugin 'ClientOfLater' of tests: generate returned" in said
    assert "Request.version (0)" in said and step == 0


def test_an_executor_that_drops_the_versions_is_named():
    def change(run):
        play = run.executor.play
        run.executor.play = lambda job: play(replace(job, versions={}) if job.cohort > "000000003" else job)

    said, step = refused(change=change)
    assert "executor" in said and "play each job with its versions" in said and 3 <= step <= 5


class Stuck(TabularTrainer):
    """Never raises a version."""

    def weights(self, policy):
        return replace(super().weights(policy), version=0)


class Skips(TabularTrainer):
    def weights(self, policy):
        return replace(super().weights(policy), version=2 * super().weights(policy).version)


class Other(TabularTrainer):
    def weights(self, policy):
        return replace(super().weights(policy), policy="another")


@pytest.mark.parametrize(("trainer", "fix"), [
    ("Stuck", "raise the version by 1 where an update changes weights"),
    ("Skips", "an update raises a policy's version by 1"),
    ("Other", "return coterie.Weights of policy 'row'"),
])  # fmt: skip
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_trainer_that_counts_wrongly_is_named(trainer, fix, ahead):
    run = made(MATRIX, Record(), "schedule.steps=3", f"schedule.max_staleness={ahead}",
               f"trainer.type={HERE}:{trainer}")  # fmt: skip

    async def go():
        try:
            with pytest.raises(PluginError) as error:
                await open_run(run)
                await train(run)
        finally:
            await run.close()
        return str(error.value)

    said = asyncio.run(go())
    assert "weights returned" in said and fix in said and trainer in said


class SyncLease(TabularEngine):
    def lease(self, policy, version):
        return None


class SyncRelease(TabularEngine):
    def release(self, policy, version):
        return None


@pytest.mark.parametrize("engine", ["SyncLease", "SyncRelease"])
def test_leases_are_async(engine):
    said, _ = refused(f"engine={HERE}:{engine}")
    assert f"{engine.removeprefix('Sync').lower()}` must be `async def`" in said


class Nothing(TabularTrainer):
    @contextmanager
    def weights_at(self, policy, version):
        yield None


class Present(TabularTrainer):
    @contextmanager
    def weights_at(self, policy, version):
        yield self.weights(policy)


@pytest.mark.parametrize("trainer", ["Nothing", "Present"])
def test_what_weights_at_gives_on_a_resume_is_checked(tmp_path, trainer):
    import coterie

    settings = [*AHEAD, f"trainer.type={HERE}:{trainer}"]
    coterie.train(MATRIX, overrides=settings, out=tmp_path / "run")
    with pytest.raises(PluginError, match="weights_at returned") as error:
        coterie.train(resume=tmp_path / "run", overrides=["schedule.steps=8"])
    assert trainer in str(error.value) and "coterie.Weights" in str(error.value)
