"""A module's weights under their Hugging Face names, with one LoRA adapter merged in on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError


class Dense:
    """Reads a CausalLM, plain or wrapped by PEFT, as if it were plain. The module is never touched.

    Args:
        module: a transformers CausalLM, or a PeftModel around one.
        adapter: which of the PeftModel's adapters to merge; None: the base alone.

    Raises:
        UserError: the adapter is not there, or is of a kind that can't be merged into the weights.
    """

    def __init__(self, module: nn.Module, adapter: str | None = None) -> None:
        self.model: Any = module.get_base_model() if hasattr(module, "get_base_model") else module
        self.config: Any = self.model.config
        self.adapter = adapter
        if adapter is not None and adapter not in getattr(module, "peft_config", {}):
            known = ", ".join(getattr(module, "peft_config", {})) or "none"
            raise UserError(f"the module has no adapter '{adapter}'", why=f"its adapters: {known}")
        self._sources: dict[str, Callable[[], Tensor]] = {}
        self._plain: dict[str, Tensor] = {}
        self._trained: tuple[str, ...] = ()
        self._collect(self.model, "")

    def __contains__(self, name: str) -> bool:
        return name in self._plain or name in self._sources

    def __getitem__(self, name: str) -> Tensor:
        """The tensor itself, or a fresh float32 one where the adapter changes it. No gradient is attached."""
        source = self._sources.get(name)
        return self._plain[name].detach() if source is None else source()

    def __iter__(self) -> Iterator[str]:
        yield from self._plain
        yield from self._sources

    def get(self, name: str) -> Tensor | None:
        if name not in self:
            return None
        return self[name]

    def same(self, one: str, other: str) -> bool:
        """Whether two names are one tensor (tied embeddings), with or without an adapter."""
        return one in self._plain and self._plain[one] is self._plain.get(other)

    def frozen(self, name: str) -> bool:
        """Whether the tensor belongs to the base that an adapter stands on, so that nothing changes it."""
        return self.adapter is not None and name in self._plain and not name.startswith(self._trained)

    def _collect(self, module: nn.Module, prefix: str) -> None:
        if hasattr(module, "base_layer"):
            return self._collect_adapted(module, prefix)
        if hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
            saved: Any = module.modules_to_save
            if self.adapter is None or self.adapter not in saved:
                return self._collect(module.original_module, prefix)
            self._trained += (prefix,)
            return self._collect(saved[self.adapter], prefix)
        for name, parameter in module.named_parameters(recurse=False):
            self._plain[prefix + name] = parameter
        for name, child in module.named_children():
            self._collect(child, f"{prefix}{name}.")

    def _collect_adapted(self, layer: Any, prefix: str) -> None:
        base = layer.get_base_layer()
        delta = self._delta(layer, prefix)
        for name, parameter in base.named_parameters(recurse=False):
            if delta is not None and name in delta:
                self._sources[prefix + name] = _sum(parameter, delta[name])
            else:
                self._plain[prefix + name] = parameter

    def _delta(self, layer: Any, prefix: str) -> dict[str, Callable[[], Tensor]] | None:
        """What the adapter adds to this layer's weight and bias; None: nothing."""
        adapter = self.adapter
        if adapter is None or adapter in getattr(layer, "merged_adapters", ()):
            return None
        scaling = getattr(layer, "scaling", {}).get(adapter)
        embedding = adapter in getattr(layer, "lora_embedding_A", {})
        if not embedding and adapter not in getattr(layer, "lora_A", {}):
            return None
        if adapter in getattr(layer, "lora_variant", {}) or getattr(layer, "fan_in_fan_out", False):
            raise UserError(
                f"the adapter '{adapter}' can't be merged into {prefix[:-1]}",
                why="it is not plain LoRA on a linear layer or an embedding",
                mend="set `engine.decoder: transformers`, and use plain LoRA",
            )
        if embedding:
            a, b = layer.lora_embedding_A[adapter], layer.lora_embedding_B[adapter]
            return {"weight": lambda: scaling * (b.detach().float() @ a.detach().float()).T}
        a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
        found = {"weight": lambda: scaling * (b.detach().float() @ a.detach().float())}
        if layer.lora_B[adapter].bias is not None:
            found["bias"] = lambda: scaling * layer.lora_B[adapter].bias.detach().float()
        return found


def _sum(parameter: Tensor, delta: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """In float32: a bfloat16 sum would swallow most of a small delta."""
    return lambda: parameter.detach().to(torch.float32) + delta()
