"""Peak memory of an update at a real vocabulary, beside what `coterie plan` says of it.

    python benchmarks/update_memory.py [--shape qwen3-0.6b smollm2-135m] [--layers 4]
        [--dtype float32 bfloat16] [--train full lora] [--roles 1 2] [--samples 2 4 8]

Each case is a process of its own: a run is opened, the engine gets the trainer's weights, and two updates are
computed on samples of 512 tokens whose prompt is shared. Measured is the process's peak of resident memory
during the updates, minus what it had when all libraries were imported and no weights were loaded. So copies,
temporaries of kernels and the allocator's overhead count, whatever made them. The plan is that of the same
configuration, its phase `update`.

Three bars: the plan is within 15 % of what is measured; the peak is at most the weights (the trainer's and
the engine's), the optimiser with its gradients, the activations of one micro-batch without its logits, and
300 MB; and two roles with adapters on one base take less than 1.15 times what one takes.
The results go to results/update_memory.json, by case.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout

import numpy as np
import real_models
from measuring import Count, machine

from coterie import Plugin

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "update_memory.json"
TOKENS, PROMPT_WORDS = 512, 40
"""Tokens of a sample, and words of its prompt."""
ROOM = 300e6
"""Bytes that an update may hold beyond what it has to."""
WITHIN = 0.15
TWO_ROLES = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One process's work."""

    shape: str
    layers: int | None
    dtype: str
    train: str
    roles: int
    samples: int
    micro_tokens: int
    model: str = ""

    @property
    def name(self) -> str:
        depth = f"{self.layers} layers" if self.layers else "all layers"
        roles = f"{self.roles} role" + "s" * (self.roles > 1)
        return (
            f"{self.shape}, {depth}, {self.dtype}, {self.train}, {roles}, {self.samples} samples, "
            f"micro-batches of {self.micro_tokens}"
        )


class Lines(Count):
    """One turn, whose prompt has about as many tokens as words."""

    def observe(self, state: int, role: str) -> str:
        return " ".join(["the"] * PROMPT_WORDS)


class Speaker(Plugin):
    """A role that sees the turn alone."""

    def render(self, role_input: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": role_input.observation}]

    def parse(self, text: str, observation: Any) -> str:
        return text


def configuration(case: Case, answer: int) -> dict[str, Any]:
    """The run's table; each role has a policy of its own."""
    names = [f"role{number}" for number in range(case.roles)]
    policy = {"model": case.model, "train": case.train, "dtype": case.dtype, "context": 1024}
    if case.train == "lora":
        policy["lora"] = {"rank": 16, "alpha": 32}
    return {
        "env": "update_memory:Lines",
        "team": {
            "order": names,
            "max_turns": 1,
            "roles": {name: {"type": "update_memory:Speaker", "policy": name} for name in names},
        },
        "policies": {name: policy for name in names},
        "rewards": {"environment": {"type": "environment", "weights": {"value": 1.0}}},
        "sampler": {"chains": case.samples, "branches": 1, "sampling": {"max_new_tokens": answer}},
        "algorithm": "grpo",
        "engine": "hf",
        "trainer": {"type": "torch", "micro_tokens": case.micro_tokens},
        "schedule": {"steps": 1, "tasks_per_step": 1},
    }


def measure(case: Case) -> dict[str, Any]:
    """The case's peak and its plan; for a process of its own."""
    import torch
    import transformers  # noqa: F401  (what it takes is no part of an update)

    from coterie.compose import compose
    from coterie.estimate.cost import count_in_order
    from coterie.estimate.memory import memory_of
    from coterie.recipes import load

    def composed(answer: int) -> Any:
        return compose(load(configuration(case, answer)))

    run = composed(64)
    prompt = max(memory_of(run, count_in_order(run)).prompts.values())
    run = composed(TOKENS - prompt)
    counts = count_in_order(run)
    planned = memory_of(run, counts)
    if planned.unknown:
        raise next(iter(planned.unknown.values()))
    peak, held = asyncio.run(_updates(run, case, prompt))
    parts = planned.policies
    dtypes = {str(run.config.policies[name].dtype) for name in parts}
    return {
        "measured": peak,
        "after": held,
        "planned": planned.phases["update"],
        "bar": int(_must(run, prompt, planned) + ROOM),
        "parts": {name: dict(part) for name, part in parts.items()},
        "notes": planned.notes,
        "prompt": prompt,
        "dtype": sorted(dtypes),
        "torch": torch.__version__,
    }


async def _updates(run: Any, case: Case, prompt: int) -> tuple[int, int]:
    """Bytes above the imports: the peak of two updates, and what stays."""
    from coterie.api.open_run import open_run

    before = resident()
    await open_run(run)
    try:
        engine, names = run.engine, list(run.config.policies)
        engine.prepare(dict.fromkeys(names, case.samples))
        for step in range(2):
            rows = {name: samples(run, name, case, prompt, step) for name in names}
            if step == 0:
                forget_peak()
            await run.trainer.update(rows, step)
        return peak_resident() - before, resident() - before
    finally:
        await run.close()


def samples(run: Any, policy: str, case: Case, prompt: int, step: int) -> list[Any]:
    """Samples of 512 tokens with one prompt, of random tokens."""
    from coterie.core.types import Key, Sample, Span

    rng = np.random.default_rng([step, len(policy)])
    most = real_models.SHAPES[case.shape].config["vocab_size"]
    shared = rng.integers(0, most, prompt)
    mask = np.arange(TOKENS) >= prompt
    rows = []
    for branch in range(case.samples):
        key = Key(f"task-{step}", role=policy, branch=branch)
        rows.append(
            Sample(
                key=key,
                policy=policy,
                token_ids=np.concatenate([shared, rng.integers(0, most, TOKENS - prompt)]).astype(np.int64),
                loss_mask=mask,
                logprobs=np.where(mask, -np.log(most), 0.0).astype(np.float32),
                advantages=np.where(mask, rng.normal(), 0.0).astype(np.float32),
                spans=(Span(prompt, TOKENS, key, 1.0),),
                version=step,
                temperature=1.0,
                prompt_tokens=prompt,
                extras={},
            )
        )
    return rows


def _must(run: Any, prompt: int, planned: Any) -> float:
    """Bytes that an update has to hold: the plan's parts, of the activations those without logits."""
    from coterie.backends.models.memory import STAYING, Activations, largest_forward
    from coterie.backends.models.policy import of_tensors
    from coterie.backends.models.precision import with_dtype
    from coterie.backends.models.sizes import blueprint

    configs = with_dtype(of_tensors(run.config.policies), "cpu")
    size, (first, config) = blueprint(configs, vocabulary=()).size, next(iter(configs.items()))
    parts = planned.policies
    held = sum(part.get(name, 0) for part in parts.values() for name in (*STAYING, "copies"))
    budget, samples = run.trainer.config.micro_tokens, run.sampler.plan.branches
    forward = largest_forward(1, samples, prompt, TOKENS - prompt, budget=budget, packing=True)
    gradients = max(part["gradients"] for part in parts.values())
    return held + gradients + Activations(size, config, first).body(forward)


# ----------------------------------------------------------------------------------------------- the process


def resident() -> int:
    """Bytes of this process's resident memory."""
    return _status("VmRSS")


def peak_resident() -> int:
    """Its peak since `forget_peak`."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Begin the peak anew (Linux, proc(5): clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


# -------------------------------------------------------------------------------------------------- the table


def run_case(case: Case) -> dict[str, Any]:
    """Measure in a new process."""
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stderr[-3000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    ratio = measured["planned"] / measured["measured"]
    return {
        **measured,
        "plan_over_measured": round(ratio, 3),
        "met": abs(ratio - 1) <= WITHIN and measured["measured"] <= measured["bar"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=list(real_models.SHAPES), default=["qwen3-0.6b"])
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--train", nargs="+", default=["full", "lora"])
    parser.add_argument("--roles", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--samples", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--micro-tokens", type=int, default=1024)
    parser.add_argument("--models", type=Path, help="where models are made, and left; default: nowhere")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(Case(**json.loads(options.case)))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        return _table(options, options.models or Path(temporary))


def _table(options: argparse.Namespace, folder: Path) -> int:
    results = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
    cases = itertools.product(options.shape, options.dtype, options.train, options.roles, options.samples)
    print(f"{'measured':>9} {'planned':>9} {'ratio':>6} {'bar':>9}  case", flush=True)
    met = True
    for shape, dtype, train, roles, count in cases:
        depth = f"-{options.layers}" if options.layers else ""
        model = real_models.make(shape, folder / f"{shape}{depth}", layers=options.layers)
        case = Case(
            shape=shape, layers=options.layers, dtype=dtype, train=train, roles=roles, samples=count,
            micro_tokens=options.micro_tokens, model=str(model),
        )  # fmt: skip
        result = run_case(case)
        met &= result["met"]
        sizes = (f"{result[name] / 1e6:>6,.0f} MB" for name in ("measured", "planned"))
        print(
            *sizes, f"{result['plan_over_measured']:>6.2f}", f"{result['bar'] / 1e6:>6,.0f} MB",
            f" {case.name}{'' if result['met'] else ': NOT met'}", flush=True,
        )  # fmt: skip
        results[case.name] = {**result, "machine": machine()}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for name, ratio in two_roles(results).items():
        met &= ratio < TWO_ROLES
        print(f"{ratio:.3f} times the memory of one role: {name}", flush=True)
    return int(not met)


def two_roles(results: dict[str, Any]) -> dict[str, float]:
    """By case of two roles with adapters: the measured memory over that of one role."""
    return {
        name: result["measured"] / results[one]["measured"]
        for name, result in results.items()
        if ", lora, 2 roles, " in name and (one := name.replace("2 roles", "1 role")) in results
    }


if __name__ == "__main__":
    raise SystemExit(main())
