"""`coterie run --seeds`: its option, and the table in the end."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.errors import INTERRUPTED
from coterie.cli.output import interval, share, table
from coterie.cli.progress import progress
from coterie.cli.run_end import report_sicknesses

if TYPE_CHECKING:
    from coterie.api.seeds import SeedRun
    from coterie.api.train import TrainResult


class Seeds(click.ParamType):
    """Seeds as `0,1,2`."""

    name = "seeds"

    def convert(self, value: Any, parameter: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"'{value}' is no list of seeds; e.g. 0,1,2", parameter, ctx)


def run_seeds(
    source: Any,
    seeds: Sequence[int],
    out: Path | None,
    overrides: Sequence[str],
    shared: Mapping[str, Any],
    interrupt: Event,
) -> int:
    """Train a run for each seed and print the table; the exit code: 130 if it was stopped, 1 if one failed.

    Args:
        shared: further arguments of `train`, for all runs.
    """
    from coterie.api.seeds import train_seeds
    from coterie.api.train import train
    from coterie.recipes import load

    def start(source: Any, **options: Any) -> TrainResult:
        with progress() as display:
            return train(source, **options, **shared, progress=display)

    named = out is not None
    if out is None:
        layers = {name: shared[name] for name in ("scale", "overlays")}
        name = load(source, overrides=overrides, **layers).name
        out = Path(f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    runs = train_seeds(source, seeds, out, overrides=overrides, start=start, interrupt=interrupt)
    _show(runs, seeds)
    for run in runs:
        if run.finished:
            report_sicknesses(run.folder)
    if all(run.finished for run in runs) and len(runs) == len(seeds):
        return 0
    command = ["coterie", *sys.argv[1:], *(() if named else ("--out", str(out)))]
    click.echo(f"not finished; the same command goes on: {shlex.join(command)}", err=True)
    return INTERRUPTED if interrupt.is_set() else 1


def _show(runs: Sequence[SeedRun], seeds: Sequence[int]) -> None:
    """Print a row a seed, and the mean with its interval over seeds."""
    from coterie.api.seeds import over_seeds

    states = {
        run.seed: (f"step {run.step}", "finished" if run.finished else "failed" if run.error else "stopped")
        for run in runs
    }
    of = {run.seed: run for run in runs}
    rows = [
        (
            str(seed),
            *(states.get(seed) or ("-", "not started")),
            share(of[seed].success if seed in of else None),
            str(of[seed].folder) if seed in of else "-",
        )
        for seed in seeds
    ]
    click.echo(table(("seed", "trained", "state", "val success", "folder"), rows))
    total = over_seeds(runs)
    if total.n:
        of_finished = "" if total.n == len(seeds) else f" of {len(seeds)}, those that have finished"
        click.echo(f"val success over {total.n} seeds{of_finished}: {interval(total.as_dict())}")
    elif not any(run.finished for run in runs):
        click.echo("val success over seeds: no run has finished")
    else:
        click.echo("val success over seeds: no run has evaluated on val (schedule.evaluate_every)")
