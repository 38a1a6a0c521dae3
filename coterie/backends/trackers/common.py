"""What trackers of other people's libraries share: names and values, the run's configuration, kept ids."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from ruamel.yaml import YAML

from coterie.core.errors import MissingExtra
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.storage.atomic import write_atomic
from coterie.extras import EXTRA_OF
from coterie.secret_settings import without_secrets

Value = float | int | str | None


class TrackerConfig(PluginConfig):
    """What all of these trackers have in common."""

    log_episodes: int = Field(0, ge=0, description="Whole episodes of each step that are stored; 0: none.")


class LibraryTracker(Plugin):
    """Base of the trackers: the packages are looked for when it is made, before a model is loaded.

    Raises:
        MissingExtra: the package is not installed.
    """

    config: Any
    packages: tuple[str, ...]
    """What the tracker imports once it is opened, its library first."""

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        for package in self.packages:
            if find_spec(package) is None:
                raise MissingExtra(package, EXTRA_OF[package], needed_by=self.place)

    @property
    def place(self) -> str:
        """Dotted path of the tracker's table."""
        path: str = getattr(self.build, "path", "") or f"trackers.{self.packages[0]}"
        return path

    @property
    def log_episodes(self) -> int:
        number: int = self.config.log_episodes
        return number

    def kept(self, folder: Path) -> KeptIds:
        """The ids by which a resumed run finds what this tracker has stored."""
        name = self.place.removeprefix("trackers.")
        return KeptIds(folder / "trackers" / f"{name}.json")


class KeptIds:
    """A small JSON file of the run folder, as a mapping."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """What was written last; {} before that."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        kept: dict[str, Any] = json.loads(text)
        return kept

    def write(self, values: Mapping[str, Any]) -> None:
        """Replace the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, (json.dumps(dict(values), indent=1) + "\n").encode())


def flat(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    """(name, value) of every number and text of a row, as `metrics.jsonl` has them.

    What that file writes as null, a missing number, NaN and infinities, is None. A list's items are named
    `name/0`, `name/1`, ..., those of a table `name/key`.
    """
    for name, value in metrics.items():
        if isinstance(value, (np.generic, np.ndarray)):
            value = value.tolist()
        where = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{where}/")
        elif isinstance(value, (list, tuple)):
            yield from flat({str(place): item for place, item in enumerate(value)}, f"{where}/")
        elif isinstance(value, bool):
            yield where, int(value)
        elif isinstance(value, float) and not math.isfinite(value):
            yield where, None
        elif value is None or isinstance(value, (int, float, str)):
            yield where, value
        else:
            yield where, str(value)


def numbers_and_texts(metrics: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers of a row, NaN where `metrics.jsonl` has null, and its texts."""
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name, value in flat(metrics):
        if isinstance(value, str):
            texts[name] = value
        else:
            numbers[name] = math.nan if value is None else float(value)
    return numbers, texts


def cell(value: Any) -> Any:
    """A value as a cell of a table: what has parts is JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (Mapping, list, tuple)) else value


def configuration(folder: Path) -> tuple[dict[str, Any], str]:
    """The run's resolved configuration without secrets (`without_secrets`): as a table, and as text."""
    table = YAML(typ="safe", pure=True).load((folder / "config.yaml").read_text(encoding="utf-8")) or {}
    shown = without_secrets(table)
    return shown, json.dumps(shown, indent=1, ensure_ascii=False, default=str)
