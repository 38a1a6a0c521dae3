"""What a policy's tensors weigh in the trainer `torch` and in the engine `hf`, in bytes; arithmetic alone.

Only tensors are counted: what an allocator keeps beside them (fragments, a GPU's context) is not. The rules
are those of `trainers/policies.py` (who owns which weights), `trainers/optim.py` (what is in fp32) and
`engines/lean_cache.py` (what a batch keeps); a test holds them to what a run really allocates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coterie.backends.models.sizes import ModelSize
from coterie.core.config import PolicyConfig

WIDTH = {"float32": 4, "bfloat16": 2}
"""Bytes of a number."""
FP32 = 4

PARTS = ("weights", "adapter", "reference", "masters", "moments", "gradients", "engine", "kv")
"""Of a policy. What several policies share is counted once, for the first of them."""
STAYING = ("weights", "adapter", "reference", "masters", "moments", "engine")
"""What is there from the first update to the end; the rest comes and goes with an update or a batch."""

_LOGITS = 2**26
"""Most logits that the trainer holds at once (`trainers/forward.py`)."""

Parts = dict[str, int]


def trainer_bytes(
    configs: Mapping[str, PolicyConfig], size: ModelSize, *, references: bool = False, values: bool = False
) -> dict[str, Parts]:
    """By policy, of all policies with one start.

    Args:
        references: something reads the log-probs of the starting weights.
        values: something reads a value head: one fp32 weight a hidden unit, for each trained policy.
    """
    found = {name: dict.fromkeys(PARTS, 0) for name in configs}
    full = [name for name, config in configs.items() if config.train == "full"]
    frozen = [name for name in configs if name not in full]
    for name, config in configs.items():
        width, own = WIDTH[config.dtype], found[name]
        trained = {"full": size.parameters, "lora": size.adapters.get(name, 0), "none": 0}[config.train]
        head = size.hidden if values and trained else 0
        if config.train == "full":
            own["weights"] = width * size.parameters
            if width < FP32:
                own["masters"] = FP32 * size.parameters
                own["gradients"] = width * size.parameters  # beside the masters' own, until they are added
        if config.train == "lora":
            own["adapter"] = FP32 * trained  # PEFT makes adapters of a bf16 base in fp32
        own["weights"] += FP32 * head
        own["moments"] = 2 * FP32 * (trained + head)
        own["gradients"] += FP32 * (trained + head)
    base = WIDTH[next(iter(configs.values())).dtype] * size.parameters
    if frozen:
        found[frozen[0]]["weights"] += base  # also everybody's reference
    elif references:
        found[full[0]]["reference"] += base
    return found


def warm_start_bytes(config: PolicyConfig, size: ModelSize) -> int:
    """What a start's supervised steps hold besides weights: they train all of it, whatever `train` says."""
    width = WIDTH[config.dtype]
    return size.parameters * (3 * FP32 + (FP32 + width if width < FP32 else 0))


def cache_bytes(size: ModelSize, dtype: str, *, prompts: int, prompt: int, rows: int, answer: int) -> int:
    """Keys and values of one batch: so many copies of prompts, and every row's answer; lengths in tokens."""
    return size.cache * WIDTH[dtype] * (prompts * prompt + rows * answer)


def batch_of(decisions: int, branches: int, most: int) -> tuple[int, int]:
    """(prompts, rows) of the largest batch of at most `most` rows; siblings stay together where they fit."""
    each = min(branches, most)
    prompts = min(decisions, max(most // each, 1))
    return prompts, prompts * each


def activation_bytes(
    size: ModelSize, dtype: str, *, tokens: int, trained: int, checkpointing: bool = False
) -> int:
    """About what one forward keeps for its backward pass; an estimate, for Llama-like layers.

    Per token and layer: 8 vectors of the hidden size, 8 of the heads' and 2 of the key/value heads', 4 of the
    MLP's; with checkpointing one, and one layer whole. Logits are fp32, gradient and softmax beside them.
    """
    width = WIDTH[dtype]
    layer = 8 * size.hidden + (8 * size.heads + 2 * size.kv_heads) * size.head_dim + 4 * size.mlp
    kept = size.layers * size.hidden + layer if checkpointing else size.layers * layer
    return tokens * kept * width + 3 * FP32 * min(trained * size.vocabulary, _LOGITS)


def summed(parts: Iterable[Mapping[str, int]], names: Iterable[str] = STAYING) -> int:
    """Bytes of the named parts of several policies."""
    names = tuple(names)
    return sum(one[name] for one in parts for name in names)
