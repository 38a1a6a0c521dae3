"""Quality against staleness: the quickstart's game with N steps ahead, over seeds.

    python benchmarks/staleness.py [--seeds 10] [--steps 60] [--ahead 0 1 2 4] [--corrected 1 4]

Each run is `coterie run quickstart` with `schedule.max_staleness=N`, pinned: each token is N updates old, the
worst case. Some have `loss.correction` too. Runs end before the game is learned, so that a slower start
shows. All runs of a seed begin with the same weights and meet the same tasks, so differences to N = 0 are
taken seed by seed; 95 % intervals are over seeds (`coterie.clustered_bootstrap`).

Pinned runs are functions of their seed: speed and load of the machine change nothing. Runs that the results
file has are kept, so that the command goes on where it was stopped.

Print a table, and write results/staleness.json. With another `--out`, exit with 1 where a variant's mean
difference is below the interval of the committed results: something made steps ahead worse.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from measuring import machine
from rich.console import Console
from rich.table import Table

from coterie.stats import Interval, clustered_bootstrap

RESULTS = Path(__file__).resolve().parent / "results" / "staleness.json"
CORRECTION = "loss.correction={cap: 2}"
Variant = tuple[int, bool]
"""Steps ahead, and whether the loss corrects."""


def coterie(folder: Path, *settings: str) -> list[dict[str, Any]]:
    """Run the quickstart's recipe in a process of its own; the rows of its metrics."""
    subprocess.run(
        [sys.executable, "-m", "coterie", "run", "quickstart", "--out", str(folder), *settings],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    metrics = folder / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def run(
    variant: Variant, folder: Path, base: Path, seed: int, steps: int, tasks: int, every: int
) -> dict[str, Any]:
    """Train once from warm-started weights; success on the validation tasks at the end, and means of rows."""
    ahead, corrected = variant
    rows = coterie(
        folder,
        f"seed={seed}",
        f"policies.shared.from={base}@latest",
        f"schedule.steps={steps}",
        f"schedule.max_staleness={ahead}",
        f"schedule.evaluate_every={every}",
        f"schedule.evaluate_tasks={tasks}",
        "schedule.checkpoint_every=0",
        "schedule.record_every=0",
        "deterministic=true",
        *([CORRECTION] if corrected else []),
    )
    assert len(rows) == steps
    stale = [row.get("policy/shared/staleness/mean", 0.0) for row in rows[ahead:]]
    weights = [row[key] for row in rows for key in row if key.endswith("/correction")]
    return {
        "ahead": ahead,
        "corrected": corrected,
        "seed": seed,
        "success": rows[-1]["eval/success"],
        "curve": {
            str(step): row["eval/success"] for step, row in enumerate(rows, 1) if "eval/success" in row
        },
        "staleness": sum(stale) / len(stale),
        "correction": sum(weights) / len(weights) if weights else None,
    }


def compared(runs: list[dict[str, Any]], variants: list[Variant], seeds: list[int]) -> list[dict[str, Any]]:
    """By variant: mean success and its difference to N = 0, over the seeds that have both."""
    found = {(each["ahead"], each["corrected"], each["seed"]): each for each in runs}
    rows = []
    for ahead, corrected in variants:
        both = [seed for seed in seeds if (ahead, corrected, seed) in found and (0, False, seed) in found]
        if not both:
            continue
        success = {seed: found[ahead, corrected, seed]["success"] for seed in both}
        differences = {str(seed): [success[seed] - found[0, False, seed]["success"]] for seed in both}
        rows.append(
            {
                "ahead": ahead,
                "corrected": corrected,
                "seeds": len(both),
                "success": told(clustered_bootstrap({str(seed): [success[seed]] for seed in both})),
                "difference": told(clustered_bootstrap(differences, share=False)) if ahead else None,
            }
        )
    return rows


def told(interval: Interval) -> dict[str, float]:
    """A mean and the bounds of its interval."""
    return {"mean": interval.mean, "low": interval.lo, "high": interval.hi}


def table(rows: list[dict[str, Any]], steps: int, tasks: int) -> Table:
    """What was found, a row a variant."""
    shown = Table(title=f"success on {tasks} tasks after {steps} steps; 95 % intervals over seeds")
    for name in ("N", "correction", "seeds", "success", "difference to N = 0"):
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(
            str(row["ahead"]),
            "cap 2" if row["corrected"] else "",
            str(row["seeds"]),
            shown_as(row["success"]),
            shown_as(row["difference"], "+") if row["difference"] else "",
        )
    return shown


def save(out: Path, settings: dict[str, int], runs: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    """Write the results so far."""
    result = {
        "command": " ".join(["python", "benchmarks/staleness.py", *sys.argv[1:]]),
        "machine": machine(),
        "settings": settings,
        "rows": rows,
        "runs": runs,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def worse(rows: list[dict[str, Any]], committed: list[dict[str, Any]]) -> list[str]:
    """The variants whose mean difference is below the committed interval; they are printed."""
    before = {(row["ahead"], row["corrected"]): row["difference"] for row in committed}
    found = []
    for row in rows:
        known = before.get((row["ahead"], row["corrected"]))
        if known and row["difference"]["mean"] < known["low"]:
            found.append(f"N = {row['ahead']}: {shown_as(row['difference'])}, before {shown_as(known)}")
    print("".join(f"worse: {line}\n" for line in found), end="")
    return found


def shown_as(told: dict[str, float], sign: str = "") -> str:
    """A mean and its interval, as text."""
    mean, low, high = (f"{told[name]:{sign}.3f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--every", type=int, help="steps between evaluations; default: all")
    parser.add_argument("--ahead", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--corrected", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    variants = [*((n, False) for n in options.ahead), *((n, True) for n in options.corrected)]
    seeds = list(range(options.seeds))
    settings = {"steps": options.steps, "tasks": options.tasks, "every": options.every or options.steps}
    before = json.loads(options.out.read_text()) if options.out.exists() else {}
    runs = before["runs"] if before.get("settings") == settings else []
    for seed in seeds:
        done = {(each["ahead"], each["corrected"]) for each in runs if each["seed"] == seed}
        left = [variant for variant in variants if variant not in done]
        if not left:
            continue
        with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.processes) as pool:
            base = Path(name) / "base"
            coterie(base, f"seed={seed}", "schedule.steps=0")  # warm-started weights, once a seed
            folders = [Path(name) / f"run-{number}" for number in range(len(left))]
            for found in pool.map(partial(run, base=base, seed=seed, **settings), left, folders):
                runs.append(found)
                save(options.out, settings, runs, compared(runs, variants, seeds))
    rows = compared(runs, variants, seeds)
    Console(width=100).print(table(rows, options.steps, options.tasks))
    sys.exit(1 if options.out != RESULTS and worse(rows, json.loads(RESULTS.read_text())["rows"]) else 0)


if __name__ == "__main__":
    main()
