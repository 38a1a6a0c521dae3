"""`coterie reproduce`: a whole comparison, from its runs to its table."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie import logs
from coterie.cli.errors import INTERRUPTED
from coterie.cli.interrupt import interruptible
from coterie.cli.options import json_option, out_option, plugin_option, verbose_option
from coterie.cli.output import duration, print_json, share, table
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.studies.graph import Job

log = logging.getLogger("coterie")
QUIET_SECONDS = 30.0
"""Least time between two plain lines about the progress of one job."""


@click.command(short_help="Run a whole comparison, to its table with intervals.")
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--scale",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help="Budgets and model sizes of the columns.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Number of seeds.")
@click.option(
    "--first-seed",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The other seeds follow it.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Processes that run at a time, each with one thread; on one GPU, 1.",
)
@click.option("--columns", metavar="A,B", help="Column names or YAML files [all that fit the study].")
@out_option("DIR", default="runs/reproduce-NAME", more="studies in one folder share their runs")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    help="Generated tokens of each training [the column's number].",
)
@click.option(
    "--tasks", type=click.IntRange(min=1), help="Test tasks of each evaluation [the column's number]."
)
@click.option("--list", "listing", is_flag=True, help="List the studies and columns.")
@json_option
@verbose_option
@plugin_option
def command(
    name: str | None,
    jobs: int,
    columns: str | None,
    out: Path | None,
    listing: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train and evaluate every method of a study at equal tokens, and print its table.

    \b
        coterie reproduce at-grpo-table1 --columns plan_path --seeds 3
        coterie reproduce at-grpo-table3 --out runs/reproduce-at-grpo-table1

    Finished jobs are kept: the same command continues where it was stopped or killed, and a study reuses
    the runs of another one in the same folder. Without NAME, lists the studies and columns.
    """
    if name is None or listing:
        _list(as_json)
        return
    from coterie.discovery import plugins
    from coterie.studies.reproduce import prepare, reproduce

    names = [column.strip() for column in columns.split(",") if column.strip()] if columns else None
    prepared = prepare(name, columns=names, **options)
    folder = out if out is not None else Path("runs") / f"reproduce-{name}"
    files = [str(Path(r.distribution).resolve()) for r in plugins().reports if Path(r.distribution).is_file()]
    then, kept = "the same command continues from here", logs.kept_in(folder / "logs")
    shown: Any = _Live() if sys.stderr.isatty() else _Lines()
    with interruptible(then) as interrupt, shown as watcher, kept:
        result = reproduce(
            prepared,
            folder,
            jobs=jobs,
            watcher=watcher,
            interrupt=interrupt,
            plugin_files=files,
            command=shlex.join(["coterie", *sys.argv[1:]]),
        )
    if as_json:
        print_json(result.table)
    else:
        click.echo(result.markdown)
        for path in result.files:
            click.echo(path)
    wall, sequential = duration(result.table["wall_seconds"]), duration(result.table["alone_seconds"])
    click.echo(f"took {wall}; all jobs one after the other take {sequential}", err=True)
    _report(result.outcome, prepared.jobs)
    if result.outcome.interrupted:
        click.echo("stopped and saved; the same command continues from here", err=True)
        sys.exit(INTERRUPTED)
    if result.outcome.errors:
        sys.exit(1)


def _report(outcome: Any, jobs: Mapping[str, Job]) -> None:
    """Print the errors of failed jobs, and the paths of their logs."""
    for id_, error in outcome.errors.items():
        label = click.style(outcome.states[id_], fg="red")
        click.echo(f"\n{label} {jobs[id_].label}", err=True)
        for line in error.splitlines():
            click.echo(f"  {line}", err=True)
        if id_ in outcome.logs:
            click.echo(f"  log: {outcome.logs[id_]}", err=True)


def _sound(kind: str, load: Callable[[str], Any]) -> dict[str, Any]:
    """The registered ones by name; a broken one is a warning, since the others can be run."""
    from coterie.discovery import plugins

    loaded = {}
    for name in plugins().registry.names(kind):
        try:
            loaded[name] = load(name)
        except UserError as error:
            log.warning("%s", error)
    return loaded


def _list(as_json: bool) -> None:
    from coterie.studies.catalogue import load_column, load_study

    studies = [(name, study.summary) for name, study in _sound("study", load_study).items()]
    columns = list(_sound("column", load_column).values())
    if as_json:
        known = [{"name": each.name, "title": each.title, "scales": list(each.scales)} for each in columns]
        of_studies = [{"name": name, "summary": summary} for name, summary in studies]
        print_json({"studies": of_studies, "columns": known})
        return
    click.echo(table(("study", "summary"), studies))
    click.echo()
    rows = [(column.name, column.title, ", ".join(column.scales)) for column in columns]
    click.echo(table(("column", "title", "scales"), rows))
    click.echo("\ncoterie reproduce NAME runs one.")


def _facts(row: Mapping[str, Any]) -> str:
    parts = [f"step {row['step']:,}"]
    for label, key in (("success", "success"), ("best-of-K", "success_committed"), ("val", "eval/success")):
        if row.get(key) is not None:
            parts.append(f"{label} {share(row[key])}")
    return "  ".join(parts)


class _Lines:
    """Plain lines such as `3/12 done  plan_path seed 0: train shared  41 %  step 120  success .41`."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def started(self, job: Job, done: int, total: int) -> None:
        self._last[job.id] = time.monotonic()
        click.echo(f"{done}/{total} done  {job.label}  started", err=True)

    def progressed(self, job: Job, part: float, row: Mapping[str, Any]) -> None:
        if time.monotonic() - self._last[job.id] >= QUIET_SECONDS:
            self._last[job.id] = time.monotonic()
            click.echo(f"  {job.label}  {100 * part:.0f} %  {_facts(row)}", err=True)

    def ended(self, job: Job, state: str, done: int, total: int) -> None:
        click.echo(f"{done}/{total} done  {job.label}  {state}", err=True)


class _Live:
    """A rich bar for each running job, and one for all jobs."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._rich = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[facts]}"),
            console=Console(stderr=True),
        )
        self._all = self._rich.add_task("all jobs", total=None, facts="")
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Live:
        self._rich.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._rich.__exit__(*error)

    def started(self, job: Job, done: int, total: int) -> None:
        self._rich.update(self._all, completed=done, total=total)
        self._tasks[job.id] = self._rich.add_task(job.label, total=1.0 if job.tokens else None, facts="")

    def progressed(self, job: Job, part: float, row: Mapping[str, Any]) -> None:
        self._rich.update(self._tasks[job.id], completed=part, facts=_facts(row))

    def ended(self, job: Job, state: str, done: int, total: int) -> None:
        self._rich.update(self._all, completed=done, total=total)
        if job.id in self._tasks:
            self._rich.remove_task(self._tasks.pop(job.id))
        if state != "done":
            self._rich.console.print(f"{job.label}  {state}")
