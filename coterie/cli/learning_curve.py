"""The learning curve of a run as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.api.figures import BLUE, ORANGE, new_figure, plain, require_matplotlib, save
from coterie.api.rows import tokens_so_far

Interval = Mapping[str, Any]
"""`{"mean", "ci95": [lo, hi], "n"}`"""

SMOOTH = 3
"""Steps on each side over which the drawn reward is averaged; the raw curve stays visible behind it."""


def draw(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    before: Mapping[str, Interval],
    after: Mapping[str, Interval],
    title: str,
) -> Path:
    """Draw success on val and training reward against generated tokens, with the test results at both ends.

    Args:
        rows: the rows of `metrics.jsonl`.
        before, after: {"success": interval, "success_greedy": interval} on test, before and after training.
    """
    require_matplotlib("the learning curve")
    tokens = [total / 1000 for total in tokens_so_far(rows)]
    figure = new_figure(7.2, 5.4)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    _success(top, rows, tokens, before, after)
    _reward(bottom, rows, tokens)
    top.set_title(title, loc="left", fontsize=11, fontweight="bold")
    bottom.set_xlabel("generated tokens (thousands)")
    for axes in (top, bottom):
        plain(axes)
    return save(figure, path)


def _success(
    axes: Any,
    rows: Sequence[Mapping[str, Any]],
    tokens: Sequence[float],
    before: Mapping[str, Interval],
    after: Mapping[str, Interval],
) -> None:
    """Draw success on val with its 95 % band, and the test intervals before and after training."""
    end = tokens[-1] if tokens else 0.0
    width = max(end, 1e-9)
    measured = [(x, row) for x, row in zip(tokens, rows, strict=True) if row.get("eval/success") is not None]
    xs = [x for x, _ in measured]
    axes.plot(
        xs,
        [row["eval/success"] for _, row in measured],
        color=BLUE,
        marker="o",
        markersize=4,
        label="val, sampled",
    )
    bounds = [row.get("eval/success_ci95") or [None, None] for _, row in measured]
    if bounds and all(None not in pair for pair in bounds):
        low, high = zip(*bounds, strict=True)
        axes.fill_between(xs, low, high, color=BLUE, alpha=0.15, linewidth=0)
    for key, label, shift, filled in (
        ("success", "test, sampled", -0.012, True),
        ("success_greedy", "test, greedy", 0.012, False),
    ):
        intervals = (before[key], after[key])
        means = [interval["mean"] for interval in intervals]
        axes.errorbar(
            [shift * width, end + shift * width],
            means,
            yerr=[
                [mean - interval["ci95"][0] for mean, interval in zip(means, intervals, strict=True)],
                [interval["ci95"][1] - mean for mean, interval in zip(means, intervals, strict=True)],
            ],
            fmt="s" if filled else "D",
            color=ORANGE,
            markerfacecolor=ORANGE if filled else "white",
            markersize=6,
            capsize=3,
            zorder=3,
            label=f"{label}: {means[0]:.2f} → {means[1]:.2f}",
        )
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("success")
    axes.legend(frameon=False, loc="lower right", fontsize=9)


def _reward(axes: Any, rows: Sequence[Mapping[str, Any]], tokens: Sequence[float]) -> None:
    """Draw the training reward, its mean over roles."""
    points = []
    for x, row in zip(tokens, rows, strict=True):
        rewards = [value for name, value in row.items() if name.startswith("reward/") and value is not None]
        if rewards:
            points.append((x, sum(rewards) / len(rewards)))
    if not points:
        return
    xs, values = zip(*points, strict=True)
    windows = [values[max(0, index - SMOOTH) : index + SMOOTH + 1] for index in range(len(values))]
    smooth = [sum(window) / len(window) for window in windows]
    axes.plot(xs, values, color=BLUE, alpha=0.25, linewidth=1)
    axes.plot(xs, smooth, color=BLUE, linewidth=1.8)
    axes.set_ylabel("training reward")
