"""Several LoRA adapters of one base: one mixed batch against a merged batch per adapter.

    python benchmarks/mixed_adapters.py [--widths 64 128 256] [--rows 16 32 64 128 256] [--repeats 5]

Adapters (rank 8, all linear layers) share a batch evenly: 4 siblings per prompt of 32 tokens, 32 new tokens
per row, one thread. *Mixed* holds the base once and adds each adapter's low-rank part to its own rows.
*Merged* adds one adapter after the other into a copy of the weights, which is part of its time. The two take
turns, and the clock counts processor time, so that other work on the machine has little influence. Figures
are medians. The rule of `engine.adapters: auto` follows from them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import peft
import torch
import transformers
from rich.console import Console
from rich.table import Table

from coterie.backends.engines.lean.decode import LeanDecoder
from coterie.backends.engines.rows import BatchRow, SharedBase
from coterie.backends.models.merged_weights import MergedWeights

HERE = Path(__file__).resolve().parent
LAYERS = {64: 2, 128: 3, 256: 4}
"""width -> number of layers. Heads have 32 dimensions; the MLP is three times as wide as the model."""
WORDS, PROMPT, SIBLINGS, NEW, RANK = 512, 32, 4, 32, 8


def adapted(width: int, adapters: int) -> Any:
    """A Qwen3 with random, nonzero adapters."""
    config = transformers.Qwen3Config(
        vocab_size=WORDS,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=LAYERS[width],
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        head_dim=32,
        max_position_embeddings=PROMPT + NEW,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=RANK, target_modules="all-linear")
    model = peft.get_peft_model(transformers.Qwen3ForCausalLM(config), settings, adapter_name="0")
    for index in range(1, adapters):
        model.add_adapter(str(index), settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.05)
    return model.eval()


def requests(count: int, adapters: int) -> list[BatchRow]:
    """Rows without stop tokens, so that all have the same length."""
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(2, WORDS, PROMPT).tolist()) for _ in range(count // SIBLINGS)]
    return [
        BatchRow(
            prompt_ids=prompt,
            seed=int(rng.integers(2**63)),
            limit=NEW,
            stops=(),
            adapter=str(index % adapters),
        )
        for index, prompt in enumerate(prompts)
        for _ in range(SIBLINGS)
    ]


def base(model: Any, adapters: int, mixed_rows: float | None) -> SharedBase:
    """The engine of the base with all adapters loaded."""
    engine = SharedBase("base", MergedWeights(model), partial(LeanDecoder, dtype=torch.float32), mixed_rows)
    for index in range(adapters):
        engine.load(MergedWeights(model, str(index)))
    return engine


def measured(width: int, adapters: int, rows: list[int], repeats: int) -> list[dict[str, Any]]:
    """One case per number of rows: tokens per second of both modes."""
    model = adapted(width, adapters)
    modes = {"mixed": base(model, adapters, None), "merged": base(model, adapters, 0.0)}
    cases = []
    for count in rows:
        batch = requests(count, adapters)
        seconds: dict[str, list[float]] = {name: [] for name in modes}
        for turn in range(repeats + 1):
            for name, engine in modes.items():
                begin = time.process_time()
                engine.generate(batch)
                if turn:  # turn 0 warms up
                    seconds[name].append(time.process_time() - begin)
        speed = {name: count * NEW / statistics.median(taken) for name, taken in seconds.items()}
        cases.append(
            {
                "width": width,
                "adapters": adapters,
                "rows": count,
                "rows_per_adapter": count / adapters,
                **{f"{name}_tokens_per_second": round(value) for name, value in speed.items()},
                "mixed_over_merged": round(speed["mixed"] / speed["merged"], 3),
                "seconds": seconds,
            }
        )
    return cases


def table(cases: list[dict[str, Any]]) -> Table:
    names = ["width", "adapters", "rows", "mixed_tokens_per_second", "merged_tokens_per_second"]
    columns = Table(*[name.replace("_", " ") for name in names], "mixed over merged")
    for case in cases:
        columns.add_row(*[f"{case[name]:,}" for name in names], f"{case['mixed_over_merged']:.2f}")
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", type=int, nargs="+", choices=list(LAYERS), default=list(LAYERS))
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "mixed_adapters.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases: list[dict[str, Any]] = []
    load = os.getloadavg()[0]
    for width in options.widths:
        for adapters in options.adapters:
            cases += measured(width, adapters, options.rows, options.repeats)
    Console(width=110).print(table(cases))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps(
            {
                "cases": cases,
                "threads": 1,
                "load_before": load,
                "cpus": os.cpu_count(),
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
