"""The common base of data sources: records with their file and line, and splits by content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from coterie.core.errors import ConfigError, NoFileError, UserError
from coterie.core.plugins import PluginConfig
from coterie.core.types.splits import RecordLine, Split, content, split_of

_NAMED = 5
"""Files of a folder that an error names."""
NAMES_FILE: JsonDict = {"format": "file-path"}


class LocatedRecords(Sequence[Mapping[str, Any]]):
    """Records in order, each with its file and line."""

    def __init__(self, rows: Iterable[tuple[Mapping[str, Any], str, int]]) -> None:
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return LocatedRecords(self._rows[index])
        return self._rows[index][0]

    def where(self, index: int) -> tuple[str, int]:
        """The record's file and line, counted from 1."""
        return self._rows[index][1:]

    def in_split(
        self, split: Split, val_share: float, test_share: float, ignore: Sequence[str]
    ) -> LocatedRecords:
        """The records of a split, by the hash of their content.

        A record's split depends on its content alone. Equal records are in the same split, and added or
        reordered lines don't move a record to another split.

        This method selects records; the rule that maps a content to a split is
        `coterie.core.types.splits.split_of`.
        """
        return LocatedRecords(
            row
            for row in self._rows
            if split_of(content(RecordLine(*row), ignore=ignore), val_share, test_share) == split
        )


def unreadable(file: Path, path: str, form: str, error: BaseException) -> UserError:
    """The error for a file that is no file of its form, or is damaged: no line of it can be named.

    Args:
        path: of the file's setting.
        form: such as " as Parquet".
    """
    return UserError(f"{file} can't be read{form}", path=path, why=f"{type(error).__name__}: {error}")


class Shares(PluginConfig):
    """The shares of three splits that are made from one set of records."""

    val_share: float = Field(0.1, ge=0, lt=1, description="Share of `val` in a split by content.")
    test_share: float = Field(0.1, ge=0, lt=1, description="Share of `test` in a split by content.")
    split_ignore: tuple[str, ...] = Field(
        (), description="Fields that the split by content ignores, such as an id."
    )

    @model_validator(mode="after")
    def _leave_some_for_training(self) -> Shares:
        if self.val_share + self.test_share >= 1:
            raise ValueError("val_share + test_share must leave something for training")
        return self


class FileShares(Shares):
    """One file that is split by content, or one file per split."""

    path: str | None = Field(
        None,
        description="One file, split by content hash.",
        json_schema_extra=NAMES_FILE,
        examples=["records.jsonl"],
    )
    train: str | None = Field(None, json_schema_extra=NAMES_FILE)
    val: str | None = Field(None, json_schema_extra=NAMES_FILE)
    test: str | None = Field(None, json_schema_extra=NAMES_FILE)

    exclusive = (("path", "train val test"),)
    only_with = {"val_share": "path", "test_share": "path", "split_ignore": "path"}

    @model_validator(mode="after")
    def _one_or_three(self) -> FileShares:
        separate = self.train or self.val or self.test
        if bool(self.path) == bool(separate):
            raise ValueError("give either path (one file, split by content), or train, val and test")
        if separate and self.model_fields_set & {"val_share", "test_share", "split_ignore"}:
            raise ValueError("val_share, test_share and split_ignore are for a single path")
        return self

    def file(self, split: Split, path: str) -> tuple[Path, str]:
        """The file of a split, and the path of its setting.

        Raises:
            ConfigError: the split has no file; `NoFileError`: it doesn't exist or is a folder.
        """
        name = self.path or getattr(self, split)
        key = "path" if self.path else split
        if name is None:
            raise ConfigError(
                f"there is no file for split '{split}'", path=f"{path}.{split}", fix=f"set {path}.{split}"
            )
        file, where = Path(name), f"{path}.{key}"
        if file.is_dir():
            names = sorted(inside.name for inside in file.iterdir() if inside.is_file())
            more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise NoFileError(
                f"{name} is a folder, not a file",
                path=where,
                why=f"its files: {', '.join(names[:_NAMED])}{more}" if names else "no file lies in it",
                fix="name the file",
            )
        if not file.is_file():
            why = "" if Path(name).is_absolute() else f"looked for in {Path.cwd()}"
            fix = "name the file where it is now"
            raise NoFileError(f"no such file: {name}", path=where, why=why, fix=fix)
        return file, where

    def select(self, records: LocatedRecords, split: Split) -> LocatedRecords:
        return (
            records
            if not self.path
            else records.in_split(split, self.val_share, self.test_share, self.split_ignore)
        )
