"""Small runs of tabular policies, recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import coterie

ROLE = "coterie.testing.support.toys:EchoRole"
SAMPLERS: dict[str, dict[str, Any]] = {
    "branches": {"chains": 1, "branches": 4},
    "chains": {"chains": 6, "branches": 1},
    "tree": {"chains": 1, "branches": 2, "expand": "all"},
}


def table(
    env: Mapping[str, Any],
    order: list[Any],
    sampler: str | dict[str, Any],
    algorithm: Any,
    turns: int = 1,
    **tables: Any,
) -> dict[str, Any]:
    """The configuration of a team with one policy a role."""
    roles = [role for stage in order for role in ([stage] if isinstance(stage, str) else stage)]
    return {
        "name": "small",
        "seed": 3,
        "env": dict(env),
        "team": {
            "order": order,
            "max_turns": turns,
            "roles": {role: {"type": ROLE, "policy": role} for role in roles},
        },
        "policies": {role: {"model": {"init": "tabular"}} for role in roles},
        "sampler": {
            **(SAMPLERS[sampler] if isinstance(sampler, str) else sampler),
            "sampling": {"max_new_tokens": 1},
        },
        "algorithm": algorithm,
        "loss": {"type": "reinforce"},
        "engine": "tabular",
        "trainer": {"type": "tabular", "learning_rate": 0.5},
        "schedule": {"steps": 3, "tasks_per_step": 8, "evaluate_every": 0, "checkpoint_every": 1},
        "trackers": {},
        **tables,
    }


def hand_over(folder: Path, sampler: str, algorithm: Any, *, late: bool = False, **tables: Any) -> Path:
    """Train the hand-over, in which the giver's first letter alone matters; returns the folder."""
    env = {"type": "tests.games:HandOver", "late": late, "tasks": 40}
    made = table(env, ["giver", "taker"], sampler, algorithm, 2 if late else 1, **tables)
    coterie.train(made, out=folder)
    return folder
