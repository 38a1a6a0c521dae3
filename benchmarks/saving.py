"""What saving and evaluating cost where the schedule says `auto`: at most 2 % and 10 % of a run's time.

    python benchmarks/saving.py [--saves 5] [--steps 50]

A save is timed as a run makes it: files, flush to the disk, checksums, rename, removal of the oldest. There
is one every 5 minutes, so its share of a run's time is its seconds over 300. The models: the quickstart's,
and one of a few hundred MB, each with both moments of AdamW. Then the quickstart is trained with `auto`
evaluations of its usual 200 tasks, and their share of its time is taken. Print a table, and write
results/saving.json. Exit with 1 where a share is too large. On another disk the saves take another time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from measuring import Clocks, machine

import coterie
from coterie.api.rows import read_metrics
from coterie.core.storage.checkpoint import CheckpointWriter
from coterie.core.training.schedule import MOST_LOST

RESULTS = Path(__file__).resolve().parent / "results" / "saving.json"
MOST = {"save": 0.02, "evaluation": 0.1}
"""Of a run's time. Evaluations have a twentieth of the actions, but play every turn where training's best of
several actions ends an episode."""
LARGE = (
    "{init: qwen3, hidden_size: 768, layers: 10, heads: 12, head_dim: 64, mlp_size: 2304, context: 64, "
    "tokenizer: words}"
)
MODELS = {"the quickstart's": [], "a large one": [f"policies.shared.model={LARGE}"]}
"""By name: overrides of the quickstart."""
SHORT = [
    "policies.shared.warm_start=null",
    "schedule.tasks_per_step=1",
    "schedule.record_every=0",
    "schedule.evaluate_every=0",
    "schedule.checkpoint_every=1",
    "sampler.branches=2",
    "algorithm.zero_variance=keep",  # else a group of equal rewards makes no step, and no moments
]


def saves(name: str, count: int, folder: Path) -> dict[str, Any]:
    """Train a model for some steps with a save after each; seconds of each save and its bytes."""
    clocks, seconds = Clocks(save=0.0), list[float]()
    original = CheckpointWriter.save
    timed = clocks.clocked("save", original)

    def save(*arguments: Any) -> Any:
        before = clocks["save"]
        saved = timed(*arguments)
        seconds.append(clocks["save"] - before)
        return saved

    CheckpointWriter.save = save  # type: ignore[method-assign]
    try:
        overrides = [*SHORT, *MODELS[name], f"schedule.steps={count}"]
        coterie.train("quickstart", overrides=overrides, out=folder / "run")
    finally:
        CheckpointWriter.save = original  # type: ignore[method-assign]
    newest = folder / "run" / "checkpoints" / f"step-{count:06d}"
    assert all(row["policy/shared/optimizer_steps"] for row in read_metrics(folder / "run" / "metrics.jsonl"))
    of_steps = seconds[1:]  # the one before training has no moments
    return {
        "model": name,
        "megabytes": sum(path.stat().st_size for path in newest.rglob("*") if path.is_file()) / 1e6,
        "seconds": of_steps,
        "median_seconds": statistics.median(of_steps),
        "share": statistics.median(of_steps) / MOST_LOST,
    }


def evaluations(steps: int, folder: Path) -> dict[str, Any]:
    """Train the quickstart with evaluations as often as `auto` says; their share of its time."""
    overrides = [f"schedule.steps={steps}", "schedule.evaluate_every=auto", "schedule.checkpoint_every=auto"]
    coterie.train("quickstart", overrides=overrides, out=folder / "run")
    rows = read_metrics(folder / "run" / "metrics.jsonl")
    spent = sum(row.get("time/evaluate", 0.0) for row in rows)
    whole = spent + sum(row["time/step"] for row in rows)
    every = next(row["step"] for row in rows if "time/evaluate" in row)
    return {"steps": steps, "every": every, "seconds": spent, "share": spent / whole}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    load, rows = os.getloadavg()[0], list[dict[str, Any]]()
    for name in MODELS:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(saves(name, options.saves, Path(scratch)))
    with tempfile.TemporaryDirectory() as scratch:
        evaluated = evaluations(options.steps, Path(scratch))
    print("| model | checkpoint, MB | a save, s | of 5 minutes |\n|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['model']} | {row['megabytes']:.0f} | {row['median_seconds']:.2f} | {row['share']:.2%} |"
        )
    print(f"\nevaluations every {evaluated['every']} steps take {evaluated['share']:.1%} of the time")
    facts = {
        "command": " ".join(["python", "benchmarks/saving.py", *sys.argv[1:]]),
        "machine": {**machine(), "load_before": round(load, 2)},
        "saves": rows,
        "evaluations": evaluated,
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    met = all(row["share"] <= MOST["save"] for row in rows) and evaluated["share"] <= MOST["evaluation"]
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
