"""A Llama-like model's weights, laid out for decoding: QKV fused, gate and up fused; and products of them.

The lean decoder multiplies with queries, keys and values as one matrix, and with gate and up as one. A frozen
module's tensors can be consecutive rows of such a matrix (`share`): trainer and engine have one copy then.
Names, shapes and values stay as they are, and so does what a state dict saves. Weights that are trained are
never shared: a batch would see half an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from coterie.backends.models.merged_weights import MergedWeights
from coterie.backends.models.sizes import head_dim

_OUT_DTYPE = "dtype" in torch.ops.aten.bmm.overloads() and "dtype" in torch.ops.aten.mm.overloads()
"""Whether this PyTorch has products with an `out_dtype`; they exist for CUDA alone."""


def cache_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of keys and values of a decoder of this dtype.

    On a CPU it is float32: a CPU's products of 16-bit matrices round what they return, and a conversion of
    all keys and values for each token took longer than the products (3 times as long at 1,500 keys).
    """
    return torch.float32 if device.type in ("cpu", "meta") else dtype


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32, of two matrices or of two batches of matrices."""
    if a.device.type == "cuda" and _OUT_DTYPE:
        multiply = torch.bmm if a.dim() == 3 else torch.mm
        return multiply(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def attend(
    q: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own_values: Tensor, mask: Tensor | None
) -> Tensor:
    """Attention with scores and softmax in float32, and one rounding at the end, as in SDPA's kernels.

    Shapes: H key/value heads of all groups, K slots, R queries each, P prompt keys, T own keys, D head size.

    Args:
        q: (H, K R, D).
        keys, values: (H, P, D), of the prompts.
        own_keys, own_values: (H K, T, D).
        mask: (H, 1, P), 0 or -inf, for padded prompts.

    Returns:
        (H K, R, D).
    """
    rows, total, width = own_keys.shape
    own_q = q.reshape(rows, -1, width)
    prompt_scores = product(q, keys.transpose(1, 2))
    own_scores = product(own_q, own_keys.transpose(1, 2)).view(*q.shape[:2], total)
    scores = torch.cat((prompt_scores, own_scores), dim=-1).mul_(width**-0.5)
    length = keys.shape[1]
    if mask is not None:
        scores[..., :length] += mask
    share = torch.softmax(scores, dim=-1).to(q.dtype)
    output = product(share[..., :length], values).view(own_q.shape)
    own_share = share[..., length:].reshape(rows, -1, total)
    return (output + product(own_share, own_values)).to(q.dtype)


_CLASSES = ("Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM")
_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the length of the input."""


def unsupported(model: Any) -> str | None:
    """Why the lean decoder can't compute this transformers model; None: it can."""
    config = model.config
    name = type(model).__name__
    if name not in _CLASSES:
        return f"{name} is none of {', '.join(_CLASSES)}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    rope = getattr(model.model.rotary_emb, "rope_type", "default")
    if rope not in _ROPE:
        return f"its rotary embedding is of type {rope}"
    window = getattr(config, "sliding_window", None)
    sliding = any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ())
    if (sliding or (name == "MistralForCausalLM" and window)) and (
        not window or window < config.max_position_embeddings
    ):
        return "its attention slides"
    if getattr(config, "pretraining_tp", 1) not in (None, 1):
        return "its linear layers are sliced (pretraining_tp)"
    if model.model.rotary_emb.inv_freq.numel() * 2 != head_dim(config):
        return "its rotary embedding covers a part of each head"
    if not model.model.embed_tokens.weight.dtype.is_floating_point:
        return "its weights are quantised"
    return None


@dataclass(slots=True)
class Layer:
    """One decoder layer; weights have the shape (out, in) that `F.linear` takes."""

    norm: Tensor
    qkv: Tensor
    """((heads + 2 kv_heads) * head_dim, hidden): queries, keys, values."""
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """(heads + kv_heads, head_dim)."""
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    """(2 * mlp, hidden)."""
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class LeanWeights:
    """The model's sizes and its weights, refreshed in place.

    Frozen weights of the decoder's dtype are the module's own tensors where `share` laid them out, or
    where a product has one module; others are copied.

    Args:
        dense: the model, with its adapter if it has one.
        dtype: of the copies.
    """

    def __init__(self, merged: MergedWeights, dtype: torch.dtype) -> None:
        config = merged.config
        self.dtype = dtype
        self.device: torch.device = merged.model.model.embed_tokens.weight.device
        self.hidden: int = config.hidden_size
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim = head_dim(config)
        self.eps: float = config.rms_norm_eps
        self.layers: list[Layer] = []
        self.mlp: int = config.intermediate_size
        self._depth: int = config.num_hidden_layers
        rotary = merged.model.model.rotary_emb
        self._frequencies: Tensor = rotary.inv_freq.detach().float().clone()
        self._rotary_scale = float(getattr(rotary, "attention_scaling", 1.0))
        self._rotary: tuple[Tensor, Tensor] | None = None
        self._copies: dict[str, Tensor] = {}
        """By the first name of what is copied; they are written over at each refresh."""
        self.refresh(merged)

    def refresh(self, merged: MergedWeights) -> None:
        """Take the present values: frozen ones are shared, others copied into the existing tensors."""
        with torch.inference_mode():
            self.embedding = self._taken(merged, ["model.embed_tokens.weight"])
            if merged.tied("lm_head.weight", "model.embed_tokens.weight"):
                self.head = self.embedding
            else:
                self.head = self._taken(merged, ["lm_head.weight"])
            self.norm = self._taken(merged, ["model.norm.weight"])
            self.layers = [self._layer(merged, f"model.layers.{index}.") for index in range(self._depth)]

    def rotary(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of positions [0, length) at least; (>= length, head_dim) each.

        The first half of the sines is negated, so that the rotation is x * cos + swapped(x) * sin.
        """
        if self._rotary is None or len(self._rotary[0]) < length:
            positions = torch.arange(max(length, 256), device=self.device, dtype=torch.float32)
            angles = positions[:, None] * self._frequencies.to(self.device)
            cos, sin = angles.cos() * self._rotary_scale, angles.sin() * self._rotary_scale
            self._rotary = (
                torch.cat((cos, cos), -1).to(self.dtype),
                torch.cat((-sin, sin), -1).to(self.dtype),
            )
        return self._rotary

    def _layer(self, merged: MergedWeights, prefix: str) -> Layer:
        def norm(name: str) -> Tensor:
            return self._taken(merged, [f"{prefix}{name}.weight"])

        def weight(field: str) -> Tensor:
            return self._taken(merged, [f"{prefix}{name}.weight" for name in FUSED[field]])

        def bias(field: str) -> Tensor | None:
            names = [f"{prefix}{name}.bias" for name in FUSED[field]]
            present = [name for name in names if name in merged]
            return self._taken(merged, present) if present else None

        return Layer(
            norm=norm("input_layernorm"),
            qkv=weight("qkv"),
            qkv_bias=bias("qkv"),
            qk_norm=self._qk_norm(merged, f"{prefix}self_attn."),
            out=weight("out"),
            out_bias=bias("out"),
            mlp_norm=norm("post_attention_layernorm"),
            gate_up=weight("gate_up"),
            gate_up_bias=bias("gate_up"),
            down=weight("down"),
            down_bias=bias("down"),
        )

    def _qk_norm(self, merged: MergedWeights, attention: str) -> Tensor | None:
        q, k = merged.get(f"{attention}q_norm.weight"), merged.get(f"{attention}k_norm.weight")
        if q is None or k is None:
            return None
        rows = [q.expand(self.heads, -1), k.expand(self.kv_heads, -1)]
        return self._copy(f"{attention}qk_norm", rows)

    def _taken(self, merged: MergedWeights, names: Sequence[str]) -> Tensor:
        """The named tensors, concatenated along the first dimension: the module's own, or a copy."""
        if all(merged.frozen(name) and merged[name].dtype == self.dtype for name in names):
            fused = joined([merged[name] for name in names])
            if fused is not None:
                self._copies.pop(names[0], None)
                return fused
        return self._copy(names[0], [merged[name] for name in names])

    def _copy(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """The parts, concatenated along the first dimension, in the copy of this name."""
        into = self._copies.get(name)
        if into is None:
            shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
            into = self._copies[name] = torch.empty(shape, dtype=self.dtype, device=self.device)
        start = 0
        for part in parts:
            into[start : start + len(part)].copy_(part)
            start += len(part)
        return into


FUSED: dict[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""A layer's linear products, and the modules whose weights are concatenated in each."""

_ALIGNMENT = 64
"""Bytes: PyTorch's tensors begin at multiples, and kernels may sum in another order elsewhere."""


def joined(parts: Sequence[Tensor]) -> Tensor | None:
    """The parts as one tensor without a copy; None: they are not consecutive rows of one."""
    first, rows, offset = parts[0], 0, parts[0].storage_offset()
    for part in parts:
        if (
            part.untyped_storage()._cdata != first.untyped_storage()._cdata
            or part.storage_offset() != offset
            or not part.is_contiguous()
            or part.dtype != first.dtype
        ):
            return None
        rows, offset = rows + len(part), offset + part.numel()
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def share(base: MergedWeights, dtype: torch.dtype) -> str | None:
    """Let the frozen tensors of each fused product be consecutive rows of one tensor, layer by layer.

    Call it while nothing computes with the module.

    Args:
        base: without an adapter.
        dtype: of the decoder.

    Returns:
        why the decoder needs copies of some weights; None: it needs none.
    """
    reason = None
    for names in _products(base):
        parts = [base[name] for name in names]
        refusal = _refusal(base, names, parts, dtype)
        if names[0].endswith("weight"):  # a copy of biases takes next to nothing
            reason = reason or refusal
        if refusal is None and joined(parts) is None:
            with torch.no_grad():
                fused = torch.cat(parts)
            start = 0
            for name, part in zip(names, parts, strict=True):
                base.move(name, fused[start : start + len(part)])
                start += len(part)
    return reason


def _products(base: MergedWeights) -> Iterator[list[str]]:
    for index in range(base.config.num_hidden_layers):
        for modules in FUSED.values():
            for kind in ("weight", "bias"):
                names = [f"model.layers.{index}.{module}.{kind}" for module in modules]
                if names[0] in base:
                    yield names


def _refusal(
    base: MergedWeights, names: Sequence[str], parts: Sequence[Tensor], dtype: torch.dtype
) -> str | None:
    """Why tensors can't be rows of one that the decoder reads; None: they can."""
    for name, part in zip(names, parts, strict=True):
        if not base.frozen(name):
            return f"{name} is trained"
        if part.dtype != dtype:
            return f"{name} is in {part.dtype}, and the decoder computes in {dtype}"
        if len(parts) > 1 and len(part) * prod(part.shape[1:]) * part.itemsize % _ALIGNMENT:
            return f"{name} has no multiple of {_ALIGNMENT} bytes"
    return None
