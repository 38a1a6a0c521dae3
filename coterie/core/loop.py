"""The loop, as the paper has it."""

from __future__ import annotations

from coterie.core.protocols import Batch
from coterie.core.training.run import Run


async def train(run: Run) -> None:
    """Train until the schedule ends, the time is up, or somebody interrupts."""
    async for step, trees in run.rollouts():
        scores = await run.score(trees)  # completes what sampling didn't need; missing stays missing
        notes = await run.annotate(trees)  # only what the estimator or the loss needs
        credit, run.credit_state = run.estimator(
            Batch(trees=trees, scores=scores, notes=notes, mix=run.mix), run.credit_state
        )
        updated = await run.update(run.samples(trees, credit, notes))  # then weights to the engine
        run.track(step, trees, scores, credit, updated)
        await run.maybe_evaluate(step)
        run.maybe_checkpoint(step)
