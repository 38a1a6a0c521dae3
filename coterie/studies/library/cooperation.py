"""Turns to success over training, and the correlation of the roles' rewards.

The study asks whether roles that are trained together learn to need fewer turns, and whether their rewards
rise together. It follows the training curves of AT-GRPO (arXiv 2510.11062) and reads the run with a policy
per role.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie import ConfigError, read_metrics
from coterie.studies.columns import Column
from coterie.studies.study import Analysis, Method, Study

WINDOW = 9
"""Steps over which curves are smoothed (centred; shorter at the ends)."""


def methods(column: Column) -> Sequence[Method]:
    """The team before training and after it."""
    return (
        Method(id="team", title="Team, untrained", variant="per_role"),
        Method(id="per_role", title="Trained together", variant="per_role", trained=True),
    )


def needs(config: Mapping[str, Any], variant: str) -> None:
    """Check that the run evaluates during training.

    Raises:
        ConfigError: the run would never evaluate, so there would be no curve of turns.
    """
    if not config["schedule"]["evaluate_every"]:
        raise ConfigError(
            f"the variant '{variant}' never evaluates on val",
            path="schedule.evaluate_every",
            why="turns to success are read from these evaluations",
            fix="add schedule.evaluate_every=N to the variant's or the scale's overrides",
        )


def read(run: Path) -> dict[str, Any]:
    """The curves of one run, and the correlation of the roles' rewards over training.

    Returns:
        steps, tokens (generated so far), rewards {role: value a step or None};
        val {steps, tokens, turns, success};
        correlations [{roles, raw, smoothed, steps, window}]; claims.
    """
    rows = read_metrics(run / "metrics.jsonl")
    tokens = [_number(row.get("tokens/total")) or 0.0 for row in rows]
    roles = sorted(
        {name.removeprefix("reward/") for row in rows for name in row if name.startswith("reward/")}
    )
    rewards = {role: [_number(row.get(f"reward/{role}")) for row in rows] for role in roles}
    val = [(row, spent) for row, spent in zip(rows, tokens, strict=True) if "eval/success" in row]
    turns = [_number(row.get("eval/turns_to_success")) for row, _ in val]
    return {
        "steps": [row["step"] for row in rows],
        "tokens": tokens,
        "rewards": rewards,
        "val": {
            "steps": [row["step"] for row, _ in val],
            "tokens": [spent for _, spent in val],
            "turns": turns,
            "success": [_number(row.get("eval/success")) for row, _ in val],
        },
        "correlations": [correlation(a, b, rewards) for a, b in itertools.combinations(roles, 2)],
        "claims": [fewer_turns(turns)],
    }


def correlation(role: str, other: str, rewards: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    """Pearson's r between two roles' mean rewards over the steps in which both have one."""
    pairs = [
        (a, b) for a, b in zip(rewards[role], rewards[other], strict=True) if a is not None and b is not None
    ]
    a, b = [a for a, _ in pairs], [b for _, b in pairs]
    return {
        "roles": [role, other],
        "raw": pearson(a, b),
        "smoothed": pearson(smooth(a), smooth(b)),
        "steps": len(pairs),
        "window": WINDOW,
    }


def fewer_turns(turns: Sequence[float | None]) -> dict[str, Any]:
    """Whether the last third of the evaluations needs fewer turns than the first."""
    known = [value for value in turns if value is not None]
    third = max(1, len(known) // 3)
    statement = "turns to success fall during training (first against last third of the evaluations on val)"
    if len(known) < 2:
        return {"statement": statement, "holds": None, "told": "too few evaluations", "numbers": {}}
    first, last = sum(known[:third]) / third, sum(known[-third:]) / third
    return {
        "statement": statement,
        "holds": last < first,
        "told": f"{first:.2f} → {last:.2f}",
        "numbers": {"first": first, "last": last},
    }


def smooth(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """The centred moving mean; at the ends, the mean of the values within the window."""
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [math.fsum(part) / len(part) for part in parts]


def pearson(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's r; None: one of the two is constant, or there are fewer than 3 pairs."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def markdown(seeds: Mapping[int, Mapping[str, Any]]) -> str:
    """The correlations as a table."""
    lines = ["| seed | roles | r, raw | r, smoothed | steps |", "|---|---|---|---|---|"]
    for seed, curves in seeds.items():
        for pair in curves["correlations"]:
            raw, smoothed = (_text(pair[name]) for name in ("raw", "smoothed"))
            lines.append(f"| {seed} | {' and '.join(pair['roles'])} | {raw} | {smoothed} | {pair['steps']} |")
    note = f"Pearson's r between the roles' mean rewards over training steps; smoothed over {WINDOW} steps."
    return "\n".join([note, "", *lines])


def draw(axes: Any, seeds: Mapping[int, Mapping[str, Any]], title: str) -> None:
    """Turns to success (solid, left) and the roles' smoothed rewards (dotted, right) against tokens."""
    right = axes.twinx()
    for index, (seed, curves) in enumerate(seeds.items()):
        val = curves["val"]
        points = [(x, y) for x, y in zip(val["tokens"], val["turns"], strict=True) if y is not None]
        label = f"turns, seed {seed}"
        axes.plot(
            [x / 1000 for x, _ in points], [y for _, y in points], color=f"C{index}", marker="o", label=label
        )
        for style, (role, values) in zip(itertools.cycle((":", "--", "-.")), curves["rewards"].items()):
            known = [(x, y) for x, y in zip(curves["tokens"], values, strict=True) if y is not None]
            curve = smooth([y for _, y in known])
            right.plot([x / 1000 for x, _ in known], curve, color=f"C{index}", linestyle=style, alpha=0.6,
                       label=f"reward, {role}" if index == 0 else None)  # fmt: skip
    axes.set(title=title, xlabel="generated tokens (thousands)", ylabel="turns to success (val)")
    right.set_ylabel("training reward (smoothed)")
    if seeds:
        axes.legend(frameon=False, fontsize=8, loc="upper right")
        right.legend(frameon=False, fontsize=8, loc="lower right")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


COOPERATION = Study(
    summary="Turns to success over training, and how the roles' rewards rise together.",
    methods=methods,
    analysis=Analysis(method="per_role", read=read, markdown=markdown, draw=draw, needs=needs),
)
