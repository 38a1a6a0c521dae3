"""Judged runs per second in the sandbox `local`, what bounds them, and the protections that were active.

    python benchmarks/sandbox.py

A judged run executes a candidate and its tests, each in namespaces of its own. The tests call the candidate
over a socket. The CPU time of a judged run is that of this process, of the workers and of the programs
(`cells`); if its product with the rate is the number of CPUs, the CPUs bound the rate. For comparison the
script measures two interpreters that do nothing: each forks twice, in a new pid and mount namespace with a
tmpfs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
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
WARM_UP = 20
HERE = Path(__file__).parent
FLOOR = """\
import ctypes, gc, os, resource, sys
for name in sys.argv[2].split(): __import__(name)
libc = ctypes.PyDLL(None)
libc.unshare(0x10000000 | 0x20000 | 0x20000000)  # NEWUSER, NEWNS, NEWPID
libc.mount(b"none", b"/", None, ctypes.c_ulong((1 << 18) | 16384), None)
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
gc.collect()
gc.freeze()
here = os.pidfd_open(1)
for _ in range(int(sys.argv[1])):
    libc.unshare(0x20000000)
    cell = libc.fork()
    if cell == 0:
        libc.unshare(0x20000)
        libc.mount(b"box", b"/tmp", b"tmpfs", ctypes.c_ulong(6), b"size=32m")
        if libc.fork() == 0: libc._exit(0)
        libc.wait(None)
        libc._exit(0)
    libc.setns(here, 0x20000000)
    os.waitpid(cell, 0)
usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(u.ru_utime + u.ru_stime for u in usage))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="judged runs per turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rows = [asyncio.run(measure(workers, args.runs, args.turns)) for workers in args.workers]
    floor = two_empty_cells()
    show(rows, floor)
    args.results.mkdir(parents=True, exist_ok=True)
    result = {
        "cpus": os.cpu_count(),
        "load_before": load,
        "cpu_ms_of_two_empty_cells": floor,
        "rows": rows,
    }
    (args.results / "sandbox.json").write_text(json.dumps(result, indent=1) + "\n")


async def measure(workers: int, runs: int, turns: int) -> dict[str, Any]:
    """Medians over the turns; all runs of a turn are requested at once."""
    sandbox = LocalSandbox(LocalSandbox.Config(workers=workers))
    await sandbox.open()
    try:
        report = sandbox.report()
        before = cpu_times()
        judged = await rates(sandbox, runs, turns, judge)
        after = cpu_times()
        plain = await rates(sandbox, runs, turns, run)
        memory = sum(resident(pid) for pid in tree(os.getpid()) if pid != os.getpid())
    finally:
        await sandbox.close()
    return {
        "workers": workers,
        "judged_per_second": statistics.median(judged),
        "judged_by_turn": judged,
        "cpu_ms_per_judged_run": {
            name: round((after[name] - before[name]) * 1000 / (runs * turns + WARM_UP), 2) for name in after
        },
        "runs_per_second": statistics.median(plain),
        "idle_workers_mb": round(memory / 2**20, 1),
        "active": [protection.name for protection in report if protection.active],
        "missing": [protection.name for protection in report if not protection.active],
    }


async def rates(sandbox: LocalSandbox, runs: int, turns: int, request: Any) -> list[float]:
    """Requests per second of each turn, after 20 requests of warm-up."""
    await asyncio.gather(*(request(sandbox) for _ in range(WARM_UP)))
    per_second = []
    for _ in range(turns):
        begin = time.perf_counter()
        await asyncio.gather(*(request(sandbox) for _ in range(runs)))
        per_second.append(round(runs / (time.perf_counter() - begin), 1))
    return per_second


def cpu_times() -> dict[str, float]:
    """Seconds that this process, its workers and the ended processes of the workers have used, by name."""
    here = resource.getrusage(resource.RUSAGE_SELF)
    ticks = [0, 0, 0, 0]
    for pid in tree(os.getpid())[1:]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        ticks = [total + int(field) for total, field in zip(ticks, fields, strict=True)]
    second = os.sysconf("SC_CLK_TCK")
    return {
        "host": here.ru_utime + here.ru_stime,
        "workers": (ticks[0] + ticks[1]) / second,
        "cells, user": ticks[2] / second,
        "cells, system": ticks[3] / second,
    }


def two_empty_cells(count: int = 300) -> float | None:
    """CPU milliseconds of two cells that do nothing, in an interpreter with a worker's modules.

    The median of 5 turns; None where this user may not make namespaces.
    """
    modules = (
        "ast collections dataclasses datetime decimal enum fractions heapq inspect json random re typing"
    )
    command = [sys.executable, "-S", "-P", "-c", FLOOR]
    times = []
    for _ in range(5):
        spent = []
        for cells in (0, count):
            done = subprocess.run([*command, str(cells), modules], capture_output=True, text=True)
            if done.returncode:
                return None
            spent.append(float(done.stdout))
        times.append((spent[1] - spent[0]) * 2000 / count)
    return round(statistics.median(times), 2)


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


def show(rows: list[dict[str, Any]], floor: float | None) -> None:
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
    for row in rows:
        parts = row["cpu_ms_per_judged_run"]
        busy = sum(parts.values()) * row["judged_per_second"] / 1000
        console.print(f"{row['workers']} workers: {busy:.2f} CPUs busy; CPU ms of a judged run:", parts)
    console.print("CPU ms of two cells that do nothing:", floor)
    console.print("active:", ", ".join(rows[0]["active"]))
    console.print("missing:", ", ".join(rows[0]["missing"]) or "none")


if __name__ == "__main__":
    main()
