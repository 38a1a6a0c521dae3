"""What pandas and scikit-learn cost a program of sandbox `local`, imported by itself and by its worker ahead.

    python benchmarks/sandbox_packages.py

Each program is run `--runs` times on one worker, in turn with the others, so that the machine's load is the
same for all. `preload: []` is a program that imports for itself; the default is a fork of a worker that has
imported.
The pipeline is three roles with three turns each, one program after the other: a table is written, a model is
fitted on it, and its predictions are written.
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
from sandbox import resident, tree

from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Judged, Limits, Program

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
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rows = asyncio.run(measure(args.runs))
    show(rows)
    args.results.mkdir(parents=True, exist_ok=True)
    result = {"cpus": os.cpu_count(), "load_before": load, "runs": args.runs, "rows": rows}
    (args.results / "sandbox_packages.json").write_text(json.dumps(result, indent=1) + "\n")


async def measure(runs: int) -> list[dict[str, Any]]:
    """One row a setting, medians of milliseconds."""
    boxes, rows = [], []
    for name, settings in SETTINGS.items():
        sandbox = LocalSandbox(LocalSandbox.Config(workers=1, limits=LIMITS, **settings))
        before = tree(os.getpid())
        begin = time.perf_counter()
        await sandbox.open()
        row: dict[str, Any] = {"setting": name, "open_ms": milliseconds(begin)}
        row["idle_worker_mb"] = round(
            sum(resident(pid) for pid in {*tree(os.getpid())} - {*before}) / 2**20, 1
        )
        boxes.append(sandbox)
        rows.append(row)
    try:
        times: list[dict[str, list[float]]] = [{} for _ in boxes]
        for _ in range(runs):
            for sandbox, row, kept in zip(boxes, rows, times, strict=True):
                for name, milli in (await once(sandbox, row["setting"] != "no packages")).items():
                    kept.setdefault(name, []).append(milli)
        for row, kept in zip(rows, times, strict=True):
            row["ms"] = {name: round(statistics.median(values), 1) for name, values in kept.items()}
            row["slowest_ms"] = {name: round(max(values), 1) for name, values in kept.items()}
    finally:
        for sandbox in boxes:
            await sandbox.close()
    return rows


async def once(sandbox: LocalSandbox, packages: bool) -> dict[str, float]:
    """Milliseconds of each program, of a judged run, and of the pipeline."""
    times = {}
    for name, code in PROGRAMS.items():
        if packages or "import" not in name:
            begin = time.perf_counter()
            assert (await sandbox.run(Program(code=code))).ok
            times[name] = milliseconds(begin)
    begin = time.perf_counter()
    judged = Judged(candidate="def f(): return 1", tests="assert f() == 1", calls=("f",))
    assert (await sandbox.judge(judged)).ok
    times["a judged run"] = milliseconds(begin)
    if packages:
        begin = time.perf_counter()
        await pipeline(sandbox)
        times["pipeline"] = milliseconds(begin)
    return times


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
    table = Table("ms, median", *names, "open", "worker, MB")
    for row in rows:
        cells = [f"{row['ms'][name]:,.1f}" if name in row["ms"] else "–" for name in names]
        table.add_row(row["setting"], *cells, f"{row['open_ms']:,.0f}", str(row["idle_worker_mb"]))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
