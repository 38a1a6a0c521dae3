"""RAE: role-conditioned advantage estimation (SPIRAL, arXiv 2506.24119)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from coterie.core.types import Key
from coterie.plugins.algos.blocks.rows import Advantage, RowConfig, RowEstimator, Rows


class RAE(RowEstimator):
    """A = R - b[role], with a running mean b of each role's returns; it needs no siblings.

    A prompt that is played once has no group, and one baseline over all roles would reward the role with the
    easier part. So every role has its own baseline, b <- decay * b + (1 - decay) * mean R, which starts at 0
    and is kept in the checkpoint. The advantage uses the b from *before* the step (the paper's pseudocode
    updates it first), since a baseline that contains the action's own return would be biased. When it
    degenerates: with decay 1 it is REINFORCE; where the difficulty of tasks varies much, a role's mean says
    little about one task.
    """

    class Config(RowConfig):
        decay: float = Field(0.95, ge=0, le=1, description="Decay of the running mean, per step.")

    group = "role"
    returns = "episode"
    paper_loss = "reinforce"

    def advantages(self, rows: Rows) -> list[float]:
        """R - b[role] for each row."""
        return [row.value - self.b(rows, row.role) for row in rows]

    def next_state(self, rows: Rows) -> dict[str, float]:
        """The running means {role: b}, with the step's."""
        updated, decay = dict(rows.state or {}), self.config.decay
        for role in sorted({row.role for row in rows}):
            mean = float(np.mean([row.value for row in rows if row.role == role]))
            updated[role] = decay * self.b(rows, role) + (1 - decay) * mean
        return updated

    def metrics(self, rows: Rows, values: Sequence[Advantage]) -> Mapping[str, float]:
        """The means that were subtracted, by role."""
        return {f"baseline/{role}": self.b(rows, role) for role in sorted({row.role for row in rows.all})}

    def shown(self, rows: Rows, unscaled: Mapping[Key, Any]) -> dict[Key, float]:
        """The returns, as A + b."""
        # Not the rows' values: these differ by rounding, and rollout files stay the same bit for bit.
        return {key: value + self.b(rows, key.role) for key, value in unscaled.items()}

    @staticmethod
    def b(rows: Rows, role: str) -> float:
        """The role's running mean before the step."""
        return float((rows.state or {}).get(role, 0.0))
