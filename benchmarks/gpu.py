"""One GPU: memory against `coterie plan`, speed against a bare loop, repeatability, offloading.

    python benchmarks/gpu.py [--size qwen3-1.7b] [--only plan repeat ...] [--json FILE]

The model has the sizes of Qwen3-1.7B and random weights: what a token costs doesn't depend on their values.
Its tokenizer has a token for each byte and as many others as Qwen3's vocabulary has, so prompts are longer
than with the real one, and answers never stop by themselves. Every case runs in a process of its own and
says what it requires; the script prints the results, writes results/gpu.json, and exits with 1 where a case
fails. `--size tiny` tries the script on a CPU; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "4")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "gpu.json"
SIZES: dict[str, dict[str, int]] = {
    "qwen3-1.7b": {
        "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    },
    "tiny": {
        "vocab_size": 600, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    },
}  # fmt: skip
NEW_TOKENS = {"qwen3-1.7b": 512, "tiny": 16}
ROWS = 128
"""Rollouts of a step: 32 prompts with 4 siblings each."""
CONTEXT = 4096


def make_model(folder: Path, size: str) -> None:
    """Write a Qwen3 of random bfloat16 weights, and a tokenizer of bytes with as many tokens."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    sizes = SIZES[size]
    names = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<{index}>" for index in range(len(names), sizes["vocab_size"])]
    characters = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    characters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    characters.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        **sizes, max_position_embeddings=CONTEXT, tie_word_embeddings=True, rope_theta=1e6, pad_token_id=0,
        bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)


def settings(options: argparse.Namespace, *more: str) -> list[str]:
    """Overrides of `plan_path_single`: one turn of ROWS rollouts a step, all equally long."""
    rows, new = (ROWS, NEW_TOKENS[options.size])
    return [
        f"policies.shared.model={options.model}", "policies.shared.dtype=bfloat16", "team.max_turns=1",
        f"sampler.sampling.max_new_tokens={new}", f"schedule.tasks_per_step={rows // 4}", "schedule.steps=2",
        "schedule.evaluate_every=0", "schedule.record_every=0", "schedule.checkpoint_every=0",
        "algorithm.zero_variance=keep", "trainer.gradient_checkpointing=true", "chat=auto", *more,
    ]  # fmt: skip


class Watch(logging.Handler):
    """Peaks of the GPU's memory and seconds by phase, and what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.phases: dict[str, list[dict[str, float]]] = {"generation": [], "update": []}
        self.messages: list[str] = []
        self.started = time.perf_counter()
        self._begin()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.levelname}: {record.getMessage()}")
        self.say(self.messages[-1])

    def say(self, text: str) -> None:
        print(f"{time.perf_counter() - self.started:.1f} s: {text}", file=sys.stderr, flush=True)

    def _begin(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self.began = time.perf_counter()

    def _end(self, phase: str) -> None:
        import torch

        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.synchronize()
        row = {"seconds": time.perf_counter() - self.began}
        if cuda:
            row["allocated"] = torch.cuda.max_memory_allocated()
            row["reserved"] = torch.cuda.max_memory_reserved()
        self.phases[phase].append(row)
        self.say(f"{phase}: {row}")
        self._begin()

    def watch(self) -> None:
        """Take a measurement around each update; what is between two is generation."""
        from coterie.backends.trainers.torch_trainer import TorchTrainer

        update, watch = TorchTrainer.update, self

        async def updated(trainer: Any, *arguments: Any) -> Any:
            watch._end("generation")
            try:
                return await update(trainer, *arguments)
            finally:
                watch._end("update")

        TorchTrainer.update = updated  # type: ignore[method-assign]

    def steady(self, phase: str, what: str) -> float:
        """Of the last step: the first one compiles and warms up."""
        return self.phases[phase][-1].get(what, 0.0)


@contextmanager
def watched() -> Iterator[Watch]:
    """A measurement of a run in this process."""
    watch = Watch()
    log = logging.getLogger("coterie")
    log.addHandler(watch)
    log.setLevel(logging.INFO)
    watch.watch()
    yield watch


class _Enough(BaseException):
    """Ends a run before its last checkpoint: 24 GB of weights, masters and moments."""


def trained(options: argparse.Namespace, name: str, *more: str, steps: int = 2) -> Path:
    """Train for some steps without a checkpoint, and return the run's folder."""
    import coterie

    folder = Path(options.scratch) / name

    def progress(step: int, expected: int | None, row: Any) -> None:
        if step == steps:
            raise _Enough

    with suppress(_Enough):
        overrides = settings(options, *more, f"schedule.steps={steps + 1}")
        coterie.train("plan_path_single", overrides=overrides, out=folder, progress=progress)
    return folder


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def planned(options: argparse.Namespace, *more: str) -> dict[str, int]:
    """Bytes by phase as `coterie plan` counts them."""
    from coterie.compose import compose
    from coterie.estimate.cost import count
    from coterie.estimate.memory import memory_of
    from coterie.recipes import load

    run = compose(load("plan_path_single", overrides=settings(options, *more)))
    return dict(memory_of(run, count(run), device="cuda", gpu=80e9, gpus=1).phases)


# ------------------------------------------------------------------------------------------------------ cases

METHODS = {
    "full": ("policies.shared.train=full", "policies.shared.lora=null"),
    "LoRA": (),
    "full, no checkpointing": (
        "policies.shared.train=full", "policies.shared.lora=null", "trainer.gradient_checkpointing=false",
    ),
}  # fmt: skip


def step(options: argparse.Namespace, method: str, *more: str) -> dict[str, Any]:
    """Two steps: memory by phase against the plan, tokens a second, mismatch of engine and trainer."""
    more = (*METHODS[method], *more)
    plan = planned(options, *more)
    with watched() as watch:
        folder = trained(options, "step", *more)
    row, tokens = metrics(folder)[-1], ROWS * NEW_TOKENS[options.size]
    result: dict[str, Any] = {
        "generated_tokens_a_second": round(tokens / watch.steady("generation", "seconds")),
        "updated_tokens_a_second": round(tokens / watch.steady("update", "seconds")),
        "seconds": {
            phase: [round(each["seconds"], 2) for each in rows] for phase, rows in watch.phases.items()
        },
        "mismatch": row["policy/shared/mismatch"],
        "mismatch_max": row["policy/shared/mismatch_max"],
        "gigabytes": {},
        "log": [line[:400] for line in watch.messages],
    }
    for phase, planned_bytes in plan.items():
        if phase in watch.phases:
            measured = max(each.get("allocated", 0.0) for each in watch.phases[phase])
            result["gigabytes"][phase] = {
                "planned": round(planned_bytes / 1e9, 2),
                "measured": round(measured / 1e9, 2),
                "reserved": round(max(each.get("reserved", 0.0) for each in watch.phases[phase]) / 1e9, 2),
                "ratio": round(measured / planned_bytes, 3),
            }
    result["requires"] = "measured memory between .7 and 1.05 of the plan"
    ratios = [each["ratio"] for each in result["gigabytes"].values()]
    result["met"] = all(0.7 <= ratio <= 1.05 for ratio in ratios)
    return result


def bare(options: argparse.Namespace) -> dict[str, Any]:
    """The same step without a framework: `generate` of transformers, padded micro-batches, AdamW."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).to(device)
    prompt, new = options.prompt, NEW_TOKENS[options.size]
    ids = torch.randint(2, 258, (ROWS // 4, prompt), device=device).repeat_interleave(4, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=device == "cuda")
    seconds: dict[str, list[float]] = {"generation": [], "update": []}

    def clock() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for length in (8, new):  # the first, short step warms up
        begin = clock()
        with torch.inference_mode():
            rows = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, min_new_tokens=length,
                do_sample=True, top_k=0,
            )  # fmt: skip
        seconds["generation"].append(clock() - begin)
        rows, begin = rows.clone(), clock()
        model.gradient_checkpointing_enable()
        model.train()
        for part in rows.split(8):
            logits = model(part, logits_to_keep=length + 1, use_cache=False).logits[:, :-1].float()
            scored = -torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), part[:, -length:].flatten(), reduction="none"
            )
            (-scored.sum() / (ROWS * length)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        seconds["update"].append(clock() - begin)
    tokens = ROWS * new
    return {
        "generated_tokens_a_second": round(tokens / seconds["generation"][-1]),
        "updated_tokens_a_second": round(tokens / seconds["update"][-1]),
        "seconds": seconds,
        "requires": "nothing: it is the peer",
        "met": True,
    }


QUICK = [
    "schedule.steps=4", "schedule.tokens=null", "schedule.evaluate_every=0", "schedule.checkpoint_every=1",
    "policies.shared.warm_start.steps=20", "policies.shared.optimizer.horizon=100",
]  # fmt: skip


def _weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    newest = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return {
        f"{path.name}/{name}": tensor
        for path in sorted(newest.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def repeat(options: argparse.Namespace) -> dict[str, Any]:
    """The quickstart on the GPU, `deterministic: true`: twice, and as 2 steps and a resume."""
    import torch

    import coterie

    folders = {name: Path(options.scratch) / name for name in ("one", "two", "resumed", "auto")}
    sure = [*QUICK, "deterministic=true"]
    begin = time.perf_counter()
    coterie.train("quickstart", overrides=sure, out=folders["one"])
    seconds = time.perf_counter() - begin
    coterie.train("quickstart", overrides=sure, out=folders["two"])
    coterie.train("quickstart", overrides=[*sure, "schedule.steps=2"], out=folders["resumed"])
    coterie.train(resume=folders["resumed"], overrides=["schedule.steps=4"])
    coterie.train("quickstart", overrides=QUICK, out=folders["auto"])
    weights = {name: _weights(folder) for name, folder in folders.items()}

    def same(a: str, b: str) -> bool:
        return weights[a].keys() == weights[b].keys() and all(
            torch.equal(value, weights[b][name]) for name, value in weights[a].items()
        )

    result = {
        "twice": same("one", "two"),
        "resumed": same("one", "resumed"),
        "auto_bitwise": same("one", "auto"),
        "seconds_of_4_steps": round(seconds, 1),
        "device": str(metrics(folders["one"])[-1].get("time/step")),
        "requires": "the same weights bit for bit, twice and resumed",
    }
    result["met"] = result["twice"] and result["resumed"]
    return result


def memory_error(options: argparse.Namespace) -> dict[str, Any]:
    """A share of the GPU that no batch and no micro-batch fits in: both are halved, and the run goes on."""
    import torch

    if torch.cuda.is_available():
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(9e9 / whole)
    with watched() as watch:
        folder = trained(
            options, "oom", "engine.kv_memory=60GB", "engine.max_batch=512", "trainer.micro_tokens=65536",
            f"sampler.sampling.max_new_tokens={NEW_TOKENS[options.size] // 2}", steps=1,
        )  # fmt: skip
    warnings = [line for line in watch.messages if line.startswith("WARNING")]
    halved = [line for line in warnings if "memory" in line]
    row = metrics(folder)[-1]
    return {
        "warnings": warnings,
        "mismatch": row["policy/shared/mismatch"],
        "requires": "warnings of a halved batch and of halved micro-batches, and a finished step",
        "met": len(halved) >= 2 and row["policy/shared/optimizer_steps"] > 0,
    }


def offload(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes that leave the GPU with `trainer.offload_in_rollouts: all`, their seconds, and the results."""
    import asyncio

    import torch

    from coterie.backends.models import device_memory
    from coterie.backends.models.policy import TorchPolicy
    from tests.backends.trainers.tiny import opened, samples, update

    def policy() -> TorchPolicy:
        return TorchPolicy.model_validate(
            {
                "model": options.model,
                "train": "full",
                "dtype": "bfloat16",
                "optimizer": {"learning_rate": 1e-5},
            }
        )

    device = "cuda" if torch.cuda.is_available() else "cpu"
    digests, result = [], {}
    for place in ("none", "all"):
        trainer = opened({"p": policy()}, device=device, offload_in_rollouts=place)
        for number in range(2):
            update(trainer, {"p": samples("p", groups=2)}, number)
            held = torch.cuda.memory_allocated() if device == "cuda" else 0
            begin = time.perf_counter()
            asyncio.run(device_memory.make_room())
            if device == "cuda":
                torch.cuda.synchronize()
            left = torch.cuda.memory_allocated() if device == "cuda" else 0
            if place == "all":
                result[f"leaving_{number}"] = {
                    "held_gb": round(held / 1e9, 2), "left_gb": round(left / 1e9, 2),
                    "seconds": round(time.perf_counter() - begin, 2),
                }  # fmt: skip
        digests.append(trainer.digest())
        asyncio.run(trainer.close())
        del trainer
    result["same_weights"] = digests[0] == digests[1]
    result["requires"] = "at most a tenth of the memory stays, and the weights are those of a run without it"
    last = result["leaving_1"]
    result["met"] = result["same_weights"] and last["left_gb"] <= 0.1 * last["held_gb"]
    return result


CASES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "plan: full": lambda options: step(options, "full"),
    "plan: LoRA": lambda options: step(options, "LoRA"),
    "plan: full, no checkpointing": lambda options: step(options, "full, no checkpointing"),
    "flex": lambda options: step(options, "full", "trainer.attention=flex"),
    "bare loop": bare,
    "repeat": repeat,
    "out of memory": memory_error,
    "offload": offload,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(SIZES), default="qwen3-1.7b")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds of a case")
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of the bare loop's prompts")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--model", help="folder of the model, which is made if it is not there")
    parser.add_argument("--scratch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        faulthandler.dump_traceback_later(options.timeout - 3)
        print("RESULT " + json.dumps(CASES[options.case](options)), flush=True)
        return
    sys.exit(run_cases(options))


def run_cases(options: argparse.Namespace) -> int:
    """Run each case in a process; 1 where one fails."""
    from measuring import machine

    results: dict[str, Any] = {"machine": machine(), "size": options.size}
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(options.model or Path(scratch) / "model")
        if not model.exists():
            make_model(model, options.size)
        for name in options.only:
            begin, place = time.perf_counter(), Path(scratch) / name.replace(" ", "_")
            place.mkdir()
            words = [
                sys.executable,
                __file__,
                "--size",
                options.size,
                "--prompt",
                str(options.prompt),
                "--timeout",
                str(options.timeout),
            ]
            words += ["--case", name, "--model", str(model), "--scratch", str(place)]
            with (place / "errors").open("w+") as errors:
                try:
                    done = subprocess.run(
                        words, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=options.timeout
                    )
                    output = done.stdout
                except subprocess.TimeoutExpired:
                    output = ""
            lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
            result = (
                json.loads(lines[-1][7:])
                if lines
                else {"met": False, "error": (place / "errors").read_text()[-4000:]}
            )
            results[name] = result | {"wall": round(time.perf_counter() - begin, 1)}
            print(f"{name}: {'met' if result['met'] else 'NOT met'} {json.dumps(result)[:1500]}", flush=True)
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(not all(results[name]["met"] for name in options.only))


if __name__ == "__main__":
    main()
