"""The tables of one policy of the trainer `tabular`: logits, values, and the state of their optimiser."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from coterie.backends.models.table import Context, LogitTable
from coterie.core.errors import RunFolderError

Rows = dict[Context, np.ndarray]
MOMENTS = ("first", "second", "steps")


def rows_file(folder: Path, policy: str, version: int | None = None) -> Path:
    """The file of a policy's tables, or of an earlier version of them.

    Names keep no `/`, which would lead out of the folder, and no `@`, which stands before a version.
    """
    return folder / f"{quote(policy, safe=' ')}{'' if version is None else f'@{version}'}.npz"


@dataclass(slots=True)
class Moments:
    """Adam's state (arXiv 1412.6980), by context."""

    first: Rows = field(default_factory=dict)
    """The running means of gradients."""
    second: Rows = field(default_factory=dict)
    """The running means of squared gradients."""
    steps: Rows = field(default_factory=dict)
    """The number of updates of each row, shape (1,); a row's means begin with its first gradient."""

    def direction(self, context: Context, grad: np.ndarray) -> np.ndarray:
        """Adam's direction for one row, in place of its gradient."""
        steps = self.steps.get(context, np.zeros(1)) + 1
        first = 0.9 * self.first.get(context, np.zeros_like(grad)) + 0.1 * grad
        second = 0.999 * self.second.get(context, np.zeros_like(grad)) + 0.001 * grad**2
        self.steps[context], self.first[context], self.second[context] = steps, first, second
        return first / (1 - 0.9**steps) / (np.sqrt(second / (1 - 0.999**steps)) + 1e-8)


@dataclass(slots=True)
class Tables:
    """One policy's tables and the state of their optimiser."""

    table: LogitTable
    trained: bool
    initial: Rows = field(default_factory=dict)
    """The rows of the table that the run began with: none, or those of a `from`."""
    version: int = 0
    values: Rows = field(default_factory=dict)
    """The value of each context, shape (1,); a new context has 0."""
    kept: dict[int, LogitTable] = field(default_factory=dict)
    """Earlier tables by version, for steps that were pinned to them."""
    moments: Moments = field(default_factory=Moments)
    value_moments: Moments = field(default_factory=Moments)

    def value(self, context: Context) -> np.ndarray:
        """The value of a context, shape (1,)."""
        return self.values.get(context, np.zeros(1))

    def tables(self) -> dict[str, Rows]:
        """All tables of a checkpoint, by name."""
        return {
            "logits": self.table.rows,
            **({"initial": self.initial} if self.initial else {}),
            "values": self.values,
            **{name: getattr(self.moments, name) for name in MOMENTS},
            **{f"value_{name}": getattr(self.value_moments, name) for name in MOMENTS},
        }


def read_state(folder: Path) -> dict[str, Any]:
    """The versions of each policy, of a state in a folder.

    Raises:
        RunFolderError: it can't be read.
    """
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError) as error:
        what, why = f"the trainer's state in {folder} can't be read", f"{type(error).__name__}: {error}"
        raise RunFolderError(what, why=why) from error
    return state


class TablesApart:
    """The part of a trainer of tables that divides its state (`discovery.members.TrainsApart`)."""

    def same_start(self, policies: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Each policy for itself: tables have no initial weights in common."""
        return {name: (name,) for name in policies}

    def part_of_state(self, folder: Path, policies: Collection[str]) -> dict[str, Path | bytes]:
        """The files of some policies' tables.

        Raises:
            RunFolderError: the state can't be read.
        """
        state = {name: saved for name, saved in read_state(Path(folder)).items() if name in policies}
        versions = [(name, version) for name in state for version in (None, *state[name].get("kept", ()))]
        files = [rows_file(Path(folder), name, version) for name, version in versions]
        return {"state.json": json.dumps(state, indent=1).encode()} | {file.name: file for file in files}

    def join_states(self, parts: Sequence[Path], folder: Path, alike: Mapping[str, Sequence[str]]) -> None:
        """Make of the states of some policies each the state of all; moves the files."""
        joined = {name: saved for part in parts for name, saved in read_state(part).items()}
        state = {name: joined[name] for members in alike.values() for name in members}
        (Path(folder) / "state.json").write_text(json.dumps(state, indent=1))
        for file in [file for part in parts for file in part.glob("*.npz")]:
            os.replace(file, Path(folder) / file.name)
