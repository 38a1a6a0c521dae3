"""The data source `ds_pack`: data-science tasks whose tables are CSV files beside their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from coterie.backends.data.jsonl import JsonlData, Located, read_objects
from coterie.backends.data.records import FileShares, LocatedRecords
from coterie.core.errors import ConfigError, DataError
from coterie.core.plugins import Plugin
from coterie.core.types.splits import SPLITS, Split

ANSWERS = "test_answer.csv"
"""The file in a task's `answer_dir`."""
_FILES = ("train_file", "test_file", "answer_dir")
"""Keys of `metadata` that name a file, or the folder of one."""
_NAMED = 10
"""Tasks that an error names."""


class DsPack(Plugin):
    """Records of data-science tasks, in MAPPA's form (arXiv 2601.23228): `prompt`, `answer` and `metadata`.

    `metadata` has at least `task_id`, `train_file`, `test_file` and `answer_dir`, the folder of
    `test_answer.csv`. A file of records is JSONL, a JSON list, or JSON lines in a file called `.json`. A
    folder is one that `coterie data make ds-pack` wrote, or DSBench's (arXiv 2409.07703): `data.json` beside
    `data` with `task/NAME.txt`, `data_resplit/NAME/train.csv` and `test.csv`, and
    `answers/NAME/test_answer.csv`.
    """

    class Config(FileShares):
        root: str | None = Field(
            None,
            description="The folder that relative paths in the records start at; itself relative to the "
            "working folder. Default: the folder of the records.",
        )

    config: Config

    def records(self, split: Split) -> LocatedRecords:
        """The records of a split, with absolute paths of files that exist.

        Raises:
            DataError: a record is no task, or its id is there twice.
            ConfigError: the split has no records; or files of tasks are missing, which are named.
            UserError: a file of records can't be read.
        """
        records, root = self._read(split)
        rows, taken, missing = [], dict[str, int](), dict[str, list[Path]]()
        for index, record in enumerate(records):
            file, line = records.where(index)
            metadata = _metadata(record, file, line)
            name = metadata["task_id"]
            if name in taken:
                fix = "give each task an id of its own"
                raise DataError(file, line, "metadata.task_id", f"is also in line {taken[name]}", fix=fix)
            taken[name] = line
            places = {key: (root / metadata[key]).absolute() for key in _FILES}
            needed = [places["train_file"], places["test_file"], places["answer_dir"] / ANSWERS]
            if absent := [place for place in needed if not place.is_file()]:
                missing[name] = absent
            paths = {key: str(place) for key, place in places.items()}
            rows.append(({**record, "metadata": {**metadata, **paths}}, file, line))
        if missing:
            self._refuse(missing, len(records), root)
        return LocatedRecords(rows)

    # ---- inside --------------------------------------------------------------------------------------------

    def _read(self, split: Split) -> tuple[LocatedRecords, Path]:
        """The records of a split as they are written, and the folder that their paths start at."""
        config, path = self.config, self.build.path
        folder = Path(config.path) if config.path is not None else None
        if folder is None or not folder.is_dir():
            file, _ = config.file(split, path)
            return self._file(split, config), Path(config.root or file.parent)
        files = {name: str(folder / f"{name}.jsonl") for name in SPLITS}
        existing = {name: file for name, file in files.items() if Path(file).is_file()}
        if existing:
            shares = {"val_share", "test_share", "split_ignore"} & config.model_fields_set
            if shares:
                raise ConfigError(
                    f"{folder} has its own splits: {', '.join(existing)}",
                    path=f"{path}.{min(shares)}",
                    why="shares divide a single file, or DSBench's folder",
                    fix="remove it, or name one of its files as path",
                )
            if split not in existing:
                why = f"it has {', '.join(existing)}"
                raise ConfigError(f"{folder} has no split '{split}'", path=f"{path}.path", why=why)
            return self._file(split, FileShares(**existing)), Path(config.root or folder)
        base = folder / "data" if (folder / "data" / "data_resplit").is_dir() else folder
        if not (base / "data_resplit").is_dir():
            raise ConfigError(
                f"{folder} is no task pack",
                path=f"{path}.path",
                why="it holds neither train.jsonl nor the folder data_resplit",
                fix="name a folder of `coterie data make ds-pack`, DSBench's data_modeling, or a record file",
            )
        return config.select(LocatedRecords(_dsbench(base)), split), Path(config.root or base)

    def _file(self, split: Split, shares: FileShares) -> LocatedRecords:
        settings = shares.model_dump(include=set(FileShares.model_fields), exclude_unset=True)
        return JsonlData(JsonlData.Config(**settings), self.build).records(split)

    def _refuse(self, missing: Mapping[str, list[Path]], tasks: int, root: Path) -> None:
        files = [place for places in missing.values() for place in places]
        names = ", ".join(list(missing)[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise ConfigError(
            f"{len(files)} file{'s' if len(files) > 1 else ''} of {len(missing)} of {tasks} tasks "
            f"{'are' if len(files) > 1 else 'is'} missing, the first: {files[0]}",
            path=f"{self.build.path}.root",
            why=f"relative paths start at {root.absolute()}; the tasks: {names}{more}",
            fix="set root to the folder that the records' paths start at, or put the files there",
        )


def _metadata(record: Mapping[str, Any], file: str, line: int) -> Mapping[str, Any]:
    """The table `metadata` of a record.

    Raises:
        DataError: it is no table, or it or the record lacks a text that every task has.
    """
    metadata = record.get("metadata")
    if not isinstance(metadata, Mapping):
        fix = "write records as docs/data_science.md says"
        raise DataError(file, line, "metadata", f"is no table: {metadata!r:.60}", fix=fix)
    texts = {"prompt": record.get("prompt")}
    texts |= {f"metadata.{key}": metadata.get(key) for key in ("task_id", *_FILES)}
    for field, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            what = "is missing" if text is None else f"is no text: {text!r:.60}"
            raise DataError(file, line, field, what)
    return metadata


def _dsbench(base: Path) -> Iterator[Located]:
    """The tasks of DSBench's folder: those of `data.json`, else those of `data_resplit`."""
    listed = next((file for folder in (base, base.parent) if (file := folder / "data.json").is_file()), None)
    if listed is None:
        names = sorted(place.name for place in (base / "data_resplit").iterdir() if place.is_dir())
        tasks: list[Located] = [({"name": name}, str(base / "task" / f"{name}.txt"), 1) for name in names]
    else:
        with listed.open("rb") as lines:
            tasks = list(read_objects(lines, str(listed)))
    for task, place, line in tasks:
        name = task.get("name")
        if not isinstance(name, str) or not name:
            what = "is missing" if name is None else f"is no text: {name!r:.60}"
            raise DataError(place, line, "name", what)
        prompt = base / "task" / f"{name}.txt"
        metadata = {
            "task_id": name,
            "task_type": "data_modeling",
            "train_file": f"data_resplit/{name}/train.csv",
            "test_file": f"data_resplit/{name}/test.csv",
            "answer_dir": f"answers/{name}",
            "url": task.get("url"),
        }
        if not prompt.is_file():
            fix = "unpack the whole of DSBench's data.zip"
            raise DataError(place, line, "name", f"the prompt of '{name}' is missing: {prompt}", fix=fix)
        text = prompt.read_text(encoding="utf-8", errors="replace")
        yield {"prompt": text, "answer": None, "metadata": metadata}, place, line
