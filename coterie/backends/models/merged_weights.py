"""A module's weights by their Hugging Face names, with one LoRA adapter merged in when they are read.

Weights that a trainer hands to an engine without a module are `Gathered` from its ranks, or `Distant`.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from coterie.core.errors import SystemFault, UserError


class LowRank(NamedTuple):
    """LoRA's addition to a weight of shape (rows, columns): scale * up @ down (arXiv 2106.09685, eq. 3)."""

    down: Tensor
    """(rank, columns)."""
    up: Tensor
    """(rows, rank)."""
    scale: float

    def product(self) -> Tensor:
        """The product; float32, (rows, columns)."""
        return (self.up.detach().float() @ self.down.detach().float()).mul_(self.scale)

    def snapshot(self) -> LowRank:
        """A copy that a trainer's step does not change."""
        return LowRank(self.down.detach().clone(), self.up.detach().clone(), self.scale)


class MergedWeights:
    """Weights of a CausalLM, plain or wrapped by PEFT, under a plain model's names; their values stay.

    Args:
        module: a transformers CausalLM, or a PeftModel around one.
        adapter: the PeftModel's adapter to merge; None: the base alone.

    Raises:
        UserError: the module lacks the adapter, or the adapter's kind can't be merged into the weights.
    """

    def __init__(self, module: nn.Module, adapter: str | None = None) -> None:
        self.model: Any = module.get_base_model() if hasattr(module, "get_base_model") else module
        self.config: Any = self.model.config
        self.adapter = adapter
        if adapter is not None and adapter not in getattr(module, "peft_config", {}):
            known = ", ".join(getattr(module, "peft_config", {})) or "none"
            raise UserError(f"the module has no adapter '{adapter}'", why=f"its adapters: {known}")
        self._plain: dict[str, Tensor] = {}
        self._low_rank: dict[str, LowRank] = {}
        self._shifts: dict[str, tuple[float, Tensor]] = {}
        """Scale and value of the adapter's addition to a bias."""
        self._trained: tuple[str, ...] = ()
        self.adaptable = bool(getattr(module, "peft_config", None))
        """Whether the module has adapters."""
        self._merged = False
        self._collect(self.model, "")

    def __contains__(self, name: str) -> bool:
        return name in self._plain

    def __getitem__(self, name: str) -> Tensor:
        """The tensor itself, or a new float32 tensor where the adapter changes it; detached in both cases."""
        plain = self._plain[name].detach()
        # In float32: a bfloat16 sum would round most of a small delta away.
        if name in self._low_rank:
            return self._low_rank[name].product().add_(plain)  # in place: a new tensor costs as much again
        if name in self._shifts:
            scale, shift = self._shifts[name]
            return plain.to(torch.float32) + scale * shift.detach().float()
        return plain

    def __iter__(self) -> Iterator[str]:
        yield from self._plain

    def get(self, name: str) -> Tensor | None:
        if name not in self:
            return None
        return self[name]

    def parameters(self) -> Iterator[Tensor]:
        """The tensors that the weights are computed from, without copies: the model's and the adapter's."""
        yield from self._plain.values()
        for part in self._low_rank.values():
            yield from (part.down, part.up)

    @property
    def base_numbers(self) -> int:
        """The number of the model's weights, without the adapter's; tied ones count once."""
        return sum(tensor.numel() for tensor in {id(plain): plain for plain in self._plain.values()}.values())

    @property
    def low_rank(self) -> Mapping[str, LowRank]:
        """The adapter's additions to weights, by name."""
        return self._low_rank

    @property
    def inseparable(self) -> str | None:
        """Why these weights are not a frozen base plus low-rank parts; None: they are."""
        if self._trained:
            return f"the adapter has a copy of {self._trained[0][:-1]} (modules_to_save)"
        if self._shifts:
            return f"the adapter changes {next(iter(self._shifts))}"
        if self._merged:
            return "an adapter is merged into the base"
        trained = next((name for name, tensor in self._plain.items() if tensor.requires_grad), None)
        return None if trained is None else f"{trained} of the base is trained"

    def snapshot(self) -> MergedWeights:
        """The same weights with a copy of the adapter's part; the base still reads the module's tensors."""
        other = copy.copy(self)
        other._low_rank = {name: part.snapshot() for name, part in self._low_rank.items()}
        return other

    def tied(self, first: str, second: str) -> bool:
        """Whether two names are one tensor (tied embeddings) that the adapter does not change."""
        changed = {first, second} & (self._low_rank.keys() | self._shifts.keys())
        return not changed and first in self._plain and self._plain[first] is self._plain.get(second)

    def frozen(self, name: str) -> bool:
        """Whether nothing trains the tensor, and the adapter does not change it."""
        changed = name in self._low_rank or name in self._shifts or name.startswith(self._trained)
        plain = self._plain.get(name)
        return plain is not None and not changed and not plain.requires_grad

    def move(self, name: str, tensor: Tensor) -> None:
        """Let the module hold a weight in another tensor of the same values: a part of a larger one."""
        self._plain[name].data = tensor

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
        for name, parameter in layer.get_base_layer().named_parameters(recurse=False):
            self._plain[prefix + name] = parameter
        merged = getattr(layer, "merged_adapters", ())
        self._merged |= bool(merged)
        if self.adapter is None or self.adapter in merged:
            return
        embedding = self.adapter in getattr(layer, "lora_embedding_A", {})
        if embedding or self.adapter in getattr(layer, "lora_A", {}):
            self._collect_delta(layer, prefix, self.adapter, embedding)

    def _collect_delta(self, layer: Any, prefix: str, adapter: str, embedding: bool) -> None:
        bias = None if embedding else layer.lora_B[adapter].bias
        unsupported = bias is not None and f"{prefix}bias" not in self._plain
        if (
            unsupported
            or adapter in getattr(layer, "lora_variant", {})
            or getattr(layer, "fan_in_fan_out", False)
        ):
            raise UserError(
                f"the adapter '{adapter}' can't be merged into {prefix[:-1]}",
                why="it is not plain LoRA on a linear layer or an embedding",
                fix="use plain LoRA on such layers: no DoRA or other variant, no `lora_bias` without a bias",
            )
        scale = float(layer.scaling[adapter])
        if embedding:
            a, b = layer.lora_embedding_A[adapter], layer.lora_embedding_B[adapter]
            self._low_rank[f"{prefix}weight"] = LowRank(b.T, a.T, scale)
            return
        a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
        self._low_rank[f"{prefix}weight"] = LowRank(a, b, scale)
        if bias is not None:
            self._shifts[f"{prefix}bias"] = scale, bias


class Gathered:
    """Tensors that are gathered each time they are read, while they are those of the handle's version.

    A trainer gives one as `Weights.tensors`.

    Args:
        read: gathers the tensors, by their names.
        state: a number that changes with their values.
        base: of an adapter: the frozen weights below it, by their names in a plain model.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, Tensor]], state: Callable[[], int], base: Gathered | None = None
    ) -> None:
        self._read, self.state, self.base = read, state, base
        self._handed_over = state()

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """Gather the tensors.

        Raises:
            SystemFault: the trainer has changed them since it handed them over.
        """
        tensors = self._read()
        if self.state() != self._handed_over:
            raise SystemFault("the trainer's weights have changed since it handed them over")
        yield from tensors.items()


class Distant(Gathered):
    """Stands for tensors that are never in this process: as `Weights.tensors`, in an engine's process.

    Args:
        version: of the weights.
        ways: by receiver that can get them from GPU to GPU: how.
        ask: lets the process that has them send them to a receiver.
    """

    def __init__(self, version: int, ways: Mapping[str, str], ask: Callable[[Any], Awaitable[None]]) -> None:
        super().__init__(_nowhere, lambda: version)
        self.ways, self.send_by = dict(ways), ask


def _nowhere() -> NoReturn:
    raise RuntimeError("these tensors are in another process, which sends them")
