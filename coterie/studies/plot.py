"""The table as a plot: a bar per method, a point per seed, and the paper's figures as hollow markers."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie import MissingExtra, write_atomic
from coterie.studies.graph import StudyPlan

BLUE, ORANGE, GREY, LINES = "#2563a8", "#d9822b", "#5c6670", "#e3e6ea"


def draw(path: Path, table: Mapping[str, Any], plan: StudyPlan) -> Path:
    """Draw one panel per column: success by method, or the curves of the study's analysis.

    Raises:
        MissingExtra: matplotlib is not installed.
        WriteError: the file can't be written.
    """
    try:
        from matplotlib.figure import Figure  # pyplot would choose a window system, and keep the figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "torch", needed_by="the plot") from error
    columns = table["columns"]
    figure = Figure(figsize=(max(6.4, 4.6 * len(columns)), 4.8), layout="constrained")
    panels = figure.subplots(1, len(columns), squeeze=False)[0]
    analysis = plan.study.analysis
    for axes, column in zip(panels, columns.values(), strict=True):
        if analysis is not None and analysis.draw is not None:
            curves = {int(seed): values for seed, values in column["analysis"].items()}
            analysis.draw(axes, curves, column["title"])
        else:
            _bars(axes, column)
        axes.spines["top"].set_visible(False)
        axes.grid(axis="y", color=LINES, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=GREY)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    write_atomic(path, picture.getvalue())
    return path


def _bars(axes: Any, column: Mapping[str, Any]) -> None:
    rows = column["rows"]
    for x, row in enumerate(rows):
        success = row["success"]
        if success is None:
            axes.annotate("failed", (x, 2), ha="center", color=GREY, fontsize=8, rotation=90)
        else:
            mean = 100 * success["mean"]
            low, high = (mean if bound is None else 100 * bound for bound in success["ci95"])
            axes.bar(x, mean, width=0.65, color=BLUE, alpha=0.75, yerr=[[mean - low], [high - mean]],
                     error_kw={"capsize": 3, "ecolor": GREY})  # fmt: skip
        points = [100 * seed["success"]["mean"] for seed in row["seeds"] if seed["success"] is not None]
        spread = [x + 0.12 * (i - (len(points) - 1) / 2) for i in range(len(points))]
        axes.plot(spread, points, "o", color=ORANGE, markersize=4, label=_once(axes, "each seed"))
        if row["paper"] is not None:
            axes.plot(x, row["paper"], "D", markerfacecolor="none", markeredgecolor=GREY, markersize=8,
                      label=_once(axes, "paper"))  # fmt: skip
    axes.set_xticks(range(len(rows)), [row["title"] for row in rows], rotation=30, ha="right", fontsize=8)
    axes.set_ylim(-2, 102)
    axes.set_ylabel("success, %")
    axes.set_title(column["title"], loc="left", fontsize=11, fontweight="bold")
    axes.legend(frameon=False, fontsize=8)


def _once(axes: Any, label: str) -> str | None:
    """The label, or None if the legend has it already."""
    return None if label in axes.get_legend_handles_labels()[1] else label
