"""One call an action against one call a trajectory: calls, tokens, agreement with the verified quality.

A random team plays the relay of `coach_relay.py`, and the same rule-following coach scores its actions in
both modes (arXiv 2609.04094 scores trajectories). The rules look at each action by itself, so the scores of
the two modes are equal here, and the benchmark tells what the modes cost. Whether a language model agrees
with itself over the modes is a question for a run with one.

    python benchmarks/coach_modes.py [--episodes 96] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from coach_relay import relay_table, right

from coterie.api.coach_statistics import rank_correlation
from coterie.compose import compose
from coterie.recipes import load
from coterie.testing import play_episode, scripted_engine

RESULTS = Path(__file__).parent / "results" / "coach_modes.json"
CHARACTERS = 4
"""Characters of a token, for the estimate of tokens."""


def team(request: Any, prompt: str) -> str:
    """Right in half of the actions, a wrong number otherwise; keyed by the place."""
    seen = prompt.split("User: ")[1].split()[0]
    return str((right(request.key.role, int(seen)) + request.seed % 2) % 6)


def measure(per: str, structured: bool, episodes: int, noise: float) -> dict[str, Any]:
    """Calls, estimated tokens and agreement of one mode; `scores` by place."""
    model = {"type": "coach_relay:RuleCoach", "noise": noise, "structured": structured}
    run = compose(
        load(
            {
                **relay_table("p"),
                "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
                "rewards": {
                    "environment": {"type": "environment", "weights": {"right": 0.0}},
                    "coach": {"type": "coach", "per": per, "model": model},
                },
                "algorithm": {"type": "reinforce_pp", "beta": 0.0},
                "engine": scripted_engine(team),
                "trainer": {"type": "none"},
                "schedule": {"steps": 1, "tasks_per_step": episodes},
            }
        )
    )
    trees, scores = play_episode(run, tasks=episodes)
    coach = next(source.plugin for source in run.reward_sources if source.name == "coach")
    asked = coach.config.model.asked
    values, quality, places = [], [], []
    for tree in trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                key = node.key.of_branch(role, 0)
                values.append(scores.at(key)[role, "process"].value)
                seen = int(decision.messages[-1]["content"])
                quality.append(float(decision.branches[0].text == str(right(role, seen))))
                places.append(key.text())
    characters = sum(len(message["content"]) for request in asked for message in request.messages)
    return {
        "actions": len(values),
        "calls": len(asked),
        "prompt_tokens_estimated": characters // CHARACTERS,
        "rank_correlation": rank_correlation(np.array(values), np.array(quality)),
        "scores": dict(zip(places, values, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--noise", type=float, default=1.5)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    modes = {
        f"{per}{' json' if structured else ''}": measure(per, structured, arguments.episodes, arguments.noise)
        for per in ("action", "trajectory")
        for structured in (False, True)
    }
    tables = [mode.pop("scores") for mode in modes.values()]
    result = {
        "command": " ".join(["python", "benchmarks/coach_modes.py", *sys.argv[1:]]),
        "equal_scores": all(table == tables[0] for table in tables),
        "modes": modes,
    }
    print(json.dumps(result, indent=1))
    if arguments.write:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
