"""RAE: role-conditioned advantage estimation (SPIRAL, arXiv 2506.24119)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from coterie.core.protocols import Batch
from coterie.core.types import Credit
from coterie.plugins.algos.blocks.estimator import GroupEstimator, SumConfig
from coterie.plugins.algos.blocks.groups import GROUPINGS, Normaliser, credit_groups, grouped, no_baseline
from coterie.plugins.algos.blocks.returns import RETURNS, Row, token_counts


class RAE(GroupEstimator):
    """A = R - b[role], with a running mean b of each role's returns; it needs no siblings.

    A prompt that is played once has no group, and one baseline over all roles would reward the role with the
    easier part. So every role has its own baseline, b <- decay * b + (1 - decay) * mean R, which starts at 0
    and is kept in the checkpoint. The advantage uses the b from *before* the step (the paper's pseudocode
    updates it first), since a baseline that contains the action's own return would be biased. When it
    degenerates: with decay 1 it is REINFORCE; where the difficulty of tasks varies much, a role's mean says
    little about one task.
    """

    class Config(SumConfig):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(type="none"))
        decay: float = Field(0.95, ge=0, le=1, description="Decay of the running mean, per step.")

    group = "role"
    returns = "episode"
    baseline = "none"

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]:
        """Credit, and the running means {role: b}."""
        baseline: Mapping[str, float] = state or {}
        rows = list(RETURNS[self.returns](batch, self.horizon))
        centred = [
            Row(
                row.role, None if row.value is None else row.value - baseline.get(row.role, 0.0), row.branches
            )
            for row in rows
        ]
        credit = credit_groups(
            grouped(centred, GROUPINGS[self.group]),
            no_baseline,
            self.config.normalise,
            drop_zero_variance=self.config.zero_variance == "drop",
            tokens=token_counts(batch.trees),
        )
        updated, decay = dict(baseline), self.config.decay
        for role in sorted({row.role for row in rows}):
            values = [row.value for row in rows if row.role == role and row.value is not None]
            if values:
                updated[role] = decay * baseline.get(role, 0.0) + (1 - decay) * float(np.mean(values))
            credit.metrics[f"baseline/{role}"] = baseline.get(role, 0.0)
        returns = {key: value + baseline.get(key.role, 0.0) for key, value in credit.returns.items()}
        return replace(credit, returns=returns), updated
