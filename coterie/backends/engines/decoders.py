"""The choice of a policy's decoder: its kind, its precision, and whether its adapter shares a base.

`StepwiseDecoder` is for architectures that the lean decoder lacks: transformers' forward, token by token.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.backends.engines.batches import KvCost
from coterie.backends.engines.lean.adapters import unmixable
from coterie.backends.engines.lean.decode import LeanDecoder
from coterie.backends.engines.lean.weights import cache_dtype, share, unsupported
from coterie.backends.engines.rows import BatchRow, Decoder, DecoderCounts, Drawn, siblings
from coterie.backends.engines.sampling import SamplingState
from coterie.backends.models.merged_weights import MergedWeights
from coterie.backends.models.sizes import cache_numbers
from coterie.core.errors import ConfigError

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class DecoderFactory:
    """What makes a policy's decoder."""

    kind: type[LeanDecoder] | type[StepwiseDecoder]
    dtype: torch.dtype
    unmixable: str | None
    """Why the policy's adapter can't share its base; None: it can."""
    kv: KvCost

    def __call__(self, weights: MergedWeights) -> Decoder:
        return self.kind(weights, self.dtype)

    def share(self, base: MergedWeights, policy: str) -> None:
        """Let decoder and module hold frozen weights once. Call it while nothing computes with the module.

        Args:
            base: without an adapter.
        """
        if self.kind is not LeanDecoder or not base.frozen("model.norm.weight"):
            return  # transformers' forward reads the module's tensors as they are
        if (reason := share(base, self.dtype)) is not None:
            log.info("policy %s: the engine copies frozen weights that it could share: %s", policy, reason)


def decoder_factory(
    policy: str,
    merged: MergedWeights,
    dtype: str,
    *,
    decoder: str,
    adapters: str,
    warn: Callable[[str], None],
) -> DecoderFactory:
    """Choose the decoder of a policy.

    Args:
        merged: the policy's weights.
        dtype, decoder, adapters: the settings of these names.

    Raises:
        ConfigError: the model can't be computed as `decoder` or `adapters` say.
    """
    reason = unsupported(merged.model)
    if decoder == "lean" and reason is not None:
        raise ConfigError(
            f"the lean decoder can't compute the model of policy '{policy}'",
            path="engine.decoder",
            why=reason,
            fix="set `engine.decoder: transformers` (or `auto`)",
        )
    lean = decoder != "transformers" and reason is None
    if decoder != "transformers" and not lean:
        warn(
            f"policy {policy}: generating with transformers' forward, which is several times slower than "
            f"the lean decoder: {reason}"
        )
    apart = (unmixable(merged) if lean else merged.inseparable) if merged.adaptable else None
    if apart is not None and adapters == "mixed":
        raise ConfigError(
            f"policy '{policy}' can't generate in one batch with other adapters",
            path="engine.adapters",
            why=apart,
            fix="set `engine.adapters: auto`, which gives such a policy a merged copy of the weights",
        )
    if apart is not None and adapters == "auto":
        warn(f"policy {policy}: its adapter is merged, and its batches are its own: {apart}")
    chosen = getattr(torch, dtype)
    is_merged = merged.adapter is not None and (apart is not None or adapters == "merged")
    if is_merged and chosen != torch.float32:
        warn(
            f"policy {policy}: its adapter is merged into a copy of the weights in float32, since {dtype} "
            "would round small updates away: twice the memory"
        )
        chosen = torch.float32
    cached = cache_dtype(chosen, merged.model.get_input_embeddings().weight.device) if lean else chosen
    kv = KvCost(cache_numbers(merged.config) * cached.itemsize, lean)
    return DecoderFactory(LeanDecoder if lean else StepwiseDecoder, chosen, apart, kv)


class StepwiseDecoder:
    """Draws from a copy of the module: a trainer's changes to the original act from the next `refresh` on.

    Tensors of a frozen base that have the copy's dtype are not copied.

    Each distinct prompt has one left-padded prefill, whose cache is repeated for every sibling. Separate
    adapters are PEFT adapters; a batch of several uses PEFT's `adapter_names`.

    Args:
        merged: the model, with its adapter if it has one.
        dtype: of the copy.
    """

    def __init__(self, merged: MergedWeights, dtype: torch.dtype) -> None:
        # New parameters on the module's own tensors, until `refresh` copies those that may change.
        aliases: dict[int, Any] = {
            id(parameter): nn.Parameter(parameter.detach(), requires_grad=False)
            for parameter in merged.model.parameters()
        }
        self.model: Any = _stripped(copy.deepcopy(merged.model, aliases)).to(dtype).eval()
        self.counts = DecoderCounts()
        self._parameters = dict(self.model.named_parameters())
        self._shared = set(self._parameters)
        """Names of the parameters whose tensors may be the module's."""
        self._peft: Any = None
        """The PeftModel around the copy; None until the first `adapt`."""
        self._ranks: dict[str, dict[str, int]] = {}
        accepted = inspect.signature(self.model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._takes_positions = "position_ids" in accepted
        self.refresh(merged)

    @torch.no_grad()
    def refresh(self, weights: MergedWeights) -> None:
        for name, parameter in self._parameters.items():
            source = weights[name]
            if weights.frozen(name) and source.dtype == parameter.dtype:
                parameter.data = source
                self._shared.add(name)
            elif name in self._shared:  # never written to: the trainer holds it
                parameter.data = source.to(parameter.dtype, copy=True)
                self._shared.remove(name)
            else:
                parameter.copy_(source)

    @torch.no_grad()
    def adapt(self, adapter: str, weights: MergedWeights) -> None:
        ranks = {name.removesuffix(".weight"): len(part.down) for name, part in weights.low_rank.items()}
        if self._ranks.get(adapter) != ranks:
            self._attach(adapter, ranks)
        for name, part in weights.low_rank.items():
            layer = self.model.get_submodule(name.removesuffix(".weight"))
            layer.scaling[adapter] = part.scale
            if adapter in layer.lora_embedding_A:
                layer.lora_embedding_A[adapter].copy_(part.up.T)
                layer.lora_embedding_B[adapter].copy_(part.down.T)
            else:
                layer.lora_A[adapter].weight.copy_(part.down)
                layer.lora_B[adapter].weight.copy_(part.up)

    def _attach(self, adapter: str, ranks: dict[str, int]) -> None:
        import peft

        settings = peft.LoraConfig(target_modules=list(ranks), rank_pattern=ranks)
        with torch.random.fork_rng(devices=[]):  # PEFT draws values, which are not used
            if self._peft is None:
                self._peft = peft.get_peft_model(self.model, settings, adapter_name=adapter)
            else:
                if adapter in self._ranks:
                    self._peft.delete_adapter(adapter)
                self._peft.add_adapter(adapter, settings)
        self._peft.eval().requires_grad_(False)
        self._ranks[adapter] = ranks

    @torch.inference_mode()
    def generate(self, rows: Sequence[BatchRow]) -> list[Drawn]:
        """Draw for all rows together; rows with the same prompt and adapter share a prefill."""
        if not rows:
            return []
        device = self.model.get_input_embeddings().weight.device
        groups = siblings(rows)
        logits, cache, mask, positions = self._prefill([rows[members[0]] for members in groups], device)
        state = SamplingState(rows, device, logits.shape[-1])
        slots = np.concatenate(groups)
        state.assign_slots(slots)
        chosen = torch.from_numpy(np.repeat(np.arange(len(groups)), [len(members) for members in groups])).to(
            device
        )
        cache.reorder_cache(chosen)
        logits, positions, filled = logits[chosen], positions[chosen], mask.shape[1]
        mask = F.pad(mask[chosen], (0, max(row.limit for row in rows)), value=1)
        while True:
            tokens = state.draw(logits)
            live = state.live
            if not live.any():
                return state.drawn()
            if live.sum() <= 0.5 * len(slots):
                slots = slots[live]
                state.assign_slots(slots)
                chosen = torch.from_numpy(np.flatnonzero(live)).to(device)
                cache.reorder_cache(chosen)
                tokens, mask, positions = tokens[chosen], mask[chosen], positions[chosen]
            positions = positions + 1
            filled += 1
            computed = [rows[slot] for slot in slots]
            logits = self._forward(tokens[:, None], mask[:, :filled], positions[:, None], cache, computed)
            self.counts.steps += 1
            self.counts.slots += len(slots)

    def _prefill(self, rows: Sequence[BatchRow], device: torch.device) -> tuple[Tensor, Any, Tensor, Tensor]:
        """Logits (G, V) after the rows' prompts, their cache, mask (G, P) and last positions (G,)."""
        from transformers import DynamicCache

        prompts = [row.prompt_ids for row in rows]
        longest = max(len(prompt) for prompt in prompts)
        ids = np.zeros((len(prompts), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for index, prompt in enumerate(prompts):
            ids[index, longest - len(prompt) :] = prompt
            mask[index, longest - len(prompt) :] = 1
        placed = torch.from_numpy(mask).to(device)
        positions = (placed.cumsum(dim=1) - 1).clamp_(min=0)
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(torch.from_numpy(ids).to(device), placed, positions, cache, rows)
        self.counts.prompts += len(prompts)
        self.counts.prompt_tokens += int(mask.sum())
        return logits, cache, placed, positions[:, -1]

    def _forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any, rows: Sequence[BatchRow]
    ) -> Tensor:
        """Logits of the last token of N rows, shape (N, V)."""
        options: dict[str, Any] = dict(self._last_only)
        if self._takes_positions:
            options["position_ids"] = positions
        if self._peft is not None:
            options["adapter_names"] = [row.adapter or "__base__" for row in rows]
        model = self.model if self._peft is None else self._peft
        output = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **options)
        return output.logits[:, -1]


def _stripped(module: nn.Module) -> Any:
    """The module with PEFT's layers replaced by the layers that they wrap."""
    for name, child in list(module.named_children()):
        if hasattr(child, "base_layer"):
            setattr(module, name, child.get_base_layer())
        elif hasattr(child, "modules_to_save") and hasattr(child, "original_module"):
            setattr(module, name, child.original_module)
        else:
            _stripped(child)
    vars(module).pop("peft_config", None)  # PEFT warns where this attribute is set
    return module
