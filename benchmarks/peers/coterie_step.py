"""Coterie's training step: rollouts, scores, credit, samples, update, weights to the engine.

The run is composed from an ordinary configuration with engine `hf` and trainer `torch`. Only the environment
(fixed prompts, random rewards) and the chat format (no stop token, so that all completions have the requested
length) belong to the benchmark.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

import common

case = common.start(common.parser(__doc__).parse_args()) if __name__ == "__main__" else None

from coterie import Plugin, Step, Task  # noqa: E402  (`start` must pin the threads first)
from coterie.api.open_run import open_run  # noqa: E402
from coterie.backends.chat_formats.formats import PlainChat  # noqa: E402
from coterie.compose import compose  # noqa: E402
from coterie.core.protocols import Batch  # noqa: E402
from coterie.core.training.run import Run  # noqa: E402
from coterie.recipes import load  # noqa: E402


class FixedPrompts(Plugin):
    """An environment in which task i shows prompt i, and every action has a random reward."""

    roles = ()
    components = {"luck": "increment"}
    weights: Mapping[str, float] = {}

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        assert case is not None
        self.texts = [" ".join(common.word(token) for token in row) for row in common.prompt_ids(case)]
        self.draw = random.Random(common.SEED)

    def tasks(self, split: str, seed: int) -> list[Task]:
        return [Task(id=f"{split}-{index}", payload=index) for index in range(len(self.texts))]

    def reset(self, task: Task, seed: int) -> int:
        return int(task.payload)

    def acting_roles(self, state: int) -> tuple[str, ...] | None:
        return () if state < 0 else None

    def observe(self, state: int, role: str) -> str:
        return self.texts[state]

    async def step(self, state: int, actions: Mapping[str, Any], ctx: Any) -> Step:
        return Step(state=-1, scores={(role, "luck"): self.draw.random() for role in actions})

    def outcome(self, state: int) -> dict[str, float]:
        return {"success": 0.0}


class PlainRole(Plugin):
    """A role whose prompt is the observation."""

    def render(self, role_input: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": role_input.observation}]

    def parse(self, text: str, observation: Any) -> str:
        return text


class Endless(PlainChat):
    """The plain chat format without stop tokens."""

    def codec(self, tokenizer: Any, context: int | None) -> Any:
        codec = super().codec(tokenizer, context)
        codec.stop_ids = frozenset()
        return codec


def make(case: common.Case) -> Run:
    """The run of a case."""
    module = "coterie_step"
    return compose(
        load(
            {
                "env": {"type": f"{module}:FixedPrompts"},
                "team": {
                    "order": ["one"],
                    "max_turns": 1,
                    "roles": {"one": {"type": f"{module}:PlainRole", "policy": "one"}},
                },
                "policies": {
                    "one": {
                        "model": str(case.model),
                        "optimizer": {"learning_rate": common.LEARNING_RATE, "clip": common.MAX_GRAD_NORM},
                    }
                },
                "sampler": {"branches": case.siblings, "sampling": {"max_new_tokens": case.new_tokens}},
                "algorithm": "at_grpo",
                "chat": f"{module}:Endless",
                "trackers": {},
                "schedule": {"steps": case.total_steps, "tasks_per_step": case.prompts},
            }
        )
    )


async def measure(run: Run, case: common.Case) -> tuple[list[float], list[float]]:
    """(seconds, loss) of every step; the measured code is the body of the loop in `core/loop.py`."""
    seconds, losses = [], []
    await open_run(run)
    begun = time.perf_counter()
    async for step, rollouts in run.rollouts():
        trees = rollouts.trees
        scores = await run.score(rollouts)
        annotations = await run.annotate(rollouts)
        batch = Batch(trees=trees, scores=scores, annotations=annotations, reward_weights=run.reward_weights)
        state = run.state.credit_state
        credit, run.state.credit_state = run.estimator(batch, state)
        updated = await run.update(rollouts, credit, annotations)
        run.record(step, batch, state, credit)
        run.finish(step, rollouts, run.metrics(step, rollouts, scores, credit, updated))
        seconds.append(time.perf_counter() - begun)
        losses.append(float(updated["policy/one/loss"]))
        common.check_lengths(
            [
                len(call.token_ids)
                for tree in trees
                for node in tree.nodes()
                for decision in node.decisions.values()
                for action in decision.branches
                for call in action.calls
            ],
            case,
        )
        begun = time.perf_counter()
    await run.close()
    return seconds, losses


def main() -> None:
    assert case is not None
    sys.modules["coterie_step"] = sys.modules["__main__"]  # the configuration names classes of this file
    run = make(case)
    seconds, losses = asyncio.run(measure(run, case))
    model, _ = common.load(case)
    common.report(
        "Coterie", case, seconds, loss=losses, parameters=sum(p.numel() for p in model.parameters())
    )


if __name__ == "__main__":
    main()
