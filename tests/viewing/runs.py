"""Small runs of several kinds, in under a second each where they need no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coach_relay import Relay, RuleCoach, relay_table

from coterie.api.train import train
from tests.cli.support import TABULAR

CHAINS = ("sampler.branches=1", "sampler.chains=4", "sampler.expand=sampled", "env.team=potential")
TORCH = (
    "engine=hf",
    "trainer={type: torch}",
    "policies.shared={model: {init: qwen3, hidden_size: 16, layers: 1, heads: 2, kv_heads: 1, head_dim: 8, "
    "mlp_size: 16, tokenizer: words}}",
    "schedule.tasks_per_step=2",
    "schedule.steps=2",
    "schedule.evaluate_every=0",
)
KINDS: dict[str, tuple[str, ...]] = {
    "best of K": (),
    "chains, steps ahead, curriculum": (
        *CHAINS,
        "algorithm={type: grpo}",
        "schedule.max_staleness=1",
        "env.curriculum={field: size, values: [3, 4], promote_at: 0.01, window: 8}",
    ),
    "sets": (
        *CHAINS,
        "algorithm={type: rae}",
        "evaluate={sets: {easy: {}, small: {env: {size: 2}}}, best: easy}",
    ),
    "batch": (*CHAINS, "algorithm={type: reinforce_pp}"),
    "values": (*CHAINS, "algorithm={type: gae}"),
    "tree": ("env.team=potential", "algorithm={type: magrpo}", "sampler.expand=all", "sampler.branches=2"),
    "losses": ("loss={type: gspo, kl: 0.1, correction: {}}",),
    "no signal": ("sampler.sampling.temperature=0", "schedule.steps=11", "schedule.evaluate_every=0"),
}
"""Kind of run -> what it sets in tests/recipes/tabular.yaml."""


class CountingRelay(Relay):
    """Counts its steps under a name of its own."""

    def __init__(self, config, build):
        super().__init__(config, build)
        self._steps = 0

    async def step(self, state, actions, ctx):
        self._steps += 1
        return await super().step(state, actions, ctx)

    def counted(self):
        steps, self._steps = self._steps, 0
        return {"mine/steps": float(steps)}


def made(folder: Path, *overrides: str, source: Any = TABULAR) -> Path:
    """Train a run in a folder; returns the folder."""
    steps = (
        ()
        if any("schedule.steps" in text for text in overrides) or source is not TABULAR
        else ("schedule.steps=2",)
    )
    train(source, overrides=[*steps, *overrides], out=folder)
    return folder


def with_coach() -> dict[str, Any]:
    """The configuration of a relay of three tabular roles that a coach scores by rule."""
    return {
        **relay_table("p"),
        "env": {"type": f"{__name__}:CountingRelay"},
        "policies": {"p": {"model": {"init": "tabular"}}},
        "rewards": {
            "environment": {"type": "environment", "weights": {"right": 0.0}},
            "coach": {"type": "coach", "model": {"type": f"{RuleCoach.__module__}:RuleCoach"}},
        },
        "sampler": {"branches": 1, "sampling": {"max_new_tokens": 1}},
        "algorithm": {"type": "reinforce_pp", "beta": 0.0},
        "engine": "tabular",
        "trainer": {"type": "tabular"},
        "schedule": {"steps": 1, "tasks_per_step": 2, "max_missing": 1.0},
    }


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run, as its file has them."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
