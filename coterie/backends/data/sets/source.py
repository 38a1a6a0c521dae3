"""The data sources of known sets: published rows that split expressions choose, as records of one type."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field, field_validator

from coterie.backends.data.records import LocatedRecords
from coterie.backends.data.sets import forms
from coterie.backends.data.sets.forms import PublishedSet, UnusableRow, WrongRow
from coterie.core.errors import ConfigError, DataError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types.splits import SPLITS, Split

log = logging.getLogger("coterie")
# A split expression is written as `datasets` writes it: `test[:20]`, `train+validation`, `test[10%:20%]`.
_PART = re.compile(r"\s*(\w[\w.-]*)\s*(?:\[\s*(-?\d+%?)?\s*:\s*(-?\d+%?)?\s*\])?\s*")


class WrongExpression(ValueError):
    """What is wrong with an expression, and how to write it."""


@dataclass(frozen=True, slots=True)
class SplitPart:
    """Rows of one published split, from `start` up to `stop`; None: its end. Shares are in percent."""

    split: str
    start: str | None
    stop: str | None

    def indices(self, size: int) -> range:
        """The rows of a split with `size` rows."""
        start = 0 if self.start is None else _row(self.start, size)
        stop = size if self.stop is None else _row(self.stop, size)
        return range(start, max(start, stop))


def parse(expression: str) -> tuple[SplitPart, ...]:
    """The parts of an expression.

    Raises:
        WrongExpression: it is none.
    """
    parts = []
    for text in expression.split("+"):
        match = _PART.fullmatch(text)
        if match is None:
            raise WrongExpression(
                f"'{text.strip()}' is no split: write test, test[:20], test[20:30], test[-10:], "
                "test[10%:20%], or several joined by +"
            )
        for bound in (match[2], match[3]):
            if bound is not None and bound.endswith("%") and abs(int(bound[:-1])) > 100:
                raise WrongExpression(f"'{text.strip()}' has a share of more than 100%")
        parts.append(SplitPart(match[1], match[2], match[3]))
    return tuple(parts)


def chosen(expression: str, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """(published split, index) of every row that an expression chooses, in its order.

    Args:
        sizes: of the published splits that it names.

    Raises:
        WrongExpression: a part chooses nothing.
    """
    for part in parse(expression):
        rows = part.indices(sizes[part.split])
        if not rows:
            raise WrongExpression(
                f"'{expression}' chooses no row: the split '{part.split}' has {sizes[part.split]}"
            )
        yield from ((part.split, index) for index in rows)


def _row(bound: str, size: int) -> int:
    """A bound as an index, as Python slices it; a share is rounded to the nearest row."""
    number = round(int(bound[:-1]) * size / 100) if bound.endswith("%") else int(bound)
    return min(max(number + size if number < 0 else number, 0), size)


class KnownSetConfig(PluginConfig):
    file: str | dict[str, str] | None = Field(
        None,
        description="A local copy in the published form: JSONL, a JSON list (.gz too) or Parquet, which "
        "stands for every published split; or files by published split. Default: the set on the Hub.",
        json_schema_extra={"format": "file-path"},
    )
    hub: str | None = Field(
        None,
        description="Id on the Hub, or a folder. Default: the set's.",
        json_schema_extra={"format": "dataset-path"},
    )
    subset: str | None = Field(None, description="Of the set on the Hub. Default: the set's.")
    revision: str | None = Field(None, description="Branch, tag or commit of the set on the Hub.")
    train: str | None = Field(
        None,
        description="Rows of published splits, such as test[:20] or train+validation. Default: the set's.",
    )
    val: str | None = Field(None, description="As `train`.")
    test: str | None = Field(None, description="As `train`.")

    @field_validator("train", "val", "test")
    @classmethod
    def _is_an_expression(cls, expression: str | None) -> str | None:
        if expression is not None:
            parse(expression)
        return expression


class SetData(Plugin):
    """Records of a known set (docs/code.md has their fields).

    A row that the set publishes and that can't be used, such as one without tests, is dropped, and a warning
    counts them. Rows of one of our splits are in no other.
    """

    Config = KnownSetConfig
    config: KnownSetConfig
    form: ClassVar[PublishedSet]
    published = True
    """It needs no settings: `coterie data prepare` takes its name."""

    def __init__(self, config: KnownSetConfig, build: Any) -> None:
        super().__init__(config, build)
        self._published: dict[str, LocatedRecords] = {}
        self._warned: set[str] = set()
        self._check()

    def records(self, split: Split) -> LocatedRecords:
        """The records of a split, in the order of its expression.

        Raises:
            ConfigError: the split's expression chooses nothing, or shares rows with another split's; or the
                set can't be loaded.
            DataError: a row is not as the set publishes it.
            MissingExtra: `datasets` is not installed.
        """
        rows = self._chosen(split)
        for other in SPLITS:
            if other != split and self._expression(other) is not None:
                self._check_overlap(split, other, set(rows))
        kept, dropped = [], list[str]()
        for published, index in rows:
            source = self._rows(published)
            file, line = source.where(index)
            try:
                kept.append((self.form.read(source[index], index), file, line))
            except UnusableRow as why:
                dropped.append(f"line {line} of {file}: {why}")
            except WrongRow as error:
                raise DataError(file, line, *error.args, fix=f"a row as {self.form.hub} has it") from None
            except ValueError as error:
                raise DataError(file, line, "-", str(error)) from None
        if dropped and split not in self._warned:
            self._warned.add(split)
            log.warning(
                "%s: %d of %d rows for '%s' can't be used and are left out, the first: %s",
                *(self.build.path, len(dropped), len(rows), split, dropped[0]),
            )
        return LocatedRecords(kept)

    # ---- inside --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        config, path = self.config, self.build.path
        beside = [key for key in ("hub", "subset", "revision") if getattr(config, key)]
        if config.file is not None and beside:
            raise ConfigError(
                f"a file has no {beside[0]}", path=f"{path}.{beside[0]}", fix="remove it, or `file`"
            )

    def _expression(self, split: Split) -> str | None:
        """The rows of a split; None: none. The defaults of a set hold where no split has rows of its own."""
        given = {name: getattr(self.config, name) for name in SPLITS}
        return given[split] if any(given.values()) else self.form.splits.get(split)

    def _chosen(self, split: Split) -> list[tuple[str, int]]:
        """(published split, index) of the rows of a split."""
        expression, path = self._expression(split), f"{self.build.path}.{split}"
        if expression is None:
            why = "defaults hold only where none of train, val and test is set"
            raise ConfigError(
                f"no rows are chosen for '{split}'", path=path, why=why, fix=f"set {path}=test[:20]"
            )
        sizes = {part.split: len(self._rows(part.split)) for part in parse(expression)}
        try:
            single = isinstance(self.config.file, str)  # whatever its split is called
            rows = [("" if single else published, index) for published, index in chosen(expression, sizes)]
        except WrongExpression as error:
            raise ConfigError(str(error), path=path) from None
        if len(set(rows)) < len(rows):
            raise ConfigError(
                f"'{expression}' chooses a row twice", path=path, fix="let its parts be disjoint"
            )
        return rows

    def _check_overlap(self, split: Split, other: Split, rows: set[tuple[str, int]]) -> None:
        try:
            shared = rows & set(self._chosen(other))
        except ConfigError:
            if getattr(self.config, other) is not None:
                raise
            return  # a default of a published split that this copy of the set doesn't have
        if shared:
            ours, theirs = self._expression(split), self._expression(other)
            single = isinstance(self.config.file, str)
            raise ConfigError(
                f"'{ours}' ({split}) and '{theirs}' ({other}) share {len(shared)} rows",
                path=f"{self.build.path}.{split}",
                why="one file stands for every published split" if single else "",
                fix="set train, val and test to slices that don't overlap, such as test[:80%]",
            )

    def _rows(self, published: str) -> LocatedRecords:
        """The rows of a published split."""
        if published not in self._published:
            table = self._table(published)
            source = self.build.make("data_source", table, self.build.path)
            try:
                self._published[published] = source.records("train")
            except ConfigError as error:
                error.path = f"{self.build.path}.{'file' if self.config.file is not None else 'hub'}"
                raise
        return self._published[published]

    def _table(self, published: str) -> dict[str, Any]:
        config, form = self.config, self.form
        if config.file is None:
            subset = config.subset or (None if config.hub else form.subset)
            table = {"type": "hub", "name": config.hub or form.hub, "splits": {"train": published}}
            further = {"subset": subset, "revision": config.revision}
            return table | {key: value for key, value in further.items() if value}
        file = config.file
        if isinstance(file, Mapping):
            if published not in file:
                raise ConfigError(
                    f"there is no file for the published split '{published}'",
                    path=f"{self.build.path}.file",
                    why=f"it has {', '.join(file) or 'none'}",
                    fix=f"add file.{published}, or choose other splits for train, val and test",
                )
            file = file[published]
        return {"type": "parquet" if file.endswith(".parquet") else "jsonl", "train": file}


class HumanEval(SetData):
    """HumanEval (arXiv 2107.03374): 164 functions with tests, in one split."""

    form = PublishedSet(
        "openai/openai_humaneval",
        forms.humaneval,
        {"train": "test[33:163]", "val": "test[:16]", "test": "test[16:32]"},
    )


class CoopHumanEval(SetData):
    """CoopHumanEval (arXiv 2508.04652): 82 functions that fall into two parts."""

    form = PublishedSet(
        "CoMLRL/CoopHumanEval",
        forms.humaneval,
        {"train": "test[32:]", "val": "test[:16]", "test": "test[16:32]"},
    )


class MBPP(SetData):
    """MBPP (arXiv 2108.07732): functions with asserts, sanitized by default (`subset: full` for all)."""

    form = PublishedSet(
        "google-research-datasets/mbpp",
        forms.mbpp,
        {"train": "train", "val": "validation", "test": "test"},
        subset="sanitized",
    )


class APPS(SetData):
    """APPS (arXiv 2105.09938): programs and functions, with difficulties."""

    form = PublishedSet(
        "codeparrot/apps", forms.apps, {"train": "train", "val": "test[:500]", "test": "test[500:1000]"}
    )


class CodeContests(SetData):
    """CodeContests (arXiv 2203.07814): programs of contests."""

    form = PublishedSet(
        "deepmind/code_contests", forms.code_contests, {"train": "train", "val": "valid", "test": "test"}
    )


class LiveCodeBench(SetData):
    """LiveCodeBench (arXiv 2403.07974): programs and functions of recent contests, without references."""

    form = PublishedSet(
        "livecodebench/code_generation_lite",
        forms.live_code_bench,
        {"train": "test[:60%]", "val": "test[60%:70%]", "test": "test[70%:]"},
    )


class TLDR(SetData):
    """TLDR: posts to be summarised."""

    form = PublishedSet(
        "trl-lib/tldr",
        forms.tldr,
        {"train": "train[:1100]", "val": "validation[:1100]", "test": "test[:1100]"},
    )


class ArXiv(SetData):
    """Abstracts of arXiv, to be expanded to introductions."""

    form = PublishedSet(
        "OpenMLRL/arXiv_abstract",
        forms.arxiv,
        {"train": "train[:1100]", "val": "val[:1100]", "test": "val[1100:2200]"},
    )
