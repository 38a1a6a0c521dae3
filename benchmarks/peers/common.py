"""What the peers of the step-time benchmark share: arguments, threads, model folder, prompts and report.

Only the standard library is imported at the top. OpenMP reads its environment once, when torch is first
imported, so `start()` has to run before any script imports torch.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 0
LEARNING_RATE = 1e-5
MAX_GRAD_NORM = 1.0

VOCABULARY = 512
PAD, EOS = "<pad>", "<eos>"
PAD_ID, EOS_ID = 0, 1

# Every generation is exactly as long as asked: neither token may be drawn, in any peer.
SUPPRESSED = [PAD_ID, EOS_ID]

PACKAGES = ("torch", "transformers", "trl", "comlrl", "coterie", "accelerate")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One measurement: `prompts` x `siblings` sequences a step, `new_tokens` generated tokens each."""

    model: Path
    """The model folder; made when it is not there."""
    prompts: int
    siblings: int
    prompt_tokens: int
    new_tokens: int
    threads: int
    wait_policy: str
    """What OpenMP threads do while they wait: "passive" sleeps, "default" is OpenMP's own, spinning."""
    steps: int
    """Measured steps, after `warmup` unmeasured ones."""
    warmup: int
    json: Path | None
    """Where the report goes as well as to stdout."""

    @property
    def sequences(self) -> int:
        return self.prompts * self.siblings

    @property
    def total_steps(self) -> int:
        return self.warmup + self.steps


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that all peers take; a script may add its own before `start`."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--model", type=Path, required=True, help="model folder, made when it is missing")
    made.add_argument("--prompts", type=int, default=8, help="prompts a step")
    made.add_argument("--siblings", type=int, default=8, help="completions a prompt")
    made.add_argument("--prompt-tokens", type=int, default=32)
    made.add_argument("--new-tokens", type=int, default=64)
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--wait-policy", choices=["passive", "default"], default="passive")
    made.add_argument("--steps", type=int, default=5, help="measured steps")
    made.add_argument("--warmup", type=int, default=2, help="steps before the clock counts")
    made.add_argument("--json", type=Path, default=None, help="also write the report here")
    return made


def start(args: argparse.Namespace) -> Case:
    """Pin the threads, go offline, seed and make the model folder; to be called before torch is imported."""
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
        # Waiting threads spin by default: quickest on an idle machine, and many times slower on a busy one.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["WANDB_MODE"] = "disabled"
    # The comparison is between loops on CPU; a GPU that happens to be there must not join in.
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
    words = Tokenizer(WordLevel(vocabulary, unk_token=PAD))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=PAD, eos_token=EOS, model_max_length=2048, padding_side="left"
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

    # Written aside and renamed, so that a folder with a config in it is always a whole one.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        aside = Path(scratch) / "model"
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        aside.rename(folder)


def load(case: Case) -> tuple[Any, Any]:
    """(model, tokenizer): fp32, sdpa attention."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(case.model, dtype=torch.float32, attn_implementation="sdpa")
    return model, AutoTokenizer.from_pretrained(case.model)


def word(token: int) -> str:
    return f"w{token}"


def prompt_ids(case: Case) -> list[list[int]]:
    """The same seeded prompts for every peer and every step: `prompts` lists of `prompt_tokens` ids.

    All of them differ, so no peer can share more than the siblings of one prompt.
    """
    draw = random.Random(SEED)
    return [
        [draw.randrange(len(SUPPRESSED), VOCABULARY) for _ in range(case.prompt_tokens)]
        for _ in range(case.prompts)
    ]


def prompt_texts(case: Case, tokenizer: Any) -> list[str]:
    """`prompt_ids` as text, for the frameworks that tokenize for themselves; checked to come back."""
    ids = prompt_ids(case)
    texts = [" ".join(word(token) for token in row) for row in ids]
    if tokenizer(texts)["input_ids"] != ids:
        raise RuntimeError("the tokenizer of the model folder does not give the prompts back token for token")
    return texts


def random_rewards(count: int, draw: random.Random) -> list[float]:
    """Rewards without meaning but with variance: a group of equal rewards would have no gradient."""
    return [draw.random() for _ in range(count)]


def check_lengths(lengths: list[int], case: Case) -> None:
    """Tokens a second are only comparable when everybody generated all of them."""
    if set(lengths) != {case.new_tokens}:
        raise RuntimeError(f"completions of {sorted(set(lengths))} tokens; {case.new_tokens} were asked for")


# ----------------------------------------------------------------------------------------------------- report


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
) -> None:
    """Print the measurement as one line of JSON (the last of stdout), and write it to `case.json`.

    `seconds` and `loss` have one entry a step, warm-up included; the warm-up is dropped here.
    `batch` is the number of sequences in a forward and backward pass, `generation_batch` that in a
    decoding step; both default to all sequences of the step.
    """
    measured = seconds[case.warmup :]
    if len(measured) != case.steps:
        raise RuntimeError(f"{len(measured)} steps were measured; {case.steps} were asked for")
    tokens = agents * case.sequences * case.new_tokens
    speeds = [tokens / taken for taken in measured]
    made = {
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
    }
    line = json.dumps(made)
    if case.json is not None:
        case.json.write_text(line + "\n", encoding="utf-8")
    print(line, flush=True)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
