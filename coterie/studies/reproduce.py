"""`reproduce`: a study from its name to its table."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from coterie.core.errors import MissingExtra
from coterie.core.storage.atomic import write_atomic
from coterie.core.storage.jsonl import to_json
from coterie.studies import plot, table
from coterie.studies.catalogue import columns_of, load_study
from coterie.studies.graph import Plan, plan
from coterie.studies.runner import Outcome, Runner, Watcher

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What `reproduce` made."""

    table: Mapping[str, Any]
    markdown: str
    files: Sequence[Path]
    outcome: Outcome


def prepare(
    name: str,
    *,
    scale: str = "cpu",
    seeds: int = 3,
    first_seed: int = 0,
    columns: Sequence[str] | None = None,
    tokens: int | None = None,
    tasks: int | None = None,
) -> Plan:
    """Everything resolved and checked; nothing is written yet.

    Raises:
        UserError: something in the input is wrong.
    """
    study = load_study(name)
    if scale in study.refused:  # before columns are complained about
        return plan(name, study, (), scale=scale, seeds=seeds, first_seed=first_seed)
    chosen = columns_of(study, columns, scale)
    return plan(
        name, study, chosen, scale=scale, seeds=seeds, first_seed=first_seed, tokens=tokens, tasks=tasks
    )


def reproduce(
    prepared: Plan,
    out: Path,
    *,
    jobs: int,
    watcher: Watcher,
    interrupt: Event | None = None,
    plugin_files: Sequence[str] = (),
    command: str = "",
) -> Reproduction:
    """Run what is left to run, and write the table: `table.md`, `table.csv`, `table.json`, `plot.png`.

    Where `out` holds the table of another study, they go to a folder of this study's name in it.

    Raises:
        RunFolderError: another process works in `out`, or it can't be written.
    """
    begin = time.perf_counter()
    runner = Runner(
        prepared, out, jobs=jobs, watcher=watcher, interrupt=interrupt or Event(), plugin_files=plugin_files
    )
    outcome = runner.run()
    folders = {id_: runner.folder(id_) for id_ in prepared.jobs}
    found = {
        **table.collect(prepared, outcome, folders),
        "wall_seconds": time.perf_counter() - begin,
        "parallel_jobs": jobs,
        "command": command,
        "complete": all(outcome.states.get(id_) == "done" for id_ in prepared.jobs),
    }
    text = table.markdown(found, prepared)
    return Reproduction(found, text, write(found, text, prepared, out), outcome)


def write(found: Mapping[str, Any], text: str, prepared: Plan, out: Path) -> list[Path]:
    """The files of a table, each atomic but for the picture."""
    folder = results_folder(out, prepared.name)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "table.md", folder / "table.csv", folder / "table.json"]
    pretty = json.dumps(json.loads(to_json(found)), indent=1, ensure_ascii=False)
    for path, content in zip(files, (text, table.as_csv(found), pretty + "\n"), strict=True):
        write_atomic(path, content)
    try:
        files.append(plot.draw(folder / "plot.png", found, prepared))
    except MissingExtra as error:
        log.warning("no plot: %s", error)
    return files


def results_folder(out: Path, study: str) -> Path:
    """`out` itself, unless another study's table lies there."""
    try:
        other = json.loads((out / "table.json").read_text(encoding="utf-8"))["study"] != study
    except (OSError, ValueError, KeyError):
        other = False
    return out / study if other else out
