"""Steps ahead where the environment waits: how much of the possible gain `schedule.max_staleness` brings.

    python benchmarks/asynchronous.py [--steps 12] [--repeats 3]

Engine `hf` and trainer `torch` on a CPU, pinned, with a model of random weights. The environment sleeps: in
the play of a step as long as its generation and its update take together, which a run without sleep measures
first. Then runs with N = 0, 1, 2 steps ahead take turns. The share of the possible gain is

    (T_sync - T_async) / (T_sync - max(g, u))

of the seconds T of a step, where g and u are the seconds of play and of update in a step of the synchronous
run. It may pass 1: the sleep of several steps in play overlaps, so that a step can take less than its play.
Step t is handed out when step t - 1 - N has trained, so the mean step takes no less than (g + u) / (1 + N).

Steps ahead end in bursts of 1 + N, so T is the mean over the measured steps of a run, and their number is a
multiple of every 1 + N. The share by medians of single steps is given too. Print a table, and write
results/asynchronous.json. Exit with 1 where a share, by means or by medians, is below the target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from measuring import Count, machine
from rich.console import Console
from rich.table import Table

from coterie import Plugin, Step
from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.core.loop import train
from coterie.core.plugins import PluginConfig
from coterie.core.training.run import Run
from coterie.recipes import load

RESULTS = Path(__file__).resolve().parent / "results" / "asynchronous.json"
AHEAD = (0, 1, 2)
WARM = 2
"""Steps at the beginning of a run that are not measured."""
TURNS = 3
TARGET = 0.85


class Sleeping(Count):
    """An environment that sleeps in each step; it scores the variety of what was written."""

    class Config(PluginConfig):
        seconds: float = 0.0

    concurrent = True

    async def step(self, state: int, actions: Mapping[str, Any], ctx: Any) -> Step:
        await asyncio.sleep(self.config.seconds)
        return await super().step(state, actions, ctx)


class Writer(Plugin):
    """A role whose answer is worth its share of different characters."""

    def render(self, role_input: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{role_input.role} {role_input.observation}"}]

    def parse(self, text: str, observation: Any) -> float:
        return len(set(text)) / max(len(text), 1)


def make(ahead: int, sleep: float, steps: int) -> Run:
    """A run with so many steps ahead, whose environment sleeps so many seconds a step."""
    module = "benchmarks.asynchronous" if __name__ != "__main__" else "__main__"
    model = {"init": "qwen3", "hidden_size": 128, "layers": 3, "heads": 4, "head_dim": 32, "mlp_size": 384}
    return compose(
        load(
            {
                "env": {"type": f"{module}:Sleeping", "seconds": sleep},
                "team": {
                    "order": ["writer"],
                    "max_turns": TURNS,
                    "roles": {"writer": {"type": f"{module}:Writer", "policy": "shared"}},
                },
                "policies": {
                    "shared": {
                        "model": {**model, "context": 128, "tokenizer": "bytes"},
                        "dtype": "float32",
                        "optimizer": {"learning_rate": 1e-4},
                    }
                },
                "sampler": {"branches": 4, "sampling": {"max_new_tokens": 32}},
                "algorithm": {"type": "at_grpo", "zero_variance": "keep"},
                "loss": "ppo_clip",
                "engine": "hf",
                "trainer": {"type": "torch", "minibatch_size": 64, "device": "cpu"},
                "deterministic": True,
                "schedule": {
                    "steps": steps,
                    "tasks_per_step": 16,
                    "evaluate_every": 0,
                    "checkpoint_every": 0,
                    "record_every": 0,
                    "max_staleness": ahead,
                },
                "trackers": {},
            }
        )
    )


async def measure(ahead: int, sleep: float, steps: int) -> dict[str, Any]:
    """Train; seconds of the measured steps, and medians of what they did."""
    rows, ends = list[Mapping[str, Any]](), list[float]()

    def progress(step: int, expected: int, row: Mapping[str, Any]) -> None:
        rows.append(row)
        ends.append(time.perf_counter())

    run = replace(make(ahead, sleep, WARM + steps), progress=progress)
    try:
        await open_run(run)
        await train(run)
    finally:
        await run.close()
    each = [after - before for before, after in zip(ends[WARM - 1 :], ends[WARM:], strict=False)]
    measured = rows[WARM:]
    return {
        "ahead": ahead,
        "seconds": statistics.fmean(each),
        "median_of_steps": statistics.median(each),
        "play": statistics.median(row["time/rollouts"] for row in measured),
        "update": statistics.median(row["time/update"] for row in measured),
        "tokens": statistics.fmean(row["tokens/generated"] for row in measured),
        "steps": [round(seconds, 4) for seconds in each],
    }


def gain(sync: Mapping[str, float], other: Mapping[str, float], seconds: str = "seconds") -> float:
    """The share of the possible gain of a run, compared with the synchronous one."""
    bound = max(sync["play"], sync["update"])
    return (sync[seconds] - other[seconds]) / (sync[seconds] - bound)


def compared(turns: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """By number of steps ahead: medians over the turns, and the share of the possible gain of medians."""
    names = ("seconds", "median_of_steps", "play", "update")
    medians = [
        {name: statistics.median(run[name] for run in runs) for name in names}
        for runs in zip(*turns, strict=True)
    ]
    sync, rows = medians[0], list[dict[str, Any]]()
    for number, (ahead, median) in enumerate(zip(AHEAD, medians, strict=True)):
        row = {"ahead": ahead, **median, "least": (sync["play"] + sync["update"]) / (1 + ahead)}
        if ahead:
            row["share"] = gain(sync, median)
            row["share_of_medians"] = gain(sync, median, "median_of_steps")
            row["shares"] = [gain(runs[0], runs[number]) for runs in turns]
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], sleep: float) -> Table:
    """What was found, a row for each number of steps ahead."""
    g, u = rows[0]["play"], rows[0]["update"]
    shown = Table(title=f"seconds of a step: g = {g:.3f}, of them asleep {TURNS * sleep:.3f}; u = {u:.3f}")
    for name in ("N", "T", "(g + u) / (1 + N)", "median of steps", "waited for play", "update"):
        shown.add_column(name, justify="right")
    for name in ("share of the gain", "by turn", "by medians of steps"):
        shown.add_column(name, justify="right")
    for row in rows:
        numbers = [row[name] for name in ("seconds", "least", "median_of_steps", "play", "update")]
        shares = [[row["share"]], row["shares"], [row["share_of_medians"]]] if row["ahead"] else []
        shown.add_row(
            str(row["ahead"]),
            *(f"{number:.3f}" for number in numbers),
            *(" ".join(f"{share:.2f}" for share in each) for each in shares),
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12, help=f"measured, after {WARM}; a multiple of 6")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.steps < 1 or any(options.steps % (1 + ahead) for ahead in AHEAD):
        parser.error("--steps is not a multiple of 6: the last burst of steps would be cut")
    before = os.getloadavg()[0]
    asyncio.run(measure(0, 0.0, 2))  # torch and transformers are imported, the threads begin
    alone = asyncio.run(measure(0, 0.0, options.steps))
    sleep = (alone["play"] + alone["update"]) / TURNS
    turns = [
        [asyncio.run(measure(ahead, sleep, options.steps)) for ahead in AHEAD] for _ in range(options.repeats)
    ]
    rows = compared(turns)
    Console(width=120).print(table(rows, sleep))
    result = {
        "command": " ".join(["python", "benchmarks/asynchronous.py", *sys.argv[1:]]),
        "machine": {**machine(), "load_before": round(before, 2)},
        "target": TARGET,
        "met": all(min(row["share"], row["share_of_medians"]) >= TARGET for row in rows if row["ahead"]),
        "g": rows[0]["play"],
        "u": rows[0]["update"],
        "without_sleep": alone,
        "slept_a_step": TURNS * sleep,
        "rows": rows,
        "turns": turns,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if result["met"] else 1)


if __name__ == "__main__":
    main()
