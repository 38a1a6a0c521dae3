"""Notes that a policy's weights give to samples: one number per trained token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from coterie.backends.trainers.policies import Policy
from coterie.core.errors import ConfigError
from coterie.core.types import Sample

ANNOTATIONS = ("ref_logprobs", "old_logprobs", "values")


def check_annotation(what: str) -> None:
    """Raise ConfigError where there is no such note."""
    if what not in ANNOTATIONS:
        raise ConfigError(
            f"trainer 'torch' has no {what}", path="trainer", why=f"it gives {', '.join(ANNOTATIONS)}"
        )


def annotated(policy: Policy, samples: Sequence[Sample], what: str) -> list[np.ndarray]:
    """One float32 array of shape (trained tokens,) per sample; see `TorchTrainer.annotate`.

    Raises:
        ConfigError: the weights that it takes were not kept, or not made.
    """
    counts = [int(sample.loss_mask.sum()) for sample in samples]
    found = [np.zeros(count, np.float32) for count in counts]
    if what == "values" and policy.config.train == "none":
        return found
    head = policy.value_head if what == "values" else None
    if what == "values" and head is None:
        raise ConfigError(
            f"policy '{policy.name}' has no value head",
            path=f"policies.{policy.name}",
            why="it is there only where the estimator or the loss names values in its `needs`",
        )
    with torch.no_grad(), policy.reference() if what == "ref_logprobs" else policy.scoring() as scorer:
        for indices in scorer.plan(samples):
            rows = [samples[index] for index in indices]
            numbers = scorer(rows).logprobs if head is None else scorer.values(rows, head)
            parts = numbers.float().split([counts[index] for index in indices])
            for index, part in zip(indices, parts, strict=True):
                found[index] = part.cpu().numpy()
    return found
