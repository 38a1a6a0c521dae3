"""What a spawned process does in `test_two_sides.py`: a rollout side and an engine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.compose.builder import ComponentBuilder
from coterie.compose.rollout_side import make_rollout_side
from coterie.core.protocols import EngineContext, RolloutJob
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.types import Scores, Tree, Weights
from coterie.recipes import load


def play(
    file: Path, jobs: Sequence[RolloutJob], weights: Sequence[Weights]
) -> list[tuple[Tree, Scores, dict[str, float]]]:
    """(tree, scores, metrics) of each job, from the configuration's file and the weights."""
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
            deterministic=resolved.config.deterministic,
            vocabulary=side.vocabulary,
        )
    )
    for handle in weights:
        await engine.load_weights(handle)
    await side.open(client)
    try:
        rollouts = await asyncio.gather(*[side.play(job) for job in jobs])
        scored = [await rollout.scored for rollout in rollouts]
    finally:
        await side.close()
        await engine.close()
    return [
        (rollout.tree, result.scores, dict(result.metrics))
        for rollout, result in zip(rollouts, scored, strict=True)
    ]
