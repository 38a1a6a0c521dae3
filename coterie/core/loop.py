"""The loop, as the paper has it."""

from __future__ import annotations

from typing import Any

from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Batch
from coterie.core.rollout.contracts import check_credit
from coterie.core.training.evaluation import evaluate_if_due
from coterie.core.training.run import Run
from coterie.spans import span


async def train(run: Run) -> dict[str, Any]:
    """Train until the schedule ends, the time is up, or an interrupt asks for the end.

    Returns:
        the metrics of the last step; {} where no step was left.
    """
    row: dict[str, Any] = {}
    async for step, rollouts in run.rollouts():
        scores = await run.score(rollouts)  # completes what sampling didn't need; missing stays missing
        annotations = await run.annotate(rollouts)  # only what the estimator or the loss needs
        batch = Batch(
            trees=rollouts.trees,
            scores=scores,
            annotations=annotations,
            reward_weights=run.reward_weights,
        )
        state = run.state.credit_state
        with span("credit"), plugin_call(run.estimator, "__call__"):
            returned = run.estimator(batch, state)
        run.state.credit_state = check_credit(run.estimator, returned, rollouts.trees)
        credit = returned[0]
        updated = await run.update(rollouts, credit, annotations)  # then weights to the engine
        run.record(step, batch, state, credit)  # the rollout files
        row = run.metrics(step, rollouts, scores, credit, updated)
        row |= await evaluate_if_due(run, step)
        row = run.finish(step, rollouts, row)  # metrics.jsonl, trackers, observers, progress
        run.checkpoint_if_due(step)  # the best on val too
    return row
