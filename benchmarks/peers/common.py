"""Common parts of the peers of the step-time benchmark: arguments, threads, model folder, prompts and report.

The module imports only the standard library at its top. OpenMP reads its environment once, at the first
import of torch, so `start()` must run before a script imports torch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 0
LEARNING_RATE = 1e-5
MAX_GRAD_NORM = 1.0

VOCABULARY = 512
PAD, EOS = "<pad>", "<eos>"
PAD_ID, EOS_ID = 0, 1

# No peer may draw these tokens, so that every completion has exactly the requested length.
SUPPRESSED = [PAD_ID, EOS_ID]

PACKAGES = ("torch", "transformers", "trl", "comlrl", "coterie", "accelerate", "peft", "vllm")

ROOT = Path(__file__).resolve().parents[2]
LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": "all-linear"}
"""PEFT's settings of an adapter, for the peers that get one; Coterie's defaults are the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One measurement: `prompts` x `siblings` sequences per step, `new_tokens` generated tokens each."""

    model: Path
    """The model folder; made if it is missing."""
    prompts: int
    siblings: int
    prompt_tokens: int
    new_tokens: int
    threads: int
    wait_policy: str
    """How OpenMP threads wait: "passive" threads sleep; "default" is OpenMP's default, spinning."""
    steps: int
    """Measured steps, after `warmup` unmeasured ones."""
    warmup: int
    json: Path | None
    """A file for the report, which stdout gets in any case."""
    dtype: str
    """Of the products: "float32"; "bfloat16", each peer's usual way to it; or "weights" in bfloat16."""
    train: str
    """"full" or "lora"."""
    texts: bool
    """Whether prompts are pieces of the repository's pages instead of random words."""

    @property
    def sequences(self) -> int:
        return self.prompts * self.siblings

    @property
    def total_steps(self) -> int:
        return self.warmup + self.steps


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of the arguments of all peers; a script may add more before `start`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, required=True, help="model folder, made when it is missing")
    parser.add_argument("--prompts", type=int, default=8, help="prompts a step")
    parser.add_argument("--siblings", type=int, default=8, help="completions a prompt")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wait-policy", choices=["passive", "default"], default="passive")
    parser.add_argument("--steps", type=int, default=5, help="measured steps")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the clock counts")
    parser.add_argument("--json", type=Path, default=None, help="also write the report here")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "weights"], default="float32")
    parser.add_argument("--train", choices=["full", "lora"], default="full")
    parser.add_argument(
        "--texts", action="store_true", help="prompts of text, for a model with a real tokenizer"
    )
    return parser


def start(args: argparse.Namespace) -> Case:
    """Pin the threads, go offline, seed and make the model folder, before the first import of torch."""
    set_environment(args.threads, args.wait_policy)
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    random.seed(SEED)
    transformers.logging.set_verbosity_error()
    case = Case(**{name: getattr(args, name) for name in Case.__dataclass_fields__})
    if not (case.model / "config.json").exists():
        make_model(case.model)
    return case


def set_environment(threads: int, wait_policy: str) -> None:
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    os.environ.pop("OMP_WAIT_POLICY", None)
    if threads > 1 and wait_policy == "passive":
        # Waiting threads spin by default: fastest on an idle machine, and many times slower on a busy one.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["WANDB_MODE"] = "disabled"
    # The benchmark compares loops on a CPU, even on a machine with a GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


# ------------------------------------------------------------------------------------------ model and prompts


def make_model(folder: Path) -> None:
    """A seeded Qwen3 of 0.7 M parameters in fp32 and a tokenizer of whole words, as a folder HF can load."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    vocabulary = {PAD: PAD_ID, EOS: EOS_ID}
    vocabulary |= {word(token): token for token in range(len(SUPPRESSED), VOCABULARY)}
    word_level = Tokenizer(WordLevel(vocabulary, unk_token=PAD))
    word_level.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_level, pad_token=PAD, eos_token=EOS, model_max_length=2048, padding_side="left"
    )

    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = Qwen3ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(pad_token_id=PAD_ID, eos_token_id=EOS_ID)

    # Written to a temporary folder and renamed, so that a folder with a config.json is always complete.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        complete = Path(scratch) / "model"
        model.save_pretrained(complete)
        tokenizer.save_pretrained(complete)
        complete.rename(folder)


def load(case: Case) -> tuple[Any, Any]:
    """(model, tokenizer): fp32 unless the case has its weights in bfloat16; sdpa attention."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if case.dtype == "weights" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(case.model, dtype=dtype, attn_implementation="sdpa")
    return model, tokenizer_of(case)


def tokenizer_of(case: Case) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(case.model)


def suppressed(tokenizer: Any) -> list[int]:
    """The tokens that no peer may draw: those that end or pad a completion."""
    return sorted({tokenizer.pad_token_id, tokenizer.eos_token_id})


def word(token: int) -> str:
    return f"w{token}"


def prompt_ids(case: Case) -> list[list[int]]:
    """The same seeded prompts for every peer and every step: `prompts` lists of `prompt_tokens` ids.

    All prompts differ, so that a peer can share work only between the siblings of one prompt.
    """
    if case.texts:
        return _ids_of_texts(case, tokenizer_of(case))
    draw = random.Random(SEED)
    return [
        [draw.randrange(len(SUPPRESSED), VOCABULARY) for _ in range(case.prompt_tokens)]
        for _ in range(case.prompts)
    ]


def prompt_texts(case: Case, tokenizer: Any) -> list[str]:
    """`prompt_ids` as text, for frameworks that tokenize themselves; the round trip is checked."""
    ids = prompt_ids(case)
    if case.texts:
        texts = [tokenizer.decode(row) for row in ids]
    else:
        texts = [" ".join(word(token) for token in row) for row in ids]
    if tokenizer(texts)["input_ids"] != ids:
        raise RuntimeError("the tokenizer of the model folder does not reproduce the prompts token for token")
    return texts


def _ids_of_texts(case: Case, tokenizer: Any) -> list[list[int]]:
    """Pieces of the repository's pages that the tokenizer gives back token for token."""
    pages = "\n\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    ids = tokenizer(pages[:400_000])["input_ids"]
    rows: list[list[int]] = []
    for start in range(0, len(ids) - case.prompt_tokens, 61):
        row = ids[start : start + case.prompt_tokens]
        if tokenizer(tokenizer.decode(row))["input_ids"] == row:
            rows.append(row)
        if len(rows) == case.prompts:
            return rows
    raise RuntimeError(f"only {len(rows)} pieces of {case.prompt_tokens} tokens are read back as they are")


def random_rewards(count: int, draw: random.Random) -> list[float]:
    """Random rewards: a group of equal rewards would have no gradient."""
    return [draw.random() for _ in range(count)]


def check_lengths(lengths: list[int], case: Case) -> None:
    """Check that all completions have the full length, without which tokens per second can't be compared."""
    if set(lengths) != {case.new_tokens}:
        raise RuntimeError(f"completions of {sorted(set(lengths))} tokens; {case.new_tokens} were requested")


# ----------------------------------------------------------------------------------------------------- report


class Stopwatch:
    """Wall and processor seconds of each step, and of the step's parts."""

    def __init__(self) -> None:
        self.steps: list[dict[str, dict[str, float]]] = []
        self._begun: dict[str, tuple[float, float]] = {}

    def begin(self, part: str = "step") -> None:
        """Start a part; "step" starts a new step."""
        if part == "step":
            self.steps.append({"wall": {}, "processor": {}})
        self._begun[part] = time.perf_counter(), time.process_time()

    def end(self, part: str = "step") -> None:
        """Add the time since the part's start to the present step's."""
        now = time.perf_counter(), time.process_time()
        for clock, since, until in zip(("wall", "processor"), self._begun.pop(part), now, strict=True):
            parts = self.steps[-1][clock]
            parts[part] = parts.get(part, 0.0) + until - since

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time added to a part's."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.begin(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.end(part)

        return call

    @property
    def seconds(self) -> list[float]:
        """Wall seconds of each step."""
        return [step["wall"]["step"] for step in self.steps]


def report(
    name: str,
    case: Case,
    seconds: list[float],
    *,
    loss: list[float],
    parameters: int,
    batch: int | None = None,
    generation_batch: int | None = None,
    agents: int = 1,
    notes: str = "",
    watch: Stopwatch | None = None,
    **more: Any,
) -> None:
    """Print the measurement as one line of JSON (the last of stdout), and write it to `case.json`.

    `seconds` and `loss` have one entry per step, including the warm-up, which this function drops. `batch` is
    the number of sequences in a forward and backward pass, `generation_batch` the number in a decoding step;
    both default to all sequences of the step. `watch` has the parts of each step; `more` is reported as is.
    """
    measured = seconds[case.warmup :]
    if len(measured) != case.steps:
        raise RuntimeError(f"{len(measured)} steps were measured; {case.steps} were requested")
    tokens = agents * case.sequences * case.new_tokens
    speeds = [tokens / duration for duration in measured]
    result = {
        "name": name,
        "threads": case.threads,
        "wait_policy": case.wait_policy,
        "prompts": case.prompts,
        "siblings": case.siblings,
        "prompt_tokens": case.prompt_tokens,
        "new_tokens": case.new_tokens,
        "agents": agents,
        "sequences": agents * case.sequences,
        "batch": batch or case.sequences,
        "generation_batch": generation_batch or case.sequences,
        "seconds": measured,
        "tokens_per_second": speeds,
        "median_seconds": statistics.median(measured),
        "median_tokens_per_second": statistics.median(speeds),
        "warmup_seconds": seconds[: case.warmup],
        "loss": loss[case.warmup :],
        "parameters": parameters,
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "versions": versions(),
        "notes": notes,
        "dtype": case.dtype,
        "train": case.train,
        "parts": [] if watch is None else watch.steps[case.warmup :],
        **more,
    }
    line = json.dumps(result)
    if case.json is not None:
        case.json.write_text(line + "\n", encoding="utf-8")
    print(line, flush=True)


def versions() -> dict[str, str]:
    by_package = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            by_package[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return by_package
