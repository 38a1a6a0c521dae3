"""Records as tasks: required fields, ids, strata, and a check that no record is in two splits."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

from coterie.core.errors import ConfigError, DataError
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import DataSource
from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.plugins.envs.common.record_tasks import place_of
from coterie.plugins.envs.team_task.answers import Reading

FieldType = Literal["any", "text", "number", "bool", "list", "table"]
TYPES: Mapping[FieldType, tuple[type, ...]] = {
    "any": (object,),
    "text": (str,),
    "number": (int, float),
    "bool": (bool,),
    "list": (list,),
    "table": (dict,),
}
RESERVED = ("role", "turn", "notes", "history", "actions", "observation", "parsed", "transcript")
"""Names that templates use for other variables."""

_PLACES = 5
"""Records of a kind that a warning names."""
log = logging.getLogger("coterie")


class RecordReader:
    """Checked tasks of a data source.

    Args:
        shown: fields that roles see; as a table, with types; empty: all but the answer, id and stratum.
        answer, id, stratum: names of these fields; None: there is none.
        reading: how the answer is compared; None: by a function, which may take any.
        needs_answer: every record must have an answer.
        splits: the names of the splits.
        path: the path of the environment in the configuration, for messages.
    """

    def __init__(
        self,
        source: DataSource,
        *,
        shown: Sequence[str] | Mapping[str, FieldType],
        answer: str | None,
        id: str | None,
        stratum: str | None,
        reading: Reading | None,
        needs_answer: bool,
        splits: Sequence[str],
        path: str,
    ) -> None:
        self._source, self._path, self._splits = source, path, splits
        self._shown: dict[str, FieldType] = (
            dict(shown) if isinstance(shown, Mapping) else dict.fromkeys(shown, "any")
        )
        self._answer, self._id, self._stratum = answer, id, stratum
        self._reading, self._needs_answer = reading, needs_answer
        self.places: dict[str, str] = {}
        self._doubts: dict[str, list[str]] = {}
        self._alike: dict[str, tuple[str, str, Any]] = {}
        self._tasks: dict[str, tuple[Task, ...]] | None = None

    def visible(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Copies of the fields that roles see, so that changing one doesn't change the task."""
        hidden = (self._answer, self._id, self._stratum)
        names = self._shown or [name for name in record if name not in hidden]
        return {name: deepcopy(record[name]) for name in names}

    def content(self, record: Mapping[str, Any]) -> str:
        """The fields that roles see, as JSON; a field `id` is no content unless it is the only one."""
        shown = self.visible(record)
        kept = {name: value for name, value in shown.items() if name != "id"} or shown
        return json.dumps(kept, sort_keys=True, default=str)

    def tasks(self, split: Split) -> tuple[Task, ...]:
        """The split's tasks. The first call reads every split, to find records that two splits share."""
        if self._tasks is None:
            self._tasks = self._read()
        if split not in self._tasks:
            self._source.records(split)  # raises with the reason
        tasks = self._tasks.get(split, ())
        if not tasks:
            raise ConfigError(
                f"split '{split}' has no record",
                path=self._path,
                fix="give it a file of its own, or a larger share of more records",
            )
        return tasks

    def _read(self) -> dict[str, tuple[Task, ...]]:
        tasks: dict[str, tuple[Task, ...]] = {}
        home: dict[str, tuple[str, str, int]] = {}
        for split in self._splits:
            try:
                with plugin_call(self._source, "records"):
                    records = self._source.records(split)  # type: ignore[arg-type]
            except ConfigError:
                if len(self._splits) < 3:  # files that were named must be there
                    raise
                continue
            tasks[split] = self._split(split, records, home)
        for what, places in self._doubts.items():
            more = f" and {len(places) - _PLACES} more" if len(places) > _PLACES else ""
            counted = f"{len(places)} record{'s have' if len(places) > 1 else ' has'}"
            log.warning("%s: %s %s: %s%s", self._path, counted, what, ", ".join(places[:_PLACES]), more)
        return tasks

    def _split(
        self, split: str, records: Sequence[Mapping[str, Any]], home: dict[str, tuple[str, str, int]]
    ) -> tuple[Task, ...]:
        tasks: list[Task] = []
        ids: dict[str, int] = {}
        source = f"{type(self._source).__name__}/{split}"
        for index, record in enumerate(records):
            file, line = place_of(records, index, source)
            self._check(record, file, line)
            content = json.dumps(self.visible(record), sort_keys=True, default=str)
            other = home.setdefault(content, (split, file, line))
            if other[0] != split:
                raise DataError(
                    file,
                    line,
                    "-",
                    f"this record of '{split}' is also in '{other[0]}' ({other[1]}, line {other[2]})",
                    fix="remove it from one of them: a score on training tasks measures nothing",
                )
            self._compare(record, split, f"{file}:{line}")
            name = f"{split}-{record[self._id] if self._id else index}"
            if name in ids:
                raise DataError(file, line, self._id or "-", f"the id is also in line {ids[name]}")
            ids[name] = line
            self.places[name] = f"{file}:{line}"
            tasks.append(
                Task(
                    id=name,
                    payload=record,
                    answer=record.get(self._answer) if self._answer else None,
                    stratum=str(record[self._stratum]) if self._stratum else "",
                )
            )
        return tuple(tasks)

    def _doubt(self, what: str, place: str) -> None:
        """Note a record that may be intended; one warning tells all of a kind, with their number."""
        self._doubts.setdefault(what, []).append(place)

    def _compare(self, record: Mapping[str, Any], split: str, place: str) -> None:
        """Compare a record with the earlier ones that show roles the same, but for a field `id`."""
        answer = record.get(self._answer) if self._answer else None
        home, earlier, other = self._alike.setdefault(self.content(record), (split, place, answer))
        if earlier != place:
            where = "of an earlier one" if home == split else "of one in another split, but for its `id`"
            differs = "" if answer == other else ", and another answer"
            self._doubt(f"the content {where}{differs}", f"{place} (as {earlier})")

    def _check(self, record: Mapping[str, Any], file: str, line: int) -> None:
        required: dict[str, FieldType] = dict(self._shown)
        for name in (self._id, self._stratum, self._answer if self._needs_answer else None):
            if name:
                required.setdefault(name, "any")
        for name, kind in required.items():
            if name not in record:
                has = ", ".join(record) or "no fields"
                raise DataError(file, line, name, "is missing", fix=f"add it; the record has: {has}")
            value = record[name]
            if not isinstance(value, TYPES[kind]) or (kind == "number" and isinstance(value, bool)):
                raise DataError(file, line, name, f"is {_name(value)}, not {kind}")
        for name in (self._id, self._stratum):
            if name and not isinstance(record[name], (str, int)):
                raise DataError(file, line, name, f"is {_name(record[name])}, not text or a whole number")
        if self._needs_answer and self._answer:
            if record[self._answer] is None:
                raise DataError(file, line, self._answer, "is null")
            if self._reading is not None and (problem := self._reading.problem(record[self._answer])):
                fix = "correct the answer, or set the role's `parser`, or success.match (docs/your_data.md)"
                raise DataError(file, line, self._answer, problem, fix=fix)
            if self._reading is not None and (doubt := self._reading.doubt(record[self._answer])):
                self._doubt(doubt, f"{file}:{line}")
        taken = [name for name in self.visible(record) if name in RESERVED]
        if taken:
            raise DataError(
                file,
                line,
                taken[0],
                "has a name that templates use for another variable",
                fix="rename the field, or leave it out of `fields`",
            )


def _name(value: Any) -> str:
    """The name of the value's type, for messages."""
    for kind, types in TYPES.items():
        if kind != "any" and isinstance(value, types):
            return "bool" if isinstance(value, bool) else kind
    return "null" if value is None else type(value).__name__
