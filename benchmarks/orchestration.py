"""Framework time per generated action, with an engine that answers at once.

The benchmark runs steps of a team of two over several turns with the scripted engine: rollouts, scores,
credit and samples. It divides the time by the number of generated actions. The time of the environment, the
roles and the tokenizer doesn't count: clocks measure it in the same run, and it is subtracted. Nothing is
recorded.

    python benchmarks/orchestration.py [--live 100 1000 10000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from measuring import ENVIRONMENT, Clocks
from rich.console import Console
from rich.table import Table

from coterie import Plugin
from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.core.protocols import Batch
from coterie.core.training.run import Run
from coterie.core.training.samples import samples_of
from coterie.recipes import load

CLOCKS = Clocks(environment=0.0, template=0.0, tokenizer=0.0, engine=0.0)
"""Seconds of the parts that are measured separately."""


class Writer(Plugin):
    """A role that writes a number."""

    def render(self, role_input: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{role_input.role} {role_input.observation}"}]

    def parse(self, text: str, observation: Any) -> int:
        return int(text)


def answer(request: Any, text: str) -> str:
    """The scripted engine's answer: the index of the branch."""
    return str(request.key.branch)


def make(live: int, branches: int, turns: int) -> Run:
    """A run with this many episodes at once, branches per decision and turns."""
    module = "benchmarks.orchestration" if __name__ != "__main__" else "__main__"
    return compose(
        load(
            {
                "env": {"type": "measuring:Count"},
                "team": {
                    "order": ["one", "two"],
                    "max_turns": turns,
                    "roles": {name: {"type": f"{module}:Writer", "policy": name} for name in ("one", "two")},
                },
                "policies": {name: {"model": {"init": "none"}, "train": "none"} for name in ("one", "two")},
                "sampler": {"branches": branches},
                "algorithm": "at_grpo",
                "engine": {"type": "scripted", "play": f"{module}:answer"},
                "trainer": "none",
                "executor": {"max_live": live},
                "schedule": {"steps": 1, "tasks_per_step": live, "record_every": 0},
            }
        )
    )


async def measure(live: int, branches: int, turns: int) -> dict[str, float]:
    """Run one step with `live` episodes at once; return microseconds per generated action."""
    run = make(live, branches, turns)
    await open_run(run)
    CLOCKS.watch("environment", run.environment, *ENVIRONMENT)
    for member in run.team.members.values():
        CLOCKS.watch("template", member.role, "render", "parse")
    CLOCKS.watch("tokenizer", run.engine.codec("one"), "encode", "decode")
    jobs = run.jobs(1, live)
    CLOCKS.clear()
    begin = time.perf_counter()
    rollouts = await run.play(jobs)
    scores, trees = await run.score(rollouts), rollouts.trees
    credit, _ = run.estimator(
        Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights), None
    )
    samples_of(trees, credit)
    total = time.perf_counter() - begin
    await run.close()
    actions = live * branches * turns * 2
    separate = sum(CLOCKS.values())
    return {
        "live": live,
        "actions": actions,
        "microseconds": 1e6 * (total - separate) / actions,
        "whole_microseconds": 1e6 * total / actions,
        **{f"{name}_microseconds": 1e6 * value / actions for name, value in CLOCKS.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--live", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--branches", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "orchestration.json")
    options = parser.parse_args()
    rows = []
    for live in options.live:
        runs = [asyncio.run(measure(live, options.branches, options.turns)) for _ in range(options.repeats)]
        rows.append({name: statistics.median(run[name] for run in runs) for name in runs[0]})
    table = Table(title="framework time per generated action (microseconds, medians)")
    for name in rows[0]:
        table.add_column(name.replace("_microseconds", ""), justify="right")
    for row in rows:
        table.add_row(
            *(f"{value:,.1f}" if "micro" in name else f"{value:,.0f}" for name, value in row.items())
        )
    Console().print(table)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps(
            {
                "rows": rows,
                "branches": options.branches,
                "turns": options.turns,
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
