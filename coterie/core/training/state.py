"""What changes while a run trains, and how a checkpoint keeps it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CurriculumState:
    """The progress through a curriculum."""

    level: int = 0
    """Index of the present level."""
    episodes: int = 0
    """Episodes played to their end on the present level."""
    latest: deque[float] = field(default_factory=deque)
    """Success of the latest episodes, at most the curriculum's `window`."""

    @property
    def rate(self) -> float:
        """Mean success of the latest episodes; NaN before the first."""
        return math.fsum(self.latest) / len(self.latest) if self.latest else math.nan

    def as_meta(self) -> dict[str, Any]:
        return {"level": self.level, "episodes": self.episodes, "latest": list(self.latest)}


@dataclass(frozen=True, slots=True)
class Pin:
    """What a step is played with, settled when its jobs may be handed out."""

    versions: Mapping[str, int]
    """By policy; empty where the newest weights play, whichever they are."""
    level: int | None
    """Of the curriculum."""


@dataclass(slots=True)
class RunState:
    """All that changes in a run besides the weights."""

    step: int = 0
    """Training steps completed."""
    tokens: int = 0
    """Tokens generated in these steps, by all roles on all branches."""
    seconds: float = 0.0
    """Seconds of training, over all processes that worked on the run."""
    best: float = -math.inf
    """Best success on `val`; the test split is never evaluated in a run."""
    best_step: int | None = None
    """The step of the best success."""
    credit_state: Any = None
    """The estimator's state: JSON."""
    curriculum: CurriculumState | None = None
    """None where the run has no curriculum."""
    pins: dict[int, Pin] = field(default_factory=dict)
    """By step: those in play. A checkpoint keeps them, and a resume plays their jobs again."""
    optimizer_steps: dict[str, list[float]] = field(default_factory=dict)
    """By policy: those of its latest updates, the newest first, as many updates as a token may be old."""

    def as_meta(self) -> dict[str, Any]:
        """The state as JSON, for a checkpoint's meta, whose own `step` is this one's."""
        return {
            "credit_state": self.credit_state,
            "best": None if math.isinf(self.best) else self.best,
            "best_step": self.best_step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "curriculum": None if self.curriculum is None else self.curriculum.as_meta(),
            **({"in_play": {step: asdict(pin) for step, pin in self.pins.items()}} if self.pins else {}),
            **({"optimizer_steps": self.optimizer_steps} if any(self.optimizer_steps.values()) else {}),
        }

    def restore(self, step: int, meta: Mapping[str, Any]) -> None:
        """Become the state of a checkpoint."""
        self.step, self.tokens = step, int(meta["tokens"])
        self.seconds = float(meta["seconds"])
        self.best = -math.inf if meta["best"] is None else meta["best"]
        self.best_step = meta["best_step"]
        self.credit_state = meta["credit_state"]
        kept = meta["curriculum"]
        if kept is not None:
            self.curriculum = CurriculumState(
                int(kept["level"]), int(kept["episodes"]), deque(kept["latest"])
            )
        self.pins = {int(step): Pin(**pin) for step, pin in meta.get("in_play", {}).items()}
        self.optimizer_steps = dict(meta.get("optimizer_steps", {}))
