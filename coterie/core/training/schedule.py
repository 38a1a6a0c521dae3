"""When a run ends: after its steps, its passes over the tasks, or its token budget; and when it saves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from coterie.core.config import ScheduleConfig
from coterie.core.errors import ConfigError

MOST_LOST = 300.0
"""Seconds of training that a kill may lose where `schedule.checkpoint_every` is `auto`, or a longer step."""


class Unsaved:
    """The time since the newest checkpoint, or since the process began to train."""

    def __init__(self) -> None:
        self.longest: dict[bool, float] = {}
        self.saved(time.perf_counter())

    def saved(self, began: float) -> None:
        """Start again from a checkpoint whose writing began at this time of `time.perf_counter`."""
        self.since = self.step_began = time.perf_counter()
        self.saving = self.since - began

    def due(self, evaluated: bool, evaluates: bool) -> bool:
        """Count the step that ends now; whether the next one, which may evaluate, might lose too much."""
        now = time.perf_counter()
        # The longest of its kind, less and less: one that hung once must not make every later step save.
        took = min(now - self.step_began, MOST_LOST)
        self.longest[evaluated] = max(took, 0.98 * self.longest.get(evaluated, 0.0))
        self.step_began = now
        coming = self.longest.get(evaluates, MOST_LOST)  # a first evaluation may take long
        return now - self.since + coming + self.saving > MOST_LOST


@dataclass(frozen=True, slots=True)
class End:
    """What ends a run: whichever comes first."""

    steps: int | None
    """None where only the budget ends it."""
    tokens: int | None
    """The budget: generated in training, by all roles on all branches."""

    def reached(self, done: int, tokens: int) -> bool:
        """Whether a run that made `done` steps of `tokens` tokens together is finished."""
        return (self.steps is not None and done >= self.steps) or (
            self.tokens is not None and tokens >= self.tokens
        )

    def expected(self, done: int, tokens: int) -> int:
        """The steps of the whole run; under a budget, those that it will have made at the present pace."""
        if self.reached(done, tokens):
            return done
        bounds = [self.steps] if self.steps is not None else []
        if self.tokens is not None and tokens:
            bounds.append(max(math.ceil(done * self.tokens / tokens), done + 1))
        return min(bounds, default=done + 1)

    def spent(self, tokens: int) -> float | None:
        """The share of the budget that `tokens` are; None without a budget."""
        return None if self.tokens is None else tokens / self.tokens

    def check(self, generated: int) -> None:
        """Refuse to go on for ever.

        Raises:
            ConfigError: a step generated no tokens, and nothing but a budget ends the run.
        """
        if generated == 0 and self.steps is None:
            what = "a step generated no tokens, so the token budget would never be spent"
            raise ConfigError(what, path="schedule.tokens", fix="set schedule.steps as well")


def end_of(schedule: ScheduleConfig, tasks: Callable[[], int]) -> End:
    """When a run ends.

    Args:
        tasks: number of train tasks; called where `epochs` is set.

    Raises:
        ConfigError: nothing ends it.
    """
    if schedule.epochs is not None:
        return End(math.ceil(tasks() * schedule.epochs / schedule.tasks_per_step), schedule.tokens)
    if schedule.steps is None and schedule.tokens is None:
        fix = "set schedule.steps, schedule.epochs or schedule.tokens"
        raise ConfigError("the schedule has no end", path="schedule.steps", fix=fix)
    return End(schedule.steps, schedule.tokens)
