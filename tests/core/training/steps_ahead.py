"""What the asynchronous loop must equal: a plain sequential loop, and runs with delays everywhere."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.core.loop import train
from coterie.core.protocols import Batch
from coterie.core.training.evaluation import evaluate_if_due
from coterie.core.training.run import Run
from coterie.core.training.state import Pin
from coterie.recipes import load


class Record:
    """What a run sampled and learned."""

    def __init__(self) -> None:
        self.trees: list[Any] = []
        self.rows: list[dict[str, Any]] = []
        self.weights: dict[str, str] = {}

    def steps(self, step: int, batch: Batch, state: Any, credit: Any, trackers: Any) -> None:
        self.trees.append((step, list(batch.trees), dict(credit.advantage)))

    def row(self, step: int, expected: int, row: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in row.items() if not name.startswith("time/")}
        self.rows.append({"step": step, **kept})

    def same(self, other: Record) -> None:
        assert len(self.trees) == len(other.trees) > 0
        for (step, trees, credit), (step2, trees2, credit2) in zip(self.trees, other.trees, strict=True):
            assert step == step2 and [repr(tree) for tree in trees] == [repr(tree) for tree in trees2]
            assert [list(tree.nodes()) for tree in trees] == [list(tree.nodes()) for tree in trees2]
            assert repr(credit) == repr(credit2)
        assert repr(self.rows) == repr(other.rows)
        assert self.weights == other.weights


def made(source: Any, record: Record, *overrides: str, **named: Any) -> Run:
    run = compose(load(source, overrides=["trackers={}", *overrides], **named))
    every = run.config.schedule.evaluate_every
    return replace(run, recorder=record.steps, progress=record.row,
                   evaluate_every=0 if every == "auto" else every)  # fmt: skip


def oracle(source: Any, ahead: int, folder: Path, *overrides: str, **named: Any) -> Record:
    """Play step t with the weights after update t - 1 - N, then update; one thing after the other."""
    record = Record()

    async def go() -> None:
        run = made(source, record, f"schedule.max_staleness={ahead}", *overrides, **named)  # for its rows
        player = made(source, record, *overrides, **named)
        levels = {}
        try:
            await open_run(run)
            await open_run(player)
            for step in range(1, run.config.schedule.steps + 1):
                run.trainer.save(folder / str(step - 1))
                levels[step - 1] = run.level
                past = max(step - 1 - ahead, 0)
                player.trainer.load(folder / str(past))
                await player.sync()
                pin = Pin(player.versions, levels[past])
                run.state.pins[step] = player.state.pins[step] = pin
                rollouts = await player.play(player.jobs(step))
                scores = await run.score(rollouts)
                annotations = await run.annotate(rollouts)
                batch = Batch(trees=rollouts.trees, scores=scores, annotations=annotations,
                              reward_weights=run.reward_weights)  # fmt: skip
                state = run.state.credit_state
                credit, run.state.credit_state = run.estimator(batch, state)
                updated = await run.update(rollouts, credit, annotations)
                run.record(step, batch, state, credit)
                row = run.metrics(step, rollouts, scores, credit, updated)
                row |= await evaluate_if_due(run, step)
                run.finish(step, rollouts, row)
            record.weights = run.trainer.digest()
        finally:
            await player.close()
            await run.close()

    shutil.rmtree(folder, ignore_errors=True)
    asyncio.run(go())
    return record


def delayed(run: Run, seed: int, most: float = 0.02) -> Run:
    """The run, with pauses of random lengths before steps of the environment, scores, updates and syncs."""
    draws = random.Random(seed)
    for plugin, method in (
        *((environment, "step") for environment in (run.environment, *run.rollout_side.levels)),
        *((source.plugin, "score") for source in run.reward_sources),
        (run.trainer, "update"),
        (run.engine, "load_weights"),
    ):
        setattr(plugin, method, _late(getattr(plugin, method), draws, most))
    return run


def _late(method: Any, draws: random.Random, most: float) -> Any:
    async def later(*arguments: Any) -> Any:
        await asyncio.sleep(draws.choice([0.0, most * draws.random()]))
        return await method(*arguments)

    return later


def asynchronous(
    source: Any, ahead: int, seed: int, *overrides: str, most: float = 0.02, **named: Any
) -> Record:
    """The run with steps ahead, with delays."""
    record = Record()
    run = delayed(made(source, record, f"schedule.max_staleness={ahead}", *overrides, **named), seed, most)

    async def go() -> None:
        try:
            await open_run(run)
            await train(run)
            record.weights = run.trainer.digest()
        finally:
            await run.close()

    asyncio.run(go())
    return record
