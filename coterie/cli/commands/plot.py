"""`coterie plot`: curves of metrics as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from coterie.cli.options import out_option
from coterie.core.errors import UserError


@click.command(short_help="Draw curves of runs, with intervals over seeds.")
@click.argument("arguments", metavar="RUN [RUN ...] [METRIC ...]", nargs=-1, required=True)
@out_option("FILE", required=True, more=".png or .svg; one of that name is replaced")
@click.option(
    "--by",
    type=click.Choice(["step", "tokens"]),
    default="step",
    show_default=True,
    help="Draw against steps, or against the tokens generated so far.",
)
@click.option(
    "--smooth",
    metavar="STEPS",
    type=click.IntRange(min=1),
    default=1,
    help="Draw a moving average of so many steps; the picture says so. Default: exact values.",
)
def command(arguments: tuple[str, ...], out: Path, by: Literal["step", "tokens"], smooth: int) -> None:
    """Draw METRICs of RUNs, a panel each. Runs that differ in their seed alone are one line, with the 95 %
    interval over seeds.

    A METRIC is a name in metrics.jsonl or a pattern, as in 'reward/*'; without one, those that come first in
    docs/metrics.md are drawn. RUN may also be a folder of runs, such as that of `coterie run --seeds`.

    \b
    coterie plot runs/first eval/success -o success.png
    coterie plot runs/grpo runs/at_grpo 'reward/*' eval/success --by tokens -o rewards.svg
    """
    from coterie.viewing.metric_names import firsts
    from coterie.viewing.plot import check_plot, draw
    from coterie.viewing.series import expand, read_run

    check_plot(out)
    folders, patterns = split(arguments)
    if not folders:
        what = f"{arguments[0]} is no run folder"
        raise UserError(what, why="runs come before metrics", fix="name a folder that `coterie run` made")
    runs = [read_run(path) for path in dict.fromkeys(folders)]
    names = list(dict.fromkeys(name for run in runs for name in run.names))
    metrics = expand(patterns, names) if patterns else firsts(names)
    if not metrics:
        raise UserError("these runs have no row yet", fix="wait for the first step")
    new = not out.parent.exists()
    groups = draw(out, runs, metrics, by=by, smooth=smooth)
    if new:
        click.echo(f"{out.parent}: a new folder", err=True)
    several = f" in {len(groups)} configurations" if len(groups) > 1 else ""
    click.echo(f"{out}: {_count(len(metrics), 'metric')} of {_count(len(runs), 'run')}{several}")
    for group in groups:
        ends = {run.path: max((row["step"] for row in run.rows), default=0) for run in group.runs}
        if len(set(ends.values())) > 1:
            first = min(ends, key=lambda path: ends[path])
            click.echo(f"{group.label}: drawn up to step {ends[first]}, where {first} is", err=True)


def split(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The runs and the metrics among arguments: a folder with runs in it is a run, anything else a metric.

    Raises:
        UserError: a path has no run in it.
    """
    from coterie.api.rows import run_folders

    folders: list[Path] = []
    metrics: list[str] = []
    for argument in arguments:
        inside = run_folders(Path(argument))
        if not inside and (Path(argument).is_dir() or argument.startswith((".", "~"))):
            why = "there is no config.yaml in it, nor in a folder in it"
            if not Path(argument).is_dir():
                why = "there is no such folder"
            fix = "name a folder that `coterie run` made, or a metric such as eval/success"
            raise UserError(f"{argument} is no run folder", why=why, fix=fix)
        folders += inside
        if not inside:
            metrics.append(argument)
    return folders, metrics


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
