"""Progress on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import click

from coterie.cli.output import duration, share
from coterie.viewing.text import harmless

QUIET_SECONDS = 1.0
"""Least time between two plain lines. The first line, the last and those with an evaluation always come."""

LONG_SECONDS = 30.0
"""Time without a plain line after which one says what the run's processes do."""


def progress(unit: str = "step") -> Live | Lines:
    """A live bar where stderr is a terminal, else plain lines: called after each step (or task).

    It is also a context manager around the work. `unit` is the name of what is counted.
    """
    return Live(unit) if sys.stderr.isatty() else Lines(unit)


class StepPace:
    """An estimate of the seconds left, from the pace of the last 32 calls.

    The time before the first call is no step's: models are loaded and weights warm-started then. The first
    call's pace is the step's own time, where its metrics have one.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=32)

    def left(self, done: int, total: int, step_seconds: float | None = None) -> float | None:
        """Seconds until `total` is reached; None without a known pace.

        Args:
            step_seconds: the time of the latest step.
        """
        now = time.monotonic()
        if not self._marks and step_seconds is not None:
            self._marks.append((now - step_seconds, done - 1))
        self._marks.append((now, done))
        start, done_before = self._marks[0]
        return (now - start) / (done - done_before) * (total - done) if done > done_before else None


def facts(metrics: Mapping[str, Any], left: float | None) -> list[tuple[str, str]]:
    """The entries of a line about a step, as (label, value)."""
    pairs = []
    for label, key, as_text in (
        ("success", "success", share),
        ("best-of-K", "success_committed", share),
        ("val", "eval/success", share),
        ("tokens/s", "time/tokens_per_second", lambda value: f"{value:,.0f}"),
    ):
        if metrics.get(key) is not None:
            pairs.append((label, as_text(metrics[key])))
    if "time/play" in metrics and metrics["time/step"]:  # steps ahead: how old the tokens are, and who waits
        ages = [value for name, value in metrics.items() if name.endswith("/staleness/max")]
        pairs.append(("lag", f"{max(ages, default=0):.0f}"))
        for label, key in (("trainer waits", "time/rollouts"), ("engine waits", "time/engine_waited")):
            pairs.append((label, share(min(metrics[key] / metrics["time/step"], 1.0))))
    if left is not None:
        pairs.append(("left", duration(left)))
    return pairs


def counted(processes: Mapping[str, int]) -> str:
    """What processes do: `3 nodes, 8 hosts, 120 in play, 40 queued`."""
    return ", ".join(
        f"{count:,} {name[:-1] if count == 1 and name.endswith('s') else name}"
        for name, count in processes.items()
    )


class Lines:
    """Plain lines such as `step 12/60  success .41  tokens/s 8,400  left 1m20s`.

    On a cluster a long step has lines of its own: `step 13/60 goes on: 3 nodes, 8 hosts, 120 in play`.
    """

    def __init__(self, unit: str) -> None:
        self._unit, self._clock = unit, StepPace()
        self._last = -QUIET_SECONDS
        self._shown = time.monotonic()
        """When the last line came, of whatever kind."""
        self._place = ""
        self._end = threading.Event()

    def __call__(self, done: int, total: int, metrics: Mapping[str, Any] | None = None) -> None:
        metrics = metrics or {}
        left = self._clock.left(done, total, metrics.get("time/step"))
        self._shown = now = time.monotonic()
        self._place = f"{min(done + 1, total):,}/{total:,} "
        if now - self._last < QUIET_SECONDS and done < total and "eval/success" not in metrics:
            return
        self._last = now
        parts = [
            f"{self._unit} {done:,}/{total:,}",
            *(f"{label} {value}" for label, value in facts(metrics, left)),
        ]
        click.echo("  ".join(parts), err=True)

    def say(self, text: str) -> None:
        """Print a line at once."""
        self._shown = time.monotonic()
        click.echo(harmless(text), err=True)

    def follow(self, processes: Callable[[], Mapping[str, int]]) -> None:
        """Print what processes do, whenever nothing was printed for a while."""
        threading.Thread(target=self._follow, args=(processes,), name="coterie-progress", daemon=True).start()

    def _follow(self, processes: Callable[[], Mapping[str, int]]) -> None:
        while not self._end.wait(max(self._shown + LONG_SECONDS - time.monotonic(), 0.05)):
            if time.monotonic() - self._shown >= LONG_SECONDS:
                if counts := processes():
                    which = f"{self._unit} {self._place}" if self._place else f"the first {self._unit} "
                    click.echo(f"{which}goes on: {counted(counts)}", err=True)
                self._shown = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()


class Live:
    """A rich bar at the bottom of the terminal; other output, warnings included, scrolls above it."""

    def __init__(self, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress as Rich, ProgressColumn, TextColumn
        from rich.text import Text

        live = self

        class Processes(ProgressColumn):
            """What processes of a cluster do now."""

            def render(self, task: Any) -> Text:
                return Text(live._counted(), style="dim")

        self._clock = StepPace()
        self._processes: Callable[[], Mapping[str, int]] = dict
        self._counts = float("-inf"), ""
        """When the processes were asked last, and what they did."""
        self._rich = Rich(
            TextColumn(unit),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            Processes(),
            console=Console(stderr=True),
            expand=True,
        )
        self._task = self._rich.add_task(unit, total=None, facts="starting")

    def __call__(self, done: int, total: int, metrics: Mapping[str, Any] | None = None) -> None:
        metrics = metrics or {}
        pairs = facts(metrics, self._clock.left(done, total, metrics.get("time/step")))
        text = "  ".join(f"[dim]{label}[/dim] {value}" for label, value in pairs)
        self._rich.update(self._task, completed=done, total=total, facts=text)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._rich.console.print(harmless(text), markup=False, highlight=False, soft_wrap=True)

    def follow(self, processes: Callable[[], Mapping[str, int]]) -> None:
        """Show what processes do beside the bar."""
        self._processes, self._counts = processes, (float("-inf"), "")

    def _counted(self) -> str:
        if time.monotonic() - self._counts[0] >= QUIET_SECONDS:  # the bar is drawn ten times a second
            self._counts = time.monotonic(), counted(self._processes())
        return self._counts[1]

    def __enter__(self) -> Live:
        self._rich.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._rich.__exit__(*error)
