"""`prepare` and `reproduce`: from the name of a study to its plan, and from the plan to its table."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from coterie import MissingExtra, to_json, write_atomic
from coterie.studies import plot, table
from coterie.studies.catalogue import columns_of, load_study
from coterie.studies.graph import StudyPlan, plan
from coterie.studies.runner import Runner, StudyOutcome, Watcher, make_folder

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The table of a study, its files, and the outcome of its jobs."""

    table: Mapping[str, Any]
    markdown: str
    files: Sequence[Path]
    outcome: StudyOutcome


def prepare(
    name: str,
    *,
    scale: str = "cpu",
    seeds: int = 3,
    first_seed: int = 0,
    columns: Sequence[str] | None = None,
    tokens: int | None = None,
    tasks: int | None = None,
) -> StudyPlan:
    """Resolve and check everything; write nothing.

    Raises:
        UserError: something in the input is wrong.
    """
    study = load_study(name)
    if scale in study.refused:  # before any error about columns
        return plan(name, study, (), scale=scale, seeds=seeds, first_seed=first_seed)
    chosen = columns_of(study, columns, scale)
    return plan(
        name, study, chosen, scale=scale, seeds=seeds, first_seed=first_seed, tokens=tokens, tasks=tasks
    )


def reproduce(
    prepared: StudyPlan,
    out: Path,
    *,
    jobs: int,
    watcher: Watcher,
    interrupt: Event | None = None,
    plugin_files: Sequence[str] = (),
    command: str = "",
) -> Reproduction:
    """Run the jobs that are not done; write `table.md`, `table.csv`, `table.json` and `plot.png` to `out`.

    If `out` holds the table of another study, the files go to a subfolder with this study's name.

    Raises:
        RunFolderError: another process works in `out`, or it can't be written.
    """
    begin = time.perf_counter()
    runner = Runner(
        prepared, out, jobs=jobs, watcher=watcher, interrupt=interrupt or Event(), plugin_files=plugin_files
    )
    outcome = runner.run()
    folders = {id_: runner.folder(id_) for id_ in prepared.jobs}
    results = {
        **table.collect(prepared, outcome, folders),
        "wall_seconds": time.perf_counter() - begin,
        "parallel_jobs": jobs,
        "command": command,
        "complete": all(outcome.states.get(id_) == "done" for id_ in prepared.jobs),
    }
    text = table.markdown(results, prepared)
    return Reproduction(results, text, write(results, text, prepared, out), outcome)


def write(results: Mapping[str, Any], text: str, prepared: StudyPlan, out: Path) -> list[Path]:
    """Write the files of a table, each as a whole; return their paths."""
    folder = results_folder(out, prepared.name)
    make_folder(folder)
    files = [folder / "table.md", folder / "table.csv", folder / "table.json"]
    pretty = json.dumps(json.loads(to_json(results)), indent=1, ensure_ascii=False)
    for path, content in zip(files, (text, table.as_csv(results), pretty + "\n"), strict=True):
        write_atomic(path, content)
    try:
        files.append(plot.draw(folder / "plot.png", results, prepared))
    except MissingExtra as error:
        log.warning("no plot: %s", error)
    return files


def results_folder(out: Path, study: str) -> Path:
    """`out`, or a subfolder of it with the study's name if `out` holds the table of another study."""
    try:
        other = json.loads((out / "table.json").read_text(encoding="utf-8"))["study"] != study
    except (OSError, ValueError, KeyError):
        other = False
    return out / study if other else out
