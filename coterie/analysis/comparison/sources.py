"""What is compared: evaluations as files or of runs, one or several seeds a side."""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.api.addresses import run_address
from coterie.api.rows import number_of, run_folders
from coterie.core.errors import UserError

FIX_FILE = "write it with: coterie eval RUN -o FILE"


KINDS: Mapping[str, type] = {
    **dict.fromkeys(("outcomes", "contents", "strata", "files"), dict),
    **dict.fromkeys(("seed", "run_seed", "samples"), int),
    **dict.fromkeys(("split", "configuration"), str),
    "greedy": bool,
}
"""What entries of an evaluation are, where they are there."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An evaluation as `coterie eval --out` writes it, of one run."""

    label: str
    """What the user called it: a path, with a checkpoint where it names one."""
    table: Mapping[str, Any] = field(repr=False)

    def values(self, metric: str) -> Mapping[str, Sequence[float]]:
        """task id -> its finished samples' values of a metric; those without a value are left out.

        Raises:
            UserError: the evaluation has no such metric.
        """
        if metric == "success":
            given: Mapping[str, Sequence[float | None]] = self.table["per_task"]
        elif metric in self.table.get("outcomes", {}):
            given = self.table["outcomes"][metric]
        else:
            known = ", ".join(["success", *self.table.get("outcomes", {})])
            raise UserError(f"{self.label} has no metric '{metric}'", path="--metric", fix=f"it has: {known}")
        there = {task: [float(v) for v in values if v is not None] for task, values in given.items()}
        return {task: values for task, values in there.items() if values}

    @property
    def played(self) -> set[str]:
        """The ids of its tasks, those that no episode of which was finished among them."""
        return {*self.table["per_task"], *self.table.get("contents", {})}

    @property
    def contents(self) -> Mapping[str, str]:
        """task id -> digest of the task, where it is known."""
        known: Mapping[str, str] = self.table.get("contents") or {}
        return {task: content for task, content in known.items() if content}

    @property
    def strata(self) -> Mapping[str, str]:
        return self.table.get("strata") or {}

    @property
    def seed(self) -> int | None:
        """The seed of the run that was evaluated; None: unknown."""
        seed = self.table.get("run_seed", self.table.get("seed"))
        return None if seed is None else int(seed)


@dataclass(frozen=True, slots=True)
class Side:
    """One configuration: its seeds' evaluations, or the runs that are yet to be evaluated."""

    name: str
    sources: Sequence[str | Recorded]
    """A text is a run's folder or a recipe, as `coterie eval` takes it."""


def sides_of(arguments: Sequence[Any]) -> list[Side]:
    """The sides that arguments name.

    Args:
        arguments: texts `[NAME=]SOURCE[,SOURCE...]`, paths, evaluations (`TeamEvaluation`), lists of these
            (the seeds of one side), or one mapping of names to any of them.

    Raises:
        UserError: there are fewer than two sides, two have one name, one names nothing, or a file
            is no evaluation.
    """
    named: list[tuple[str, Any]] = []
    for argument in arguments:
        named += argument.items() if isinstance(argument, Mapping) else [("", argument)]
    sides = [side for name, argument in named for side in _sides(name, argument)]
    if len(sides) < 2:
        what = "there is nothing to compare" if not sides else f"there is one side only, {sides[0].name}"
        why = "an argument is a side; the runs of one argument are its seeds"
        raise UserError(what, why=why, fix="name two: coterie compare A B")
    sides = _told_apart(sides)
    names = [side.name for side in sides]
    if twice := [name for name in names if names.count(name) > 1]:
        fix = f"name the sides: coterie compare first={twice[0]} second=..."
        raise UserError(f"two sides are called {twice[0]}", fix=fix)
    return sides


def _sides(name: str, argument: Any) -> Iterator[Side]:
    """The sides of an argument: one, or as many as an unnamed file has evaluations."""
    if isinstance(argument, (list, tuple)):
        sources = [source for part in argument for side in _sides("", part) for source in side.sources]
        yield Side(name or " ".join(_label(source) for source in sources), sources)
        return
    if not isinstance(argument, (str, Path)):
        recorded = Recorded("an evaluation", argument.record())
        yield Side(name or f"seed {recorded.seed}", [recorded])
        return
    text = str(argument)
    if isinstance(argument, str) and not name and "=" in text and not Path(text).exists():
        name, _, text = text.partition("=")
    parts = [text] if text and Path(text).exists() else [part for part in text.split(",") if part]
    sources = [source for part in parts for source in _sources(part)]
    if not sources:
        raise UserError(f"'{argument}' names no run and no evaluation", fix="e.g. A=runs/seed-0,runs/seed-1")
    records = all(isinstance(source, Recorded) for source in sources)
    if not name and len(parts) == 1 and len(sources) > 1 and records:
        yield from (Side(_label(source), [source]) for source in sources)
    else:
        yield Side(name or text, sources)


def _sources(part: str) -> list[str | Recorded]:
    """The sources that a text names: a file's evaluations, a run, the runs in a folder, or a pattern's."""
    if not Path(part).exists() and any(letter in part for letter in "*?["):
        matching = sorted(glob.glob(part))
        if not matching:
            raise UserError(f"nothing matches '{part}'", fix="name a run's folder or a file")
        return [source for path in matching for source in _sources(path)]
    folder = Path(part)
    if folder.is_file() and folder.suffix == ".json":
        return list(read(folder))
    if folder.is_dir() and not (folder / "config.yaml").is_file():
        runs = run_folders(folder)
        if not runs:
            why = "there is no config.yaml in it, nor in a folder in it"
            raise UserError(
                f"{folder} is no run folder", why=why, fix="name a folder that `coterie run` made"
            )
        return [str(run) for run in runs]
    source, _ = run_address(part)
    if not Path(str(source)).exists() and ("/" in part or part.endswith(".json")):
        raise UserError(f"there is no {part}", fix="name a run's folder, or a file of `coterie eval -o`")
    return [part]


def read(path: Path) -> Iterator[Recorded]:
    """The evaluations in a file of `coterie eval --out`, or of a run's folder `eval`.

    Raises:
        UserError: it is no JSON, or no evaluation with the successes of every task.
    """
    try:
        table = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} can't be read", why=str(error.strerror)) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON", why=str(error), fix=FIX_FILE) from error
    several = isinstance(table, dict) and isinstance(table.get("evaluations"), list)
    for each in table["evaluations"] if several else [table]:
        label = str(each.get("source", path)) if several and isinstance(each, dict) else str(path)
        why = _fault(each)
        if why:
            raise UserError(f"{path} is no evaluation", why=why, fix=FIX_FILE)
        yield Recorded(label, each)


def _fault(table: Any) -> str:
    """Why a JSON value is no evaluation; empty: it is one."""
    if not isinstance(table, dict) or "success" not in table:
        return "it has no entry `success`"
    if not isinstance(table.get("per_task"), dict):
        return "it has no successes of single tasks, `per_task`, which --out writes and --json doesn't print"
    for name, kind in KINDS.items():
        if table.get(name) is not None and not isinstance(table[name], kind):
            return f"its `{name}` is {table[name]!r:.60}"
    outcomes = table.get("outcomes") or {}
    for name, of in (("per_task", table["per_task"]), *outcomes.items()):
        if not isinstance(of, dict):
            return f"its outcome `{name}` has no values by task"
        for task, values in of.items():
            if not isinstance(values, list) or not all(map(_is_number, values)):
                return f"the values of task '{task}' in {name} are no list of numbers"
    for name in ("contents", "strata"):
        if not all(isinstance(text, str) for text in (table.get(name) or {}).values()):
            return f"its `{name}` are no texts by task"
    if not all(isinstance(entry, dict) for entry in (table.get("files") or {}).values()):
        return "its `files` are no tables by setting"
    return ""


def _is_number(value: Any) -> bool:
    """Whether a value is missing, or a number that can be computed with."""
    return value is None or (not isinstance(value, bool) and not math.isnan(number_of(value)))


def _label(source: str | Recorded) -> str:
    return source.label if isinstance(source, Recorded) else source


def _told_apart(sides: Sequence[Side]) -> list[Side]:
    """The sides with short names: a path's last part, where that tells all of them apart."""
    names = [side.name for side in sides]
    short = [
        name if "," in name or " " in name else Path(name).name.removesuffix(".json") or name
        for name in names
    ]
    if len(set(short)) < len(short):
        return list(sides)
    return [Side(name, side.sources) for name, side in zip(short, sides, strict=True)]
