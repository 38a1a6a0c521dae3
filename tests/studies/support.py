"""Columns of test games, plans of them, and a runner without progress."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from coterie.core.config import read_yaml, to_yaml
from coterie.studies import worker as job
from coterie.studies.catalogue import read_column
from coterie.studies.columns import Column
from coterie.studies.graph import Plan, plan
from coterie.studies.runner import Runner
from coterie.studies.study import Study

HERE = Path(__file__).parent
COLUMN = HERE / "column.yaml"
TINY = HERE / "tiny.py"


class Quiet:
    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []

    def started(self, job: Any, done: int, total: int) -> None:
        self.log.append(("started", job.label))

    def told(self, job: Any, share: float, row: Any) -> None:
        pass

    def ended(self, job: Any, state: str, done: int, total: int) -> None:
        self.log.append((state, job.label))


class Here:
    """In place of a job's process, where processes are not what is tested: the job is done in this one."""

    stdin = None

    def __init__(self, folder: Path) -> None:
        self._code = job.main([str(folder / "job.json")])

    def poll(self) -> int:
        return self._code


def column_file(folder: Path, **changes: Any) -> Path:
    """The test column with some top-level keys changed; recipes are absolute."""
    table = read_yaml(COLUMN)
    text = str(HERE / "hand_over.yaml")

    def absolute(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: absolute(inner) for key, inner in value.items()}
        return text if value == "hand_over.yaml" else value

    path = folder / "changed.yaml"
    path.write_text(to_yaml(absolute({**table, **changes})))
    return path


def plan_of(name: str, study: Study, path: Path = COLUMN, **settings: Any) -> Plan:
    given = {"scale": "cpu", "seeds": 1, **settings}
    return plan(name, study, [the_column() if path == COLUMN else read_column(path, path.stem)], **given)


@cache
def the_column() -> Column:
    return read_column(COLUMN, COLUMN.stem)


def runner(made: Plan, out: Path, *, jobs: int = 2, **settings: Any) -> Runner:
    from threading import Event

    return Runner(
        made, out, jobs=jobs, watcher=Quiet(), interrupt=settings.pop("interrupt", Event()), **settings
    )
