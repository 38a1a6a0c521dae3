"""Progress on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

import click

from coterie.cli.output import duration, share

QUIET_SECONDS = 1.0
"""Plain lines come at most this often, but for the first, the last and those with an evaluation."""


class Progress(Protocol):
    """Called after each step (or task); a context manager round the work."""

    def __call__(self, done: int, total: int, metrics: Mapping[str, Any] | None = None) -> None: ...

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress(unit: str = "step") -> Progress:
    """What fits stderr. `unit` is what is counted."""
    return Live(unit) if sys.stderr.isatty() else Lines(unit)


class Clock:
    """Seconds left, from the pace of the last steps."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=32)
        self._marks.append((time.monotonic(), 0))

    def left(self, done: int, total: int) -> float | None:
        """None while nothing is known, as after the first call of a resumed run."""
        now = time.monotonic()
        if len(self._marks) == 1 and done > 1 and self._marks[0][1] == 0:
            self._marks.clear()  # resumed: those steps were not done in this time
        self._marks.append((now, done))
        since, before = self._marks[0]
        return (now - since) / (done - before) * (total - done) if done > before else None


def facts(metrics: Mapping[str, Any], left: float | None) -> list[tuple[str, str]]:
    """What a line says of a step, as (label, value)."""
    found = []
    for label, key, show in (
        ("success", "success", share),
        ("best-of-K", "success_committed", share),
        ("val", "eval/success", share),
        ("tokens/s", "time/tokens_per_second", lambda value: f"{value:,.0f}"),
    ):
        if metrics.get(key) is not None:
            found.append((label, show(metrics[key])))
    if left is not None:
        found.append(("left", duration(left)))
    return found


class Lines:
    """`step 12/60  success .41  tokens/s 8,400  left 1m20s`"""

    def __init__(self, unit: str) -> None:
        self._unit, self._clock = unit, Clock()
        self._last = -QUIET_SECONDS

    def __call__(self, done: int, total: int, metrics: Mapping[str, Any] | None = None) -> None:
        metrics = metrics or {}
        left = self._clock.left(done, total)
        now = time.monotonic()
        if now - self._last < QUIET_SECONDS and done < total and "eval/success" not in metrics:
            return
        self._last = now
        words = [
            f"{self._unit} {done:,}/{total:,}",
            *(f"{label} {value}" for label, value in facts(metrics, left)),
        ]
        click.echo("  ".join(words), err=True)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Live:
    """A rich bar. What is printed meanwhile, warnings too, scrolls by above it."""

    def __init__(self, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress as Rich, TextColumn

        self._clock = Clock()
        self._rich = Rich(
            TextColumn(unit),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            console=Console(stderr=True),
            expand=True,
        )
        self._task = self._rich.add_task(unit, total=None, facts="starting")

    def __call__(self, done: int, total: int, metrics: Mapping[str, Any] | None = None) -> None:
        words = facts(metrics or {}, self._clock.left(done, total))
        text = "  ".join(f"[dim]{label}[/dim] {value}" for label, value in words)
        self._rich.update(self._task, completed=done, total=total, facts=text)

    def __enter__(self) -> Live:
        self._rich.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rich.__exit__(kind, error, trace)
