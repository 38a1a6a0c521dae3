"""`coterie run`: train a team, or resume a run."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.comlrl import FromCommand, from_option, run_folder, translated
from coterie.cli.errors import INTERRUPTED, exits_reported
from coterie.cli.interrupt import interruptible
from coterie.cli.options import (
    NumbersParam,
    layer_options,
    out_option,
    plugin_option,
    source_and_overrides,
    verbose_option,
)
from coterie.cli.output import duration, interval, share, table
from coterie.cli.progress import progress
from coterie.core.errors import UserError
from coterie.viewing.text import harmless, message

if TYPE_CHECKING:
    from coterie.api.seeds import SeedRun
    from coterie.api.train import TrainResult
    from coterie.comlrl import Flags


@click.command(cls=FromCommand, short_help="Train a team.")
@click.argument("arguments", metavar="[RECIPE|FILE] [KEY=VALUE]...", nargs=-1)
@out_option("DIR", default="runs/<recipe>-<time>")
@click.option(
    "--resume", metavar="DIR", type=click.Path(path_type=Path), help="Resume the run in this folder."
)
@click.option(
    "--allow-change", is_flag=True, help="With --resume: accept changes of what the run does from then on."
)
@click.option(
    "--accept-changes",
    metavar="NAME",
    multiple=True,
    help="With --resume: go on although the content of a file has changed; NAME is the file, or the setting "
    "that names it (repeatable).",
)
@click.option(
    "--seeds",
    metavar="0,1,...",
    type=NumbersParam("seeds", "0,1,2"),
    help="A run for each seed, in DIR/seed-0 and so on.",
)
@click.option(
    "--yes", "any_size", is_flag=True, help="Start also past this machine's memory, or an hour a step."
)
@layer_options
@from_option
@verbose_option
@plugin_option
def command(
    arguments: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    seeds: tuple[int, ...] | None,
    allow_change: bool,
    accept_changes: tuple[str, ...],
    flags: Flags | None,
    **shared: Any,
) -> None:
    """Train a team from a recipe or a YAML file; KEY=VALUE overrides a setting.

    \b
        coterie run plan_path algorithm.alpha=0.5 --scale cpu
        coterie run sudoku_split --with per_role,one_gpu
        coterie run --resume runs/plan_path-20260101-120000 schedule.steps=200
        coterie run quickstart --seeds 0,1,2 --out runs/three
        coterie run --from comlrl configs/mt_magrpo_he_config.yaml --num_turns 2

    Ctrl-C finishes the step, saves, and prints how to resume; a second one stops within 5 seconds. With
    `--seeds` the same command goes on with what is left, and ends with the mean over seeds and its interval.
    """
    from coterie.api.train import train

    source: Any
    source, overrides = source_and_overrides(arguments)
    if resume is not None:
        _check_resume({"--from": flags, "--out": out, "--seeds": seeds})
    if flags is not None:
        translation = translated(source, overrides, flags)
        source, out = translation.table, out or run_folder(translation)
    if source is None and resume is None:
        raise no_recipe()
    if seeds is not None:
        with exits_reported(), interruptible() as interrupt:
            code = run_seeds(source, seeds, out, overrides, shared, interrupt)
        sys.exit(code)
    with exits_reported(), interruptible() as interrupt, progress() as display:
        result = train(
            source,
            overrides=overrides,
            out=out,
            resume=resume,
            progress=display,
            interrupt=interrupt,
            allow_change=allow_change,
            accept_changes=accept_changes,
            **shared,
        )
    report(result)
    if interrupt.is_set() and not result.finished:
        sys.exit(INTERRUPTED)


def _check_resume(others: Mapping[str, Any]) -> None:
    """Refuse options that exclude --resume, by name."""
    reasons = {
        "--from": ("the run's folder has its configuration", "leave --from out"),
        "--out": ("a resumed run stays in its folder", "leave --out out"),
        "--seeds": (
            "--resume is for one run",
            "give the same command with --seeds and --out again: every run goes on where it stopped",
        ),
    }
    for option, (why, fix) in reasons.items():
        if others[option] is not None:
            raise UserError(f"{option} and --resume exclude each other", why=why, fix=fix)


def report_coach(folder: Path, name: str) -> None:
    """Print the report on a coach, and how to have it again; a report that can't be made ends nothing."""
    from coterie.api.coach_report import coach_report
    from coterie.cli.commands.coach import show

    try:
        show(coach_report(folder, name))
    except UserError as error:
        click.echo(f"no report on the coach: {message(str(error))}", err=True)
    click.echo(f"the report again: coterie coach {folder}", err=True)


def no_recipe() -> UserError:
    """The error of a command without a recipe; it lists the recipes."""
    from coterie.recipes import recipes

    return UserError(
        "nothing to run",
        why="neither a recipe nor a file is named, and no folder to --resume",
        fix="coterie run RECIPE, with one of: " + ", ".join(info.name for info in recipes()),
    )


def report(result: TrainResult) -> None:
    """Print the run's folder and its result; where it is not finished, also how to resume it."""
    from coterie.api.coach_report import coaches
    from coterie.api.signals import summary
    from coterie.recipes import read_yaml

    parts = [f"step {result.step}" + ("" if result.steps is None else f"/{result.steps}")]
    if result.steps is not None and result.step > result.steps:
        parts = [f"step {result.step}, more than schedule.steps={result.steps}"]
    if result.finished and (result.steps is None or result.step < result.steps):
        parts.append(f"token budget spent, {result.tokens:,} generated")
    if result.metrics.get("eval/success") is not None:
        parts.append(f"val success {share(result.metrics['eval/success'])}")
    if result.seconds:
        parts.append(f"trained for {duration(result.seconds)}")
    elif result.finished:
        parts.append("finished already")
    click.echo(f"{result.folder}  {'  '.join(parts)}")
    if result.signals:
        click.echo(summary(result.signals, result.step), err=True)
    if result.seconds:  # of a call that trained
        report_sicknesses(result.folder, result.signals)
    if result.cancelled:
        click.echo(result.cancelled.text(), err=True)
    if result.finished:
        for name in coaches(read_yaml(result.folder / "config.yaml")):
            report_coach(result.folder, name)
    if not result.finished:
        click.echo(f"not finished; go on with: coterie run --resume {result.folder}", err=True)


# ---------------------------------------------------------------------------------------------- several seeds


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


# ------------------------------------------------------------------------------------------- known sicknesses

TOLD_BY_SIGNALS = {
    "equal_rewards": "no_variance",
    "zero_gradient": "zero_gradient",
    "gradient_not_finite": "gradient_not_finite",
    "entropy_collapse": "entropy_collapse",
    "truncated": "truncation",
    "unreadable": "unreadable",
    "reward_unchanged": "reward_unchanged",
}
"""A sign in the last line of a run -> the sickness that it is."""


def report_sicknesses(folder: Path, signs: Collection[str] = ()) -> None:
    """Print the known sicknesses of a run to stderr. Only its metrics are read; nothing is raised.

    Args:
        signs: the signs that the run's last line has, such as `truncated/planner`: they aren't repeated.
    """
    from coterie.analysis.diagnosis.run import diagnose_run

    known = {TOLD_BY_SIGNALS.get(sign.partition("/")[0], "") for sign in signs}
    try:
        sicknesses = diagnose_run(folder, rollouts=False).sicknesses
    except (UserError, OSError) as error:
        click.echo(f"no diagnosis of the run: {message(str(error))}", err=True)
        return
    new = [sickness for sickness in sicknesses if sickness.kind not in known]
    for sickness in new:
        click.echo(f"{sickness.grade}: {harmless(sickness.line)}", err=True)
    if new:
        click.echo(f"what helps: coterie doctor {folder}", err=True)
