"""The loss of one micro-batch: the configured loss, the entropy bonus and the value loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.backends.trainers.forward import TokenScorer
from coterie.backends.trainers.policies import PolicyWeights
from coterie.backends.trainers.settings import ValueSettings
from coterie.backends.trainers.surrogates import AGED, check_finite, surrogate_of
from coterie.backends.trainers.token_batches import flat, token_batch
from coterie.backends.trainers.update_metrics import Meter
from coterie.backends.trainers.value_head import value_loss
from coterie.core.protocols import Loss, Surrogate, TokenBatch
from coterie.core.types import Sample


def add_gradients(
    objective: Loss,
    settings: ValueSettings,
    policy: PolicyWeights,
    scorer: TokenScorer,
    rows: Sequence[Sample],
    coefficients: Sequence[np.ndarray],
    meter: Meter,
    *,
    last: bool,
) -> float:
    """Add the gradients of one micro-batch; returns its part of the minibatch's loss.

    Args:
        last: whether it is the minibatch's last one on this rank.

    Raises:
        PluginError: the loss made NaN, or a gradient that is not finite, from finite numbers.
    """
    given: list[tuple[TokenBatch, Surrogate]] = []

    def compute() -> Tensor:
        loss, tokens, surrogate = loss_of(objective, settings, policy, scorer, rows, coefficients, meter)
        given.append((tokens, surrogate))
        return loss

    assert policy.optimizer is not None
    part = float(policy.optimizer.accumulate(compute, last=last))
    if not math.isfinite(part):  # asked only then: every look at the numbers waits for the device
        check_finite(objective, torch, *given[-1])
    return part


def loss_of(
    objective: Loss,
    settings: ValueSettings,
    policy: PolicyWeights,
    scorer: TokenScorer,
    rows: Sequence[Sample],
    coefficients: Sequence[np.ndarray],
    meter: Meter,
) -> tuple[Tensor, TokenBatch, Surrogate]:
    """The micro-batch's part of the minibatch's loss, and what the loss got and returned.

    Args:
        coefficients: one array of shape (T,) per row (see `token_coefficients`).
    """
    has_targets = any("targets" in row.extras for row in rows)
    scores = scorer(
        rows, entropy_grad=objective.entropy > 0, value_head=policy.value_head if has_targets else None
    )
    tokens = token_batch(rows, scores.logprobs)
    surrogate = surrogate_of(objective, torch, tokens)
    weights = flat(rows, coefficients, scores.logprobs)
    loss = (weights * surrogate.value).sum()
    if objective.entropy > 0:
        loss = loss - objective.entropy * (weights * scores.entropy).sum()
    if scores.values is not None:
        loss = loss + _value_loss(settings, rows, scores.values, weights, meter)
    meter.seen({"entropy": scores.entropy, **surrogate.metrics})
    meter.compared(rows, tokens)
    meter.by_age(rows, {name: surrogate.metrics[name] for name in AGED & surrogate.metrics.keys()})
    return loss, tokens, surrogate


def _value_loss(
    settings: ValueSettings, rows: Sequence[Sample], values: Tensor, weights: Tensor, meter: Meter
) -> Tensor:
    """The value loss of the rows with targets; other rows' values are not trained."""
    has_target = [np.full(int(row.loss_mask.sum()), "targets" in row.extras) for row in rows]
    at = torch.from_numpy(np.concatenate(has_target)).to(values.device)
    rows = [row for row in rows if "targets" in row.extras]
    old, targets = (flat(rows, [row.extras[name] for row in rows], values) for name in ("values", "targets"))
    losses, clipped = value_loss(values[at], old, targets, settings.clip)
    meter.seen({"value": values[at], "value_loss": losses, "value_clipped": clipped})
    return settings.coefficient * (weights[at] * losses).sum()
