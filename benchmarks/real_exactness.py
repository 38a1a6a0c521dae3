"""Engines and exports against plain transformers, on models of real sizes with random weights.

    python benchmarks/real_exactness.py [--only engines export] [--shapes smollm2-135m] [--engines lean vllm]

- engines: tokens and log-probs of each engine, in float32 and bfloat16, against transformers in float32 with
  the same weights (they are stored in bfloat16, so both dtypes start from the same numbers).
- export: an adapter of a LoRA run, as `coterie export` writes it, with and without --merge: the text of
  Coterie's engine, of transformers + PEFT, and of vLLM.

Needs the Python of `make scale-venv` for vLLM (see real_size.py). Each case is a process of its own; results
go to results/real_exactness.json after each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import real_models
import real_size_report

RESULTS = Path(__file__).resolve().parent / "results" / "real_exactness.json"
PAGE = RESULTS.parents[2] / "docs" / "real_sizes.md"
ENGINES = ("lean", "transformers", "vllm")
"""Engine `hf` with either decoder, and `vllm`."""
DTYPES = ("float32", "bfloat16")
TOLERANCE = 1e-4
"""Largest difference of a log-prob in float32."""
CONTEXT = 256
PROMPTS, NEW = (7, 40, 64), 24
"""Tokens of each prompt, and of each completion."""


class Served:
    """An open engine that serves modules as policies.

    Args:
        engine: of `ENGINES`.
        folder: the model's.
        played: by policy, the module and its adapter (None: none).
    """

    def __init__(
        self, engine: str, folder: Path, dtype: str, played: Mapping[str, tuple[Any, str | None]]
    ) -> None:
        from coterie.core.concurrency.active_rollouts import ActiveRollouts
        from coterie.core.protocols import EngineContext

        self.played, self.rollouts = dict(played), ActiveRollouts()
        settings: Any
        kind: Any
        if engine == "vllm":
            from coterie.backends.engines.vllm.engine import VLLMEngine
            from coterie.backends.engines.vllm.settings import VLLMConfig

            settings, kind = VLLMConfig(kv_gib=0.5, max_batch=64, process="inside"), VLLMEngine
        else:
            from coterie.backends.engines.hf import HFEngine

            settings, kind = HFEngine.Config(decoder=engine), HFEngine
        self.engine = kind(settings)
        policies = {
            name: kind.Policy(
                model=str(folder), train="none" if adapter is None else "lora", dtype=dtype, context=CONTEXT
            )
            for name, (_, adapter) in played.items()
        }
        codec = SimpleNamespace(stop_ids=frozenset())
        self._context = EngineContext(
            policies=policies,
            chat=SimpleNamespace(codec=lambda tokenizer, context: codec),
            active_rollouts=self.rollouts,
            deterministic=True,
            vocabulary=(),
        )

    async def open(self) -> None:
        """Open the engine and load every policy's weights."""
        from coterie.core.types import Weights

        await self.engine.open(self._context)
        tokenizer = SimpleNamespace(model_max_length=CONTEXT, unk_token_id=None)
        for policy, (module, adapter) in self.played.items():
            await self.engine.load_weights(
                Weights(policy=policy, version=1, module=module, adapter=adapter, tokenizer=tokenizer)
            )

    async def calls(self, requests: Sequence[Any]) -> list[Any]:
        """The calls of requests that are made at once."""

        async def play(request: Any) -> Any:
            self.rollouts.start()
            try:
                return await self.engine.generate(request)
            finally:
                self.rollouts.stop()

        return list(await asyncio.gather(*[play(request) for request in requests]))


def thin(shape: str, folder: Path, *, layers: int = 2, seed: int = 0) -> Path:
    """A model of a shape's width and vocabulary with few layers, and a tokenizer of words: quickly made."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    values = {**real_models.SHAPES[shape].config, "num_hidden_layers": layers}
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    config = AutoConfig.for_model(**values, **ends)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        with torch.no_grad():
            model.model.norm.weight.fill_(4.0)
    model.save_pretrained(folder)
    words = {"<pad>": 0, "<end>": 1, **{f"w{token}": token for token in range(2, values["vocab_size"])}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>").save_pretrained(
        folder
    )
    return folder


def request(policy: str, prompt: Sequence[int], number: int, temperature: float, new: int = NEW) -> Any:
    """A request of one completion of `new` tokens."""
    from coterie.core.types import Key, Request, Sampling

    return Request(
        key=Key("task").of_branch("solver", number).of_call(0),
        policy=policy,
        prompt_ids=tuple(prompt),
        sampling=Sampling(max_new_tokens=new, temperature=temperature),
        seed=(2**61 - 1) * (number + 1) % 2**64,
    )


def prompts(vocabulary: int, lengths: Sequence[int] = PROMPTS) -> list[list[int]]:
    """Seeded random tokens."""
    import random

    draw = random.Random(0)
    return [[draw.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


def load(folder: Path, dtype: str) -> Any:
    """Plain transformers' model."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()


def distribution(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> Any:
    """Plain transformers' log-probs at every token's position, in float32: (tokens, vocabulary)."""
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens]]), logits_to_keep=len(tokens) + 1).logits
    return logits[0, :-1].float().log_softmax(-1)


def generated(model: Any, prompt: Sequence[int], new: int = NEW) -> tuple[int, ...]:
    """The greedy tokens of plain transformers' `generate`, past end tokens."""
    import torch

    ids = torch.tensor([list(prompt)])
    with torch.no_grad():
        made = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return tuple(made[0, len(prompt) :].tolist())


def compare(calls: Sequence[tuple[Any, Any]], reference: Any, candidate: Any = None) -> dict[str, Any]:
    """Calls against plain transformers after the same tokens.

    Args:
        calls: (request, call); greedy requests have temperature 0.
        reference: in float32, with the same weights.
        candidate: a module whose own log-probs are compared instead of the calls'.

    Returns:
        `greedy`: share of greedy tokens that the reference chooses after the same tokens; `sequences`: share
        of greedy completions that are those of its `generate`; `mean`, `max`: differences of log-probs.
    """
    import torch

    differences, picked, sequences = [], [], []
    for asked, call in calls:
        expected = distribution(reference, asked.prompt_ids, call.token_ids)
        ids = torch.tensor(call.token_ids)[:, None]
        logprobs = torch.tensor(call.logprobs)
        if candidate is not None:
            made = distribution(candidate, asked.prompt_ids, call.token_ids)
            logprobs = made.gather(1, ids)[:, 0]
        differences.append((expected.gather(1, ids)[:, 0] - logprobs).abs())
        if asked.sampling.temperature == 0.0:
            best = ids[:, 0] if candidate is None else made.argmax(-1)
            picked.append((expected.argmax(-1) == best).float())
            if candidate is None:
                same = generated(reference, asked.prompt_ids, len(call.token_ids)) == call.token_ids
                sequences.append(float(same))
    gaps = torch.cat(differences)
    result = {"greedy": float(torch.cat(picked).mean()), "mean": float(gaps.mean()), "max": float(gaps.max())}
    return result | ({"sequences": sum(sequences) / len(sequences)} if sequences else {})


def engine_case(
    folder: Path,
    engine: str,
    dtype: str,
    *,
    siblings: int = 4,
    lengths: Sequence[int] = PROMPTS,
    new: int = NEW,
) -> list[dict[str, Any]]:
    """One engine in one dtype; the row of plain transformers in the same dtype is beside it."""
    reference = load(folder, "float32")
    module = reference if dtype == "float32" else load(folder, dtype)
    asked = []
    for prompt in prompts(int(reference.config.vocab_size), lengths):
        asked += [request("p", prompt, len(asked), 0.0, new)]
        asked += [request("p", prompt, len(asked) + number, 1.0, new) for number in range(siblings)]

    async def run() -> list[Any]:
        served = Served(engine, folder, dtype, {"p": (module, None)})
        await served.open()
        try:
            return await served.calls(asked)
        finally:
            await served.engine.close()

    pairs = list(zip(asked, asyncio.run(run()), strict=True))
    rows = [{"engine": engine, "dtype": dtype, **compare(pairs, reference)}]
    if dtype != "float32" and engine == "lean":
        rows.append({"engine": "plain transformers", "dtype": dtype, **compare(pairs, reference, module)})
    return rows


# ----------------------------------------------------------------------------------------------- command line


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The engines' rows, in Markdown."""
    head = [
        "shape", "engine", "dtype", "greedy tokens as transformers' in fp32", "mean difference of log-probs",
        "largest",
    ]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [row["shape"], row["engine"], row["dtype"], f"{row['greedy']:.1%}"]
        lines.append("| " + " | ".join([*cells, f"{row['mean']:.1e}", f"{row['max']:.1e}"]) + " |")
    return "\n".join(lines)


def page(stored: Mapping[str, Any]) -> str:
    """The measured part of docs/real_sizes.md."""
    texts = [
        f"Exports of `{shape}`, the same text as transformers + PEFT: "
        + ", ".join(f"{name}: {'yes' if equal else '**no**'}" for name, equal in result["equal"].items())
        + "."
        for shape, result in stored.get("export", {}).items()
    ]
    return "\n\n".join([table(stored["engines"]), *texts]) + "\n"


def met(row: Mapping[str, Any]) -> bool:
    """Whether an engine's row in float32 equals plain transformers."""
    return row["dtype"] != "float32" or (
        row["max"] <= TOLERANCE and row["greedy"] == 1.0 and row["sequences"] == 1.0
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=["engines", "export"], default=["engines", "export"])
    parser.add_argument(
        "--shapes", nargs="+", choices=list(real_models.SHAPES), default=list(real_models.SHAPES)
    )
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--layers", type=int, default=None, help="fewer than the shape has, to try it")
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache" / "coterie-bench" / "models")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--case", nargs=3, default=None, help=argparse.SUPPRESS)  # the process of a case
    parser.add_argument(
        "--page", action="store_true", help="write docs/real_sizes.md's table; measure nothing"
    )
    args = parser.parse_args()
    if args.page:
        stored = json.loads(args.json.read_text(encoding="utf-8"))
        real_size_report.write_page(PAGE, "real_exactness", page(stored))
        return 0
    if args.case is not None:
        return _case(args)
    stored = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else {}
    failed = False
    for shape in args.shapes:
        folder = args.models / (shape if args.layers is None else f"{shape}-{args.layers}")
        real_models.make(shape, folder, layers=args.layers)
        cases = [("engines", engine, dtype) for engine in args.engines for dtype in DTYPES]
        for kind, engine, dtype in [*cases, ("export", "-", "-")]:
            if kind in args.only:
                failed |= not _run_case(shape, folder, (kind, engine, dtype), args.json, stored)
    print(table(stored.get("engines", [])))
    print(json.dumps(stored.get("export", {}), indent=1))
    return int(failed)


def _run_case(
    shape: str, folder: Path, case: tuple[str, str, str], out: Path, stored: dict[str, Any]
) -> bool:
    """Run a case in a process of its own and store its result; whether all is equal that must be."""
    command = [sys.executable, str(Path(__file__)), "--case", *case, "--models", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    print(shape, *case, "failed" if done.returncode else "done", flush=True)
    if done.returncode:
        print(done.stderr[-3000:])
        return False
    result = json.loads(done.stdout.splitlines()[-1])
    if case[0] == "export":
        stored.setdefault("export", {})[shape] = result
        good = bool(result["met"])
    else:
        made = [{"shape": shape, **row} for row in result]
        names = [(row["shape"], row["engine"], row["dtype"]) for row in made]
        kept = [
            row
            for row in stored.get("engines", [])
            if (row["shape"], row["engine"], row["dtype"]) not in names
        ]
        stored["engines"] = sorted(
            [*kept, *made], key=lambda row: (row["shape"], row["dtype"], row["engine"])
        )
        good = all(map(met, made))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return good


def _case(args: argparse.Namespace) -> int:
    """The process of one case: its result is the last line of stdout."""
    import tempfile

    kind, engine, dtype = args.case
    if kind == "engines":
        result: Any = engine_case(args.models, engine, dtype)
    else:
        import real_exports

        with tempfile.TemporaryDirectory() as scratch:
            result = real_exports.export_case(args.models, Path(scratch))
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
