"""Judged runs per second in the sandbox `local`, and the protections that were active.

    python benchmarks/sandbox.py

A judged run executes a candidate and its tests, each in its own cell. The tests call the candidate over a
pipe.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Judged, Program

CANDIDATE = "def largest(numbers):\n    return max(numbers)\n"
TESTS = """
assert largest([1, 3, 2]) == 3
assert largest([-1]) == -1
for n in range(5):
    assert largest([*range(n + 1)]) == n
"""
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="judged runs per turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    rows = [asyncio.run(measure(workers, args.runs, args.turns)) for workers in args.workers]
    show(rows)
    args.results.mkdir(parents=True, exist_ok=True)
    result = {"cpus": os.cpu_count(), "load_before": os.getloadavg()[0], "rows": rows}
    (args.results / "sandbox.json").write_text(json.dumps(result, indent=1) + "\n")


async def measure(workers: int, runs: int, turns: int) -> dict[str, Any]:
    """Medians over the turns; all runs of a turn are requested at once."""
    sandbox = LocalSandbox(LocalSandbox.Config(workers=workers))
    await sandbox.open()
    try:
        report = sandbox.report()
        judged = await rates(sandbox, runs, turns, judge)
        plain = await rates(sandbox, runs, turns, run)
        memory = sum(resident(pid) for pid in tree(os.getpid()) if pid != os.getpid())
    finally:
        await sandbox.close()
    return {
        "workers": workers,
        "judged_per_second": statistics.median(judged),
        "judged_by_turn": judged,
        "runs_per_second": statistics.median(plain),
        "idle_workers_mb": round(memory / 2**20, 1),
        "active": [protection.name for protection in report if protection.active],
        "missing": [protection.name for protection in report if not protection.active],
    }


async def rates(sandbox: LocalSandbox, runs: int, turns: int, request: Any) -> list[float]:
    """Requests per second of each turn, after 20 requests of warm-up."""
    await asyncio.gather(*(request(sandbox) for _ in range(20)))
    per_second = []
    for _ in range(turns):
        begin = time.perf_counter()
        await asyncio.gather(*(request(sandbox) for _ in range(runs)))
        per_second.append(round(runs / (time.perf_counter() - begin), 1))
    return per_second


async def judge(sandbox: LocalSandbox) -> None:
    verdict = await sandbox.judge(Judged(candidate=CANDIDATE, tests=TESTS, calls=("largest",)))
    assert verdict.ok, verdict


async def run(sandbox: LocalSandbox) -> None:
    assert (await sandbox.run(Program(code="print(1)"))).ok


def tree(root: int) -> list[int]:
    """The ids of a process and all its descendants."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    pids = [root]
    for pid in pids:
        pids.extend(child for child, parent in parents.items() if parent == pid)
    return pids


def resident(pid: int) -> int:
    """The proportional set size of a process in bytes (its share of shared pages counts)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("workers", "judged runs/s", "plain runs/s", "idle workers, MB")
    for row in rows:
        table.add_row(
            *(
                str(row[name])
                for name in ("workers", "judged_per_second", "runs_per_second", "idle_workers_mb")
            )
        )
    console = Console(width=110)
    console.print(table)
    console.print("active:", ", ".join(rows[0]["active"]))
    console.print("missing:", ", ".join(rows[0]["missing"]) or "none")


if __name__ == "__main__":
    main()
