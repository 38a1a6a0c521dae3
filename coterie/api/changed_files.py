"""Files that have changed since a run began: data, prompts, models, functions and single-file plugins."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.api.run_record import RunRecord
from coterie.core.errors import ConfigError, RunFolderError, did_you_mean


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file whose content is another one than a run has on record."""

    name: str
    """The path of the setting that names it; of a single-file plugin, the file's."""
    file: str
    before: str
    """sha256."""
    after: str

    def __str__(self) -> str:
        setting = "" if self.name == self.file else f"{self.name}: "
        return f"{setting}{self.file} ({self.before[:12]} -> {self.after[:12]})"

    @property
    def names(self) -> tuple[str, str, str]:
        """What `--accept-changes` may call it."""
        return self.name, self.file, Path(self.file).name


def changed_files(before: RunRecord, after: RunRecord) -> list[FileChange]:
    """The files whose contents differ; one that was only moved is none, nor is one that is gone."""
    return [*_of_settings(before.files, after.files), *_of_plugins(before.plugin_files, after.plugin_files)]


def _of_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FileChange]:
    for setting, entry in after.items():
        known, now = before.get(setting, {}).get("sha256"), entry.get("sha256")
        if known and now and known != now:
            yield FileChange(setting, entry["path"], known, now)


def _of_plugins(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[FileChange]:
    moved = {Path(file).name: file for file in after}
    for file, known in before.items():
        now = file if file in after else moved.get(Path(file).name)
        if now is not None and after[now] != known:
            yield FileChange(now, now, known, after[now])


def check_accepted(changes: Sequence[FileChange], accepted: Sequence[str], known: RunRecord) -> None:
    """Check that somebody accepts each change, by the setting's path or by the file.

    Args:
        accepted: of `--accept-changes`.
        known: the run as it is now.

    Raises:
        ConfigError: a name is neither that of a setting nor of a file.
        RunFolderError: a change is not accepted; it names setting, file and digests.
    """
    files = [*(entry["path"] for entry in known.files.values() if "path" in entry), *known.plugin_files]
    names = {*known.files, *files, *(Path(file).name for file in files)}
    for name in accepted:
        if not names & {name, os.path.abspath(name)}:
            raise ConfigError(
                f"'{name}' is no file of this run, and no setting that names one",
                path="--accept-changes",
                fix=did_you_mean(name, names) if names else "leave it out",
            )
    given = {*accepted, *map(os.path.abspath, accepted)}
    refused = [change for change in changes if not given & {*change.names}]
    if refused:
        options = " ".join(f"--accept-changes {change.name}" for change in refused)
        raise RunFolderError(
            f"{len(refused)} files have changed since the run began"
            if len(refused) > 1
            else "a file has changed since the run began",
            path=refused[0].name,
            why="; ".join(map(str, refused)),
            fix="put the old content back, start a new run, or go on with the new one: "
            f"{options} (from there on the run is another one, and its folder says so)",
        )
