"""What pandas and scikit-learn cost a program of sandbox `local`, imported by itself and by its worker ahead.

    python benchmarks/sandbox_packages.py

Each program is run `--runs` times on one worker, in turn with the others, so that the machine's load is the
same for all. `preload: []` is a program that imports for itself; the default is a fork of a worker that has
imported.
The pipeline is three roles with three turns each, one program after the other: a table is written, a model is
fitted on it, and its predictions are written. CPU time is the mean, of Coterie's process, worker and cells.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sandbox import cpu_times, resident, tree

from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Judged, Limits, Program

Work = Callable[[LocalSandbox], Awaitable[None]]
HERE = Path(__file__).parent
LIMITS = Limits(cpu_seconds=60, wall_seconds=60, memory_mb=2048, disk_mb=1024)
PACKAGES = ("pandas", "scikit-learn")
WRITES = """\
import numpy, pandas
frame = pandas.DataFrame({"x": numpy.arange(500.0), "y": 2 * numpy.arange(500.0) + 1})
frame.to_csv("train.csv", index=False)
"""
FITS = """\
import pickle, pandas
from sklearn.linear_model import LinearRegression
frame = pandas.read_csv("train.csv")
pickle.dump(LinearRegression().fit(frame[["x"]], frame.y), open("model.pkl", "wb"))
"""
PREDICTS = """\
import pickle, pandas
frame = pandas.read_csv("train.csv")
frame["y"] = pickle.load(open("model.pkl", "rb")).predict(frame[["x"]])
frame.to_csv("submission.csv", index=False)
"""
PROGRAMS = {
    "print(1)": "print(1)",
    "import pandas": "import pandas",
    "import pandas, sklearn.ensemble": "import pandas, sklearn.ensemble",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "no packages": {},
    "each program imports": {"packages": PACKAGES, "preload": ()},
    "workers import ahead": {"packages": PACKAGES},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=21, help="runs of each program")
    parser.add_argument("--pipelines", type=int, default=5, help="runs of the pipeline")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rows = asyncio.run(measure(args.runs, args.pipelines))
    show(rows)
    args.results.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "load_before": load,
        "runs": args.runs,
        "pipelines": args.pipelines,
    }
    result["rows"] = rows
    (args.results / "sandbox_packages.json").write_text(json.dumps(result, indent=1) + "\n")


async def measure(runs: int, pipelines: int) -> list[dict[str, Any]]:
    """One row a setting: medians of milliseconds, and the mean of CPU milliseconds."""
    boxes, rows = [], []
    for name, settings in SETTINGS.items():
        sandbox = LocalSandbox(LocalSandbox.Config(workers=1, limits=LIMITS, **settings))
        before = {*tree(os.getpid())}
        begin = time.perf_counter()
        await sandbox.open()
        row: dict[str, Any] = {"setting": name, "open_ms": milliseconds(begin)}
        row["idle_worker_mb"] = round(sum(map(resident, {*tree(os.getpid())} - before)) / 2**20, 1)
        boxes.append(sandbox)
        rows.append(row)
    kept: list[dict[str, list[tuple[float, float]]]] = [{} for _ in boxes]
    try:
        for number in range(runs):
            for sandbox, row, taken in zip(boxes, rows, kept, strict=True):
                for name, work in works(row["setting"] != "no packages", number < pipelines).items():
                    taken.setdefault(name, []).append(await timed(sandbox, work))
    finally:
        for sandbox in boxes:
            await sandbox.close()
    for row, taken in zip(rows, kept, strict=True):
        row["ms"] = {name: round(statistics.median(wall), 1) for name, wall in walls(taken)}
        row["slowest_ms"] = {name: max(wall) for name, wall in walls(taken)}
        row["cpu_ms"] = {
            name: round(statistics.mean(cpu for _, cpu in both), 1) for name, both in taken.items()
        }
    return rows


def walls(taken: dict[str, list[tuple[float, float]]]) -> Iterator[tuple[str, list[float]]]:
    return ((name, [wall for wall, _ in both]) for name, both in taken.items())


def works(packages: bool, with_pipeline: bool) -> dict[str, Work]:
    """What is timed, by name."""
    programs = {name: code for name, code in PROGRAMS.items() if packages or "import" not in name}
    timed_works: dict[str, Work] = {name: partial(run, code=code) for name, code in programs.items()}
    timed_works["a judged run"] = judge
    if packages and with_pipeline:
        timed_works["pipeline"] = pipeline
    return timed_works


async def timed(sandbox: LocalSandbox, work: Work) -> tuple[float, float]:
    """Milliseconds of wall time and of CPU time."""
    before, begin = sum(cpu_times().values()), time.perf_counter()
    await work(sandbox)
    return milliseconds(begin), (sum(cpu_times().values()) - before) * 1000


async def run(sandbox: LocalSandbox, code: str) -> None:
    assert (await sandbox.run(Program(code=code))).ok


async def judge(sandbox: LocalSandbox) -> None:
    judged = Judged(candidate="def f(): return 1", tests="assert f() == 1", calls=("f",))
    assert (await sandbox.judge(judged)).ok


async def pipeline(sandbox: LocalSandbox) -> None:
    """Three roles with three turns each, on the files of one workspace."""
    files: dict[str, bytes] = {}
    for code in (WRITES, FITS, PREDICTS):
        for _ in range(3):
            ran = await sandbox.run(Program(code=code, files=files, collect=("*",)))
            assert ran.ok, ran
            files = dict(ran.files)
    assert {*files} == {"train.csv", "model.pkl", "submission.csv"}


def milliseconds(begin: float) -> float:
    return round((time.perf_counter() - begin) * 1000, 1)


def show(rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))
    table = Table("ms (CPU)", *names, "open", "worker, MB")
    for row in rows:
        cells = [
            f"{row['ms'][name]:,.0f} ({row['cpu_ms'][name]:,.0f})" if name in row["ms"] else "–"
            for name in names
        ]
        table.add_row(row["setting"], *cells, f"{row['open_ms']:,.0f}", str(row["idle_worker_mb"]))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
