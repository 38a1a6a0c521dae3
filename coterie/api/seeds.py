"""One run a seed, in folders side by side, and what they are together."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from coterie.api.rows import read_metrics
from coterie.api.run_files import check_out
from coterie.api.train import Source, TrainResult, train
from coterie.core.errors import (
    ConfigError,
    CoterieError,
    MissingExtra,
    PluginError,
    RunFolderError,
    WriteError,
)
from coterie.core.storage.checkpoint import saved_steps
from coterie.core.storage.run_folder import RunFolder
from coterie.stats import Interval, clustered_bootstrap

log = logging.getLogger("coterie")

FOR_ALL = (ConfigError, PluginError, MissingExtra, RunFolderError, WriteError)
"""Errors that the other seeds would have too."""


@dataclass(frozen=True, slots=True)
class SeedRun:
    """The run of one seed, as far as it came."""

    seed: int
    folder: Path
    step: int
    """Steps that were trained."""
    finished: bool
    success: float | None
    """Success on `val` in its last evaluation; None: it has none."""
    error: str = ""
    """Why it ended before its schedule did; empty: it didn't, or it was interrupted."""


def train_seeds(
    source: Source,
    seeds: Sequence[int],
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    start: Callable[..., TrainResult] = train,
    interrupt: Event | None = None,
) -> list[SeedRun]:
    """Train a team once a seed, one run after the other, in `folder/seed-<seed>`.

    Runs that are there go on where they stopped, if their configuration is this one; finished ones are kept.
    An error in the middle of a run ends that run alone.

    Args:
        overrides: settings as `key=value`; each run gets its `seed` besides.
        start: called as `train` is: it adds what all runs share.
        interrupt: once it is set, the step is finished and saved, and no further run is started.

    Returns:
        the runs that were started, in the order of `seeds`.

    Raises:
        ConfigError: `overrides` set a seed, or a seed is there twice.
        CoterieError: a run can't start, or the others would end in the same way.
    """
    if any(text.partition("=")[0] == "seed" for text in overrides):
        what, why = "the runs have several seeds", "an override sets one for all of them"
        raise ConfigError(what, path="seed", why=why, fix="leave seed=... out")
    if len(set(seeds)) < len(seeds):
        raise ConfigError("a seed is named twice", path="--seeds", why="a run would be trained twice")
    check_out(folder)
    runs = []
    for seed in seeds:
        if interrupt is not None and interrupt.is_set():
            break
        runs.append(_train(source, seed, folder / f"seed-{seed}", overrides, start, interrupt))
    return runs


def _train(
    source: Source,
    seed: int,
    folder: Path,
    overrides: Sequence[str],
    start: Callable[..., TrainResult],
    interrupt: Event | None,
) -> SeedRun:
    """Start the run of a seed, or go on with it."""
    place = {"resume" if (folder / "config.yaml").is_file() else "out": folder}
    try:
        result = start(source, overrides=(*overrides, f"seed={seed}"), interrupt=interrupt, **place)
    except CoterieError as error:
        steps = saved_steps(RunFolder(folder).checkpoints) if folder.is_dir() else []
        if isinstance(error, FOR_ALL) or not steps:
            raise
        log.warning("seed %d: %s\n  the other seeds go on", seed, error)
        trained = max((row["step"] for row in read_metrics(RunFolder(folder).metrics)), default=0)
        return SeedRun(seed, folder, trained, False, _success(folder), str(error))
    return SeedRun(seed, folder, result.step, result.finished, _success(folder))


def _success(folder: Path) -> float | None:
    """Success on `val` in the last evaluation of a run."""
    rows = read_metrics(RunFolder(folder).metrics)
    return next((row["eval/success"] for row in reversed(rows) if row.get("eval/success") is not None), None)


def over_seeds(runs: Sequence[SeedRun]) -> Interval:
    """Mean success over the finished runs that have one, and its interval: the seed is the unit.

    A seed's success is a mean and no coin, so that the interval is Student's t of the seeds' numbers (from 6
    seeds a bootstrap), within [0, 1]. One seed has none.
    """
    values = {str(run.seed): [run.success] for run in runs if run.finished and run.success is not None}
    interval = clustered_bootstrap(values, share=False)
    lo, hi = (
        min(max(bound, 0.0), 1.0) if math.isfinite(bound) else bound for bound in (interval.lo, interval.hi)
    )
    return Interval(interval.mean, lo, hi, interval.n, interval.level)
