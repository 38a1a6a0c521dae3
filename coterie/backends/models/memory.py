"""Sizes in bytes of a policy's tensors in the trainer `torch` and in the engine `hf`, by arithmetic alone.

Only tensors are counted, not an allocator's overhead (fragments, a GPU's context). `activations.py` counts
what a forward keeps. The rules follow
`trainers/policies.py` (the owners of weights), `trainers/optim.py` (the tensors in fp32) and
`engines/lean/cache.py` (the tensors of a batch). A test compares them with the allocations of a run, and
`benchmarks/update_memory.py` with a process's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from coterie.backends.models.policy import TorchPolicy
from coterie.backends.models.sizes import ModelSize

WIDTH = {"float32": 4, "bfloat16": 2}
"""Bytes per number."""
FP32 = 4

PARTS = ("weights", "adapter", "reference", "masters", "moments", "gradients", "engine", "kv")
"""The parts of a policy. Weights that several policies share are counted once, for the first of them."""
STAYING = ("weights", "adapter", "reference", "masters", "moments", "engine")
"""Parts that exist from the first update to the end; the others last for one update or one batch."""

Parts = dict[str, int]


def most_logits(gpu: float | None) -> int:
    """Most logits that the trainer holds at once; above it, the head runs in chunks, computed twice.

    16,384 tokens over a vocabulary of 152,000 would take 10 GB in fp32. Three such arrays exist at once.

    Args:
        gpu: bytes of the GPU, of which a chunk's three arrays take 5 %; None: a CPU.
    """
    return 2**26 if gpu is None else max(2**26, int(gpu) // 256)


LOGITS_AT_ONCE = 2**22
"""Most logits of a forward that the trainer keeps for the backward pass; above, the head runs in blocks."""
NARROWEST_BLOCK = 256
"""Fewest tokens of the vocabulary in a block: products of fewer columns are slow."""


def block_logits(gpu: float | None) -> int:
    """Logits that the trainer's head holds at once, in blocks of the vocabulary (`trainers/head.py`).

    On a CPU a block and its copy stay in the cache: measured, blocks of 2^20 to 2^22 are the fastest, and
    those of 2^24 take a sixth more time. On an H100 those of 2^26 are: 2^24 take a seventh more, and 2^28
    twice the time (`benchmarks/gpu_head.py`).

    Args:
        gpu: bytes of the GPU; None: a CPU.
    """
    return 2**21 if gpu is None else 2**26


def trainer_bytes(
    configs: Mapping[str, TorchPolicy],
    size: ModelSize,
    *,
    references: bool = False,
    values: bool = False,
    low_gradients: bool = False,
) -> dict[str, Parts]:
    """Bytes of each part, by policy, for all policies with the same initial weights.

    Args:
        low_gradients: whether all gradients of 16-bit weights exist at once, besides their fp32 sums, as with
            DeepSpeed; trainer `torch` adds each to its sum as soon as it is complete.
        references: whether the log-probs of the initial weights are needed.
        values: whether value heads are needed: one fp32 weight per hidden unit, for each trained policy.
    """
    by_policy = {name: dict.fromkeys(PARTS, 0) for name in configs}
    full = [name for name, config in configs.items() if config.train == "full"]
    frozen = [name for name in configs if name not in full]
    for name, config in configs.items():
        width, parts = WIDTH[config.dtype], by_policy[name]
        trained = {"full": size.parameters, "lora": size.adapters.get(name, 0), "none": 0}[config.train]
        head = size.hidden if values and trained else 0
        if config.train == "full":
            parts["weights"] = width * size.parameters
            if width < FP32:
                parts["masters"] = FP32 * size.parameters
                parts["gradients"] = width * size.parameters if low_gradients else 0
        if config.train == "lora":
            parts["adapter"] = FP32 * trained  # PEFT makes adapters of a bf16 base in fp32
        parts["weights"] += FP32 * head
        parts["moments"] = 2 * FP32 * (trained + head)
        parts["gradients"] += FP32 * (trained + head)
    base = WIDTH[next(iter(configs.values())).dtype] * size.parameters
    if frozen:
        by_policy[frozen[0]]["weights"] += base  # also the reference of all policies
    elif references:
        by_policy[full[0]]["reference"] += base
    return by_policy


def warm_start_bytes(config: TorchPolicy, size: ModelSize) -> int:
    """Bytes of a warm start besides the weights; it trains all initial weights, whatever `train` is."""
    return size.parameters * (3 * FP32 + (FP32 if WIDTH[config.dtype] < FP32 else 0))


def kv_bytes(token: int, *, prompts: int, prompt: int, rows: int, answer: int) -> int:
    """Bytes of one batch's keys and values: `prompts` prompts and `rows` answers.

    Args:
        token: bytes of one token's keys and values.
        prompt, answer: lengths in tokens.
    """
    return token * (prompts * prompt + rows * answer)


def cache_bytes(size: ModelSize, dtype: str, *, prompts: int, prompt: int, rows: int, answer: int) -> int:
    """`kv_bytes` of a model."""
    return kv_bytes(size.cache * WIDTH[dtype], prompts=prompts, prompt=prompt, rows=rows, answer=answer)


def batch_of(
    decisions: int,
    branches: int,
    most: int,
    bytes_of: Callable[[int, int], int] = lambda prompts, rows: 0,
    limit: float = 0,
) -> tuple[int, int]:
    """(prompts, rows) of the largest batch within its bounds; siblings stay together where they fit.

    Args:
        most: rows.
        bytes_of: bytes of keys and values of so many prompts and rows, at most `limit`.
    """
    each = min(branches, most)
    while each > 1 and bytes_of(1, each) > limit:
        each -= 1
    prompts = min(decisions, max(most // each, 1)) if each == branches else 1
    while prompts > 1 and bytes_of(prompts, prompts * each) > limit:
        prompts -= 1
    return prompts, prompts * each


def summed(parts: Iterable[Mapping[str, int]], names: Iterable[str] = STAYING) -> int:
    """Bytes of the named parts of several policies."""
    names = tuple(names)
    return sum(of_policy[name] for of_policy in parts for name in names)
