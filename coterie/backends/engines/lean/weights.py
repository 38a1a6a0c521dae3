"""Copies of a Llama-like model's weights, laid out for decoding: QKV fused, gate and up fused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.backends.models.merged_weights import MergedWeights

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
    if model.model.rotary_emb.inv_freq.numel() * 2 != _head_dim(config):
        return "its rotary embedding covers a part of each head"
    if not model.model.embed_tokens.weight.dtype.is_floating_point:
        return "its weights are quantised"
    return None


FUSED: dict[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""A layer's linear products, and the modules whose weights are concatenated in each."""


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


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
        self.head_dim = _head_dim(config)
        self.eps: float = config.rms_norm_eps
        self.layers: list[Layer] = []
        self.mlp: int = config.intermediate_size
        self._depth: int = config.num_hidden_layers
        rotary = merged.model.model.rotary_emb
        self._frequencies: Tensor = rotary.inv_freq.detach().float().clone()
        self._rotary_scale = float(getattr(rotary, "attention_scaling", 1.0))
        self._rotary: tuple[Tensor, Tensor] | None = None
        self._tables: dict[str, Tensor] = {}
        self.refresh(merged)

    def refresh(self, merged: MergedWeights) -> None:
        """Copy the present values into the existing tensors; tables that no adapter changes are shared."""
        with torch.inference_mode():
            self.embedding = self._table(merged, "model.embed_tokens.weight")
            if merged.tied("lm_head.weight", "model.embed_tokens.weight"):
                self.head = self.embedding
            else:
                self.head = self._table(merged, "lm_head.weight")
            self.norm = self._copy([merged["model.norm.weight"]], getattr(self, "norm", None))
            for index in range(self._depth):
                old = self.layers[index] if index < len(self.layers) else None
                layer = self._layer(merged, f"model.layers.{index}.", old)
                if old is None:
                    self.layers.append(layer)

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

    def _layer(self, merged: MergedWeights, prefix: str, old: Layer | None) -> Layer:
        def norm(field: str, name: str) -> Tensor:
            return self._copy([merged[f"{prefix}{name}.weight"]], getattr(old, field, None))

        def weight(field: str) -> Tensor:
            return self._copy(
                [merged[f"{prefix}{name}.weight"] for name in FUSED[field]], getattr(old, field, None)
            )

        def bias(field: str) -> Tensor | None:
            parts = [merged.get(f"{prefix}{name}.bias") for name in FUSED[field]]
            present = [part for part in parts if part is not None]
            return self._copy(present, getattr(old, f"{field}_bias", None)) if present else None

        return Layer(
            norm=norm("norm", "input_layernorm"),
            qkv=weight("qkv"),
            qkv_bias=bias("qkv"),
            qk_norm=self._qk_norm(merged, f"{prefix}self_attn.", old),
            out=weight("out"),
            out_bias=bias("out"),
            mlp_norm=norm("mlp_norm", "post_attention_layernorm"),
            gate_up=weight("gate_up"),
            gate_up_bias=bias("gate_up"),
            down=weight("down"),
            down_bias=bias("down"),
        )

    def _qk_norm(self, merged: MergedWeights, attention: str, old: Layer | None) -> Tensor | None:
        q, k = merged.get(f"{attention}q_norm.weight"), merged.get(f"{attention}k_norm.weight")
        if q is None or k is None:
            return None
        rows = [q.expand(self.heads, -1), k.expand(self.kv_heads, -1)]
        return self._copy(rows, None if old is None else old.qk_norm)

    def _copy(self, parts: list[Tensor], into: Tensor | None) -> Tensor:
        """The parts, concatenated along the first dimension, in `into` or (None) in a new tensor."""
        if into is None:
            shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
            into = torch.empty(shape, dtype=self.dtype, device=self.device)
        start = 0
        for part in parts:
            into[start : start + len(part)].copy_(part)
            start += len(part)
        return into

    def _table(self, merged: MergedWeights, name: str) -> Tensor:
        """An embedding or head. A frozen one is not copied: it can be half of a model's weights."""
        if merged.frozen(name) and merged[name].dtype == self.dtype:
            return merged[name]
        self._tables[name] = self._copy([merged[name]], self._tables.get(name))
        return self._tables[name]
