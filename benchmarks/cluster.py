"""Executor `ray` over executor `local`: the time of a step, and of an action with many live episodes.

    pip install -e ".[ray]"
    python benchmarks/cluster.py [--live 10000] [--workers 2] [--repeats 3]

1. *A step that waits.* A scripted engine answers at once, and the environment sleeps `--sleep` seconds a
   turn, as a sandbox or a server would: 32 tasks, two roles, two turns, four branches. All processes have the
   same cores. What counts is the mean of all steps but the first, which starts the hosts.
2. *Live episodes.* `--live` tasks with two turns, two roles and four branches, all at once, without sleep:
   the microseconds per generated action of playing and scoring one step, serialisation counted, of the
   second step. Ray's processes share the cores with the run's.

Print a table, and write results/cluster.json. Exit with 1 where the step is more than 15 % slower, or an
action costs more than 1.5 times as much.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import measuring
from measuring import machine
from rich.console import Console
from rich.table import Table

from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.core.loop import train
from coterie.recipes import load

RESULTS = Path(__file__).parent / "results" / "cluster.json"
STEP, ACTION = 1.15, 1.5
"""Most that Ray may take, over local."""


class Slow(measuring.Count):
    """The counting environment, whose steps wait."""

    class Config(measuring.Count.Config):
        seconds: float = 0.0

    async def step(self, state: Any, joint: Any, ctx: Any) -> Any:
        if self.config.seconds:
            await asyncio.sleep(self.config.seconds)
        return await super().step(state, joint, ctx)


def answer(request: Any, text: str) -> str:
    """The scripted engine's answer: the index of the branch."""
    return str(request.key.branch)


def table(tasks: int, steps: int, sleep: float, workers: int) -> dict[str, Any]:
    """A configuration; 0 workers: executor `local`."""
    role = "orchestration:Writer"
    cluster: dict[str, Any] = {"address": "local", "workers": workers, "worker_cpus": 0, "engine_cpus": 0}
    return {
        "env": {"type": "cluster:Slow", "seconds": sleep},
        "team": {
            "order": ["one", "two"],
            "max_turns": 2,
            "roles": {name: {"type": role, "policy": name} for name in ("one", "two")},
        },
        "policies": {name: {"model": {"init": "none"}, "train": "none"} for name in ("one", "two")},
        "sampler": {"branches": 4},
        "algorithm": "at_grpo",
        "engine": {"type": "scripted", "play": "cluster:answer"},
        "trainer": "none",
        "executor": "ray" if workers else {"type": "local", "max_live": 1_000_000},
        **({"cluster": {**cluster, "max_live": 1_000_000}} if workers else {}),
        "trackers": {},
        "schedule": {"steps": steps, "tasks_per_step": tasks, "record_every": 0, "evaluate_every": 0},
    }


def waiting(steps: int, sleep: float, workers: int) -> float:
    """Seconds of a step after the first."""
    rows: list[float] = []

    async def go() -> None:
        from dataclasses import replace

        run = compose(load(table(32, steps, sleep, workers)))
        run = replace(run, progress=lambda step, expected, row: rows.append(row["time/step"]))
        await open_run(run)
        try:
            await train(run)
        finally:
            await run.close()

    asyncio.run(go())
    return statistics.mean(rows[1:])


def live(tasks: int, workers: int) -> float:
    """Microseconds per generated action of a second step."""

    async def go() -> float:
        run = compose(load(table(tasks, 2, 0.0, workers)))
        await open_run(run)
        try:
            for step in (1, 2):
                jobs = run.jobs(step)
                begin = time.perf_counter()
                await run.score(await run.play(jobs))
                seconds = time.perf_counter() - begin
        finally:
            await run.close()
        return 1e6 * seconds / (tasks * 2 * 2 * 4)

    return asyncio.run(go())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--live", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sleep", type=float, default=2.5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    facts = machine()
    steps = {n: waiting(options.steps, options.sleep, n) for n in (0, options.workers)}
    actions: dict[int, list[float]] = {0: [], options.workers: []}
    for _ in range(options.repeats):
        for workers in actions:
            actions[workers].append(live(options.live, workers))
    cost = {workers: statistics.median(each) for workers, each in actions.items()}
    result = {
        "machine": facts,
        "settings": {k: v for k, v in vars(options).items() if k != "out"},
        "step_seconds": {"local": steps[0], "ray": steps[options.workers]},
        "step_ratio": steps[options.workers] / steps[0],
        "action_microseconds": {"local": cost[0], "ray": cost[options.workers]},
        "action_microseconds_by_turn": {"local": actions[0], "ray": actions[options.workers]},
        "action_ratio": cost[options.workers] / cost[0],
    }
    show(result)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["step_ratio"] <= STEP and result["action_ratio"] <= ACTION else 1


def show(result: dict[str, Any]) -> None:
    shown = Table(title="executor ray over local")
    for name in ("", "local", "ray", "ratio", "at most"):
        shown.add_column(name, justify="right")
    step, action = result["step_seconds"], result["action_microseconds"]
    shown.add_row(
        "seconds a step", *(f"{v:.2f}" for v in step.values()), f"{result['step_ratio']:.2f}", f"{STEP}"
    )
    shown.add_row(
        "microseconds an action",
        *(f"{v:,.0f}" for v in action.values()),
        f"{result['action_ratio']:.2f}",
        f"{ACTION}",
    )
    Console().print(shown)


if __name__ == "__main__":
    sys.exit(main())
