"""The loss of one micro-batch: its samples as flat arrays, the loss, the entropy bonus and the value loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.backends.models.minibatches import span_ids, token_values, trained_values
from coterie.backends.trainers.policies import PolicyWeights
from coterie.backends.trainers.settings import ValueSettings
from coterie.backends.trainers.surrogates import AGED, check_finite, surrogate_of
from coterie.backends.trainers.update_metrics import Meter
from coterie.backends.trainers.value_head import value_loss
from coterie.core.protocols import Loss, Surrogate, TokenBatch
from coterie.core.types import Sample

_FOR_ALL = ("ref_logprobs", "old_logprobs")
"""Annotations that a loss reads for every token."""


def check_samples(policy: str, samples: Sequence[Sample], *, trained: bool, values: bool) -> None:
    """Reject samples that the policy's update can't use.

    Args:
        trained: whether the policy has an optimiser.
        values: whether the policy has a value head.

    Raises:
        ValueError: samples are of another policy, the policy isn't trained, or some samples lack annotations.
    """
    wrong = next((row for row in samples if row.policy != policy), None)
    if wrong is not None:
        raise ValueError(f"{wrong.key.text()} is a sample of '{wrong.policy}', given to '{policy}'")
    if samples and not trained:
        raise ValueError(f"policy '{policy}' is not trained (train: none), and was given samples")
    for name in _FOR_ALL:
        annotated = sum(name in row.extras for row in samples)
        if 0 < annotated < len(samples):
            raise ValueError(
                f"{annotated} of {len(samples)} samples of '{policy}' carry {name}: all, or none"
            )
    with_targets = next((row for row in samples if "targets" in row.extras), None)
    if with_targets is not None and not values:
        raise ValueError(
            f"{with_targets.key.text()} carries value targets, and policy '{policy}' has no value head: "
            "neither the estimator nor the loss names `values` in its `needs`"
        )
    if any("targets" in row.extras and "values" not in row.extras for row in samples):
        raise ValueError(f"samples of '{policy}' carry value targets without the values they were made from")


def add_gradients(
    objective: Loss,
    settings: ValueSettings,
    policy: PolicyWeights,
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
        loss, tokens, surrogate = loss_of(objective, settings, policy, rows, coefficients, meter)
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
    rows: Sequence[Sample],
    coefficients: Sequence[np.ndarray],
    meter: Meter,
) -> tuple[Tensor, TokenBatch, Surrogate]:
    """The micro-batch's part of the minibatch's loss, and what the loss got and returned.

    Args:
        coefficients: one array of shape (T,) per row (see `token_coefficients`).
    """
    has_targets = any("targets" in row.extras for row in rows)
    scores = policy.scorer(
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


def flat(rows: Sequence[Sample], arrays: Sequence[np.ndarray], like: Tensor) -> Tensor:
    """Per-token arrays of rows, shape (T,) each, cut to trained tokens and joined: shape (N,)."""
    return torch.from_numpy(trained_values(rows, arrays)).to(device=like.device, dtype=like.dtype)


def token_batch(rows: Sequence[Sample], logprobs: Tensor) -> TokenBatch:
    """The loss's view of one micro-batch.

    Args:
        logprobs: log-probs of the trained tokens under the present weights, shape (N,).
    """
    sequence, sequences = span_ids(rows)
    values: dict[str, Any] = {
        name: None if array is None else torch.from_numpy(array).to(logprobs.device, logprobs.dtype)
        for name, array in token_values(rows).items()
    }
    at = torch.from_numpy(sequence).to(logprobs.device)
    return TokenBatch(logprobs=logprobs, sequence=at, sequences=sequences, **values)
