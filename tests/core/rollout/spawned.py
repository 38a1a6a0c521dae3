"""What spawned processes do in `test_two_sides.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.compose.builder import ComponentBuilder
from coterie.compose.rollout_side import make_rollout_side
from coterie.core.loop import train
from coterie.core.protocols import EngineContext, Rollout, RolloutJob
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.types import Scores, Tree, Weights
from coterie.recipes import load


@dataclass(frozen=True)
class Handed:
    """What a run hands over, and what it gets back."""

    jobs: list[RolloutJob]
    weights: list[Weights]
    rollouts: list[tuple[Tree, Scores, dict[str, float]]]
    """(tree, scores, metrics) of each job."""


def learn(file: Path) -> Handed:
    """A whole run: it trains, and then plays jobs in its own process."""
    return asyncio.run(_learn(file))


async def _learn(file: Path) -> Handed:
    run = compose(load(file))
    await open_run(run)
    try:
        await train(run)  # the weights that are handed over are trained ones
        jobs = run.jobs(run.state.step + 1, 3)
        jobs.append(RolloutJob(task=jobs[0].task, evaluation=True, greedy=True, policies={"two": None}))
        weights = [run.trainer.weights(policy) for policy in run.config.policies]
        return Handed(jobs, weights, await _values((await run.play(jobs)).rollouts))
    finally:
        await run.close()


async def _values(rollouts: Sequence[Rollout]) -> list[tuple[Tree, Scores, dict[str, float]]]:
    scored = [await rollout.scored for rollout in rollouts]
    return [
        (rollout.tree, result.scores, dict(result.metrics))
        for rollout, result in zip(rollouts, scored, strict=True)
    ]


def play(
    file: Path, jobs: Sequence[RolloutJob], weights: Sequence[Weights]
) -> list[tuple[Tree, Scores, dict[str, float]]]:
    """(tree, scores, metrics) of each job: a rollout side and an engine, from the file and the weights."""
    return asyncio.run(_play(file, jobs, weights))


async def _play(file: Path, jobs: Sequence[RolloutJob], weights: Sequence[Weights]) -> list[Any]:
    resolved = load(file)
    side, builder = make_rollout_side(resolved), ComponentBuilder(resolved.config)
    engine = builder.make("engine", resolved.config.engine, "engine")
    client = LocalEngineClient(engine)
    await engine.open(
        EngineContext(
            policies=resolved.config.policies,
            chat=builder.make("chat_format", resolved.config.chat, "chat"),
            active_rollouts=client.active_rollouts,
            deterministic=True,
            vocabulary=side.vocabulary,
        )
    )
    for handle in weights:
        await engine.load_weights(handle)
    await side.open(client)
    try:
        rollouts = await asyncio.gather(*[side.play(job) for job in jobs])
        return await _values(rollouts)
    finally:
        await side.close()
        await engine.close()
