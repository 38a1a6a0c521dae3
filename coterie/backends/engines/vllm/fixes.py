"""Fixes of vLLM where it computes wrong numbers; imported where vLLM runs.

Each fix is one function that the rest calls by name, so that a test can take it out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_installed: set[str] = set()


def install() -> None:
    """Patch this process's vLLM, once."""
    if _installed:
        return
    _installed.add("all")
    from vllm.platforms import current_platform

    _patch_sampler()
    if current_platform.is_cpu():
        _patch_base_slot()


def fix_tied_head(model: Any) -> None:
    """Give a tied head the new embedding after a sync; on a CPU it keeps a packed copy of the old one.

    On a GPU the head's weight is the embedding's tensor, and nothing is done.
    """
    from vllm.platforms import current_platform

    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    if not current_platform.is_cpu() or head is None or embedding is None:
        return
    if not getattr(model.config, "tie_word_embeddings", False):
        return
    head, embedding = getattr(head, "base_layer", head), getattr(embedding, "base_layer", embedding)
    head.weight = embedding.weight
    head.quant_method.process_weights_after_loading(head)


def mask_base_rows(shrunk: Tensor, slots: Tensor) -> None:
    """Zero the low-rank products of rows without an adapter, in place.

    vLLM's CPU operators give such rows slot -1, which Python reads as the last slot: requests of the base
    would be computed with that slot's adapter. (vllm-project/vllm #48421 and #49656.)

    Args:
        shrunk: x A^T; shape (rows or more, rank).
        slots: adapter slot of each row, -1 for the base; shape (rows,).
    """
    shrunk[: slots.shape[0]].masked_fill_((slots < 0)[:, None], 0)


def whole_logprobs(logits: Tensor) -> Tensor:
    """Log-probs of every token before top-k and top-p remove any; shape of the logits, (rows, V)."""
    return logits.log_softmax(dim=-1, dtype=torch.float32)


def forget_shared_layers() -> None:
    """Give the next engine of this process rotary embeddings of its own.

    vLLM shares them between models of one shape. A sync that fails half-way leaves them without values, and
    would end the process's other engines.
    """
    from vllm.model_executor.layers import rotary_embedding

    rotary_embedding._ROPE_DICT.clear()


def _patch_base_slot() -> None:
    from vllm.lora.ops import torch_ops
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    original = lora_ops.bgmv_shrink

    def bgmv_shrink(x: Tensor, weights: Tensor, out: Tensor, slots: Tensor, scaling: float = 1.0) -> None:
        original(x, weights, out, slots, scaling)
        mask_base_rows(out, slots)

    for module in (lora_ops, torch_ops, punica_cpu):
        module.bgmv_shrink = bgmv_shrink


def _patch_sampler() -> None:
    """Report log-probs under the whole distribution also where top-k or top-p removes tokens.

    vLLM's "processed" log-probs are normalised over the tokens that are kept. Samples are trained on the
    whole distribution, so these would be off by the log of the kept share. vLLM's second GPU runner has
    another sampler, which this patch doesn't reach.
    """
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    def patched(original: Any) -> Any:
        def forward(self: Any, logits: Tensor, generators: Any, k: Tensor | None, p: Tensor | None) -> Any:
            filtered = (k is not None or p is not None) and self.logprobs_mode == "processed_logprobs"
            whole = whole_logprobs(logits) if filtered else None  # before the filter, which is in place
            tokens, logprobs = original(self, logits, generators, k, p)
            return tokens, logprobs if whole is None else whole

        return forward

    for name in ("forward_native", "forward_cpu"):
        setattr(TopKTopPSampler, name, patched(getattr(TopKTopPSampler, name)))
