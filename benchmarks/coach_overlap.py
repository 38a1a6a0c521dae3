"""A coach of 300 ms that no selection waits for: rollouts with scoring, against either of them alone.

The engine answers after 200 ms, at most 16 calls at once; the coach after 300 ms, at most 24 at once. So
generation alone and coaching alone take about as long, which is the worst case for their overlap. Target: the
step takes at most 1.25 times the longer of the two.

    python benchmarks/coach_overlap.py [--episodes 96] [--repeats 3] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from coach_relay import relay_table, right

from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.core.training.run import Run
from coterie.recipes import load
from coterie.testing import scripted_engine

RESULTS = Path(__file__).parent / "results" / "coach_overlap.json"
GENERATION, AT_ONCE = 0.2, 16
COACHING, CONCURRENCY = 0.3, 24
TARGET = 1.25


def make(episodes: int, generation: float, coaching: float | None) -> Run:
    """A run whose engine and coach take these seconds a call; without a coach where that is None."""
    slots: list[asyncio.Semaphore] = []

    async def write(request: Any, prompt: str) -> str:
        if generation:
            if not slots:
                slots.append(asyncio.Semaphore(AT_ONCE))
            async with slots[0]:
                await asyncio.sleep(generation)
        return str(right(request.key.role, int(prompt.split("User: ")[1].split()[0])))

    rewards: dict[str, Any] = {"environment": {"type": "environment"}}
    if coaching is not None:
        model = {"type": "coach_relay:RuleCoach", "delay": coaching}
        rewards["coach"] = {"type": "coach", "model": model, "concurrency": CONCURRENCY}
    table = {
        **relay_table("p"),
        "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
        "rewards": rewards,
        "algorithm": {"type": "reinforce_pp", "beta": 0.0},
        "engine": scripted_engine(write),
        "trainer": {"type": "none"},
        "schedule": {"steps": 1, "tasks_per_step": episodes},
    }
    return compose(load(table))


async def seconds(run: Run, episodes: int) -> float:
    """Of the rollouts and their scores."""
    try:
        await open_run(run)
        begin = time.perf_counter()
        await run.score(await run.play(run.jobs(1, episodes)))
        return time.perf_counter() - begin
    finally:
        await run.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    cases = {
        "generation alone": (GENERATION, None),
        "coaching alone": (0.0, COACHING),
        "both": (GENERATION, COACHING),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(arguments.repeats):
        for name, (generation, coaching) in cases.items():
            run = make(arguments.episodes, generation, coaching)
            times[name].append(round(asyncio.run(seconds(run, arguments.episodes)), 3))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["both"] / max(medians["generation alone"], medians["coaching alone"])
    result = {
        "command": " ".join(["python", "benchmarks/coach_overlap.py", *sys.argv[1:]]),
        "seconds": times,
        "ratio": round(ratio, 3),
        "target": TARGET,
        "load_average": os.getloadavg(),
    }
    print(json.dumps(result, indent=1))
    if arguments.write:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if ratio > TARGET:
        sys.exit(f"{ratio:.2f} is above the target of {TARGET}")


if __name__ == "__main__":
    main()
