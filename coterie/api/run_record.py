"""`resolved.yaml` of a run folder: what the run was made of.

It holds every setting with the defaults of the plugins, the versions of all that takes part, the digests of
the plugin files of `-p` and of the files that settings name, and what later resumes changed. It is no
configuration and no part of a digest: `config.yaml` says what a user asked for, and this file what that meant
when the run began.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import json
import logging
import platform
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from coterie.compose import compose
from coterie.compose.contents import contents, module_file
from coterie.compose.policies import run_config
from coterie.compose.settings import Settings, settings_of
from coterie.core.config import Resolved, to_yaml
from coterie.core.errors import ConfigError
from coterie.core.plugins import Table
from coterie.core.storage.atomic import write_atomic
from coterie.core.storage.checkpoint import file_sha256
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.run import Run
from coterie.core.types.splits import Split
from coterie.discovery import Plugins, plugins
from coterie.discovery.files import load_plugin_file, loaded_files as loaded_files
from coterie.recipes import flatten, load, read_yaml

log = logging.getLogger("coterie")

RECORD = "resolved.yaml"
HEAD = "# What the run was made of; `coterie run --resume` compares it. The configuration is config.yaml.\n"
LIBRARIES = ("coterie", "torch", "transformers", "peft", "numpy")
"""Packages whose versions are recorded besides those of the plugins."""
MISSING = object()


@dataclass(slots=True)
class RunRecord:
    """The content of `resolved.yaml`."""

    settings: Table
    """The configuration's table with every default."""
    components: dict[str, str]
    """By dotted path, the plugin: `reward 'judge' of my-package`."""
    versions: dict[str, str]
    """By package; `python` too."""
    plugin_files: dict[str, str] = field(default_factory=dict)
    """sha256 of each file that was loaded with `-p`, by its absolute path."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each setting that names a file names, by the setting's path: `compose/contents.py`."""
    changes: list[Table] = field(default_factory=list)
    """What resumes changed: the first step, `step`, and `settings`, `versions` and `files` as
    {name: [before, after]}."""

    @classmethod
    def of(cls, run: Run) -> RunRecord:
        """The record of a composed run."""
        settings = settings_of(run.config)
        for source in run.reward_sources:
            settings.table["rewards"][source.name]["weights"] = dict(source.weights)
        components, versions = _plugins(settings)
        versions = {**_versions(LIBRARIES), **versions}
        return cls(settings.table, components, versions, plugin_contents(), contents(settings))

    def at(self, step: int) -> RunRecord:
        """The record as it was when the run had trained `step` steps, without what later resumes changed."""
        record = copy.deepcopy(self)
        # A change of a later step before one of an earlier step belongs to steps that were discarded.
        while record.changes and record.changes[-1]["step"] > step:
            change = record.changes.pop()
            for name, (before, _) in change["versions"].items():
                named = [file for file in record.plugin_files if Path(file).name == name]
                (record.plugin_files if named else record.versions)[named[0] if named else name] = before
            record.files |= {setting: before for setting, (before, _) in change.get("files", {}).items()}
        return record

    @property
    def used(self) -> dict[str, str]:
        """All that a result was made with: versions of packages, and the beginning of each file's digest."""
        files = {Path(file).name: f"sha256 {digest[:12]}" for file, digest in self.plugin_files.items()}
        return {**self.versions, **files}

    @property
    def facts(self) -> Table:
        """What an evaluation states of it."""
        plugin_files = {"plugin_files": self.plugin_files} if self.plugin_files else {}
        return {"versions": self.versions, "files": self.files, **plugin_files}

    def write(self, folder: Path) -> None:
        """Write the record of the run in `folder`.

        Raises:
            WriteError: e.g. the disk is full.
        """
        write_atomic(folder / RECORD, HEAD + to_yaml(asdict(self)))


def read_record(folder: Path) -> RunRecord | None:
    """The record of the run in `folder`; None: the file is missing or damaged."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        return RunRecord(**read_yaml(path))
    except (ConfigError, TypeError) as error:
        log.warning("%s is damaged and not compared: %s", path, " ".join(str(error).split()))
        return None


def load_run(folder: Path, overrides: Sequence[str] = ()) -> Run:
    """Compose the run in `folder` as it was made, with its plugin files.

    Raises:
        RunFolderError: the folder is no run's.
        UserError: whatever is wrong with the configuration, with its path.
    """
    RunFolder.open(folder)
    record = recall(folder)
    return compose_recorded(load(folder, overrides=overrides), record)


def recall(folder: Path) -> RunRecord | None:
    """The record of the run in `folder`, once its plugin files are loaded and its functions are found."""
    record = read_record(folder)
    if record is not None:
        load_remembered(plugins(), record.plugin_files, folder)
        texts = stated(record.settings)
        for setting, entry in record.files.items():
            module, colon, _ = str(texts.get(setting, "")).partition(":")
            if colon and entry.get("path", "").endswith(".py"):
                make_importable(module, Path(entry["path"]))
    return record


def compose_recorded(resolved: Resolved, record: RunRecord | None, splits: Collection[Split] = ()) -> Run:
    """Compose a run again. Settings that nobody states keep their recorded values; what differs is told.

    Args:
        splits: splits that will be played, as of `compose`.

    Raises:
        UserError: whatever is wrong with the configuration, with its path.
    """
    run = compose(resolved, splits)
    if record is None:
        return run
    table = copy.deepcopy(resolved.table)
    pinned = False
    for path, before, after in _defaults(resolved.table, record, RunRecord.of(run)):
        plugin = record.components[_component(path, record)]
        if after is MISSING:
            log.warning("%s: %s has no such setting any more; it was %r", path, plugin, before)
        elif before is MISSING:
            log.warning("%s: %s has this setting since the run began; it is %r", path, plugin, after)
        else:
            pinned = True
            _set(table, path, before)
            log.warning(
                "%s: the default of %s is %r now; the run goes on with %r, its value when it began",
                *(path, plugin, after, before),
            )
    if not pinned:
        return run
    # The schedule is the caller's, which an evaluation changes.
    config = run_config(table).model_copy(update={"schedule": resolved.config.schedule})
    return compose(replace(resolved, config=config))


def changed_versions(before: RunRecord, after: RunRecord) -> dict[str, list[str]]:
    """[before, after] of every package whose version differs, and of plugin files with another content."""
    changed = {
        name: [version, after.versions[name]]
        for name, version in before.versions.items()
        if after.versions.get(name, version) != version
    }
    moved = {Path(file).name: digest for file, digest in after.plugin_files.items()}
    for file, digest in before.plugin_files.items():
        now = after.plugin_files.get(file, moved.get(Path(file).name, digest))
        if now != digest:
            changed[file] = [digest[:12], now[:12]]
    return changed


def plugin_contents() -> dict[str, str]:
    """sha256 of each plugin file that is loaded, by its absolute path."""
    return {str(path): file_sha256(path) for path in loaded_files(plugins()) if path.is_file()}


def kept_files(before: RunRecord, after: RunRecord) -> dict[str, str]:
    """The plugin files of both records; one that was moved, at its new place alone."""
    names = {Path(file).name for file in after.plugin_files}
    old = {file: digest for file, digest in before.plugin_files.items() if Path(file).name not in names}
    return {**old, **after.plugin_files}


def stated(table: Table) -> dict[str, Any]:
    """The leaves of a table, by dotted path."""
    return {path: value for path, value in flatten(table) if value != {}}


def _defaults(table: Table, before: RunRecord, after: RunRecord) -> Iterator[tuple[str, Any, Any]]:
    """(path, recorded value, present value) of the settings that nobody states and that differ."""
    explicit, old, new = stated(table), stated(before.settings), stated(after.settings)
    for path in sorted({*old, *new}):
        first, second = old.get(path, MISSING), new.get(path, MISSING)
        if first is MISSING or second is MISSING or not equal(first, second):
            at = _component(path, before)
            same = at and _plugin(before.components[at]) == _plugin(after.components.get(at, ""))
            if same and not any(_within(path, other) or _within(other, path) for other in explicit):
                yield path, first, second


def equal(first: Any, second: Any) -> bool:
    """Whether two values of a setting are the same; NaN is, too."""
    return bool(first == second) or json.dumps(first, default=str) == json.dumps(second, default=str)


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")


def _plugin(label: str) -> str:
    """The label of a plugin; of one in a file, with the file's name alone: files are moved."""
    plugin, _, distribution = label.rpartition(" of ")
    return f"{plugin} of {Path(distribution).name}" if distribution.endswith(".py") else label


def _component(path: str, record: RunRecord) -> str:
    """The path of the component that a setting belongs to; empty: none."""
    return max((at for at in record.components if _within(path, at)), key=len, default="")


def _plugins(settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """The plugin of each component by its path; versions of their distributions and of observers'."""
    entries = {
        path: plugins().registry.find(kind, name) for path, (kind, name) in settings.components.items()
    }
    components = {path: entry.label for path, entry in entries.items()}
    distributions = {entry.distribution for entry in entries.values()} | plugins().observers()
    return components, _versions(sorted(distributions | _imported_by_programs(settings)))


def _imported_by_programs(settings: Settings) -> set[str]:
    """The distributions that sandbox `local` shows to programs: what they print depends on
    them. A server has its own."""
    names = set()
    for path, component in settings.components.items():
        if component == ("sandbox", "local"):
            table: Any = settings.table
            for key in path.split("."):
                table = table[key]
            for text in table.get("packages") or ():
                if name := re.match(r"[\w.-]+(?=\s*(\[|[<>=!~;]|$))", str(text)):
                    names.add(name[0])
    return names


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = _version(package, tuple(sys.path))
        except (importlib.metadata.PackageNotFoundError, ValueError):
            # A file, an extra that isn't there, or the module of an object that isn't registered.
            for folder in sys.path if package.isidentifier() else ():
                for distribution in _distributions(folder).get(package, ()):
                    versions[distribution] = importlib.metadata.version(distribution)
    return versions


@lru_cache(maxsize=256)
def _version(package: str, path: tuple[str, ...]) -> str:
    return importlib.metadata.version(package)


@lru_cache(maxsize=64)
def _distributions(folder: str) -> Mapping[str, Sequence[str]]:
    """The distributions of each package in a folder of the Python path; of many it takes a second."""
    listed: dict[str, list[str]] = {}
    for each in importlib.metadata.distributions(path=[folder]):
        packages = (each.read_text("top_level.txt") or "").split() or {
            file.parts[0] if len(file.parts) > 1 else file.stem
            for file in each.files or ()
            if file.suffix == ".py"
        }
        for package in packages:
            listed.setdefault(package, []).append(each.metadata["Name"])
    return listed


def _set(table: Table, path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for key in outer:
        if not isinstance(table.get(key), Mapping):
            table[key] = {}
        table = table[key]
    table[last] = value


def make_importable(module: str, file: Path) -> None:
    """Let a module whose file a run folder remembers be imported, where no other place has it."""
    parents = file.parent if file.name == "__init__.py" else file
    folder = str(parents.parents[module.count(".")])
    if file.is_file() and module_file(module) is None and folder not in sys.path:
        sys.path.append(folder)


def load_remembered(manager: Plugins, files: Iterable[str], folder: Path) -> None:
    """Load the plugin files of the run in `folder` that aren't loaded yet.

    A loaded file of the same name replaces one that was moved.

    Raises:
        PluginError: a file is no working plugin any more.
    """
    for file in map(Path, files):
        loaded = loaded_files(manager)
        if file in loaded or file.name in {path.name for path in loaded}:
            continue
        if file.is_file():
            load_plugin_file(file, manager)
            log.info("%s: the plugin file %s is loaded again", folder, file)
        else:
            log.warning("%s: the plugin file %s is gone; name its new place: -p FILE", folder, file)


# -------------------------------------------------------------------------- seeds of one configuration

SAME = (
    *("seed", "name", "summary"),
    *("schedule.steps", "schedule.epochs", "schedule.tokens", "schedule.stop_after"),
    *("schedule.record_every", "schedule.evaluate_every", "schedule.checkpoint_every"),
    *("schedule.keep_checkpoints", "trackers", "trackers.*"),
)
"""Patterns of settings in which the runs of one configuration may differ: the seed, names, the length of a
run and its reports. They decide nothing that a step learns."""
BUDGET = "schedule.tokens"
"""Counts where a learning rate decays over it."""


def recorded_settings(folder: Path) -> dict[str, Any]:
    """The settings of a run by dotted path, of `resolved.yaml`, or of `config.yaml` where there is none.

    Raises:
        ConfigError: a file is damaged.
    """
    config = RunFolder(folder).config
    record = read_yaml(folder / RECORD) if (folder / RECORD).is_file() else {}
    settings = dict(flatten(record.get("settings") or read_yaml(config)))
    settings["name"] = read_yaml(config).get("name")
    return settings


def tells_apart(path: str, settings: Mapping[str, Any]) -> bool:
    """Whether a setting tells configurations apart."""
    if path == BUDGET and any(
        name.endswith(".optimizer.horizon") and value == "budget" for name, value in settings.items()
    ):
        return True
    return not any(fnmatchcase(path, pattern) for pattern in SAME)


def configuration_digest(settings: Mapping[str, Any]) -> str:
    """A digest (64 bits) of the settings that tell configurations apart: equal for the seeds of one."""
    kept = {path: value for path, value in settings.items() if tells_apart(path, settings)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]
