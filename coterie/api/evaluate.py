"""Evaluate a recipe or a run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from coterie.api.checkpoints import find_checkpoint
from coterie.api.compare import Changes, compare
from coterie.api.episode_text import episode_text
from coterie.api.external_policies import resolve_policies
from coterie.api.open_run import open_run
from coterie.api.train import Source
from coterie.core.config import load
from coterie.core.storage.checkpoint import Checkpoint
from coterie.core.training.assemble import compose
from coterie.core.training.evaluation import Evaluation, evaluate as evaluate_run


def evaluate(
    source: Source,
    *,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    split: Literal["train", "val", "test"] = "test",
    tasks: int | None = None,
    samples: int = 1,
    greedy: bool = False,
    policies: Mapping[str, str | Path] | None = None,
    swap: tuple[str, str] | None = None,
    null: Sequence[str] = (),
    show: int = 0,
    checkpoint: Literal["best", "latest"] | int = "best",
) -> Evaluation:
    """Evaluate a recipe's untrained team, or a run's checkpoint (a folder).

    Args:
        tasks: how many of the split; default all that it vouches for, at most 1,000.
        policies: role -> whose weights are to play it: `RUN_DIR[@best|latest|N][:POLICY]`, or a folder that
            `export` wrote.
        swap: two roles whose policies change places.
        null: roles that say nothing.
        checkpoint: `best` on val (the latest where val was never evaluated), `latest`, or a step; also of the
            runs in `policies` that name none.

    Returns:
        the team's evaluation. Where `policies`, `swap` or `null` change the team (in this order), its
        `comparison` holds the changed team's success, and the differences paired by task.

    Raises:
        UserError: something in the input is wrong.
    """
    restore: Checkpoint | None = None
    if is_run(source):
        source = Path(str(source))  # a bare name would be taken for a recipe's
        restore = find_checkpoint(source, checkpoint)
    resolved = load(source, overrides=overrides, scale=scale)
    run = compose(resolved)
    external, plays = resolve_policies(run, policies or {}, checkpoint)
    changes = Changes(plays, swap, tuple(dict.fromkeys(null)))
    changes.team(run)  # what makes no sense is said before anything is loaded

    async def go() -> Evaluation:
        try:
            await open_run(run, restore.path if restore is not None else None, external)
            count = (
                tasks
                if tasks is not None
                else min(1000, len(run.environment.tasks(split, resolved.config.seed)))
            )
            settings: dict[str, Any] = {"samples": samples, "greedy": greedy, "keep": show}
            if changes:
                evaluation = await compare(run, changes, split, count, **settings)
            else:
                evaluation = await evaluate_run(run, split, count, **settings)
            episodes = [episode_text(tree) for tree in evaluation.trees]
            return replace(evaluation, episodes=episodes, trees=())
        finally:
            await run.close()

    return asyncio.run(go())


def is_run(source: Any) -> bool:
    """Whether a source is a run's folder."""
    return isinstance(source, (str, Path)) and Path(source).is_dir()
