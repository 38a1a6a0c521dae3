"""What a run's folder says, as values: the first thing that a report needs."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from coterie.api.coach_report import coach_report, coaches
from coterie.api.discarded import FILE as CANCELLED, FOLDER as DISCARDED
from coterie.api.rollout_lines import irregular
from coterie.api.rows import interval_of, read_metrics, readable
from coterie.api.run_record import RunRecord, read_record
from coterie.core.errors import RunFolderError, UserError
from coterie.core.storage.checkpoint import saved_steps
from coterie.core.storage.run_folder import RunFolder
from coterie.recipes import read_yaml
from coterie.viewing.follow import FollowedRun, State, trained_by

PER_TASK = "per_task"
"""Of an evaluation's JSON: each task's successes, which a report leaves out."""


@dataclass(slots=True)
class ReportedRun:
    """A run's folder, read, without its rollouts."""

    folder: RunFolder
    config: Mapping[str, Any]
    record: RunRecord | None
    rows: Sequence[Mapping[str, Any]]
    """Of `metrics.jsonl`."""
    evaluations: list[dict[str, Any]]
    """The JSON of `eval/`, in the order of the steps, with `step` and `set`."""
    best: int | None
    """The step of the best checkpoint on `val`."""
    coaches: list[dict[str, Any]] = field(default_factory=list)
    """`coterie coach --json` of each coach."""
    live: bool = False
    """Whether a process is training in the folder."""
    state: State = "finished"
    """How the run goes, as `coterie watch` shows it."""
    remarks: list[str] = field(default_factory=list)
    """What could not be read, and why."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.path.resolve().name

    @property
    def steps(self) -> list[int]:
        """The steps that have a row."""
        return [int(row["step"]) for row in self.rows]

    @property
    def team(self) -> dict[str, str | None]:
        """Role: the policy that plays it, in the order of the team."""
        team = self.config.get("team") or {}
        stages = (stage if isinstance(stage, list) else [stage] for stage in team.get("order") or ())
        roles = team.get("roles") or {}
        names = dict.fromkeys([*chain.from_iterable(stages), *roles])
        return {name: (roles.get(name) or {}).get("policy") for name in names}


def read_run(path: Path) -> ReportedRun:
    """Read a run's folder. What is damaged beside its configuration is a note.

    Raises:
        RunFolderError: the folder is no run's, can't be read, or the run has nothing to report yet.
    """
    with readable(path):
        folder = RunFolder.open(path)
        remarks: list[str] = []
        config = read_yaml(folder.config)
        with warnings_as(remarks):
            record = read_record(folder.path)
            rows = _rows(folder)
        run = ReportedRun(folder, config, record, rows, [], _best(folder, remarks), remarks=remarks)
        run.evaluations = list(_evaluations(folder, remarks))
        run.live = trained_by(folder.path).lives is True  # its lock is not taken: a run may begin meanwhile
        run.coaches = list(_coaches(run))
        followed = FollowedRun(folder.path)
        followed.read()
        run.state = followed.state
        return run


def _rows(folder: RunFolder) -> list[dict[str, Any]]:
    if not folder.metrics.exists() and not saved_steps(folder.checkpoints):
        if folder.rollout_files():
            return []
        raise RunFolderError(
            f"{folder.path} has nothing to report",
            why="the run has not finished a step yet",
            fix="wait for its first step",
        )
    return read_metrics(folder.metrics)


def _best(folder: RunFolder, remarks: list[str]) -> int | None:
    path = folder.checkpoints / "best.json"
    if not path.exists():
        return None
    if not path.is_file():
        remarks.append(irregular(path).what)
        return None
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["step"])
    except (ValueError, KeyError, TypeError):
        remarks.append(f"{path} is damaged, so the best checkpoint is not known")
        return None


def _evaluations(folder: RunFolder, remarks: list[str]) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.eval.glob("step-*.json")):
        _, step, *of_set = path.stem.split("-", 2)
        if not path.is_file():
            remarks.append(f"{irregular(path).what} and left out")
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            del content[PER_TASK]
            success = content["success"]
            if not isinstance(success, dict) or {"mean", "n"} - success.keys():
                raise ValueError("it says no success")
            if math.isnan(interval_of(success.get("ci95"))[0]):
                success["ci95"] = None
            yield {"step": int(step), "set": of_set[0] if of_set else None, **content}
        except (ValueError, KeyError, TypeError) as error:
            remarks.append(f"{path} is damaged and left out: {error}")


def _coaches(run: ReportedRun) -> Iterator[dict[str, Any]]:
    if not run.folder.rollout_files():
        return
    for name in coaches(run.config):
        try:
            with warnings_as(run.remarks):
                yield coach_report(run.folder.path, name).as_dict()
        except UserError as error:
            run.remarks.append(f"no report on the coach {name}: {error.what}")


def discarded(folder: RunFolder) -> tuple[list[str], list[dict[str, Any]]]:
    """What resumes took out, a folder each, and the rows of steps in play that an end cancelled."""
    path = folder.path / DISCARDED
    folders = sorted(entry.name for entry in path.glob("*-after-step-*") if entry.is_dir())
    cancelled = path / CANCELLED
    rows = cancelled.read_text(encoding="utf-8").splitlines() if cancelled.is_file() else []
    return folders, [json.loads(row) for row in rows if row.endswith("}")]


@contextmanager
def warnings_as(remarks: list[str]) -> Iterator[None]:
    """A context in which Coterie's warnings become remarks of the page too."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            remarks.append(record.getMessage())

    handler = Kept(logging.WARNING)
    logger = logging.getLogger("coterie")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
