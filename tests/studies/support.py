"""Columns of test games, plans of them, and a runner without progress."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from coterie.core.config import to_yaml
from coterie.recipes import read_yaml
from coterie.studies import graph, worker
from coterie.studies.catalogue import read_column
from coterie.studies.columns import Column
from coterie.studies.graph import StudyPlan
from coterie.studies.runner import Runner
from coterie.studies.study import Study

FOLDER = Path(__file__).parent
COLUMN = FOLDER / "column.yaml"
TINY = FOLDER / "tiny.py"


class Silent:
    """A watcher that records what it is called with."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []

    def started(self, job: Any, done: int, total: int) -> None:
        self.log.append(("started", job.label))

    def progressed(self, job: Any, share: float, row: Any) -> None:
        pass

    def ended(self, job: Any, state: str, done: int, total: int) -> None:
        self.log.append((state, job.label))


class InProcess:
    """A stand-in for a job's process that does the job in the test's process."""

    stdin = None

    def __init__(self, folder: Path) -> None:
        self._code = worker.main([str(folder / "job.json")])

    def poll(self) -> int:
        return self._code


class InOneProcess(Runner):
    """A runner that does each job where it starts it."""

    def launch(self, folder: Path) -> Any:
        return InProcess(folder)


def column_file(folder: Path, **changes: Any) -> Path:
    """A file with the test column in which some top-level keys are changed; paths of recipes are absolute."""
    table = read_yaml(COLUMN)
    text = str(FOLDER / "hand_over.yaml")

    def absolute(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: absolute(inner) for key, inner in value.items()}
        return text if value == "hand_over.yaml" else value

    path = folder / "changed.yaml"
    path.write_text(to_yaml(absolute({**table, **changes})))
    return path


def plan_of(name: str, study: Study, path: Path = COLUMN, **settings: Any) -> StudyPlan:
    settings = {"scale": "cpu", "seeds": 1, **settings}
    column = shared_column() if path == COLUMN else read_column(path, path.stem)
    return graph.plan(name, study, [column], **settings)


@cache
def shared_column() -> Column:
    return read_column(COLUMN, COLUMN.stem)


def runner(
    plan: StudyPlan, out: Path, *, jobs: int = 2, kind: type[Runner] = Runner, **settings: Any
) -> Runner:
    from threading import Event

    return kind(
        plan, out, jobs=jobs, watcher=Silent(), interrupt=settings.pop("interrupt", Event()), **settings
    )
