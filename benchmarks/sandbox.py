"""Judged runs a second in the sandbox `local`, and the protections that were active.

    python benchmarks/sandbox.py

A judged run is a candidate and its tests, each in a cell of its own: the tests call the candidate over a
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
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--runs", type=int, default=300, help="judged runs of a turn")
    made.add_argument("--turns", type=int, default=5)
    made.add_argument("--workers", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    made.add_argument("--results", type=Path, default=HERE / "results")
    args = made.parse_args()
    rows = [asyncio.run(measure(workers, args.runs, args.turns)) for workers in args.workers]
    show(rows)
    args.results.mkdir(parents=True, exist_ok=True)
    told = {"cpus": os.cpu_count(), "load_before": os.getloadavg()[0], "rows": rows}
    (args.results / "sandbox.json").write_text(json.dumps(told, indent=1) + "\n")


async def measure(workers: int, runs: int, turns: int) -> dict[str, Any]:
    """Medians over the turns; all runs of a turn are asked for at once."""
    sandbox = LocalSandbox(LocalSandbox.Config(workers=workers))
    await sandbox.open()
    try:
        report = sandbox.report()
        judged = await turn(sandbox, runs, turns, judge)
        plain = await turn(sandbox, runs, turns, run)
        memory = sum(resident(pid) for pid in tree(os.getpid()) if pid != os.getpid())
    finally:
        await sandbox.close()
    return {
        "workers": workers,
        "judged_per_second": statistics.median(judged),
        "judged_by_turn": judged,
        "runs_per_second": statistics.median(plain),
        "idle_workers_mb": round(memory / 2**20, 1),
        "active": [one.name for one in report if one.active],
        "missing": [one.name for one in report if not one.active],
    }


async def turn(sandbox: LocalSandbox, runs: int, turns: int, one: Any) -> list[float]:
    await asyncio.gather(*(one(sandbox) for _ in range(20)))
    found = []
    for _ in range(turns):
        begin = time.perf_counter()
        await asyncio.gather(*(one(sandbox) for _ in range(runs)))
        found.append(round(runs / (time.perf_counter() - begin), 1))
    return found


async def judge(sandbox: LocalSandbox) -> None:
    verdict = await sandbox.judge(Judged(candidate=CANDIDATE, tests=TESTS, calls=("largest",)))
    assert verdict.ok, verdict


async def run(sandbox: LocalSandbox) -> None:
    assert (await sandbox.run(Program(code="print(1)"))).ok


def tree(root: int) -> list[int]:
    """A process and all below it."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found


def resident(pid: int) -> int:
    """Bytes that are this process's own (shared pages counted in part)."""
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
