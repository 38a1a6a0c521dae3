"""Curves of metrics as a picture: a panel a metric, a line a configuration, a band its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.api.figures import COLOURS, GREY, check_format, new_figure, plain, require_matplotlib, save
from coterie.core.errors import UserError
from coterie.viewing.metric_names import described
from coterie.viewing.series import By, Configuration, Curve, Floats, configurations, curve

if TYPE_CHECKING:
    from coterie.viewing.series import RunRows

MOST = 24
"""Panels of one figure."""
FEW = 30
"""Points up to which each is marked."""
STYLES = ("-", "--", ":", "-.")


def check_plot(path: Path) -> None:
    """Refuse a plot that can't be drawn, before runs are read.

    Raises:
        UserError: the file's name ends in no format of a picture, or matplotlib is missing.
    """
    check_format(path)
    require_matplotlib("a plot")


def draw(
    path: Path, runs: Sequence[RunRows], metrics: Sequence[str], *, by: By = "step", smooth: int = 1
) -> list[Configuration]:
    """Draw metrics of runs, those of one configuration together; returns the configurations.

    Args:
        smooth: steps of the moving average; 1: none. The picture says so.

    Raises:
        UserError: there are more metrics than a picture can show.
        WriteError: the file can't be written.
    """
    check_plot(path)
    if len(metrics) > MOST:
        why = f"a picture has at most {MOST} panels, and the names match {len(metrics)} metrics"
        fix = "name fewer, such as " + ", ".join(metrics[:3])
        raise UserError("that is too much for one picture", why=why, fix=fix)
    groups = configurations(runs)
    columns = 1 if len(metrics) == 1 else 2 if len(metrics) <= 4 else 3
    height = math.ceil(len(metrics) / columns)
    figure = new_figure(7.2 if columns == 1 else 9.6, 0.7 + (3.4 if height == 1 else 2.4 * height))
    panels = figure.subplots(height, columns, squeeze=False, sharex=True).ravel()
    over_tasks = partial = False
    for axes, metric in zip(panels, metrics, strict=False):
        curves = [curve(group.runs, metric, by, smooth) for group in groups]
        over_tasks = over_tasks or any(shown.interval == "over tasks" for shown in curves)
        partial = partial or any(shown.partial.any() for shown in curves)
        draw_panel(axes, metric, curves, by)
    for axes in panels[len(metrics) :]:
        axes.set_visible(False)
        panels[max(0, len(metrics) - columns)].tick_params(labelbottom=True)
    for axes in panels[max(0, len(metrics) - columns) : len(metrics)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("step" if by == "step" else "generated tokens", color=GREY)
    _legend(figure, panels[0], groups, _notes(groups, over_tasks, partial, smooth))
    save(figure, path)
    return groups


def draw_panel(axes: Any, metric: str, curves: Sequence[Curve], by: By) -> None:
    """Draw the curves of a metric, with their intervals and a legend, on a figure's axes."""
    known = described(metric)
    for number, shown in enumerate(curves):
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        marker = "o" if len(shown.x) <= FEW else ""
        axes.plot(shown.x, shown.values, style, color=colour, linewidth=1.6, marker=marker, markersize=3.5)
        if not marker:  # a value between two gaps is no line
            alone = _alone(shown.values)
            axes.plot(shown.x[alone], shown.values[alone], ".", color=colour, markersize=3.5)
        few = shown.partial
        axes.scatter(shown.x[few], shown.values[few], 20, "white", edgecolors=colour, linewidths=1, zorder=3)
        axes.fill_between(shown.x, shown.low, shown.high, color=colour, alpha=0.15, linewidth=0)
        alone = _alone(shown.low)  # an interval between two gaps is no band
        axes.vlines(
            shown.x[alone], shown.low[alone], shown.high[alone], color=colour, alpha=0.6, linewidth=1.4
        )
    _limits(axes, metric, np.concatenate([shown.values for shown in curves]))
    axes.set_title(metric, loc="left", fontsize=10 if len(metric) < 26 else 8.5, fontweight="bold")
    axes.set_ylabel("" if known.plugins else known.unit, color=GREY, fontsize=9)
    if by == "tokens":
        axes.xaxis.set_major_formatter(_tokens)
    plain(axes)


def _limits(axes: Any, metric: str, values: Floats) -> None:
    """The values that a panel shows. Differences that are rounding alone don't fill it."""
    there = values[~np.isnan(values)]
    if not len(there):
        axes.annotate("no value", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
        axes.set_yticks([])
        return
    flat = float(np.ptp(there)) <= 1e-6 * max(float(np.abs(there).max()), 1e-6)
    if metric.rpartition("/")[2] in ("success", "success_committed") or (
        flat and described(metric).unit == "share"
    ):
        axes.set_ylim(-0.02, 1.02)
    elif flat:
        middle = float(there.mean())
        axes.set_ylim(middle - max(abs(middle), 1.0) / 2, middle + max(abs(middle), 1.0) / 2)
    axes.ticklabel_format(axis="y", useOffset=False)


def _alone(values: Floats) -> np.ndarray:
    there = np.concatenate(([False], ~np.isnan(values), [False]))
    return there[1:-1] & ~there[:-2] & ~there[2:]


def _tokens(value: float, _: Any = None) -> str:
    """`1.5M` of 1,500,000."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _notes(groups: Sequence[Configuration], over_tasks: bool, partial: bool, smooth: int) -> str:
    """What lines and bands are, where that is not the plain value of a run."""
    notes = []
    if any(len(group.runs) > 1 for group in groups):
        notes.append("mean and 95 % interval over seeds")
    if partial:
        notes.append("open points: of fewer seeds, the others have no value there")
    if over_tasks:
        notes.append("of a single run: 95 % interval over tasks")
    if smooth > 1:
        notes.append(f"moving average of {smooth} steps")
    notes += [
        f"{copy.path.name} left out: seed {copy.seed} twice" for group in groups for copy, _ in group.copies
    ]
    return "; ".join(notes)


def _legend(figure: Any, axes: Any, groups: Sequence[Configuration], notes: str) -> None:
    """What each line is, above the panels, and what bands are, below."""
    lines = [line for line in axes.get_lines() if line.get_marker() != "."][: len(groups)]
    labels = [f"{group.label}{_seeds(group)}" for group in groups]
    longest = max(map(len, labels))
    columns = max(1, min(len(groups), int(figure.get_figwidth() * 12 / (longest + 5))))
    figure.legend(lines, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=9)
    if notes:
        figure.supxlabel(notes, fontsize=8, color=GREY, x=0.01, ha="left")


def _seeds(group: Configuration) -> str:
    if len(group.runs) == 1:
        return f" (seed {group.runs[0].seed})" if group.differs else ""
    return f" ({len(group.runs)} seeds)"
