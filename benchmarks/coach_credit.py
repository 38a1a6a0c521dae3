"""Process rewards against the outcome alone, at equal tokens, on a relay in which any role can err.

Three tabular policies play the relay of `coach_relay.py`: the team succeeds where all three did their part.
The methods see the same tasks and generate the same number of tokens in all:

- `process`: REINFORCE++ on the coach's score of every action (a rule-following coach with noise);
- `outcome`: REINFORCE++ on the team's success, to every action (return to go);
- `outcome_grpo`: GRPO on the team's success, 8 chains a task.

    python benchmarks/coach_credit.py [--seeds 3] [--steps 60] [--noise 1.5] [--write]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from coach_relay import ROLES, relay_table

import coterie
from coterie.stats import student_t

RESULTS = Path(__file__).parent / "results" / "coach_credit.json"
EPISODES = 48
"""Episodes of a step, in every method."""
CHAINS = 8


RATES = (5.0, 20.0, 80.0, 320.0)
"""Learning rates of the logits; each method counts with its best."""


def table(method: str, seed: int, steps: int, noise: float, rate: float) -> dict[str, Any]:
    """The configuration of a method."""
    relay = relay_table()
    for role in ROLES:
        relay["team"]["roles"][role]["policy"] = role
    process = method == "process"
    chains = CHAINS if method == "outcome_grpo" else 1
    rewards: dict[str, Any] = {
        "environment": {"type": "environment", "weights": {"right": 0.0 if process else 1.0}}
    }
    if process:
        model = {"type": "coach_relay:RuleCoach", "noise": noise, "seed": seed}
        rewards["coach"] = {"type": "coach", "model": model}
    plus = {"type": "reinforce_pp", "beta": 0.0, "truncated": "keep"}
    algorithm = {
        "process": plus,
        "outcome": {**plus, "return": "to_go"},
        "outcome_grpo": {"type": "grpo"},
    }[method]
    return {
        **relay,
        "seed": seed,
        "policies": {role: {"model": {"init": "tabular"}} for role in ROLES},
        "rewards": rewards,
        "sampler": {"chains": chains, "sampling": {"max_new_tokens": 1}},
        "algorithm": algorithm,
        "engine": "tabular",
        "trainer": {"type": "tabular", "learning_rate": rate},
        "schedule": {
            "steps": steps,
            "tasks_per_step": EPISODES // chains,
            "evaluate_every": max(1, steps // 15),
            "evaluate_tasks": 48,
            "record_every": 0,
        },
    }


def curve(method: str, seed: int, steps: int, noise: float, rate: float) -> list[tuple[int, float]]:
    """(tokens generated, success on val) at every evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        coterie.train(table(method, seed, steps, noise, rate), out=Path(folder) / "run")
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    rows = map(json.loads, lines)
    return [
        (int(row["tokens/total"]), float(row["eval/success"]))
        for row in rows
        if row.get("eval/success") is not None
    ]


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean over seeds, with Student's 95 % interval."""
    mean, n = float(np.mean(values)), len(values)
    half = student_t(0.975, n - 1) * float(np.std(values, ddof=1)) / n**0.5 if n > 1 else None
    return {"mean": mean, "ci95": None if half is None else [mean - half, mean + half], "seeds": list(values)}


def measure(seeds: int, steps: int, noise: float) -> dict[str, Any]:
    """By method, at its best learning rate: tokens, final success, and the mean over training (the area under
    the curve), by which the rate is chosen."""
    methods: dict[str, Any] = {}
    for method in ("process", "outcome", "outcome_grpo"):
        by_rate = {rate: summary(method, seeds, steps, noise, rate) for rate in RATES}
        best = max(by_rate.values(), key=lambda entry: entry["mean_success"]["mean"])
        kept = ("mean_success", "final_success")
        others = {rate: {name: entry[name] for name in kept} for rate, entry in by_rate.items()}
        methods[method] = {**best, "by_rate": others}
        print(method, best["learning_rate"], best["final_success"], best["mean_success"], flush=True)
    return methods


def summary(method: str, seeds: int, steps: int, noise: float, rate: float) -> dict[str, Any]:
    """One method at one learning rate, over seeds."""
    curves = [curve(method, seed, steps, noise, rate) for seed in range(seeds)]
    return {
        "learning_rate": rate,
        "tokens": [points[-1][0] for points in curves],
        "final_success": interval([points[-1][1] for points in curves]),
        "mean_success": interval([float(np.mean([value for _, value in points])) for points in curves]),
        "curves": curves,
    }


def order(methods: Mapping[str, Any]) -> list[str]:
    """Methods by mean success over training, the best first."""
    return sorted(methods, key=lambda method: -methods[method]["mean_success"]["mean"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--noise", type=float, default=1.5, help="of the coach, in points")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    methods = measure(arguments.seeds, arguments.steps, arguments.noise)
    result = {
        "command": " ".join(["python", "benchmarks/coach_credit.py", *sys.argv[1:]]),
        "python": platform.python_version(),
        "episodes_per_step": EPISODES,
        "coach_noise": arguments.noise,
        "order": order(methods),
        "methods": methods,
    }
    print(json.dumps({"order": result["order"]}))
    if arguments.write:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
