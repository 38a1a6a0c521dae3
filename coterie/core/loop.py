"""The loop, as the paper has it."""

from __future__ import annotations

from coterie.core.protocols import Batch
from coterie.core.training.evaluation import evaluate_if_due
from coterie.core.training.run import Run


async def train(run: Run) -> None:
    """Train until the schedule ends, the time is up, or an interrupt asks for the end."""
    async for step, trees in run.rollouts():
        scores = await run.score(trees)  # completes what sampling didn't need; missing stays missing
        annotations = await run.annotate(trees)  # only what the estimator or the loss needs
        credit, run.credit_state = run.estimator(
            Batch(trees=trees, scores=scores, annotations=annotations, reward_weights=run.reward_weights),
            run.credit_state,
        )
        updated = await run.update(run.samples(trees, credit, annotations))  # then weights to the engine
        run.record(step, trees, scores, credit, updated)  # the row of metrics, and the rollouts
        await evaluate_if_due(run, step)
        run.finish(step)  # trackers, observers, progress
        run.checkpoint_if_due(step)  # the best on val too
