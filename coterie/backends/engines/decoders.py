"""The choice of a policy's decoder: its kind, its precision, and whether its adapter shares a base."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from coterie.backends.engines.batches import KvCost
from coterie.backends.engines.lean.adapters import unmixable
from coterie.backends.engines.lean.decode import LeanDecoder
from coterie.backends.engines.lean.precision import cache_dtype
from coterie.backends.engines.lean.sharing import share
from coterie.backends.engines.lean.weights import unsupported
from coterie.backends.engines.rows import Decoder
from coterie.backends.engines.stepwise import StepwiseDecoder
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
