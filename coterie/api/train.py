"""Training of a team: `coterie.train`, which `coterie run` calls too."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from coterie.api.checkpoints import CheckpointStore
from coterie.api.cost import warn_of_size, warn_of_tasks
from coterie.api.open_run import open_run
from coterie.api.rollouts import rollout_recorder
from coterie.api.rows import read_metrics
from coterie.api.run_files import claimed, new_run, resumable, truncate_files
from coterie.compose import compose
from coterie.core.config import Resolved, RunConfig, flatten
from coterie.core.errors import ConfigError, RunFolderError
from coterie.core.loop import train as train_loop
from coterie.core.storage.atomic import write_atomic, written
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.run import Progress, Run
from coterie.recipes import load

log = logging.getLogger("coterie")
Source = str | Path | Mapping[str, Any] | RunConfig

MAY_CHANGE = frozenset(
    {
        "schedule.steps",
        "schedule.epochs",
        "schedule.tokens",
        "schedule.stop_after",
        "schedule.keep_checkpoints",
        "summary",
        "schedule.max_missing",
    }
)
"""Keys that a resumed run may change: they affect its length, its reports and when it stops; no step."""
SOURCE_LIMITS = (".max_missing", ".concurrency")
"""Of each reward source, as MAY_CHANGE."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The state of a run when `train` returns."""

    folder: Path
    step: int
    steps: int | None
    """Steps of the schedule; None where only a token budget ends the run."""
    metrics: Mapping[str, Any]
    finished: bool
    seconds: float
    """Seconds of training in this call."""
    tokens: int = 0
    """Tokens generated in training, over all calls."""


def train(
    source: Source | None = None,
    *,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    overlays: Sequence[str] = (),
    out: Path | str | None = None,
    resume: Path | str | None = None,
    progress: Progress | None = None,
    interrupt: Event | None = None,
) -> TrainResult:
    """Train a team.

    Args:
        source: a recipe's name, a YAML file, a table or a RunConfig; None with `resume`.
        overrides: settings as `key=value`.
        scale: a block of the recipe's `scales`.
        overlays: names of overlays or their YAML files, applied over the recipe from left to right.
        out: the run's folder; default `runs/<recipe>-<time>`.
        resume: a run's folder; training continues from its last undamaged checkpoint.
        progress: called after each step.
        interrupt: once it is set, the current step is finished and saved, and the call returns.

    Raises:
        UserError: something in the input is wrong, or the disk is full.
        TooManyMissing: a step has more missing scores than `schedule.max_missing` allows.
    """
    if resume is not None:
        resolved, folder = _resume(source, Path(resume), overrides, scale, overlays)
    elif source is None:
        raise ConfigError("nothing to train", fix="give a recipe, a file, or a run folder to resume")
    else:
        resolved = load(source, overrides=overrides, scale=scale, overlays=overlays)
        folder = (
            Path(out)
            if out is not None
            else Path("runs") / f"{resolved.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        )
    run = compose(resolved)
    warn_of_size(run)
    _warn_untrained(run)
    # Errors of the schedule or the tasks are raised before a folder is made.
    _ = run.end, run.order
    warn_of_tasks(run)
    claim = claimed(RunFolder.open(folder)) if resume is not None else new_run(folder, resolved.text())
    with claim as run_folder:
        store = CheckpointStore(run_folder.checkpoints, resolved.config.schedule.keep_checkpoints)
        run = replace(
            run,
            folder=run_folder,
            store=store,
            recorder=rollout_recorder(run_folder),
            progress=progress,
            interrupt=interrupt,
        )
        with resumable(run_folder, store):
            return asyncio.run(_train(run, store, resume is not None))


def _warn_untrained(run: Run) -> None:
    """Warn of a run that trains nothing: the weights are the same in all of its rows."""
    if all(policy.train == "none" for policy in run.config.policies.values()):
        log.warning(
            "nothing is trained: every policy has train: none; the run plays and records its games "
            "(`coterie eval` with the run's folder measures the team)",
        )


async def _train(run: Run, store: CheckpointStore, resuming: bool) -> TrainResult:
    assert run.folder is not None
    checkpoint = store.latest() if resuming else None
    if resuming and checkpoint is None and store.steps():
        raise RunFolderError(
            f"every checkpoint in {run.folder.path} is damaged",
            why="see the warnings above",
            fix="start a new run in another folder",
        )
    try:
        reached = checkpoint.step if checkpoint is not None else -1
        if checkpoint is not None:
            run.restore(checkpoint)
            if run.finished:
                state = run.state
                log.info("the run is finished: %d steps, %d tokens", state.step, state.tokens)
                return TrainResult(run.folder.path, state.step, run.end.steps, {}, True, 0.0, state.tokens)
        elif resuming:
            log.warning("%s was stopped before its first checkpoint: starting over", run.folder.path)
        run.metrics_writer.open(run.folder, run.state.step)
        if resuming:
            _truncate(run, store, reached)
        await open_run(run, checkpoint.path if checkpoint is not None else None)
        if checkpoint is None:
            run.checkpoint(0)
        begin = time.perf_counter()
        row = await train_loop(run)
        run.checkpoint(run.state.step)  # where it stopped, for whatever reason
        return TrainResult(
            run.folder.path,
            run.state.step,
            run.end.steps,
            row,
            run.finished,
            time.perf_counter() - begin,
            run.state.tokens,
        )
    finally:
        await run.close()


def _resume(
    source: Source | None,
    folder: Path,
    overrides: Sequence[str],
    scale: str | None,
    overlays: Sequence[str],
) -> tuple[Resolved, Path]:
    RunFolder.open(folder)
    before = load(folder)
    after = load(
        source if source is not None else folder, overrides=overrides, scale=scale, overlays=overlays
    )
    old, new = dict(flatten(before.table)), dict(flatten(after.table))
    changed = [
        path for path in sorted({*old, *new}) if old.get(path) != new.get(path) and not _may_change(path)
    ]
    if changed:
        differences = "; ".join(f"{path}: {old.get(path)!r} -> {new.get(path)!r}" for path in changed[:5])
        raise RunFolderError(
            "a resumed run can't change its configuration",
            path=changed[0],
            why=differences,
            fix="resume without these changes, or start a new run; schedule.steps may grow",
        )
    _check_decay(before.config, after.config)
    if _goes_further(before.config, after.config):
        write_atomic(folder / "config.yaml", Resolved(before.name, after.config, after.table, {}).text())
    return Resolved(before.name, after.config, after.table, after.origins), folder


def _may_change(path: str) -> bool:
    return path in MAY_CHANGE or (path.startswith("rewards.") and path.endswith(SOURCE_LIMITS))


def _check_decay(before: RunConfig, after: RunConfig) -> None:
    """Refuse another token budget where learning rates decay over it.

    Raises:
        RunFolderError: the budget differs, and past steps used the learning rates of the old one.
    """
    decaying = [name for name, policy in before.policies.items() if policy.follows_budget]
    if decaying and before.schedule.tokens != after.schedule.tokens:
        raise RunFolderError(
            "a resumed run can't change the budget that its learning rates decay over",
            path="schedule.tokens",
            why=f"the rates of policies.{decaying[0]} follow the budget of {before.schedule.tokens:,} tokens",
            fix="resume without this change, or start a new run",
        )


def _truncate(run: Run, store: CheckpointStore, step: int) -> None:
    """Remove everything that was written after the checkpoint of step `step`."""
    assert run.folder is not None
    with written(store.folder):
        store.truncate_after(step)
    truncate_files(run.folder, step)
    run.metrics_writer.truncate_after(step)
    read_metrics(run.folder.metrics)  # warns of the rows that are lost


def _goes_further(before: RunConfig, after: RunConfig) -> bool:
    """Whether one of two configurations' bounds lets a run go on for longer than the other's did."""

    def bound(config: RunConfig, name: str) -> float:
        bound_value: int | None = getattr(config.schedule, name)
        return math.inf if bound_value is None else bound_value

    return any(bound(after, name) > bound(before, name) for name in ("steps", "epochs", "tokens"))
