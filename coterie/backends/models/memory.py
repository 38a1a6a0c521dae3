"""Sizes in bytes of a policy's tensors in the trainer `torch` and in the engine `hf`, by arithmetic alone.

Only tensors are counted, not an allocator's overhead (fragments, a GPU's context). The rules follow
`trainers/policies.py` (the owners of weights), `trainers/optim.py` (the tensors in fp32) and
`engines/lean/cache.py` (the tensors of a batch). A test compares them with the allocations of a run, and
`benchmarks/update_memory.py` with a process's memory.

What a forward pass keeps for its backward pass is derived for Llama-like layers of transformers.
Let n be the hidden size, q and k the sizes of all query and of all key/value heads, m the MLP's size, w the
bytes of a number. autograd saves, per layer and token:

- Norms: their input in fp32 (4 n each; in fp32 it is the residual itself), one number per norm, and for the
  weight's gradient the normalised input (w n each). Query and key norms: the same with q and k.
- Linear layers, for their weights' gradient: their inputs. Query, key and value share one, gate and up too.
- Attention: queries, keys, values, output (w each), and one fp32 number per head.
- MLP: gate, its activation, up, and their product, which is the input of down (w m each).
- LoRA: the weights are frozen, so neither normalised inputs nor inputs of linear layers are kept, but those
  of adapted layers, which layers with one input share (w per input), and rank numbers (w each). In 16 bits on
  a GPU, or on a divided model, PEFT casts the input of every adapted layer to fp32, each by itself (4 bytes
  per input), and keeps rank numbers in fp32. With dropout it does so everywhere, and keeps a mask (fp32 on
  CPUs; one byte on GPUs, where the estimate is high).

Packed rows gather queries for their kernel, so that their output is kept twice (w q more), and keys and
values of every prompt and of every completion with its prompt (2 w k per gathered token). Masks are kept once
for all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

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


COPY_SHARE = 8
"""A gathered key and value count as an eighth of a token in the budget (`trainers/packing.py`): they are two
of about 16 vectors of the hidden size that a layer keeps per token for the backward pass."""
INDEX = 8
"""Bytes of an index."""


class Forward(NamedTuple):
    """The shape of one forward; numbers of tokens."""

    tokens: int
    """Tokens that are computed; a packed prompt counts once."""
    trained: int
    """Tokens whose log-probs are needed."""
    gathered: int = 0
    """Tokens whose keys and values are gathered: every prompt, and every completion with its prompt. 0: rows
    are padded."""
    masked: int = 0
    """Pairs of a completion's token and a gathered key, over all completions, of which masks have a number;
    one completion's where all prompts are equally long."""


def largest_forward(
    prompts: int, samples: int, prompt: int, answer: int, *, budget: int | None, packing: bool
) -> Forward:
    """The largest micro-batch of samples that are all as long as the longest; follows `trainers/packing.py`.

    Args:
        prompts: distinct prompts of the samples; `prompt` and `answer` are lengths in tokens.
        budget: tokens of one forward; None: no limit.
    """
    read = max(answer - 1, 0)  # the last token is predicted and never read
    if not packing:
        rows = samples if budget is None else max(1, min(samples, budget // max(prompt + read, 1)))
        return Forward(rows * (prompt + read), rows * answer)
    siblings = -(-samples // max(prompts, 1))
    each = read + (prompt + read) / COPY_SHARE
    if budget is None or prompt + siblings * each > budget:
        fits = siblings if budget is None else max(1, min(siblings, int((budget - prompt) // max(each, 1))))
        groups, rows = (prompts, samples) if budget is None else (1, fits)
    else:
        groups = max(1, min(prompts, int(budget // (prompt + siblings * each))))
        rows = min(groups * siblings, samples)
    return Forward(
        tokens=groups * prompt + rows * read,
        trained=rows * answer,
        gathered=groups * prompt + rows * (prompt + read),
        masked=rows * read * (prompt + read),
    )


_SHARES = {
    "q_proj": "attention",
    "k_proj": "attention",
    "v_proj": "attention",
    "gate_proj": "mlp",
    "up_proj": "mlp",
}
"""Linear layers that share their input, by name."""


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of what forward and backward passes of one policy hold."""

    size: ModelSize
    config: TorchPolicy
    policy: str
    """Its name, by which its adapter is found in the size."""
    checkpointing: bool = False
    """Whether layers keep their inputs alone; one layer's tensors exist while it is computed again."""
    gpu: float | None = None
    """Bytes of the GPU, which decide the size of a block or a chunk of the head; None: a CPU."""
    divided: bool = False
    """Whether ranks divide the model, as at ZeRO stage 3."""

    def most(self, forward: Forward) -> int:
        """The most bytes that both passes hold: what is kept, and the head's temporaries."""
        return self.kept(forward) + self.head(forward)

    def kept(self, forward: Forward) -> int:
        """Bytes that autograd saves in a forward, without the model's own weights; few logits included."""
        body, logits = self.body(forward), forward.trained * self.size.vocabulary
        if self.divided:
            return body + FP32 * (logits if logits <= most_logits(None) else 2 * forward.trained)
        if logits <= LOGITS_AT_ONCE:
            return body + FP32 * logits
        states = 0 if self._full else self._width * self.size.hidden  # full: in the body
        return body + forward.trained * (states + 2 * FP32)

    def body(self, forward: Forward) -> int:
        """`kept` without what the head's logits take."""
        size, width, full = self.size, self._width, self._full
        layer = self.layer(forward)
        if self.checkpointing:
            layers = size.layers * width * size.hidden * forward.tokens + layer
        else:
            layers = size.layers * layer
            if not full and size.layers:  # the first norm's input is no function of an adapter
                layers -= forward.tokens * FP32 * (size.hidden + 1)
        last_norm = (FP32 + width * full) * size.hidden + FP32
        positions = 2 * width * size.head_dim
        head = forward.trained * (width * size.hidden * full + 2 * INDEX)
        masks = width * forward.masked
        return int(layers + forward.tokens * (last_norm + positions + INDEX) + masks + head)

    def head(self, forward: Forward) -> int:
        """Bytes that come and go in the head, besides what is kept; see `trainers/head.py`.

        Few logits, their log-softmax and their gradient exist at once, in fp32; of a divided model those of
        one chunk. Else two fp32 arrays of a block of the vocabulary do, with 16-bit weights one in 16 bits
        besides, and the gradient of the hidden states in fp32 and in the states' dtype.
        """
        width, logits = self._width, forward.trained * self.size.vocabulary
        if self.divided:
            kept = FP32 * logits if logits <= most_logits(None) else 0
            return 3 * FP32 * min(logits, most_logits(self.gpu)) - kept
        if logits <= LOGITS_AT_ONCE:
            return 2 * FP32 * logits
        columns = min(max(block_logits(self.gpu) // forward.trained, NARROWEST_BLOCK), self.size.vocabulary)
        low = width if width < FP32 else 0
        return forward.trained * ((2 * FP32 + low) * columns + (FP32 + width) * self.size.hidden)

    def layer(self, forward: Forward) -> int:
        """Bytes that one layer keeps; see the module's text."""
        size, width, packed = self.size, self._width, forward.gathered > 0
        queries, keys = size.heads * size.head_dim, size.kv_heads * size.head_dim
        norms = 2 * FP32 * (size.hidden + 1)
        if size.normed_heads:
            norms += FP32 * (queries + keys + size.heads + size.kv_heads)
        attention = width * 2 * queries + FP32 * size.heads  # queries and the kernel's output
        pairs = 0 if packed else width * 2 * keys
        inputs, trained = 0, 0.0
        if self._full:
            inputs = width * (2 * size.hidden + size.mlp + (queries if packed else 0))
            norms += width * (2 * size.hidden + (queries + keys if size.normed_heads else 0))
        else:
            trained = self._adapter(packed)
        per_token = norms + attention + pairs + width * 3 * size.mlp + inputs + trained
        return int(forward.tokens * per_token + forward.gathered * 2 * width * keys)

    def _adapter(self, packed: bool) -> float:
        """Bytes per token that an adapter keeps in one layer; the mean where layers differ."""
        size, layers = self.size, self.size.adapted.get(self.policy, ())
        dropout = 0.0 if self.config.lora is None else self.config.lora.dropout
        # Inputs of adapted layers of 16 bits that are cast to fp32.
        cast = self._width < FP32 and (self.gpu is not None or self.divided or dropout > 0)
        width = FP32 if cast else self._width
        total = 0
        shared: set[str] = set()
        for layer in layers:
            total += width * layer.rank
            if dropout:
                total += layer.inputs * 2 * FP32  # the dropped input and its mask
            elif cast or layer.name not in _SHARES:
                if cast or layer.name != "o_proj" or packed:
                    total += width * layer.inputs
            else:
                shared.add(_SHARES[layer.name])
        total += width * size.hidden * len(shared) * size.layers
        return total / max(size.layers, 1)

    @property
    def _width(self) -> int:
        return WIDTH[self.config.dtype]

    @property
    def _full(self) -> bool:
        return self.config.train == "full"
