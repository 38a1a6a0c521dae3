"""`coterie quickstart`: a small team that learns on this machine in minutes."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click

from coterie.api.figures import require_matplotlib
from coterie.cli.errors import INTERRUPTED
from coterie.cli.interrupt import Interruption, interruptible
from coterie.cli.learning_curve import draw
from coterie.cli.options import out_option, verbose_option
from coterie.cli.output import duration, interval
from coterie.cli.progress import progress
from coterie.cli.run_end import report_sicknesses
from coterie.core.errors import CoterieError
from coterie.viewing.text import harmless

RECIPE = "quickstart"
TASKS = 1000
"""Unseen tasks of each of the four evaluations."""
EPISODES = 3


@click.command(short_help="Train a small team from scratch on this machine, in minutes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the run.")
@out_option("DIR", default="runs/quickstart-<time>")
@verbose_option
def command(seed: int, out: Path | None) -> None:
    """Make a tiny model, train a team of two roles with it, and evaluate before and after training.

    Both evaluations are on 1,000 tasks of the test split, sampled and greedy. Prints three episodes; the last
    line is JSON. The learning curve is `curve.png` in the run's folder.
    """
    from coterie.api.rows import read_metrics
    from coterie.core.storage.run_folder import RunFolder

    require_matplotlib("the learning curve")
    with interruptible() as interrupt:
        click.echo("making the model and its warm start")
        folder, start_seconds = _start(seed, out)
        interrupt.runs_in(folder)
        click.echo(f"  {duration(start_seconds)}, in {folder}")
        before = _measure(folder, "before training", "latest", interrupt)
        click.echo("training")
        training_seconds = _train(folder, interrupt)
        click.echo(f"  {duration(training_seconds)}")
        after = _measure(folder, "after training", "best", interrupt)
        with interrupt.at_once():
            episodes = _episodes(folder)
    curve = draw(
        folder / "curve.png",
        read_metrics(RunFolder(folder).metrics),
        before,
        after,
        f"A team of two learns Plan-Path (seed {seed})",
    )
    for episode in episodes:
        click.echo(f"\n{harmless(episode)}")
    click.echo(f"\nlearning curve: {curve}\n")
    result = {
        "before": before,
        "after": after,
        "seconds": round(start_seconds + training_seconds, 1),
        "curve": str(curve),
        "run": str(folder),
    }
    click.echo(json.dumps(result))


def _start(seed: int, out: Path | None) -> tuple[Path, float]:
    """Make the run and its warm-started model, saved as step 0; (folder, seconds)."""
    from coterie.api.train import train

    stop = threading.Event()
    stop.set()  # stops the run before its first step
    begin = time.perf_counter()
    folder = train(RECIPE, overrides=(f"seed={seed}",), out=out, interrupt=stop).folder
    return folder, time.perf_counter() - begin


def _train(folder: Path, interrupt: threading.Event) -> float:
    """Train to the end; seconds, loading of the model included."""
    from coterie.api.train import train

    begin = time.perf_counter()
    with progress() as display:
        result = train(None, resume=folder, progress=display, interrupt=interrupt)
    if not result.finished:
        click.echo(f"stopped at step {result.step}; go on with: coterie run --resume {folder}", err=True)
        sys.exit(INTERRUPTED)
    seconds = time.perf_counter() - begin
    report_sicknesses(result.folder, result.signals)
    return seconds


def _measure(folder: Path, title: str, checkpoint: str, interrupt: Interruption) -> dict[str, dict[str, Any]]:
    """Success on unseen tasks, sampled and greedy, as intervals."""
    from coterie.api.evaluate import evaluate

    intervals = {}
    click.echo(f"{title}, on {TASKS:,} unseen tasks")
    for key, greedy in (("success", False), ("success_greedy", True)):
        if interrupt.is_set():
            click.echo(f"stopped; the run is in {folder}", err=True)
            sys.exit(INTERRUPTED)
        with interrupt.at_once():  # an evaluation saves nothing
            result = evaluate(folder, split="test", tasks=TASKS, greedy=greedy, checkpoint=checkpoint)  # type: ignore[arg-type]
        intervals[key] = result.success.as_dict()
        if intervals[key]["mean"] is None:
            raise CoterieError("no test episode has an outcome, so success is unknown")
        click.echo(f"  {'greedy ' if greedy else 'sampled'}  {interval(intervals[key])}")
    return intervals


def _episodes(folder: Path) -> list[str]:
    from coterie.api.evaluate import evaluate

    return list(evaluate(folder, split="test", tasks=EPISODES, show=EPISODES).episodes)
