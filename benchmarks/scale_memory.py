"""Memory and time of training at scale: what shared bases, adapters, turns and the plan cost.

    python benchmarks/scale_memory.py [--only memory lora bookkeeping plan] [--pairs 5]

- memory: parameters, optimiser and gradients of four adapters on one base, over those of one adapter.
- lora: a training step with an adapter per role, over that of one shared adapter; alternating steps.
- bookkeeping: the share of a step of 128 turns that is neither generation, nor update, nor environment.
- plan: `coterie plan`'s bytes over those that autograd saves plus the KV cache, in bfloat16.

Needs the extra `torch`, and no vLLM. Every number is measured here, on a CPU, except for those that are said
to be planned. The results go to results/scale.json.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import asyncio
import runpy
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout; `tests` has two sections' cases

import numpy as np
import torch
from measuring import ENVIRONMENT, Clocks, Count, Section, run_sections

from coterie import Plugin
from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.core.loop import train
from coterie.core.training.run import Run
from coterie.recipes import load

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "scale.json"


# ----------------------------------------------------------------------------------------------------- memory


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes in the middle of an update: all weights and moments, and one policy's gradients."""
    one, four = _held(1), _held(4)
    ratio, base = four["all"] / one["all"], one["base"]
    return {
        "bar": "parameters, optimiser and gradients of a base with 4 adapters are at most 1.2 times those of "
        "one policy: the same base with 1 adapter, in the same update",
        "met": ratio <= 1.2,
        "ratio": ratio,
        "why_this_reading": "one policy's tensors are counted as the four's are: parameters, optimiser and "
        "gradients. over_one_policys_weights divides by the base's bytes alone, which no update fits in.",
        "over_one_policys_weights": four["all"] / base,
        "over_one_policy_with_all_weights_trained": four["all"] / _held(1, "full")["all"],
        "bytes": {"base": base, "one_policy": one["all"], "four_adapters": four["all"]},
        "model": "hidden size 512, rank 4, 9,000 words, bfloat16 beside fp32 adapters: the proportions of "
        "Qwen3-1.7B at rank 16 (rank 1/128 of the width, a fifth of the weights are embeddings)",
        "planned": planned_memory(),
    }


def _held(count: int, train: str = "lora") -> dict[str, int]:
    """Most bytes of tensors just before an optimiser step, and those of the base's weights."""
    from coterie.backends.models.policy import TorchPolicy
    from coterie.backends.trainers.optim import PolicyOptimizer
    from tests.backends.trainers import tiny

    tiny.WORDS = tuple(f"w{number}" for number in range(9000))
    table = {
        "model": {
            "init": "qwen3", "hidden_size": 512, "layers": 6, "heads": 8, "head_dim": 64, "kv_heads": 4,
            "mlp_size": 1536, "context": 128,
        },
        "train": train,
        "dtype": "bfloat16",
        **({"lora": {"rank": 4}} if train == "lora" else {}),
    }  # fmt: skip
    names = [f"p{number}" for number in range(count)]
    trainer = tiny.opened({name: TorchPolicy.model_validate(table) for name in names})
    samples = {name: tiny.samples(name, groups=2) for name in names}
    tiny.update(trainer, samples)  # the moments are made
    peaks: list[int] = []
    original = PolicyOptimizer.step
    initial = trainer.initial_weights[0]
    frozen = {} if initial.peft is None else dict(initial.frozen.named_parameters())
    frozen = {name: tensor for name, tensor in frozen.items() if "lora_" not in name}

    def noted(self: PolicyOptimizer) -> Any:
        tensors: list[Any] = list(frozen.values())
        for policy in trainer.policies.values():
            tensors += [*policy.weights().values(), *policy.optimizer.state().values()]
            masters = policy.optimizer.masters().values()
            tensors += [*masters, *(weight.grad for weight in masters if weight.grad is not None)]
        peaks.append(_unique_bytes(tensors))
        return original(self)

    PolicyOptimizer.step = noted  # type: ignore[method-assign]
    try:
        tiny.update(trainer, samples, step=1)
    finally:
        PolicyOptimizer.step = original  # type: ignore[method-assign]
    return {"all": max(peaks), "base": _unique_bytes(list(frozen.values()))}


def _unique_bytes(tensors: list[Any]) -> int:
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def planned_memory() -> dict[str, dict[str, float]]:
    """Both ratios by the plan's arithmetic, for Qwen3 at rank 16 on all linear layers, base in bfloat16."""
    script = runpy.run_path(str(ROOT / "docs" / "scaling_table.py"))
    ratios = {}
    for name in script["MODELS"]:
        made = script["model"](name)
        base, adapter = 2 * made.size.parameters, 4 * made.adapter
        held = base + 4 * 3 * adapter + adapter  # weights and two moments each, and one's gradients
        ratios[f"Qwen3-{name}"] = {
            "ratio": held / (base + 4 * adapter),
            "over_one_policys_weights": held / base,
        }
    return ratios


# ------------------------------------------------------------------------------------------------------- lora

LORA_MODEL = (
    "{init: qwen3, hidden_size: 512, layers: 8, heads: 8, kv_heads: 4, head_dim: 64, mlp_size: 1536, "
    "context: 64, tokenizer: words}"
)
"""25 M parameters: large enough that products, and not Python, take the time."""


class Steps:
    """A run that is trained a step at a time."""

    def __init__(self, run: Run) -> None:
        interrupt = Event()
        # A run ends after the step in which it is interrupted, and `train` may be called again.
        self._run = replace(run, interrupt=interrupt, progress=lambda *_: interrupt.set())

    async def step(self) -> dict[str, Any]:
        """Train one step; its metrics, and seconds of wall time and of this process's processor time."""
        assert self._run.interrupt is not None
        self._run.interrupt.clear()
        wall, processor = time.perf_counter(), time.process_time()
        row = await train(self._run)
        return {
            **row,
            "wall": time.perf_counter() - wall,
            "processor": time.process_time() - processor,
        }


@asynccontextmanager
async def stepping(run: Run) -> AsyncIterator[Steps]:
    """The run, open."""
    await open_run(run)
    try:
        yield Steps(run)
    finally:
        await run.close()


def lora(options: argparse.Namespace) -> dict[str, Any]:
    """A step with an adapter per role over one with a shared adapter, alternating, on equal work."""
    pairs = asyncio.run(_lora_pairs(options.pairs))
    ratios = {
        clock: [pair["per_role"][clock] / pair["shared"][clock] for pair in pairs]
        for clock in ("wall", "processor")
    }
    ratio = statistics.median(ratios["wall"])
    return {
        "bar": "a step with an adapter per role takes at most 1.10 times that with one shared adapter",
        "met": ratio <= 1.10,
        "ratio": ratio,
        "ratio_of_processor_time": statistics.median(ratios["processor"]),
        "pairs": ratios["wall"],
        "seconds": {
            form: statistics.median(pair[form]["wall"] for pair in pairs) / 2
            for form in ("shared", "per_role")
        },
        "parts": {
            form: {
                part: statistics.median(pair[form][f"time/{part}"] for pair in pairs) / 2
                for part in ("rollouts", "update")
            }
            for form in ("shared", "per_role")
        },
        "model": LORA_MODEL,
        "work": "plan_path_split, 16 tasks, 4 branches, rank 8; a learning rate of 1e-12, so that both forms "
        "draw the same tokens",
    }


async def _lora_pairs(pairs: int) -> list[dict[str, dict[str, float]]]:
    """By form: sums of two steps of a pair, which have the order ABBA so that a drift cancels."""
    overrides = [
        "policies.*.train=lora", "policies.*.lora={rank: 8, alpha: 16}", f"policies.*.model={LORA_MODEL}",
        "policies.*.warm_start=null", "policies.*.optimizer.learning_rate=1.0e-12",
        "policies.*.optimizer.schedule=constant", "policies.*.optimizer.horizon=null",
        "algorithm.zero_variance=keep", f"schedule.steps={2 * pairs + 1}", "schedule.tokens=null",
        "schedule.tasks_per_step=16", "schedule.evaluate_every=0", "schedule.record_every=0",
        "schedule.checkpoint_every=0",
    ]  # fmt: skip

    def made(*overlays: str) -> Run:
        return compose(load("plan_path_split", overlays=list(overlays), scale="cpu", overrides=overrides))

    sums = []
    async with stepping(made()) as shared, stepping(made("per_role")) as per_role:
        forms = {"shared": shared, "per_role": per_role}
        for steps in forms.values():
            await steps.step()  # the first one imports and allocates
        for _ in range(pairs):
            rows: dict[str, list[dict[str, float]]] = {form: [] for form in forms}
            for form in ("shared", "per_role", "per_role", "shared"):
                rows[form].append(await forms[form].step())
            drawn = [[row["tokens/generated"] for row in of_form] for of_form in rows.values()]
            if drawn[0] != drawn[1]:
                raise RuntimeError(f"the two forms drew different numbers of tokens: {drawn}")
            clocks = ("wall", "processor", "time/rollouts", "time/update")
            sums.append(
                {form: {clock: sum(row[clock] for row in of_form) for clock in clocks}
                 for form, of_form in rows.items()}
            )  # fmt: skip
    return sums


# ------------------------------------------------------------------------------------------------ bookkeeping

TURNS = 128


class Talk(Count):
    """An environment that counts turns, and scores what was written so that siblings differ."""

    policy_fault = 0.0

    def vocabulary(self) -> list[str]:
        return ["turn", *(str(number) for number in range(TURNS + 1)), *(f"w{n}" for n in range(200))]

    def score(self, parsed: Any) -> float:
        return float(len(parsed) % 7)


class Speaker(Plugin):
    """A role that sees the turn alone."""

    def render(self, role_input: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": role_input.observation}]

    def parse(self, text: str, observation: Any) -> str:
        return text


class Talker(Speaker):
    """A role whose whole conversation precedes each prompt, so that prompts grow with every turn."""

    remembers = True


CASES = {
    "whole conversation": {
        "role": "Talker", "answer": 8,
        "model": {
            "init": "qwen3", "hidden_size": 128, "layers": 3, "heads": 4, "head_dim": 32, "mlp_size": 384,
            "context": 8192,
        },
    },
    "one turn": {
        "role": "Speaker", "answer": 32,
        "model": {
            "init": "qwen3", "hidden_size": 512, "layers": 8, "heads": 8, "kv_heads": 4, "head_dim": 64,
            "mlp_size": 1536, "context": 128,
        },
    },
}  # fmt: skip
"""By what precedes a prompt: the role, most tokens of an answer, and the model.

With the whole conversation a step's tokens grow with the square of the turns, and so do the texts that are
rendered: the smallest model (0.7 M) shows most of it. With one turn, 32 tokens of a model of 25 M are few for
what anybody trains; with a model of 0.7 M, Python is several per cent.
"""


def bookkeeping(options: argparse.Namespace) -> dict[str, Any]:
    """The share of a step that is neither model compute nor the environment."""
    asyncio.run(bookkeeping_step("whole conversation", turns=2))  # imports
    cases = {}
    for case in CASES:
        steps = [asyncio.run(bookkeeping_step(case, TURNS)) for _ in range(max(options.pairs // 2, 1))]
        cases[case] = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
        cases[case]["steps"] = len(steps)
    ratio = max(case["share"] for case in cases.values())
    return {
        "bar": f"our bookkeeping is at most 1 % of a step of {TURNS} turns, in both cases",
        "met": ratio <= 0.01,
        "ratio": ratio,
        "turns": TURNS,
        "what": "wall time of a step (two chains of one task) without the engine's generation, the trainer's "
        "update, the weights' sync and the environment; templates and tokenizer count as bookkeeping. "
        "share_of_processor_time is the same in the process's processor time",
        "cases": cases,
        "models": {name: case["model"] for name, case in CASES.items()},
        "answer_tokens": {name: case["answer"] for name, case in CASES.items()},
    }


async def bookkeeping_step(case: str, turns: int) -> dict[str, float]:
    """Seconds of a step and of its bookkeeping."""
    run = compose(load(_talk(case, turns)))
    async with stepping(run) as steps:
        wall, processor = (
            Clocks(time.perf_counter, compute=0.0, environment=0.0),
            Clocks(time.process_time, compute=0.0, environment=0.0),
        )
        for clocks in (wall, processor):
            clocks.watch("environment", run.environment, *ENVIRONMENT)
            engine: Any = run.engine
            for decoder in {id(served.decoder): served.decoder for served in engine.served.values()}.values():
                clocks.watch("compute", decoder, "generate")
            clocks.watch("compute", engine, "_load")
            clocks.watch("compute", run.trainer, "_update_policy")
        row = await steps.step()
        rest = row["wall"] - sum(wall.values())
        rest_of_processor = row["processor"] - sum(processor.values())
        return {
            "step_seconds": row["wall"],
            "bookkeeping_seconds": rest,
            "share": rest / row["wall"],
            "share_of_processor_time": rest_of_processor / row["processor"],
            "processor_milliseconds_per_answer": 1e3 * rest_of_processor / (2 * turns),
            "prompt_tokens": row["tokens/prompt"],
            "generated_tokens": row["tokens/generated"],
        }


def _talk(case: str, turns: int) -> dict[str, Any]:
    setting: Any = CASES[case]
    return {
        "env": {"type": "scale_memory:Talk"},
        "team": {
            "order": ["one"],
            "max_turns": turns,
            "roles": {"one": {"type": f"scale_memory:{setting['role']}", "policy": "p"}},
        },
        "policies": {"p": {"model": setting["model"], "train": "full"}},
        "sampler": {"chains": 2, "branches": 1, "sampling": {"max_new_tokens": setting["answer"]}},
        "algorithm": "grpo",
        "engine": "hf",
        "trainer": "torch",
        "schedule": {"steps": 1, "tasks_per_step": 1, "record_every": 0, "evaluate_every": 0},
    }


# ------------------------------------------------------------------------------------------------------- plan


def plan(options: argparse.Namespace) -> dict[str, Any]:
    """The plan's bytes over the measured ones, by case."""
    from coterie.backends.models.memory import Activations, cache_bytes, largest_forward
    from tests.backends.models import test_activations as cases

    deviations = {}
    for train_ in ("full", "lora"):
        for shape in cases.SHAPES:
            network, policy, size = cases.model(shape, "bfloat16", train_, layers=4)
            rows = [row for length in (88, 92, 94, 96) for row in cases.groups(1, 4, length, 40)]
            kept = cases.measured(network, rows, True)
            with torch.no_grad():
                ids = torch.from_numpy(np.random.default_rng(1).integers(0, 100, (16, 136)))
                cache = network(ids, use_cache=True).past_key_values
            kept += sum(
                tensor.numel() * tensor.element_size()
                for layer in cache.layers
                for tensor in (layer.keys, layer.values)
            )
            forward = largest_forward(4, 16, 96, 40, budget=None, packing=True)
            planned = Activations(size, policy, "p").kept(forward)
            planned += cache_bytes(size, "bfloat16", prompts=16, prompt=96, rows=16, answer=40)
            deviations[f"{train_}, {shape}"] = planned / kept - 1
    ratio = max(map(abs, deviations.values()))
    return {
        "bar": "a plan is within 10 % of the bytes that autograd saves plus the KV cache, in bfloat16",
        "met": ratio <= 0.10,
        "ratio": ratio,
        "deviations": deviations,
        "model": "the shapes of tests/backends/models/test_activations.py, 4 layers",
    }


SECTIONS: dict[str, Section] = {"memory": memory, "lora": lora, "bookkeeping": bookkeeping, "plan": plan}
"""By name; each returns JSON with `bar` (a sentence), `met` and the `ratio` that is judged."""


if __name__ == "__main__":
    sys.exit(run_sections(SECTIONS, __doc__ or "", RESULTS))
