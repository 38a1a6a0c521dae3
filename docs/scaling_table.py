"""Write the tables of `docs/scaling.md`, by the arithmetic of `coterie plan`: `python docs/scaling_table.py`.

A test fails when they are stale. Models are Qwen3's shapes on torch's meta device; nothing is downloaded.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from coterie.backends.models import memory
from coterie.backends.models.loading import attach_adapter
from coterie.backends.models.memory import Activations, largest_forward
from coterie.backends.models.policy import LoraSettings, TorchPolicy
from coterie.backends.models.sizes import ModelSize, _on_meta, _parameters, adapted_layers, size_of
from coterie.estimate.trainer import Division

PAGE = Path(__file__).parent / "scaling.md"
MODELS = {
    "0.6B": (1024, 3072, 28, 16, 8, True),
    "1.7B": (2048, 6144, 28, 16, 8, True),
    "4B": (2560, 9728, 36, 32, 8, True),
    "8B": (4096, 12288, 36, 32, 8, False),
}
"""Hidden size, MLP size, layers, heads, key/value heads and tied embeddings of Qwen3's configurations."""
METHODS = {
    "LoRA, two roles on one base": ("lora", 2),
    "all weights, one policy": ("full", 1),
    "all weights, a policy per role": ("full", 2),
}
"""Method -> what is trained, and the number of policies."""
GPUS = {
    "`torch`, each GPU": Division(),
    "ZeRO 2 on 2": Division(ranks=2, stage=2),
    "ZeRO 3 on 2": Division(ranks=2, stage=3),
    "ZeRO 3 on 8": Division(ranks=8, stage=3),
    "ZeRO 3 on 1, offload": Division(stage=3, offload_optimizer=True, offload_parameters=True),
}
"""Arrangement -> the division of the trainer's tensors."""
BUDGET, PROMPT, ANSWER, SIBLINGS, GPU = 8192, 1024, 512, 4, 80e9
RANK = 16
LIMITS = (24e9, 80e9)


class Model(NamedTuple):
    """A model's size, and its adapter's."""

    size: ModelSize
    adapter: int


@cache
def model(name: str) -> Model:
    """The size of a Qwen3 model with an adapter of every linear layer."""
    from transformers import Qwen3Config

    hidden, mlp, layers, heads, kv_heads, tied = MODELS[name]
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        max_position_embeddings=40960,
        tie_word_embeddings=tied,
    )
    size = size_of(_on_meta(config, "bfloat16"), None)
    config.num_hidden_layers = 1  # all layers are alike
    config.layer_types = config.layer_types[:1]
    with torch.device("meta"):
        adapted: Any = attach_adapter(_on_meta(config, "bfloat16"), "p", LoraSettings(rank=RANK))
    of_all = adapted_layers(adapted, "p") * layers
    return Model(replace(size, adapted={"p": of_all}), _parameters(adapted, ".p.") * layers)


def update_bytes(of: Model, train: str, policies: int, division: Division) -> int:
    """Bytes on the fullest GPU in an update, as `coterie plan` adds them up."""
    table: dict[str, Any] = {"model": {"init": "qwen3"}, "train": train, "dtype": "bfloat16"}
    if train == "lora":
        table["lora"] = {"rank": RANK}
    config = TorchPolicy.model_validate(table)
    names = ["p", *(f"p{number}" for number in range(1, policies))]
    size = replace(of.size, adapters=dict.fromkeys(names, of.adapter))
    parts = memory.trainer_bytes(dict.fromkeys(names, config), size, low_gradients=division.stage > 0)
    held = [division.on_gpu(part) for part in parts.values()]
    forward = largest_forward(64, 64 * SIBLINGS, PROMPT, ANSWER, budget=BUDGET, packing=True)
    forward = forward._replace(masked=forward.masked * size.heads // size.kv_heads)
    divided = division.stage == 3
    kept = Activations(size, config, "p", True, GPU, divided).most(forward)
    return memory.summed(held) + max(part["gradients"] for part in held) + kept


def cell(size: int) -> str:
    """GB, and the smaller of the two GPUs that holds them with a tenth left over."""
    fits = next((f" ({limit / 1e9:.0f})" for limit in LIMITS if size <= 0.9 * limit), "")
    return f"{size / 1e9:.1f}{fits}"


def update_table() -> str:
    """Model x method x arrangement: the trainer's memory in an update."""
    rows = [
        f"| model | method | {' | '.join(GPUS)} |",
        f"|---|---|{'---:|' * len(GPUS)}",
    ]
    for name in MODELS:
        of = model(name)
        for method, (train, policies) in METHODS.items():
            cells = [cell(update_bytes(of, train, policies, division)) for division in GPUS.values()]
            rows.append(f"| Qwen3-{name} | {method} | {' | '.join(cells)} |")
    return "\n".join(rows)


def engine_table() -> str:
    """Model x rows: an engine's weights and KV cache."""
    counts = (32, 128, 512)
    rows = [f"| model | weights | {' | '.join(f'KV of {count} rows' for count in counts)} |"]
    rows.append(f"|---|---:|{'---:|' * len(counts)}")
    for name in MODELS:
        size = model(name).size
        caches = [
            memory.cache_bytes(
                size, "bfloat16", prompts=count // SIBLINGS, prompt=PROMPT, rows=count, answer=ANSWER
            )
            for count in counts
        ]
        numbers = [2 * size.parameters, *caches]
        rows.append(f"| Qwen3-{name} | {' | '.join(f'{number / 1e9:.1f}' for number in numbers)} |")
    return "\n".join(rows)


TABLES = {"update": update_table, "engine": engine_table}


def page() -> str:
    """The text of the page, its tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        begin, end = f"<!-- Made by docs/scaling_table.py: {name}. -->\n", f"\n<!-- End of {name}. -->"
        part = f"{begin}\n{make()}\n{end}"
        between = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, count = between.subn(lambda _, part=part: part, text)
        if count != 1:
            raise ValueError(f"docs/scaling.md has {count} places for '{name}'")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
