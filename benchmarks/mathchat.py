"""Success of the MathChat team before and after training with the coach, on 1,000 unseen tasks, by seed.

    python benchmarks/mathchat.py [--seeds 0 1 2]

Train `mathchat_coach --scale cpu`, one seed after the other, on one thread. Success is the verifier's word,
sampled and greedy. Print a Markdown table, and write results/mathchat.json. Exit with 1 where a seed's
success rises by less than 15 points, where its intervals before and after overlap, or where training takes
more than 5 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECIPE = ("mathchat_coach", "--scale", "cpu")
TASKS = 1000
"""Unseen tasks of an evaluation."""
RISE, SECONDS = 0.15, 300.0
"""The rise of success that training must reach, and the time that it may take."""


def run(seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed: success before and after with intervals, seconds of training, the coach's report."""
    before = success([*RECIPE, f"seed={seed}"])
    begin = time.perf_counter()
    coterie("run", *RECIPE, f"seed={seed}", "--out", str(folder))
    seconds = time.perf_counter() - begin
    return {
        "seed": seed,
        "before": before,
        "after": success([str(folder)]),
        "seconds": round(seconds, 1),
        "coach": json.loads(coterie("coach", str(folder), "--json")),
    }


def success(source: list[str]) -> dict[str, Any]:
    """{"sampled": {"mean", "ci95", ...}, "greedy": the same} on the tasks of test."""
    measured = {}
    for way, options in (("sampled", []), ("greedy", ["--greedy"])):
        words = ["eval", *source, "--split", "test", "--tasks", str(TASKS), "--json", *options]
        measured[way] = json.loads(coterie(*words))["success"]
    return measured


def coterie(*words: str) -> str:
    """What the command prints to stdout.

    Raises:
        RuntimeError: it failed; its last lines are the message.
    """
    done = subprocess.run([sys.executable, "-m", "coterie", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"coterie {' '.join(words)}: {done.stderr[-2000:]}")
    return done.stdout


def passed(row: dict[str, Any]) -> bool:
    """Whether sampled success rose enough, with disjoint intervals, in time."""
    before, after = row["before"]["sampled"], row["after"]["sampled"]
    disjoint = before["ci95"][1] < after["ci95"][0]
    return bool(after["mean"] - before["mean"] >= RISE and disjoint and row["seconds"] <= SECONDS)


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| seed | success before | after | greedy before | after | seconds | as required |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            f"{interval['mean']:.3f} [{interval['ci95'][0]:.3f}, {interval['ci95'][1]:.3f}]"
            for way in ("sampled", "greedy")
            for interval in (row["before"][way], row["after"][way])
        ]
        verdict = "yes" if passed(row) else "no"
        lines.append(f"| {row['seed']} | {' | '.join(cells)} | {row['seconds']:.0f} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, default=HERE / "results" / "mathchat.json")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(run(seed, Path(folder) / "run"))
        print(f"seed {seed}: {rows[-1]['seconds']:.0f} s", file=sys.stderr, flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps(
            {
                "command": " ".join(["python", "benchmarks/mathchat.py", *sys.argv[1:]]),
                "recipe": " ".join(RECIPE),
                "tasks": TASKS,
                "threads": 1,
                "cpus": os.cpu_count(),
                "python": platform.python_version(),
                "seeds": rows,
            },
            indent=1,
        )
        + "\n"
    )
    print(table(rows))
    sys.exit(0 if all(map(passed, rows)) else 1)


if __name__ == "__main__":
    main()
