"""The resume of a run: the changes of its configuration that it accepts, says and records."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from coterie.api.changed_files import changed_files, check_accepted
from coterie.api.run_record import (
    RunRecord,
    changed_versions,
    compose_recorded,
    equal,
    kept_files,
    plugin_contents,
    recall,
    stated,
)
from coterie.compose import prepare, trained_splits
from coterie.compose.contents import contents
from coterie.compose.named_files import FUNCTION
from coterie.compose.settings import Settings, settings_of
from coterie.core.config import Resolved, RunConfig, to_yaml
from coterie.core.errors import ConfigError, RunFolderError, UserError
from coterie.core.plugins import MayChange
from coterie.core.storage.atomic import write_atomic
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.run import Run
from coterie.recipes import load

log = logging.getLogger("coterie")

FREE = {
    "summary": True,
    "schedule.steps": True,
    "schedule.epochs": True,
    "schedule.tokens": True,
    "schedule.stop_after": True,
    "schedule.keep_checkpoints": True,
    "schedule.checkpoint_every": True,
    "schedule.record_every": True,
    "schedule.evaluate_every": True,
    "schedule.max_missing": True,
    "schedule.patience": True,
    "team.max_stages": True,
    "team.overflow": False,
    "rewards.*.max_missing": True,
    "rewards.*.concurrency": True,
    "trackers": True,
    "trackers.*": True,
}
"""By pattern of a path: whether the steps stay bit-equal. These settings, and those that a plugin marks with
`MayChange`, decide the length of a run, its reports, its limits, and how fast or where it goes."""
FIXED = (
    *("*.type", "policies", "policies.*", "team.order", "team.roles.*.policy", "seed", "deterministic"),
    *("schedule.max_staleness", "schedule.play", "schedule.tasks_per_step", "schedule.stratify"),
    *("evaluate", "evaluate.*"),
)
"""Patterns of paths that `--allow-change` doesn't reach: the checkpoint, the draws and the order of tasks are
made for them; so is the best success, and train leaves out what the sets of `evaluate` have."""
PLACES = ("executor.*", "sandbox.*")
"""Patterns of FIXED paths that it does reach."""
LENGTHS = ("steps", "epochs", "tokens", "stop_after")


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that a resume changes."""

    path: str
    before: Any
    after: Any
    exact: bool
    """Whether the steps stay bit-equal to those of the uninterrupted run."""

    def __str__(self) -> str:
        return f"{self.path}: {self.before!r} -> {self.after!r}"


@dataclass(slots=True)
class Resumption:
    """A run that is composed again from its folder."""

    run: Run
    folder: Path
    before: Resolved
    record: RunRecord | None
    """As it was made; None where its file is missing or damaged."""
    changes: list[SettingChange] = field(default_factory=list)

    def begin(self, step: int) -> None:
        """Say what is different from step `step` on, and record it in the run folder.

        Raises:
            WriteError: the folder can't be written.
        """
        now = RunRecord.of(self.run)
        versions = changed_versions(self.record, now) if self.record is not None else {}
        for change in self.changes:
            since = "in this call" if self._of_this_call(change) else f"from step {step} on"
            log.warning("%s, %s", since, change)
        if versions:
            texts = (f"{name} {before} -> {after}" for name, (before, after) in versions.items())
            log.warning("since the run began: %s", ", ".join(texts))
        if versions or not all(change.exact for change in self.changes):
            log.warning("from here on the run is not bit-equal to the uninterrupted one")
        table = self._kept(self.run.resolved.table)
        kept = [change for change in self.changes if not self._of_this_call(change)]
        if kept:
            log.warning("config.yaml has them for later resumes, even if this one plays no step")
        if table != self.before.table:
            write_atomic(self.folder / "config.yaml", to_yaml({"name": self.before.name, **table}))
        if self.record is not None:
            now.changes = [*self.record.changes]
            now.plugin_files = kept_files(self.record, now)
            now.files = {**self.record.files, **now.files}
        if kept or versions:
            settings = {change.path: [change.before, change.after] for change in kept}
            changed = {"step": step, "settings": settings, "versions": versions}
            files = _changed_entries(self.record, now)
            now.changes.append({**changed, "files": files} if files else changed)
        if now != self.record:
            now.write(self.folder)

    def _of_this_call(self, change: SettingChange) -> bool:
        """Whether a change makes the run shorter: later resumes have the old length."""
        table, _, name = change.path.partition(".")
        return table == "schedule" and name in LENGTHS and _length(change.after) < _length(change.before)

    def _kept(self, table: dict[str, Any]) -> dict[str, Any]:
        """The configuration of later resumes: a shorter run is this call's alone."""
        table = copy.deepcopy(table)
        before = self.before.table["schedule"]
        for name in LENGTHS:
            if _length(table["schedule"][name]) < _length(before[name]):
                table["schedule"][name] = before[name]
        return table


def resumption(
    source: Any,
    folder: Path,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    overlays: Sequence[str] = (),
    allow_change: bool = False,
    accept_changes: Sequence[str] = (),
) -> Resumption:
    """Compose the run in `folder` again, with the changes that it accepts.

    Args:
        source: a configuration in place of the folder's, or None.
        allow_change: accept changes of what the run does from here on, e.g. of a learning rate.
        accept_changes: files, or the settings that name them, whose contents may have changed.

    Raises:
        RunFolderError: the folder is no run's, or a change is refused.
        UserError: whatever is wrong with the configuration, with its path.
    """
    if isinstance(accept_changes, str):  # its letters would be taken for names
        accept_changes = (accept_changes,)
    RunFolder.open(folder)
    record = recall(folder)
    before = load(folder)
    after = load(
        source if source is not None else folder, overrides=overrides, scale=scale, overlays=overlays
    )
    changes = _changes(before, after, record, allow_change)
    if not allow_change:
        _check_decay(before.config, after.config)
    changes += _file_changes(before, after, record, accept_changes, folder)
    resolved = replace(after, name=before.name)
    run = compose_recorded(resolved, record, trained_splits(after.config.schedule))
    return Resumption(run, folder, before, record, changes)


def _changes(
    before: Resolved, after: Resolved, record: RunRecord | None, allow_change: bool
) -> list[SettingChange]:
    """The changes that somebody states; a default that is stated is none.

    Raises:
        RunFolderError: the run can't have one of them.
    """
    old, new = settings_of(before.config), settings_of(after.config)
    first = stated(record.settings if record is not None else old.table)
    explicit = _explicit(before, old)
    first |= explicit
    second = stated(new.table)
    changes: list[SettingChange] = []
    refused: list[SettingChange] = []
    read = {**contents(old), **(record.files if record is not None else {})}
    reads = contents(new)
    for path in sorted({*explicit, *_explicit(after, new)}):
        values = first.get(path), second.get(path)
        digests = [_digests(path, entries, new) for entries in (read, reads)]
        if digests[0] and digests[0] == digests[1]:  # at most it was moved
            continue
        if equal(*values):
            continue
        mark = _mark(path, old, new)
        exact = path.startswith("executor") if mark is None else mark.exact
        change = SettingChange(path, *values, exact=exact)
        accepted = mark is not None and (allow_change or not mark.asked)
        (changes if accepted or (allow_change and not _fixed(path)) else refused).append(change)
    if refused:
        _check_known(after, refused)
        raise _refusal(refused, [change for change in refused if _mark(change.path, old, new)], allow_change)
    return changes


def _digests(path: str, entries: Mapping[str, Mapping[str, Any]], settings: Settings) -> list[Any]:
    """The digests of the data, prompts and models that a setting names; none: it names none of them."""
    return [
        entry.get("sha256")
        for name, entry in entries.items()
        if (name == path or name.startswith(f"{path}."))
        and name in settings.files
        and settings.files[name].form != FUNCTION
    ]


def _file_changes(
    before: Resolved, after: Resolved, record: RunRecord | None, accepted: Sequence[str], folder: Path
) -> list[SettingChange]:
    """The changes of what files say whose names are the same; another name is a change of a setting.

    Raises:
        ConfigError, RunFolderError: as of `check_accepted`.
    """
    old, new = settings_of(before.config), settings_of(after.config)
    kept = {
        path for path, file in new.files.items() if path in old.files and file.text == old.files[path].text
    }
    now = RunRecord(new.table, {}, {}, plugin_contents(), contents(new))
    known = record.files if record is not None else {}
    unknown = [path for path, entry in now.files.items() if "sha256" in entry and path in kept - {*known}]
    if unknown:
        log.warning(
            "%s doesn't say what the run read (%s): whether that has changed isn't known; from now on it "
            "says so",
            *(folder, ", ".join(unknown)),
        )
    changed = changed_files(record, now) if record is not None else []
    changed = [change for change in changed if change.name in kept or change.name in now.plugin_files]
    check_accepted(changed, accepted, now)
    return [
        SettingChange(
            change.name,
            f"{change.file} ({change.before[:12]})",
            f"{change.file} ({change.after[:12]})",
            exact=False,
        )
        for change in changed
        if change.name not in now.plugin_files  # `begin` says and records them with the versions
    ]


def _changed_entries(before: RunRecord | None, after: RunRecord) -> dict[str, list[Any]]:
    """[before, after] of the entry of each setting whose file has another content."""
    known = before.files if before is not None else {}
    return {
        setting: [known[setting], entry]
        for setting, entry in after.files.items()
        if setting in known and known[setting].get("sha256") != entry.get("sha256")
    }


def _explicit(resolved: Resolved, settings: Settings) -> dict[str, Any]:
    """The settings that a configuration states; `model: heuristic` states `model.type`."""
    return {
        f"{path}.type" if path in settings.components else path: value
        for path, value in stated(resolved.table).items()
    }


def _check_known(after: Resolved, refused: Sequence[SettingChange]) -> None:
    """Raise what is wrong with a refused setting itself, such as an unknown key: that comes first."""
    try:
        prepare(after)
    except ConfigError as error:
        if error.path in {change.path for change in refused}:
            raise
    except UserError:
        return


def _refusal(
    refused: Sequence[SettingChange], asked: Sequence[SettingChange], allow_change: bool
) -> RunFolderError:
    fix = "resume without these changes, or start a new run; schedule.steps may grow"
    if not allow_change and all(change in asked or not _fixed(change.path) for change in refused):
        fix = (
            "resume without these changes, start a new run, or add --allow-change: from there on the run is "
            "another one, and its folder says so; schedule.steps may grow anyway"
        )
    return RunFolderError(
        "a resumed run can't change its configuration",
        path=refused[0].path,
        why="; ".join(map(str, refused[:5])),
        fix=fix,
    )


def _mark(path: str, old: Settings, new: Settings) -> MayChange | None:
    """How a resumed run may change the setting; None: it is not marked."""
    exact = next((FREE[pattern] for pattern in FREE if fnmatchcase(path, pattern)), None)
    return MayChange(exact=exact) if exact is not None else new.mark(path) or old.mark(path)


def _fixed(path: str) -> bool:
    """Whether `--allow-change` doesn't reach a setting that no plugin marks."""
    places = any(fnmatchcase(path, pattern) for pattern in PLACES)
    return not places and any(fnmatchcase(path, pattern) for pattern in FIXED)


def _check_decay(before: RunConfig, after: RunConfig) -> None:
    """Refuse another token budget where learning rates decay over it.

    Raises:
        RunFolderError: the budget differs, and past steps used the learning rates of the old one.
    """
    decaying = [name for name, policy in before.policies.items() if policy.follows_budget]
    if decaying and before.schedule.tokens != after.schedule.tokens:
        raise RunFolderError(
            "a resumed run can't change the budget that its learning rates decay over",
            path="schedule.tokens",
            why=f"the rates of policies.{decaying[0]} follow the budget of {before.schedule.tokens:,} tokens",
            fix="resume without this change, start a new run, or add --allow-change",
        )


def _length(value: float | None) -> float:
    return math.inf if value is None else value
