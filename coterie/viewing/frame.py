"""What `coterie watch` shows of runs: plain data laid out for a terminal of some width.

Only names and numbers come from the run folder; they are made harmless and carry no markup.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coterie.api.signals import RULES
from coterie.viewing.follow import FollowedRun, State
from coterie.viewing.metric_names import described, firsts, parts_of
from coterie.viewing.series import short_names
from coterie.viewing.text import one_line as shown

LEAST = 60
"""Columns for which frames are laid out at least."""
PHASES = ("rollouts", "credit", "update", "sync", "record")
RECENT = 10
"""Latest steps that say the pace, and over which times are summed."""
STYLES: dict[State, str] = {
    "waiting": "yellow", "training": "green", "slow": "yellow", "finished": "green", "stopped": "red",
    "unseen": "yellow",
}  # fmt: skip
OF_ROLES = (
    ("reward", "reward/{}"),
    ("length", "length/{}"),
    ("empty", "empty/{}"),
    ("faults", "faults/{}/policy"),
    ("equal", "groups/{}/zero_variance"),
    ("missing", "groups/{}/missing_rows"),
)
"""Column -> metric of a role. `equal`: groups with equal rewards."""


@dataclass(frozen=True, slots=True)
class Look:
    """The terminal that a frame is for."""

    width: int
    ascii: bool = False
    """It can't show blocks."""


def number(value: float | None) -> str:
    """A number in at most 8 characters up to a million; `-` where there is none."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return str(value)
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.1e}"


def duration(seconds: float) -> str:
    """`0.05s`, `8s`, `1m20s`, `2h05m`, `3d04h`."""
    if 0 < seconds < 2:
        return f"{seconds:.2g}s"
    whole = max(0, round(seconds))
    for unit, part, letters in ((86400, 3600, "dh"), (3600, 60, "hm"), (60, 1, "ms")):
        if whole >= unit:
            return f"{whole // unit}{letters[0]}{whole % unit // part:02d}{letters[1]}"
    return f"{whole}s"


def state_text(run: FollowedRun, now: float) -> str:
    """What the run does now, in words."""
    ago, process = duration(now - run.since(now)), f" (process {run.pid})" if run.pid else ""
    resume = f"; go on with: coterie run --resume {shown(run.path)}"
    if run.state == "waiting":
        return "waiting for the run to begin"
    if run.state == "training":
        return f"training{process}" if run.step else f"starting{process}, no step yet after {ago}"
    if run.state == "slow":
        usually = f"usually {duration(run.typical)}; the process lives{process}"
        return f"step {run.step + 1} goes on for {ago}, {usually}"
    if run.state == "finished":
        return "finished"
    if run.state == "unseen":
        return f"no process of this machine trains it; last sign {ago} ago"
    end = run.end
    if end.steps is None and end.tokens is None:
        return f"ended {ago} ago; the folder doesn't say how many steps its epochs are"
    return f"stopped {ago} ago: no process trains it{resume}"


def place_text(run: FollowedRun) -> str:
    """`step 12/60`."""
    steps = run.steps
    return f"step {run.step:,}/{'?' if steps is None else f'{steps:,}'}"


def facts(run: FollowedRun, now: float) -> list[tuple[str, str]]:
    """The entries of a run's head, as (label, value)."""
    left, pairs = run.left(now), []
    rate, seconds = recent(run, "time/tokens_per_second"), recent(run, "time/step")
    if rate:
        pairs.append(("tokens/s", number(rate)))
    if seconds is not None:
        pairs.append(("a step", duration(seconds)))
    if run.tokens:
        pairs.append(("tokens", f"{run.tokens:,}"))
    if left is not None:
        pairs.append(("left", duration(left)))
    return pairs


def recent(run: FollowedRun, name: str) -> float | None:
    """The median of a metric over the latest steps; None: none of them has it."""
    values = run.metrics.latest(name, RECENT)
    return statistics.median(values) if values else None


def line(run: FollowedRun, now: float) -> str:
    """A run in one line, for terminals that can't be drawn on."""
    last = run.metrics.last
    parts = [shown(run.path.name), place_text(run)]
    for label, name in (("success", "success"), ("best-of-K", "success_committed"), ("val", "eval/success")):
        if last.get(name) is not None:
            parts.append(f"{label} {number(last[name])}")
    parts += [f"{label} {value}" for label, value in facts(run, now) if label != "tokens"]
    notes = warnings(run)
    return "  ".join([*parts, state_text(run, now), *(f"warning: {note}" for note in notes[:1])])


def warnings(run: FollowedRun) -> list[str]:
    """What is wrong, by the newest row."""
    last, notes = run.metrics.last, []
    rules = {rule.name: rule for rule in RULES}
    for name in last:
        if name.startswith("signal/"):
            _, rule, *subject = name.split("/", 2)
            says = rules[rule].says if rule in rules else "no signal"
            notes.append(f"{shown(rule)}{f' ({shown(subject[0])})' if subject else ''}: {says}")
    for name, text in (
        ("missing/share", "{:.0%} of the scores are missing"),
        ("episodes/missing", "{:.0%} of the episodes have no outcome"),
        ("faults/system", "{:.0f} actions were lost"),
        ("episodes/overflow", "{:.0f} episodes outgrew the context"),
    ):
        if (last.get(name) or 0) > 0:
            notes.append(text.format(last[name]))
    for name, value in last.items():
        pattern = described(name).pattern
        if pattern == "empty/<role>" and (value or 0) > 0.1:
            notes.append(f"{value:.0%} of what {shown(parts_of(name)['role'])} writes is empty")
        if pattern == "policy/<policy>/skipped_steps" and (value or 0) > 0:
            notes.append(f"{value:.0f} optimiser steps of {shown(parts_of(name)['policy'])} were skipped")
    if run.metrics.damaged:
        notes.append(f"metrics.jsonl has {run.metrics.damaged} damaged lines")
    return notes


def frame(runs: Sequence[FollowedRun], look: Look, now: float) -> RenderableType:
    """One run in full, or several in one table."""
    return _whole(runs[0], look, now) if len(runs) == 1 else _together(runs, look, now)


def _whole(run: FollowedRun, look: Look, now: float) -> RenderableType:
    title = Text(shown(run.path), style="bold")
    head = Text("  ".join([place_text(run), *(f"{label} {value}" for label, value in facts(run, now))]))
    parts: list[RenderableType] = [title, Text(state_text(run, now), style=STYLES[run.state])]
    if run.step:
        parts += [head, *(Text(f"! {note}", style="yellow") for note in warnings(run)), Text("")]
        parts += [_evaluation(run), _curves(run, look), Text(""), _roles(run), Text(""), *_times(run)]
    return Group(*parts)


def _evaluation(run: FollowedRun) -> RenderableType:
    """The last evaluation, with its interval, and the best."""
    column = run.metrics.columns.get("eval/success")
    places = np.flatnonzero(
        ~np.isnan(np.asarray(column if column is not None else (), dtype=np.float64))
    ).tolist()
    if column is None or not places:
        return Text("no evaluation yet", style="dim")
    at = places[-1]
    best = max(places, key=lambda place: column[place])
    bounds = run.metrics.evaluated.get("eval/success_ci95")
    interval = f" [{number(bounds[0])}, {number(bounds[1])}]" if bounds else ""
    return Text(
        f"val {number(column[at])}{interval} at step {run.metrics.steps[at]:,}; "
        f"best {number(column[best])} at step {run.metrics.steps[best]:,}"
    )


def _curves(run: FollowedRun, look: Look) -> Table:
    """The metrics that come first, as curves over the whole run."""
    names = [  # the table of roles has the others
        name
        for name in firsts(run.metrics.columns)
        if "role" not in parts_of(name) or name.startswith("reward/")
    ]
    grid = _grid()
    longest = max((len(name) for name in names), default=0)
    label = min(longest, max(look.width - 42, 18))
    width = max(10, min(60, look.width - label - 28))
    for name in names:
        column = run.metrics.columns[name]
        there = present(column)
        success = name.rpartition("/")[2].startswith("success")
        bounds = {"low": 0.0, "high": 1.0} if success else {}
        values = there if name.startswith("eval/") else column
        drawn = sparkline(values, width, ascii=look.ascii, **bounds)
        newest = number(there[-1]) if len(there) else "-"
        since = Text(f"from {number(there[0])}" if len(there) > 1 else "", style="dim")
        grid.add_row(_name(name, label), Text(drawn, style="cyan"), Text(newest, style="bold"), since)
    return _unwrapped(grid)


def _name(name: str, width: int) -> Any:
    text = shown(name)
    return Text(text if len(text) <= width else f"..{text[len(text) - width + 2 :]}")


def _roles(run: FollowedRun) -> Table:
    """What each role did in the newest step."""
    last = run.metrics.last
    roles = [parts_of(name)["role"] for name in last if described(name).pattern == "reward/<role>"]
    grid = _grid()
    grid.add_row(*(Text(word, style="dim") for word in ("role", *(title for title, _ in OF_ROLES))))
    for role in roles:
        cells = (number(last.get(pattern.format(role))) for _, pattern in OF_ROLES)
        grid.add_row(Text(shown(role, 18)), *(Text(cell) for cell in cells))
    return _unwrapped(grid)


def _times(run: FollowedRun) -> list[RenderableType]:
    """What the latest steps spent their time on."""
    sums = {name: math.fsum(run.metrics.latest(f"time/{name}", RECENT)) for name in (*PHASES, "evaluate")}
    total = math.fsum(sums.values())
    if total <= 0:
        return []
    parts = [
        f"{name} {value / total:.0%}"
        for name, value in sorted(sums.items(), key=lambda each: -each[1])
        if value
    ]
    lines = [f"time of the last {min(RECENT, len(run.metrics.steps))} steps: {', '.join(parts)}"]
    tails = run.metrics.latest("time/long_tail", RECENT)
    if tails:
        share = math.fsum(tails) / len(tails)
        lines.append(f"long tail: {share:.0%} of the play has only its slowest tenth of trees")
    waited, steps = run.metrics.latest("time/engine_waited", RECENT), run.metrics.latest("time/step", RECENT)
    if waited and math.fsum(steps):
        lines.append(f"the engine waited {math.fsum(waited) / math.fsum(steps):.0%} of it")
    return [Text(text) for text in lines]


def _together(runs: Sequence[FollowedRun], look: Look, now: float) -> RenderableType:
    wide = look.width >= 90
    titles = ["run", "state", "step", "", "val", *(["success", "tok/s"] if wide else []), "left"]
    grid = _grid()
    grid.add_row(*(Text(title, style="dim") for title in titles))
    names = [shown(name) for name in short_names([run.path for run in runs])]
    room = max(12, min(32, look.width - 58)) if wide else 14
    notes: list[RenderableType] = []
    for run, name in zip(runs, names, strict=True):
        last, left = run.metrics.last, run.left(now)
        steps = "?" if run.steps is None else f"{run.steps:,}"
        evaluated = present(run.metrics.columns.get("eval/success", ()))
        success = last.get("success", last.get("success_committed"))
        columns, names_of_success = run.metrics.columns, ("success", "success_committed")
        trained: Sequence[float] = next((columns[each] for each in names_of_success if each in columns), ())
        curve = evaluated if len(evaluated) else trained
        cells = [
            _name(name, room),
            Text(run.state, style=STYLES[run.state]),
            Text(f"{run.step:,}/{steps}"),
            Text(sparkline(curve, 24 if wide else 8, low=0.0, high=1.0, ascii=look.ascii), style="cyan"),
            Text(number(evaluated[-1]) if len(evaluated) else "-", style="bold"),
        ]
        if wide:
            cells += [Text(number(success)), Text(number(recent(run, "time/tokens_per_second")))]
        grid.add_row(*cells, Text("-" if left is None else duration(left)))
        several = [*warnings(run)] if run.state != "slow" else [state_text(run, now), *warnings(run)]
        notes += [Text(f"! {name}: {note}", style="yellow") for note in several[:1]]
    return Group(_unwrapped(grid), *notes)


def present(values: Sequence[float]) -> Sequence[float]:
    """The values that are numbers."""
    array = np.asarray(values, dtype=np.float64)
    there: Sequence[float] = array[~np.isnan(array)]  # type: ignore[assignment]
    return there


def _grid() -> Table:
    return Table.grid(padding=(0, 2, 0, 0))


def _unwrapped(grid: Table) -> Table:
    """A table whose lines are cut where the terminal ends."""
    for column in grid.columns:
        column.no_wrap, column.overflow = True, "crop"
    return grid


BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-~=*#"


def sparkline(
    values: Sequence[float],
    width: int,
    *,
    low: float | None = None,
    high: float | None = None,
    ascii: bool = False,
) -> str:
    """Values as characters of rising height, at most `width` of them, the latest last.

    A longer sequence is shown whole: each character is the mean of as many neighbours. A gap (NaN) is a
    space. Equal values are drawn at the bottom.

    Args:
        low, high: the values of the lowest and the highest character; None: those of the means drawn.
    """
    means = buckets(values, width)
    there = [mean for mean in means if not math.isnan(mean)]
    if not there:
        return " " * len(means)
    low, high = min(there) if low is None else low, max(there) if high is None else high
    levels = ASCII if ascii else BLOCKS
    return "".join(
        " " if math.isnan(mean) else levels[_level(mean, low, high, len(levels))] for mean in means
    )


def _level(value: float, low: float, high: float, levels: int) -> int:
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return 0
    return min(max(int((value - low) / (high - low) * levels), 0), levels - 1)


def buckets(values: Sequence[float], width: int) -> list[float]:
    """At most `width` means of neighbouring values, those that are NaN left out."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) <= width:
        return array.tolist()
    edges = np.round(np.arange(width) * len(array) / width).astype(int)
    there = ~np.isnan(array)
    counts = np.add.reduceat(there, edges, dtype=np.float64)
    sums = np.add.reduceat(np.where(there, array, 0.0), edges)
    return [
        total / count if count else math.nan
        for total, count in zip(sums.tolist(), counts.tolist(), strict=True)
    ]
