"""Coterie's training step: rollouts, scores, credit, samples, update, weights to the engine.

The run is composed from an ordinary configuration with engine `hf` and trainer `torch`. Only the environment
(fixed prompts, random rewards) and the chat format (no stop token, so that all completions have the requested
length) belong to the benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import common


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument(
        "--roles", type=int, default=1, help="that act at once, each with a policy of its own"
    )
    parser.add_argument("--engine", choices=["hf", "vllm"], default="hf")
    parser.add_argument("--profile", action="store_true", help="also report the time by part; slower")
    return parser.parse_args()


options = _arguments() if __name__ == "__main__" else None
case = common.start(options) if options is not None else None

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
        self.texts = common.prompt_texts(case, common.tokenizer_of(case))
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


def make(case: common.Case, roles: int, engine: str) -> Run:
    """The run of a case, with as many roles that act at once."""
    module = "coterie_step"
    names = [f"role{number}" for number in range(roles)] if roles > 1 else ["one"]
    engines: dict[str, dict[str, Any]] = {
        "hf": {"type": "hf"},
        "vllm": {"type": "vllm", "process": "inside", "kv_gib": 1.0},
    }
    return compose(
        load(
            {
                "env": {"type": f"{module}:FixedPrompts"},
                "team": {
                    "order": [names],
                    "max_turns": 1,
                    "roles": {name: {"type": f"{module}:PlainRole", "policy": name} for name in names},
                },
                "policies": {
                    name: {
                        "model": str(case.model),
                        "train": case.train,
                        "dtype": "float32" if case.dtype == "float32" else "bfloat16",
                        "optimizer": {"learning_rate": common.LEARNING_RATE, "clip": common.MAX_GRAD_NORM},
                    }
                    for name in names
                },
                "engine": engines[engine],
                "sampler": {"branches": case.siblings, "sampling": {"max_new_tokens": case.new_tokens}},
                "algorithm": "at_grpo",
                "chat": f"{module}:Endless",
                "trackers": {},
                "schedule": {"steps": case.total_steps, "tasks_per_step": case.prompts},
            }
        )
    )


async def measure(
    run: Run, case: common.Case, watch: common.Stopwatch, profiled: Callable[[], None]
) -> list[float]:
    """The loss of every step; the measured code is the body of the loop in `core/loop.py`.

    Args:
        profiled: is called before the last step.
    """
    losses = []
    await open_run(run)
    watch.begin()
    watch.begin("generation")
    async for step, rollouts in run.rollouts():
        watch.end("generation")
        trees = rollouts.trees
        scores = await run.score(rollouts)
        annotations = await run.annotate(rollouts)
        batch = Batch(trees=trees, scores=scores, annotations=annotations, reward_weights=run.reward_weights)
        state = run.state.credit_state
        credit, run.state.credit_state = run.estimator(batch, state)
        watch.begin("update")
        updated = await run.update(rollouts, credit, annotations)
        watch.end("update")
        run.record(step, batch, state, credit)
        run.finish(step, rollouts, run.metrics(step, rollouts, scores, credit, updated))
        watch.end()
        losses.append(float(updated[f"policy/{next(iter(run.config.policies))}/loss"]))
        calls = [
            call
            for tree in trees
            for node in tree.nodes()
            for decision in node.decisions.values()
            for action in decision.branches
            for call in action.calls
        ]
        common.check_lengths([len(call.token_ids) for call in calls], case)
        if {len(call.prompt_ids) for call in calls} != {case.prompt_tokens}:
            raise RuntimeError("prompts have other lengths than requested")
        if step == case.total_steps - 1:
            profiled()
        if step < case.total_steps:
            watch.begin()
            watch.begin("generation")
    await run.close()
    return losses


def main() -> None:
    assert case is not None and options is not None
    sys.modules["coterie_step"] = sys.modules["__main__"]  # the configuration names classes of this file
    run = make(case, options.roles, options.engine)
    watch = common.Stopwatch()
    more: dict[str, Any] = {}
    profiled: Callable[[], None] = lambda: None  # noqa: E731
    if options.profile:
        from profiling import Profile

        config = json.loads((case.model / "config.json").read_text(encoding="utf-8"))
        profile = Profile(run, config["vocab_size"])
        profiled = profile.begin
    losses = asyncio.run(measure(run, case, watch, profiled))
    if options.profile:
        more["profile"] = profile.parts(watch.steps[-1]["wall"])
    common.report(
        "Coterie",
        case,
        watch.seconds,
        loss=losses,
        parameters=_parameters(case),
        agents=options.roles,
        watch=watch,
        engine=options.engine,
        **more,
    )


def _parameters(case: common.Case) -> int:
    """Of the model, without loading it: that would count as memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(case.model))
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main()
