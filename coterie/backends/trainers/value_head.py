"""The value head: one number per token, the baseline of an estimator (PPO with GAE).

V(s_t) is linear in the hidden state that predicts token t, which is the input of the language-model head. The
head exists only if the estimator or the loss names `values` in its `needs`. It is not part of the model:
engines and exports don't contain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.types import Sample

NAME = "value_head"
"""The head's name among a policy's weights; names of a model's own weights contain a dot."""


def value_head(model: Any) -> torch.nn.Parameter:
    """A head of zeros, shape (H,), in fp32 or above.

    While all values are 0, advantages equal returns and the value loss has no gradient in the model.
    """
    weight = model.get_output_embeddings().weight
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return torch.nn.Parameter(torch.zeros(weight.shape[-1], dtype=dtype, device=weight.device))


def values_of(states: Tensor, head: Tensor) -> Tensor:
    """Hidden states (N, H) to values (N,), never below fp32."""
    wide = head if head.dtype == torch.float64 else head.float()
    return states.to(wide.dtype) @ wide


def value_loss(values: Tensor, old: Tensor, targets: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """max((V - target)^2, (clip(V, old - c, old + c) - target)^2), and which V are clipped; shape (N,).

    A value that has changed by more than c towards its target in this update has no gradient, like PPO's
    ratio (the loss in the code published with arXiv 1707.06347).

    Args:
        old: the values that the advantages were computed from.
    """
    unclipped = (values - targets).square()
    if clip is None:
        return unclipped, torch.zeros_like(unclipped, dtype=torch.bool)
    clipped = (torch.minimum(torch.maximum(values, old - clip), old + clip) - targets).square()
    return torch.maximum(unclipped, clipped), clipped > unclipped


def explained_variance(samples: Sequence[Sample]) -> float | None:
    """1 - Var(target - V) / Var(target) over the tokens that have a target: 1 is perfect, a constant gives 0.

    None if all targets are equal.
    """
    rows = [row for row in samples if "targets" in row.extras and row.loss_mask.any()]
    if not rows:
        return None
    targets, values = (
        np.concatenate([row.extras[name][row.loss_mask] for row in rows]).astype(np.float64)
        for name in ("targets", "values")
    )
    variance = float(targets.var())
    return 1.0 - float((targets - values).var()) / variance if variance > 0 else None
