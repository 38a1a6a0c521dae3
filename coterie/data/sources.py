"""Sources of `coterie data`: recipes, data folders, record files and data sets of the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coterie.compose import RolloutParts, make_rollout_parts
from coterie.compose.builder import ComponentBuilder
from coterie.compose.curriculum import taken
from coterie.compose.tables import CURRICULUM
from coterie.core.errors import ConfigError, MissingExtra, PluginError, UserError
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import TaskSource
from coterie.core.types import Task
from coterie.core.types.splits import SPLITS, Record, RecordLine, Split
from coterie.data.task_files import MANIFEST, write_jsonl
from coterie.discovery import plugins
from coterie.discovery.members import DrawsTasks, RecordsTasks
from coterie.discovery.validation import validate
from coterie.recipes import load

ENDINGS = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".json": "jsonl",
    ".json.gz": "jsonl",
    ".parquet": "parquet",
}
"""Ending of a file -> the data source that reads it."""
NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("val", "validation", "valid", "dev"),
    "test": ("test",),
}
"""Names that splits have in other data sets."""


# --------------------------------------------------------------------------------------- what a source names


def is_file(source: str) -> bool:
    """Whether a source is a record file, by its ending."""
    return ending_of(Path(source)) is not None


def is_folder(source: str) -> bool:
    """Whether a source is a folder with a data set."""
    path = Path(source)
    return path.is_dir() and ((path / MANIFEST).is_file() or bool(split_files(path)))


def ending_of(path: Path) -> str | None:
    """The ending of a record file; None for other files."""
    return next((ending for ending in ENDINGS if path.name.endswith(ending)), None)


def split_files(folder: Path) -> dict[Split, Path]:
    """Files of a folder with the name of a split.

    Raises:
        UserError: a split has two files.
    """
    by_split: dict[Split, Path] = {}
    for split, names in NAMES.items():
        files = [folder / f"{name}{ending}" for name in names for ending in ENDINGS]
        existing = [path for path in files if path.is_file()]
        if len(existing) > 1:
            raise UserError(
                f"{folder} has two files of the split '{split}'",
                why=" and ".join(path.name for path in existing),
                fix="remove one, or name the files",
            )
        if existing:
            by_split[split] = existing[0]
    return by_split


def run_of(
    source: str, overrides: Sequence[str] = (), scale: str | None = None, overlays: Sequence[str] = ()
) -> RolloutParts:
    """The run of a recipe, a YAML file or a run's folder; nothing is loaded.

    Raises:
        UserError: the source is none of these, or its configuration is wrong.
    """
    if Path(source).is_dir() and not (Path(source) / "config.yaml").is_file():
        raise UserError(f"{source} holds neither a data set nor a run", why=f"no {MANIFEST}, no train.jsonl")
    recipe: str | Path = Path(source) if Path(source).is_dir() else source
    return make_rollout_parts(load(recipe, overrides=overrides, scale=scale, overlays=overlays))


def made_run(folder: Path, manifest: Mapping[str, Any]) -> RolloutParts | None:
    """The run for which `coterie data make` wrote a folder, with the folder's tasks; None for other data.

    Raises:
        UserError: the manifest is damaged, or its environment can't be made here.
    """
    table = manifest.get("config")
    if table is None:
        return None
    files = {split: folder / entry["file"] for split, entry in manifest["splits"].items()}
    # The environment's files replace a `data` table of the top level; nothing would read it, and an unread
    # table is refused.
    env = {**taken(table["env"])[1], "data": data_table(files)}
    return make_rollout_parts(load({**table, "env": env, "data": None}))


def to_paste(run: RolloutParts, files: Mapping[str, Path]) -> dict[str, Any]:
    """The settings with which a recipe plays these files. A curriculum is switched off."""
    # The files hold the target's tasks; the levels of a curriculum would generate their own.
    curriculum = {CURRICULUM: None} if run.curriculum is not None else {}
    return {"env": {"data": data_table(files), **curriculum}}


def data_table(files: Mapping[str, Path]) -> dict[str, str]:
    """A `data` table that reads these files."""
    kind = {ENDINGS[ending_of(path) or ""] for path in files.values()}
    return {"type": kind.pop(), **{split: str(path) for split, path in files.items()}}


# ---------------------------------------------------------------------------------------------------- records


def read_rows(path: Path) -> list[RecordLine]:
    """The records of a file.

    Raises:
        UserError: there is no such file, or it can't be read; the message names a wrong line.
    """
    ending = ending_of(path)
    if ending is None:
        raise UserError(f"{path} is no record file", fix=f"name a file that ends in {', '.join(ENDINGS)}")
    if not path.is_file():
        raise UserError(f"no such file: {path}", why=f"looked for in {Path.cwd()}")
    try:
        return _rows(ENDINGS[ending], {"train": str(path)}, "train")
    except UserError as error:
        error.path = ""  # of a setting that no user wrote
        raise


def _rows(kind: str, settings: Mapping[str, Any], split: Split) -> list[RecordLine]:
    target: Any = plugins().registry.load("data_source", kind)
    source = target(validate(target.Config, dict(settings), "SOURCE"), SimpleNamespace(path="SOURCE"))
    records = source.records(split)
    return [RecordLine(records[index], *records.where(index)) for index in range(len(records))]


def read_source(
    source: str, *, keep: bool, subset: str | None = None, revision: str | None = None
) -> tuple[list[RecordLine], dict[str, list[RecordLine]], list[str]]:
    """Read records that are to be split.

    Args:
        source: a record file, a folder with a file for each split, or the id or folder of a Hub data set.
        keep: keep the source's test split, and its validation split if it has one.

    Returns:
        the records to split, those of the kept splits, and notes for the user.

    Raises:
        UserError: the source can't be read, or has no splits to keep.
        MissingExtra: datasets is not installed.
    """
    path = Path(source)
    if is_file(source) or path.is_file():
        _refuse_hub_options(source, subset, revision)
        if keep:
            raise UserError(f"{source} is one file: it has no splits to keep", path="--keep-splits")
        return read_rows(path), {}, []
    if path.is_dir() and split_files(path):
        _refuse_hub_options(source, subset, revision)
        files = split_files(path)
        body, kept = _chosen(source, list(files), keep)
        notes = _left_out(source, [split for split in files if split != body and split not in kept])
        return read_rows(files[body]), {split: read_rows(files[split]) for split in kept}, notes
    hub_names = _hub_splits(source, subset, revision)
    names = {split: name for split, known in NAMES.items() for name in hub_names if name in known}
    if not names and len(hub_names) == 1:
        names = {"train": hub_names[0]}
    body, kept = _chosen(source, list(names), keep)

    def rows(split: Split) -> list[RecordLine]:
        table = {"name": source, "splits": {split: names[split]}}
        return _rows("hub", {**table, "subset": subset, "revision": revision}, split)

    used = {names[split] for split in (body, *kept)}
    notes = _left_out(source, [name for name in hub_names if name not in used])
    return rows(body), {split: rows(split) for split in kept}, notes


def _chosen(source: str, available: Sequence[Split], keep: bool) -> tuple[Split, list[Split]]:
    """The split whose records are split by content, and the splits that are kept."""
    if keep and not {"train", "test"} <= {*available}:
        raise UserError(
            f"{source} has no splits to keep",
            path="--keep-splits",
            why=f"a train and a test split are needed; it has: {', '.join(available) or 'none known'}",
            fix="leave --keep-splits out: the test split is then drawn by content",
        )
    if "train" in available:
        return "train", [split for split in available if keep and split != "train"]
    if len(available) == 1:
        return available[0], []
    raise UserError(
        f"{source} has no train split", why=f"it has: {', '.join(available) or 'none whose name is known'}"
    )


def _left_out(source: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [f"not read of {source}: {', '.join(names)} (--keep-splits keeps its test and validation split)"]


def _refuse_hub_options(source: str, subset: str | None, revision: str | None) -> None:
    for name, value in (("subset", subset), ("revision", revision)):
        if value is not None:
            raise UserError(f"{source} is no data set of the Hub and has no {name}", path=f"--{name}")


def _hub_splits(name: str, subset: str | None, revision: str | None) -> list[str]:
    try:
        import datasets as hub
    except ImportError:
        raise MissingExtra("datasets", "data", needed_by=f"the source '{name}'") from None
    try:
        return list(hub.get_dataset_split_names(name, subset, revision=revision))
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"'{name}' is no file here, and no data set that can be loaded",
            path="SOURCE",
            why=f"{type(error).__name__}: {error}",
        ) from error


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write JSONL or Parquet, by the file's ending; return the number of records.

    Raises:
        MissingExtra: pyarrow is not installed.
        UserError: the folder can't be written, or the records don't fit one table.
    """
    try:
        if path.suffix == ".jsonl":
            return write_jsonl(path, records)
        return _write_parquet(path, records)
    except OSError as error:
        raise UserError(f"{path} can't be written", why=str(error)) from error


def _write_parquet(path: Path, records: Iterable[Record]) -> int:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data", needed_by="--format parquet") from None
    rows = [dict(record) for record in records]
    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    except pyarrow.ArrowException as error:
        raise UserError(
            f"the records don't fit a Parquet table: {path}", why=str(error), fix="use --format jsonl"
        ) from error
    return len(rows)


# ------------------------------------------------------------------------------------------------- known sets


def known_sets() -> list[str]:
    """The names of data sources that need no settings."""
    registry = plugins().registry
    names = []
    for name in registry.names("data_source"):
        try:
            source = registry.load("data_source", name)
        except PluginError:
            continue  # `coterie plugins` names what is broken
        if getattr(source, "published", False):
            names.append(name)
    return names


def records_of_set(name: str, settings: Mapping[str, Any]) -> tuple[dict[Split, list[Record]], list[str]]:
    """The records of a known set by split, and a note for each split that it lacks.

    Args:
        settings: of the data source, such as `file` or `train`.

    Raises:
        ConfigError: a setting is wrong, the set can't be loaded, or no split has records.
        DataError: a row is not as the set publishes it.
        MissingExtra: `datasets` is not installed.
    """
    without_run: Any = SimpleNamespace(data=None, sandbox=None)
    source = ComponentBuilder(run=without_run).make("data_source", {"type": name, **settings}, name)
    given = [split for split in SPLITS if split in settings]
    by_split: dict[Split, list[Record]] = {}
    notes: list[str] = []
    for split in SPLITS:
        if given and split not in given:
            notes.append(f"{split} is left out: no rows are chosen for it")
            continue
        with plugin_call(source, "records"):
            by_split[split] = list(source.records(split))
    return by_split, notes


# ------------------------------------------------------------------------------------------------------ tasks


def task_sources(
    run: RolloutParts, wanted: Sequence[Split] = ()
) -> tuple[dict[Split, TaskSource], list[str]]:
    """Tasks by split, and a note for each split that the environment lacks.

    Args:
        wanted: splits that must exist; none: all splits that the environment has.

    Raises:
        ConfigError: a `wanted` split does not exist, or no split does.
    """
    by_split: dict[Split, TaskSource] = {}
    notes: list[str] = []
    first: ConfigError | None = None
    for split in wanted or SPLITS:
        try:
            with plugin_call(run.environment, "tasks"):
                by_split[split] = run.environment.tasks(split, run.config.seed)
        except ConfigError as error:
            if wanted:
                raise
            first = first or error
            notes.append(f"no split '{split}': {error.what}")
    if first is not None and not by_split:
        raise first
    return by_split, notes


def records_of(run: RolloutParts, tasks: TaskSource, count: int) -> Iterator[Record]:
    """The first `count` tasks as records; `id` is the first field."""
    environment: Any = run.environment
    for index in range(count):
        task = tasks[index]
        with plugin_call(environment, "record"):
            record = environment.record(task)
        yield {"id": task.id, **record}


def tasks_of(run: RolloutParts, split: Split, count: int) -> list[Task]:
    """The first `count` tasks of a split."""
    with plugin_call(run.environment, "tasks"):
        source = run.environment.tasks(split, run.config.seed)
        return [source[index] for index in range(min(count, len(source)))]


def task_row(run: RolloutParts, task: Task) -> dict[str, Any]:
    """A task as plain data."""
    environment = run.environment
    row: dict[str, Any] = {"id": task.id}
    if isinstance(environment, RecordsTasks):
        with plugin_call(environment, "record"):
            row["record"] = environment.record(task)
    elif isinstance(task.payload, Mapping):
        row["record"] = dict(task.payload)
    if isinstance(environment, DrawsTasks):
        with plugin_call(environment, "picture"):
            row["picture"] = environment.picture(task)
    if len(row) == 1:
        row["record"] = repr(task.payload)
    return row
