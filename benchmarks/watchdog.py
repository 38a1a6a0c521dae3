"""What the watchdog of plugins costs: the CPU time of its thread, of all that a process spends on episodes.

    python benchmarks/watchdog.py [--live 1000] [--repetitions 8]

Episodes are those of `orchestration.py`: many at once, and an engine that computes nothing. No call of a
plugin does anything for the watchdog, so its thread's time is all that it costs. The script prints the share
at the default patience and at a short one, and writes it to results/watchdog.json. Exit with 1 where the
default costs more than 1 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.orchestration import measure
from coterie.api import open_run
from coterie.watchdog import Watchdog, watch_loop

RESULTS = Path(__file__).parent / "results" / "watchdog.json"
PATIENCES = (300.0, 8.0)
"""Seconds: the default, and one with forty times as many looks."""
MOST = 0.01


@contextmanager
def timed(patience: float, seconds: list[float]) -> Iterator[None]:
    """A context in which each watchdog has a patience, and leaves the CPU time of its thread."""
    run, watch = Watchdog.run, open_run.watch_loop

    def run_and_leave(watchdog: Watchdog) -> None:
        run(watchdog)
        seconds.append(time.thread_time())

    Watchdog.run = run_and_leave  # type: ignore[method-assign]
    open_run.watch_loop = lambda _: partial(watch_loop, patience)()  # type: ignore[assignment]
    try:
        yield
    finally:
        Watchdog.run, open_run.watch_loop = run, watch  # type: ignore[method-assign]


def share(patience: float, live: int, repetitions: int) -> dict[str, float]:
    """Of the CPU time of some runs, that of the watchdogs' threads."""
    seconds: list[float] = []
    begin = time.process_time()
    with timed(patience, seconds):
        for _ in range(repetitions):
            asyncio.run(measure(live, 4, 4))
        time.sleep(1.5)  # their last look ends
    spent = time.process_time() - begin
    return {
        "patience": patience,
        "watchdogs": len(seconds),
        "process_seconds": spent,
        "watchdog_seconds": sum(seconds),
        "share": sum(seconds) / spent,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--live", type=int, default=1000, help="episodes at once")
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    asyncio.run(measure(50, 2, 1))  # imports
    rows = [share(patience, options.live, options.repetitions) for patience in PATIENCES]
    for row in rows:
        print(f"patience {row['patience']:g} s: {row['share']:.3%} of {row['process_seconds']:.1f} s of CPU")
    stored = {"live": options.live, "repetitions": options.repetitions, "rows": rows}
    options.json.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
    return int(rows[0]["share"] > MOST)


if __name__ == "__main__":
    sys.exit(main())
