"""Joint return of the coding game before and after MAGRPO on unseen problems, by seed; and two turns by mode.

    python benchmarks/code_game.py [--seeds 0 1 2]

Train `magrpo_code_game --scale cpu`, each on one thread, and measure the team's return (0 to 4) and its
success on 600 unseen problems, sampled, before and after. Then train two turns, with one policy for both
roles and smaller numbers, with the transition modes `plain` and `level_feedback`, and measure the same
after turn 2. Print Markdown tables, and write results/code_game.json. Exit with 1 where a seed's intervals
of the return before and after overlap.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import coterie
from coterie.stats import clustered_bootstrap

HERE = Path(__file__).resolve().parent
RECIPE = "magrpo_code_game"
TASKS = 600
"""Unseen problems of an evaluation."""
MODES = ("plain", "level_feedback")
TWO_TURNS = (
    "team.max_turns=2",
    "env.largest=12",  # fewer problems: the sandbox judges each program of the warm start once
    "policies.*.warm_start={demonstrations: oracle, noise: 0.05, steps: 250, batch: 128}",
    "schedule.steps=60",
    "schedule.tasks_per_step=8",
)


def measured(source: str | Path, **settings: Any) -> dict[str, Any]:
    """{"return": {"mean", "ci95", "n"}, "success": the same} on the problems of test."""
    found = coterie.evaluate(source, split="test", **{"tasks": TASKS, **settings})
    return {
        "return": clustered_bootstrap(found.returns, seed=0).as_dict(),
        "success": clustered_bootstrap(found.per_task, seed=0).as_dict(),
    }


def one_turn(seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed: what is measured before and after, and the seconds of training."""
    settings = {"scale": "cpu", "overrides": [f"seed={seed}"]}
    before = measured(RECIPE, **settings)
    begin = time.perf_counter()
    coterie.train(RECIPE, out=folder, **settings)
    seconds = round(time.perf_counter() - begin, 1)
    return {"seed": seed, "before": before, "after": measured(folder), "seconds": seconds}


def two_turns(seed: int, mode: str, folder: Path) -> dict[str, Any]:
    """Train one seed with two turns in a mode: what is measured after it."""
    overrides = [*TWO_TURNS, f"seed={seed}", f"transition={mode}"]
    begin = time.perf_counter()
    coterie.train(RECIPE, scale="cpu", overlays=["shared"], overrides=overrides, out=folder)
    seconds = round(time.perf_counter() - begin, 1)
    after = measured(folder, tasks=None, samples=4)
    return {"seed": seed, "mode": mode, "after": after, "seconds": seconds}


def row_of(asked: tuple[int, str | None]) -> dict[str, Any]:
    """The results of (seed, mode of two turns; None: one turn)."""
    seed, mode = asked
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        row = one_turn(seed, folder) if mode is None else two_turns(seed, mode, folder)
    print(f"seed {seed}, {mode or 'one turn'}: {row['seconds']:.0f} s", file=sys.stderr, flush=True)
    return row


def disjoint(row: dict[str, Any]) -> bool:
    """Whether the return rose, with disjoint intervals."""
    return bool(row["before"]["return"]["ci95"][1] < row["after"]["return"]["ci95"][0])


def shown(interval: dict[str, Any], digits: int) -> str:
    low, high = interval["ci95"]
    return f"{interval['mean']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def tables(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| seed | return before | after | success before | after | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for row in one:
        cells = [shown(row[when][key], 2 if key == "return" else 3)
                 for key in ("return", "success") for when in ("before", "after")]  # fmt: skip
        lines.append(f"| {row['seed']} | {' | '.join(cells)} | {row['seconds']:.0f} |")
    lines += ["", "| seed | mode | return after two turns | success | seconds |", "|---|---|---|---|---|"]
    for row in two:
        cells = [shown(row["after"]["return"], 2), shown(row["after"]["success"], 3)]
        lines.append(f"| {row['seed']} | {row['mode']} | {' | '.join(cells)} | {row['seconds']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "code_game.json")
    options = parser.parse_args()
    asked = [(seed, mode) for mode in (None, *MODES) for seed in options.seeds]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(row_of, asked))
    one = [row for row in rows if "before" in row]
    two = sorted((row for row in rows if "mode" in row), key=lambda row: row["seed"])
    options.json.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "command": " ".join(["python", "benchmarks/code_game.py", *sys.argv[1:]]),
        "recipe": f"{RECIPE} --scale cpu",
        "tasks": TASKS,
        "threads": 1,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "one_turn": one,
        "two_turns": two,
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    print(tables(one, two))
    sys.exit(0 if all(map(disjoint, one)) else 1)


if __name__ == "__main__":
    main()
