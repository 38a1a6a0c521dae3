"""`coterie quickstart`: a small team that learns on this machine in minutes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from coterie.api.figures import BLUE, ORANGE, new_figure, plain, require_matplotlib, save
from coterie.api.rows import tokens_so_far
from coterie.cli.commands.run import report_sicknesses
from coterie.cli.errors import INTERRUPTED
from coterie.cli.interrupt import Interruption, interruptible
from coterie.cli.options import out_option, verbose_option
from coterie.cli.output import duration, interval
from coterie.cli.progress import progress
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
    from coterie.api.evaluate import evaluate
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
            episodes = evaluate(folder, split="test", tasks=EPISODES, show=EPISODES).episodes
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


Interval = Mapping[str, Any]
"""`{"mean", "ci95": [lo, hi], "n"}`"""

SMOOTH = 3
"""Steps on each side over which the drawn reward is averaged; the raw curve stays visible behind it."""


def draw(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    before: Mapping[str, Interval],
    after: Mapping[str, Interval],
    title: str,
) -> Path:
    """Draw success on val and training reward against generated tokens, with the test results at both ends.

    Args:
        rows: the rows of `metrics.jsonl`.
        before, after: {"success": interval, "success_greedy": interval} on test, before and after training.
    """
    tokens = [total / 1000 for total in tokens_so_far(rows)]
    figure = new_figure(7.2, 5.4)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    _success(top, rows, tokens, before, after)
    _reward(bottom, rows, tokens)
    top.set_title(title, loc="left", fontsize=11, fontweight="bold")
    bottom.set_xlabel("generated tokens (thousands)")
    for axes in (top, bottom):
        plain(axes)
    return save(figure, path)


def _success(
    axes: Any,
    rows: Sequence[Mapping[str, Any]],
    tokens: Sequence[float],
    before: Mapping[str, Interval],
    after: Mapping[str, Interval],
) -> None:
    """Draw success on val with its 95 % band, and the test intervals before and after training."""
    end = tokens[-1] if tokens else 0.0
    width = max(end, 1e-9)
    measured = [(x, row) for x, row in zip(tokens, rows, strict=True) if row.get("eval/success") is not None]
    xs = [x for x, _ in measured]
    axes.plot(
        xs,
        [row["eval/success"] for _, row in measured],
        color=BLUE,
        marker="o",
        markersize=4,
        label="val, sampled",
    )
    bounds = [row.get("eval/success_ci95") or [None, None] for _, row in measured]
    if bounds and all(None not in pair for pair in bounds):
        low, high = zip(*bounds, strict=True)
        axes.fill_between(xs, low, high, color=BLUE, alpha=0.15, linewidth=0)
    for key, label, shift, filled in (
        ("success", "test, sampled", -0.012, True),
        ("success_greedy", "test, greedy", 0.012, False),
    ):
        intervals = (before[key], after[key])
        means = [interval["mean"] for interval in intervals]
        axes.errorbar(
            [shift * width, end + shift * width],
            means,
            yerr=[
                [mean - interval["ci95"][0] for mean, interval in zip(means, intervals, strict=True)],
                [interval["ci95"][1] - mean for mean, interval in zip(means, intervals, strict=True)],
            ],
            fmt="s" if filled else "D",
            color=ORANGE,
            markerfacecolor=ORANGE if filled else "white",
            markersize=6,
            capsize=3,
            zorder=3,
            label=f"{label}: {means[0]:.2f} → {means[1]:.2f}",
        )
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("success")
    axes.legend(frameon=False, loc="lower right", fontsize=9)


def _reward(axes: Any, rows: Sequence[Mapping[str, Any]], tokens: Sequence[float]) -> None:
    """Draw the training reward, its mean over roles."""
    points = []
    for x, row in zip(tokens, rows, strict=True):
        rewards = [value for name, value in row.items() if name.startswith("reward/") and value is not None]
        if rewards:
            points.append((x, sum(rewards) / len(rewards)))
    if not points:
        return
    xs, values = zip(*points, strict=True)
    windows = [values[max(0, index - SMOOTH) : index + SMOOTH + 1] for index in range(len(values))]
    smooth = [sum(window) / len(window) for window in windows]
    axes.plot(xs, values, color=BLUE, alpha=0.25, linewidth=1)
    axes.plot(xs, smooth, color=BLUE, linewidth=1.8)
    axes.set_ylabel("training reward")
