"""What a training step plays, as the parts of the loop hand it on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.core.protocols import Batch, Rollout
from coterie.core.training.metrics_writer import MetricsWriter
from coterie.core.types import Credit, Tree

Progress = Callable[[int, int, Mapping[str, Any]], None]
"""Called after each step with the steps done, the steps expected (`End.expected`) and the step's metrics."""

Recorder = Callable[[int, Batch, Any, Credit, MetricsWriter], None]
"""Takes every step's rollouts: (step, the estimator's batch, its state before the step, credit, trackers)."""

Watch = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
"""Reads a step's metrics before they are stored; returns what it adds to them."""


@dataclass(frozen=True, slots=True)
class StepRollouts:
    """The rollouts of one step, and the time that its parts took."""

    rollouts: Sequence[Rollout]
    ended: Sequence[float]
    """Seconds from the step's handing out to each tree, in the order in which they were played."""
    handed_out: int
    """`time.time_ns` when its jobs were."""
    started: float = 0.0
    """`time.perf_counter` when the step began."""
    laps: dict[str, float] = field(default_factory=dict)
    """Seconds by part of the step."""

    @property
    def trees(self) -> list[Tree]:
        return [rollout.tree for rollout in self.rollouts]

    @property
    def long_tail(self) -> float:
        """The share of the play in which only the slowest tenth of the trees (at least one) still played."""
        most = [0.0, *self.ended][-1 - max(1, len(self.ended) // 10)]
        return 1.0 - most / max(self.ended[-1], 1e-9)

    @property
    def counted(self) -> Counter[str]:
        """What plugins counted in the episodes (`ctx.count`), once all scores are known."""
        counted: Counter[str] = Counter()
        for rollout in self.rollouts:
            counted.update(rollout.scored.result().metrics)
        return counted

    def lap(self, part: str) -> None:
        """Ascribe the time since the last lap to a part of the step."""
        since = time.perf_counter() - self.started - sum(self.laps.values())
        self.laps[part] = self.laps.get(part, 0.0) + since
