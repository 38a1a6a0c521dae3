"""Records of mathematics as tasks: the forms of known sets, drawing, and problems that two splits share.

A set's name stands for the names of its fields and for its place on the Hub; its records may as well lie in
a local file. MAPPA's files (arXiv 2601.23228), JSON lists of `{"prompt", "answer", "id"}`, have the form
`auto`.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from pydantic import Field

from coterie.core.errors import ConfigError, DataError, PolicyFault, UserError
from coterie.core.plugins import PluginConfig
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import DataSource
from coterie.core.types import Task
from coterie.core.types.seeding import generator
from coterie.core.types.splits import SPLITS, Split
from coterie.plugins.envs.common.record_tasks import place_of, warn_of_repeats
from coterie.plugins.envs.math.answers import accepted, boxed, number, same_number
from coterie.plugins.envs.math.state import Problem

log = logging.getLogger("coterie")

SetName = Literal[
    "auto", "aime", "aime_1983_2024", "aime24", "aime25", "amc", "olympiadbench", "math", "math500", "polaris"
]
_NAMED = 5
"""Problems that a warning names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordForm:
    """The fields of a set's records, and its place on the Hub. Of several names the first that is there."""

    problem: tuple[str, ...] = ("problem", "prompt", "question", "Problem", "Question")
    answer: tuple[str, ...] = ("answer", "final_answer", "Answer")
    solution: tuple[str, ...] = ("solution", "Solution")
    """Where a record has no answer: a worked solution with a box."""
    id: tuple[str, ...] = ("id", "ID", "unique_id", "problem_idx")
    stratum: tuple[str, ...] = ()
    whole: bool = False
    """Answers are whole numbers from 0 to 999."""
    hub: str = ""
    subset: str | None = None
    hub_split: str = "train"


FORMS: Mapping[SetName, RecordForm] = {
    "auto": RecordForm(),
    "aime": RecordForm(whole=True),
    "aime_1983_2024": RecordForm(whole=True, stratum=("Year",), hub="di-zhang-fdu/AIME_1983_2024"),
    "aime24": RecordForm(whole=True, hub="HuggingFaceH4/aime_2024"),
    "aime25": RecordForm(whole=True, hub="math-ai/aime25", hub_split="test"),
    "amc": RecordForm(hub="AI-MO/aimo-validation-amc"),
    "olympiadbench": RecordForm(
        problem=("question",),
        answer=("final_answer",),
        stratum=("subfield",),
        hub="Hothan/OlympiadBench",
        subset="OE_TO_maths_en_COMP",
    ),
    "math": RecordForm(stratum=("level",), hub="nlile/hendrycks-MATH-benchmark"),
    "math500": RecordForm(stratum=("level",), hub="HuggingFaceH4/MATH-500", hub_split="test"),
    "polaris": RecordForm(stratum=("difficulty",), hub="POLARIS-Project/Polaris-Dataset-53K"),
}


class MathSetConfig(PluginConfig):
    """One split's problems: a known set from the Hub, or a file."""

    set: SetName = Field("auto", description=f"The form of the records: {', '.join(get_args(SetName))}.")
    file: str | None = Field(
        None,
        description="JSON list, JSONL or Parquet. Default: the set's dataset on the Hub.",
        json_schema_extra={"format": "file-path"},
    )
    hub: str | None = Field(
        None,
        description="Id on the Hub, instead of the set's.",
        json_schema_extra={"format": "dataset-path"},
    )
    subset: str | None = Field(None, description="Of the dataset. Default: the set's.")
    hub_split: str | None = Field(None, description="The dataset's split. Default: the set's.")
    revision: str | None = Field(None, description="Branch, tag or commit of the dataset.")
    draw: int | None = Field(None, ge=1, description="Number of problems that the seed draws. Default: all.")
    keep: dict[str, list[str]] = Field(
        default_factory=dict, description="Values of fields to keep, e.g. {level: [Level 4, Level 5]}."
    )
    problem_field: str | None = None
    answer_field: str | None = None
    id_field: str | None = None
    stratum_field: str | None = Field(None, description="For schedule.stratify.")

    @property
    def form(self) -> RecordForm:
        """The set's form with the fields that are named here."""
        names = {
            name: (value,)
            for name in ("problem", "answer", "id", "stratum")
            if (value := getattr(self, f"{name}_field")) is not None
        }
        return replace(FORMS[self.set], **names)  # type: ignore[arg-type]

    def table(self, split: Split, path: str) -> dict[str, Any]:
        """The table of the data source that reads it.

        Raises:
            ConfigError: it names no file, and the set has no dataset.
        """
        form = self.form
        if self.file is not None:
            beside = [name for name in ("hub", "subset", "hub_split", "revision") if getattr(self, name)]
            if beside:
                raise ConfigError(
                    f"a file has no {beside[0]}", path=f"{path}.{beside[0]}", fix="remove it, or `file`"
                )
            kind = "parquet" if self.file.endswith(".parquet") else "jsonl"
            return {"type": kind, split: self.file}
        name = self.hub or form.hub
        if not name:
            raise ConfigError(
                f"there is no file, and the set '{self.set}' has no dataset on the Hub",
                path=path,
                fix=f"set {path}.file=problems.json, {path}.hub, or {path}.set=aime24",
            )
        table = {"type": "hub", "name": name, "splits": {split: self.hub_split or form.hub_split}}
        optional = {"subset": self.subset or (None if self.hub else form.subset), "revision": self.revision}
        return table | {name: value for name, value in optional.items() if value}


class Problems:
    """The problems of all splits. Those of val and test are left out of train, with a warning.

    Args:
        sources: by split, the data source and the settings.
        path: of the environment in the configuration.
    """

    def __init__(self, sources: Mapping[Split, tuple[DataSource, MathSetConfig]], path: str) -> None:
        self._sources, self._path = sources, path
        self._read: dict[Split, tuple[Task, ...]] = {}
        self._clean: tuple[Task, ...] | None = None
        self.elsewhere: Callable[[], Sequence[Task]] = tuple
        self.apart: Callable[[], Sequence[Task]] = tuple
        """What is evaluated elsewhere is neither in train nor in test; what is kept apart is not in train."""
        self.places: dict[str, str] = {}
        """By id of a task, the file and line of its record."""

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """A split's tasks: those of `draw`, drawn by the seed, in the order of the records.

        Raises:
            DataError: a record is no problem.
            ConfigError: there is no such split, it is empty or smaller than `draw`, or a problem of test is
                also in val; for train the same of val and test.
        """
        if split not in self._sources:
            raise ConfigError(
                f"there are no problems for '{split}'", path=self._path, fix=f"set {self._path}.{split}"
            )
        tasks = self._without_leaks() if split == "train" else self._all(split)
        self._check_size(split, tasks)
        draw = self._sources[split][1].draw
        if draw is None or draw == len(tasks):
            return tasks
        drawn = generator(seed, f"draw {split}", "problems").permutation(len(tasks))[:draw]
        return tuple(tasks[index] for index in sorted(drawn.tolist()))

    def _check_size(self, split: Split, tasks: Sequence[Task]) -> None:
        draw, where = self._sources[split][1].draw, f"{self._path}.{split}"
        if not tasks:
            raise ConfigError(
                f"split '{split}' has 0 problems", path=where, fix="name another file, or less in `keep`"
            )
        if draw is not None and draw > len(tasks):
            raise ConfigError(
                f"split '{split}' has {len(tasks)} problems, fewer than draw: {draw}",
                path=f"{where}.draw",
                fix=f"set {where}.draw=null for all of them, or name a larger file",
            )

    def _all(self, split: Split) -> tuple[Task, ...]:
        if split not in self._read:
            self._load(split)
            if split == "test":
                self._check_test()
        return self._read[split]

    def _load(self, split: Split) -> None:
        source, settings = self._sources[split]
        try:
            with plugin_call(source, "records"):
                records = source.records(split)
        except UserError as error:
            error.path = self._setting(split, error.path)
            raise
        self._read[split] = tuple(_tasks(split, records, settings, self.places))
        if settings.set == "auto":  # the published sets have repeats of their own
            where = f"{self._path}.{split}"
            warn_of_repeats(where, self._read[split], lambda task: content(task.payload.text), self.places)
        self._warn_of_two_answers(split)

    def _setting(self, split: Split, path: str) -> str:
        """The setting of a split that stands for one of its data source, which has other names."""
        where = f"{self._path}.{split}"
        names = {f"{where}.{split}": "file", f"{where}.name": "hub"}
        return f"{where}.{names[path]}" if path in names else path

    def _warn_of_two_answers(self, split: Split) -> None:
        first, pairs = dict[str, Task](), dict[str, str]()
        for task in self._read[split]:
            text = content(task.payload.text)
            other = first.setdefault(text, task)
            if not _same_answer(other, task):
                pairs.setdefault(text, _two_answers(other, task))
        if pairs:
            log.warning(
                "%s.%s: %d problems have more than one answer, such as %s",
                *(self._path, split, len(pairs), next(iter(pairs.values()))),
            )

    def _optional(self, split: Split) -> tuple[Task, ...]:
        """A split's tasks; none where one source of all splits can't give it, which is told.

        Raises:
            ConfigError: a source of the split's own can't be read, or a problem of test is also in val.
        """
        if split not in self._sources:
            return ()
        if split not in self._read:
            try:
                self._load(split)
            except ConfigError as error:
                train = self._sources.get("train")
                if train is None or self._sources[split][0] is not train[0]:
                    raise
                log.warning("%s: no problem is compared with those of '%s': %s", self._path, split, error)
                return ()
            if split == "test":
                self._check_test()
        return self._read[split]

    def _check_test(self) -> None:
        home = {content(task.payload.text): (task, "in val") for task in self._optional("val")}
        home |= {content(task.payload.text): (task, "in evaluate.sets") for task in self.elsewhere()}
        for task in self._read["test"]:
            other, where = home.get(content(task.payload.text), (None, ""))
            if other is not None:
                differ = "" if _same_answer(other, task) else f"two answers: {_two_answers(other, task)}"
                raise ConfigError(
                    f"the problem '{task.id}' is also {where}, as '{other.id}'",
                    path=f"{self._path}.test",
                    why=differ,
                    fix="remove it from one of them; a set needs no second name",
                )

    def _without_leaks(self) -> tuple[Task, ...]:
        if self._clean is None:
            home = dict[str, Task]()
            for split in SPLITS[1:]:
                tasks = self._optional(split)
                if tasks or (split in self._sources and self._sources[split][1].draw):
                    self._check_size(split, tasks)  # also where nothing is evaluated before a later command
                home |= {content(task.payload.text): task for task in tasks}
            home |= {content(task.payload.text): task for task in (*self.elsewhere(), *self.apart())}
            tasks = self._all("train")
            shared = [(task, home[text]) for task in tasks if (text := content(task.payload.text)) in home]
            if shared:
                names = ", ".join(f"{ours.id} (= {theirs.id})" for ours, theirs in shared[:_NAMED])
                log.warning(
                    "%d of %d train problems are also evaluated and are left out of train: %s%s",
                    *(len(shared), len(tasks), names, ", ..." if len(shared) > _NAMED else ""),
                )
            if differing := [_two_answers(*pair) for pair in shared if not _same_answer(*pair)]:
                log.warning(
                    "%d of them have another answer in train, such as %s", len(differing), differing[0]
                )
            left_out = {ours.id for ours, _ in shared}
            self._clean = tuple(task for task in tasks if task.id not in left_out)
        return self._clean


_DROPPED = re.compile(r"\\(?:left|right|displaystyle|,|;|!|:|quad|qquad)(?![A-Za-z])|[\s$~]+")


def content(text: str) -> str:
    r"""A problem's text without what changes only its look: white space, `$`, spacing commands, case.

    `\dfrac` and `\tfrac` are `\frac`; punctuation at the end counts for nothing.
    """
    plain = _DROPPED.sub("", text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac"))
    return plain.casefold().rstrip(".?!:;,")


def _same_answer(first: Task, second: Task) -> bool:
    """Whether two answers are written alike or are numbers of one value. The verifier isn't asked."""
    return content(first.answer) == content(second.answer) or same_number(first.answer, second.answer)


def _two_answers(first: Task, second: Task) -> str:
    return f"{first.answer:.60} ({first.id}) and {second.answer:.60} ({second.id})"


def _tasks(
    split: Split, records: Sequence[Mapping[str, Any]], settings: MathSetConfig, places: dict[str, str]
) -> list[Task]:
    """The problems of a split; their places are added to `places`."""
    form, tasks, taken = settings.form, list[Task](), set[str]()
    for index, record in enumerate(records):
        file, line = place_of(records, index, f"{split} records")
        if any(str(record.get(name)) not in values for name, values in settings.keep.items()):
            continue
        text, answer = _text(record, form, file, line), _answer(record, form, file, line)
        id = next((str(record[name]) for name in form.id if record.get(name) not in (None, "")), str(index))
        if id in taken:  # AIME I and II share problems, and so do their ids in some files
            id = f"{id}-line-{line}"
        taken.add(id)
        stratum = next((str(record[name]) for name in form.stratum if record.get(name) is not None), "")
        places[f"{split}-{id}"] = f"{file}:{line}"
        tasks.append(Task(id=f"{split}-{id}", payload=Problem(text=text), answer=answer, stratum=stratum))
    return tasks


def _text(record: Mapping[str, Any], form: RecordForm, file: str, line: int) -> str:
    name = next((name for name in form.problem if name in record), None)
    if name is None:
        fields = ", ".join(map(str, record)) or "none"
        raise DataError(
            file, line, form.problem[0], "is missing", fix=f"set problem_field to one of: {fields}"
        )
    text = record[name]
    if not isinstance(text, str) or not text.strip():
        raise DataError(file, line, name, f"is no text: {text!r:.60}")
    context = record.get("context")
    return (
        f"{context.strip()}\n\n{text.strip()}"
        if isinstance(context, str) and context.strip()
        else text.strip()
    )


def _answer(record: Mapping[str, Any], form: RecordForm, file: str, line: int) -> str:
    name = next((name for name in form.answer if record.get(name) is not None), None)
    if name is None:
        solution = next((record[name] for name in form.solution if isinstance(record.get(name), str)), None)
        if solution is None:
            raise DataError(
                file, line, form.answer[0], "is missing", fix="set answer_field, or add the answers"
            )
        try:
            return boxed(solution)
        except PolicyFault as fault:
            raise DataError(file, line, form.solution[0], str(fault)) from None
    answer = _written(record[name])
    if _is_missing(record[name]):
        fix = "add the answer, or remove the record: tables write NaN where a value is missing"
        raise DataError(file, line, name, f"is no answer: {record[name]!r:.60}", fix=fix)
    if not answer:
        raise DataError(file, line, name, f"is no answer: {record[name]!r:.60}")
    if form.whole and not all(_whole(part) for part in accepted(answer)):
        raise DataError(
            file,
            line,
            name,
            f"is no whole number from 0 to 999: {answer!r:.60}",
            fix="correct it, or choose another `set`: those of AIME have such answers only",
        )
    return answer


def _is_missing(value: Any) -> bool:
    """Whether a value is, or a list holds, NaN or an infinity."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_missing, value))
    return isinstance(value, float) and not math.isfinite(value)


def _written(value: Any) -> str:
    """An answer as text: 142.0 is `142`, a list of answers is a list in LaTeX."""
    if isinstance(value, bool):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (list, tuple)):
        return ", ".join(filter(None, (_written(part) for part in value)))
    return str(value).strip() if isinstance(value, (str, int, float)) else ""


def _whole(text: str) -> bool:
    value = number(text)
    return value is not None and value.denominator == 1 and 0 <= value <= 999
