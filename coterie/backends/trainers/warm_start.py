"""Supervised steps before RL: what makes 'pretrained' weights of a model made on the spot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from coterie.backends.trainers.forward import Probe, Scorer
from coterie.backends.trainers.optim import PolicyOptimizer, Taken
from coterie.backends.trainers.policies import Policy, Start, plain_parameters
from coterie.core.config import OptimizerSettings, WarmStart
from coterie.core.errors import ConfigError
from coterie.core.protocols import Codec, Demonstration
from coterie.core.types import Metrics

log = logging.getLogger("coterie")


def warm_start(
    start: Start,
    policies: Mapping[str, Policy],
    demonstrations: Callable[[int], Sequence[Demonstration]],
    config: WarmStart,
    codec: Codec,
) -> Metrics:
    """Train a start's weights on completions, and give them to all its policies.

    The full weights are trained whatever the policies' `train` says: this stands in for pretraining. One
    module is trained (the frozen one, if there is one) and copied to the others; adapters stay as they are.

    Args:
        policies: those of the start.
        demonstrations: called with each step's number.

    Returns:
        `loss` (token-mean cross-entropy in nats) of the last step, `loss_first`, `tokens`, `steps`,
        `skipped_steps`, and the last `grad_norm`.
    """
    model = start.frozen if start.frozen is not None else next(iter(policies.values())).model
    scorer = next(policy.scorer for policy in policies.values() if policy.model is model) if any(
        policy.model is model for policy in policies.values()
    ) else _scorer_for(model, policies)
    weights = plain_parameters(model)
    frozen = {name: not weight.requires_grad for name, weight in weights.items()}
    with start.plain():
        _require(weights, dict.fromkeys(weights, True))
        try:
            metrics = _steps(scorer, weights, demonstrations, config, codec)
        finally:
            _require(weights, {name: not frozen[name] for name in weights})
    start.warmed = True
    for policy in policies.values():
        if policy.model is not model:
            with torch.no_grad():
                for name, weight in plain_parameters(policy.model).items():
                    weight.copy_(weights[name])
        policy.renew_optimizer()  # its masters are of the weights before
    return metrics
