"""The value head: one number a token, which an estimator takes as its baseline (PPO with GAE).

V(s_t) is linear in the hidden state that predicts token t, the one that the language-model head reads. The
head is there only where the estimator or the loss names `values` in its `needs`. It lies beside the model,
never in it: no engine sees it and no export holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coterie.core.plugins import PluginConfig
from coterie.core.types import Sample

NAME = "value_head"
"""Among a policy's weights; a model's own have a dot in theirs."""


class ValueSettings(PluginConfig):
    """How values are learnt."""

    coefficient: float = Field(0.5, gt=0, description="Of the value loss, beside the policy's.")
    clip: float | None = Field(
        0.2, gt=0, description="How far from its estimate before the update V is followed; null: anywhere."
    )
    learning_rate: float | None = Field(
        None, gt=0, description="Of the head, with the policy's schedule; null: the policy's own."
    )


def value_head(model: Any) -> torch.nn.Parameter:
    """A head that says 0 of everything, shape (H,); never below fp32.

    From 0 the first advantages are the returns, and until the head has moved no value loss reaches the model.
    """
    weight = model.get_output_embeddings().weight
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return torch.nn.Parameter(torch.zeros(weight.shape[-1], dtype=dtype, device=weight.device))


def values_of(states: Tensor, head: Tensor) -> Tensor:
    """Hidden states (N, H) to values (N,)."""
    return states.to(head.dtype) @ head


def value_loss(values: Tensor, old: Tensor, targets: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """max((V - target)^2, (clip(V, old - c, old + c) - target)^2), and where the clip took hold; shape (N,).

    A value that has gone further than c towards its target in this update has no slope left, as PPO's
    ratio (the loss of the code that came with arXiv 1707.06347).

    Args:
        old: the values that the advantages were made from.
    """
    free = (values - targets).square()
    if clip is None:
        return free, torch.zeros_like(free, dtype=torch.bool)
    cut = (torch.minimum(torch.maximum(values, old - clip), old + clip) - targets).square()
    return torch.maximum(free, cut), cut > free


def explained_variance(samples: Sequence[Sample]) -> float | None:
    """1 - Var(target - V) / Var(target) over the tokens that have a target: 1 is perfect, a constant gives 0.

    None where the targets don't differ.
    """
    rows = [row for row in samples if "targets" in row.extras and row.loss_mask.any()]
    if not rows:
        return None
    targets, values = (
        np.concatenate([row.extras[name][row.loss_mask] for row in rows]).astype(np.float64)
        for name in ("targets", "values")
    )
    spread = float(targets.var())
    return 1.0 - float((targets - values).var()) / spread if spread > 0 else None
