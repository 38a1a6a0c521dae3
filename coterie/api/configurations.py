"""Which runs are seeds of one configuration: their settings differ in nothing that a step learns from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from coterie.api.run_record import RECORD
from coterie.core.storage.run_folder import RunFolder
from coterie.recipes import flatten, read_yaml

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
