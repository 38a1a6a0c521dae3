"""Conversion of samples to a loss's flat arrays: trained tokens, row after row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.backends.models.minibatches import span_ids
from coterie.core.protocols import TokenBatch
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


def flat(rows: Sequence[Sample], arrays: Sequence[np.ndarray], like: Tensor) -> Tensor:
    """Per-token arrays of rows, shape (T,) each, cut to trained tokens and joined: shape (N,)."""
    values = np.concatenate([array[row.loss_mask] for row, array in zip(rows, arrays, strict=True)])
    return torch.from_numpy(values).to(device=like.device, dtype=like.dtype)


def annotation(rows: Sequence[Sample], name: str, like: Tensor) -> Tensor | None:
    """An annotation of every trained token, shape (N,); None unless all rows have it."""
    if not all(name in row.extras for row in rows):
        return None
    return flat(rows, [row.extras[name] for row in rows], like)


def token_batch(rows: Sequence[Sample], logprobs: Tensor) -> TokenBatch:
    """The loss's view of one micro-batch.

    Args:
        logprobs: log-probs of the trained tokens under the present weights, shape (N,).
    """
    sequence, sequences = span_ids(rows)
    return TokenBatch(
        logprobs=logprobs,
        behaviour=flat(rows, [row.logprobs for row in rows], logprobs),
        advantages=flat(rows, [row.advantages for row in rows], logprobs),
        ref_logprobs=annotation(rows, "ref_logprobs", logprobs),
        old=annotation(rows, "old_logprobs", logprobs),
        sequence=torch.from_numpy(sequence).to(logprobs.device),
        sequences=sequences,
    )
