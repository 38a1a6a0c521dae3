"""`coterie doctor`: what is wrong with this machine, or with a run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coterie.cli.options import json_option, plugin_option
from coterie.cli.output import print_json
from coterie.core.errors import UserError
from coterie.viewing.text import harmless

if TYPE_CHECKING:
    from coterie.analysis.diagnosis.evidence import Sickness
    from coterie.analysis.diagnosis.machine import MachineDiagnosis
    from coterie.analysis.diagnosis.machine_hardware import HealthCheck
    from coterie.analysis.diagnosis.run import RunDiagnosis

log = logging.getLogger("coterie")
COLOURS = {"ok": "green", "warning": "yellow", "fault": "red"}
WIDTH = 9


@click.command(short_help="Check this machine, or say what is wrong with a run.")
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option("--no-self-test", is_flag=True, help="Of the machine: without the tiny run of seconds.")
@json_option
@plugin_option
def command(run: Path | None, no_self_test: bool, as_json: bool) -> None:
    """Check this machine, or look for known sicknesses of the run in the folder RUN.

    \b
        coterie doctor
        coterie doctor runs/plan_path-20260101-120000
        coterie doctor runs/seeds

    Of the machine: versions, extras, plugins, GPUs, threads, memory, disks, shared memory, open files, the
    sandbox, and a run of seconds. Of a run: each sickness with its metric, the step in which it began, and
    what helps; of its rollout files at most 24 are read. Of a folder of runs, such as those of `coterie run
    --seeds`: each of them. Exits 1 where there is a fault, or one of the runs can't be read; warnings exit 0.
    """
    from coterie.analysis.diagnosis.machine import doctor
    from coterie.api.rows import run_folders

    folders = [None] if run is None else run_folders(run) or [run]
    results = []
    for folder in folders:
        try:
            results.append(doctor(folder, self_test=not no_self_test))
        except UserError as error:
            if len(folders) == 1:
                raise
            log.warning("%s", error)  # the others are looked at all the same
    if as_json:
        tables = [result.as_dict() for result in results]
        print_json(tables if len(folders) > 1 else tables[0])
    else:
        for result in results:
            show(result)
    sound = len(results) == len(folders) and all(result.ok for result in results)
    raise SystemExit(0 if sound else 1)


def show(result: MachineDiagnosis | RunDiagnosis) -> None:
    """Print a diagnosis."""
    from coterie.analysis.diagnosis.evidence import LEAST_STEPS
    from coterie.analysis.diagnosis.run import RunDiagnosis

    if not isinstance(result, RunDiagnosis):
        width = max(len(check.name) for check in result.checks) + 2
        for check in result.checks:
            _check(check, width)
        return
    files = f", {len(result.recorded)} rollout files read" if result.recorded else ", no rollout files"
    click.echo(harmless(f"{result.folder}: {result.steps} steps{files}"))
    for sickness in result.sicknesses:
        _sickness(sickness)
    for remark in result.remarks:
        click.echo(f"{_mark('warning')}{harmless(remark)}")
    if not result.sicknesses:
        few = f"; most rules need {LEAST_STEPS} steps" if result.steps < LEAST_STEPS else ""
        click.echo(f"{_mark('ok')}no known sickness{few}")


def _mark(status: str) -> str:
    return click.style(status, fg=COLOURS[status]) + " " * (WIDTH - len(status))


def _check(check: HealthCheck, width: int) -> None:
    click.echo(f"{_mark(check.status)}{check.name.ljust(width)}{harmless(check.says)}")
    if check.fix:
        click.echo(f"{' ' * (WIDTH + width)}fix: {harmless(check.fix)}")


def _sickness(sickness: Sickness) -> None:
    indent = " " * WIDTH
    click.echo(f"{_mark(sickness.grade)}{harmless(sickness.line)}")
    click.echo(f"{indent}{harmless(sickness.says)}")
    click.echo(f"{indent}helps: {sickness.helps}")
