"""Annotations of samples by a policy's weights: one number per trained token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import Tensor

from coterie.backends.trainers.forward import TokenScorer
from coterie.backends.trainers.out_of_memory import halving
from coterie.backends.trainers.policies import PolicyWeights
from coterie.core.errors import ConfigError
from coterie.core.types import Sample

ANNOTATIONS = ("ref_logprobs", "old_logprobs", "values")


def check_annotation(name: str) -> None:
    """Raise ConfigError if the trainer has no such annotation."""
    if name not in ANNOTATIONS:
        raise ConfigError(
            f"the trainer `torch` has no annotation {name}",
            path="trainer",
            why=f"it gives {', '.join(ANNOTATIONS)}",
        )


def annotated(policy: PolicyWeights, samples: Sequence[Sample], name: str) -> list[np.ndarray]:
    """One float32 array of shape (trained tokens,) per sample; see `TorchTrainer.annotate`.

    Raises:
        ConfigError: the annotation needs initial weights or a value head, and the policy has none.
    """
    counts = [int(sample.loss_mask.sum()) for sample in samples]
    arrays = [np.zeros(count, np.float32) for count in counts]
    if name == "values" and not policy.trained:
        return arrays
    head = policy.value_head if name == "values" else None
    if name == "values" and head is None:
        raise ConfigError(
            f"policy '{policy.name}' has no value head",
            path=f"policies.{policy.name}",
            why="a value head exists only if the estimator or the loss names `values` in its `needs`",
        )
    with policy.reference() if name == "ref_logprobs" else policy.scoring() as scorer:

        def fill() -> None:
            for indices in scorer.plan(samples):
                rows = [samples[index] for index in indices]
                numbers = scorer.without_gradients(partial(_numbers, scorer, rows, head))
                parts = numbers.float().split([counts[index] for index in indices])
                for index, part in zip(indices, parts, strict=True):
                    arrays[index] = part.cpu().numpy()

        # One rank of a divided model can't compute anything again by itself.
        halving(scorer, policy.name, fill, None if scorer.divided else lambda: None)
    return arrays


def _numbers(scorer: TokenScorer, rows: Sequence[Sample], head: Tensor | None) -> Tensor:
    return scorer(rows).logprobs if head is None else scorer.values(rows, head)


def forwards(policy: PolicyWeights, samples: Sequence[Sample], name: str) -> int:
    """The number of forwards that `annotated` takes."""
    if not samples or (name == "values" and not policy.trained):
        return 0
    with policy.reference() if name == "ref_logprobs" else policy.scoring() as scorer:
        return len(scorer.plan(samples))
