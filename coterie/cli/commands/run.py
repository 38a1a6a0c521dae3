"""`coterie run`: train a team, or resume a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.comlrl import FromCommand, from_option, run_folder, translated
from coterie.cli.errors import INTERRUPTED, exits_reported
from coterie.cli.interrupt import interruptible
from coterie.cli.options import layer_options, out_option, plugin_option, source_and_overrides, verbose_option
from coterie.cli.output import duration, share
from coterie.cli.progress import progress
from coterie.cli.run_end import report_sicknesses
from coterie.cli.seeds import Seeds, run_seeds
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.api.comlrl import Flags
    from coterie.api.train import TrainResult


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
    "--seeds", metavar="0,1,...", type=Seeds(), help="A run for each seed, in DIR/seed-0 and so on."
)
@click.option("--yes", is_flag=True, help="Start also past this machine's memory, or an hour a step.")
@layer_options
@from_option
@verbose_option
@plugin_option
def command(
    arguments: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    seeds: tuple[int, ...] | None,
    yes: bool,
    overlays: tuple[str, ...],
    scale: str | None,
    allow_change: bool,
    accept_changes: tuple[str, ...],
    flags: Flags | None,
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
    shared: Any = {"scale": scale, "overlays": overlays, "any_size": yes}
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
    from coterie.viewing.text import message

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
