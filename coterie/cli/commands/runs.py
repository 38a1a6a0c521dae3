"""`coterie runs`: the runs in a folder and their status."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from coterie.cli.options import json_option
from coterie.cli.output import print_json, share, table
from coterie.core.errors import UserError


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run. None: unknown, or not measured yet."""

    name: str
    path: str
    recipe: str | None
    step: int
    steps: int | None
    success: float | None
    """The last success on val. Without an evaluation: that of the last training step, unless it is the best
    of K, which is not success."""
    finished: bool | None
    problem: str = ""


@click.command(short_help="List the runs in a folder.")
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=Path("runs"))
@json_option
def command(folder: Path, as_json: bool) -> None:
    """List the runs in DIR (default: runs), oldest first: recipe, step, success, finished or not.

    --json has the versions of what each was made with too, plugins included.
    """
    from coterie.api.rows import run_folders

    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder")
    oldest = sorted(run_folders(folder), key=lambda run: (run / "config.yaml").stat().st_mtime)
    known = [status_of(path) for path in oldest]
    if as_json:
        print_json([{**asdict(run), "versions": _versions(Path(run.path))} for run in known])
    elif not known:
        click.echo(f"no runs in {folder}", err=True)
    else:
        click.echo(table(("run", "recipe", "step", "success", "finished"), [_row(run) for run in known]))


def _versions(folder: Path) -> dict[str, str]:
    """Of all that the run was made with, plugins included; empty: its record can't be read."""
    from coterie.api.run_record import read_record

    record = read_record(folder)
    return record.used if record is not None else {}


def status_of(path: Path) -> RunStatus:
    """Read the status of a run from its folder; `problem` says why it can't be read.

    A warning names the steps whose rows are lost; checkpoints tell how far such a run has come.
    """
    from coterie.api.rows import read_metrics
    from coterie.core.storage.checkpoint import saved_steps
    from coterie.core.storage.run_folder import RunFolder
    from coterie.core.training.schedule import End
    from coterie.recipes import read_yaml

    folder = RunFolder(path)
    try:
        config = read_yaml(folder.config)
        saved = max(saved_steps(folder.checkpoints), default=0)
        rows = read_metrics(folder.metrics) if folder.metrics.is_file() or saved else []
    except UserError as error:
        return RunStatus(path.name, str(path), None, 0, None, None, None, error.what)
    step = max(saved, int(rows[-1]["step"]) if rows else 0)
    schedule = config.get("schedule") or {}
    steps, budget = schedule.get("steps"), schedule.get("tokens")
    reached = End(steps, budget).reached(step, rows[-1].get("tokens/total", 0) if rows else 0)
    # The folder does not tell how many steps a schedule in epochs has.
    has_length = steps is not None or (budget is not None and schedule.get("epochs") is None)
    finished = reached if has_length or reached else None
    return RunStatus(path.name, str(path), config.get("name"), step, steps, _success(rows), finished)


def _success(rows: list[dict[str, Any]]) -> float | None:
    for row in reversed(rows):
        if row.get("eval/success") is not None:
            return float(row["eval/success"])
    return rows[-1].get("success") if rows else None


def _row(run: RunStatus) -> tuple[str, ...]:
    steps = "?" if run.steps is None else str(run.steps)
    finished = run.problem or {True: "yes", False: "no", None: "?"}[run.finished]
    return run.name, run.recipe or "?", f"{run.step}/{steps}", share(run.success), finished
