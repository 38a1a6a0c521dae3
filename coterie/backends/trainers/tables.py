"""The tables of one policy of the trainer `tabular`: logits, values, and the state of their optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np

from coterie.backends.models.table import Context, Table

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

    table: Table
    trained: bool
    initial: Rows = field(default_factory=dict)
    """The rows of the table that the run began with: none, or those of a `from`."""
    version: int = 0
    values: Rows = field(default_factory=dict)
    """The value of each context, shape (1,); a new context has 0."""
    kept: dict[int, Table] = field(default_factory=dict)
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
