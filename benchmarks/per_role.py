"""The first steps of a policy per role with engine `hf` and with `vllm`, over several seeds.

    make scale-venv
    python benchmarks/per_role.py [--seeds 1 2 3 4 5 6 7 8] [--keep FOLDER]     # with the Python of that venv

With a policy per role the quickstart is unsteady while its learning rate is at its peak: entropy jumps, and a
seed may not recover. The two engines draw different tokens, so their runs of one seed part at the first
rollout; compared are how often that happens, and how far the runs have come. Results go to
results/per_role.json; folders of runs that are kept are read instead of trained again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "per_role.json"
STEPS = 25
ENGINES = ("hf", "vllm")
ROLES = ("planner", "executor")
LAST = 5
"""Steps at the end whose mean success is shown."""
HIGH = 2.5
"""Entropy in nats that counts as a jump; in the first step it is 1.4 to 1.5."""
LOW = 0.03
"""Success under which nothing was learnt; in the first step it is about .02 to .04."""


def run(engine: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train in a folder, unless it has a run; the mean success of the last steps and the highest entropy.

    Raises:
        RuntimeError: the command failed; its last lines are the message.
    """
    if not (folder / "metrics.jsonl").exists():
        words = [f"seed={seed}", f"engine.type={engine}", f"schedule.steps={STEPS}", "schedule.tokens=null"]
        command = [sys.executable, "-m", "coterie", "run", "quickstart", *words, "--with", "per_role"]
        done = subprocess.run([*command, "--out", str(folder)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    entropies = [row.get(f"policy/{role}/entropy", math.nan) for row in rows for role in ROLES]
    return {
        "engine": engine,
        "seed": seed,
        "success": statistics.fmean(row["score/team/goal"] for row in rows[-LAST:]),
        "entropy_peak": max(value for value in entropies if not math.isnan(value)),
        "updates_skipped": sum(map(math.isnan, entropies)),  # all groups of the role had one reward
        "mismatch_max": max(
            value for row in rows for key, value in row.items() if key.endswith("/mismatch_max")
        ),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown, a row an engine."""
    lines = [
        f"| engine | seeds | success at steps {STEPS - LAST + 1}-{STEPS}: median | each seed "
        f"| entropy above {HIGH} | success under {LOW} | largest mismatch |",
        "|---|---|---|---|---|---|---|",
    ]
    for engine in ENGINES:
        mine = [row for row in rows if row["engine"] == engine]
        success = [row["success"] for row in mine]
        jumps = sum(row["entropy_peak"] > HIGH for row in mine)
        unlearnt = sum(value < LOW for value in success)
        lines.append(
            f"| {engine} | {len(mine)} | {statistics.median(success):.3f} | "
            f"{' '.join(f'{value:.3f}' for value in success)} | "
            f"{jumps} | {unlearnt} | {max(row['mismatch_max'] for row in mine):.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--keep", type=Path, help="folder of the runs; without it they are removed")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        rows = [
            run(engine, seed, folder / f"{engine}-torch-{seed}")
            for engine in ENGINES
            for seed in options.seeds
        ]
    about = {"steps": STEPS, "cpus": os.cpu_count(), "threads": 1}
    options.json.write_text(json.dumps({**about, "runs": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
