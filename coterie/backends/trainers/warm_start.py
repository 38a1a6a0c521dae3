"""Supervised steps before RL: what makes 'pretrained' weights of a model made on the spot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from coterie.backends.trainers.forward import Probe, Scorer
from coterie.backends.trainers.optim import PolicyOptimizer, StepInfo
from coterie.backends.trainers.policies import InitialWeights, Policy, plain_parameters
from coterie.core.config import OptimizerSettings, WarmStart
from coterie.core.errors import ConfigError
from coterie.core.protocols import Demonstration
from coterie.core.types import Metrics

log = logging.getLogger("coterie")


def warm_start(
    start: InitialWeights,
    policies: Mapping[str, Policy],
    demonstrations: Callable[[int], Sequence[Demonstration]],
    config: WarmStart,
    codec: Any,
) -> Metrics:
    """Train a start's weights on completions, and give them to all its policies.

    The full weights are trained whatever the policies' `train` says: this stands in for pretraining. One
    module is trained (the frozen one, if there is one) and copied to the others; adapters stay as they are.

    Args:
        policies: those of the start.
        demonstrations: called with each step's number.
        codec: a Codec that has `encode_completion(text)` too: ids that end with the stop token.

    Returns:
        `loss` (token-mean cross-entropy in nats) of the last step, `loss_first`, `tokens`, `steps`,
        `skipped_steps`, and the last `grad_norm`.
    """
    first = policies[start.name]
    model, scorer = (first.model, first.scorer) if start.scorer is None else (start.frozen, start.scorer)
    weights = plain_parameters(model)
    with start.plain(), scorer.session():
        model.requires_grad_(True)
        try:
            metrics = _steps(scorer, weights, demonstrations, config, _Encoder(codec, start))
        finally:
            model.requires_grad_(start.frozen is None)
    start.warmed = True
    for policy in policies.values():
        if policy.model is not model:
            with torch.no_grad():
                for name, weight in plain_parameters(policy.model).items():
                    weight.copy_(weights[name])
        policy.renew_optimizer()  # its masters are of the weights before
    return metrics


class _Encoder:
    """Demonstrations to rows; texts recur, so what was encoded is kept."""

    def __init__(self, codec: Any, start: InitialWeights) -> None:
        self._codec, self._start = codec, start
        self._completions: dict[str, tuple[int, ...]] = {}

    def __call__(self, demonstration: Demonstration) -> Probe:
        prompt = self._codec.encode(demonstration.messages).ids
        text = demonstration.completion
        if text not in self._completions:
            self._completions[text] = tuple(self._codec.encode_completion(text))
        ids = np.array([*prompt, *self._completions[text]], dtype=np.int64)
        if len(ids) > self._start.context:
            raise ConfigError(
                f"a demonstration has {len(ids)} tokens, and the context is {self._start.context}",
                path=f"policies.{demonstration.policy}.model.context",
                fix="make the context longer, or the demonstrations shorter",
            )
        return Probe(ids, np.arange(len(ids)) >= len(prompt))


def _steps(
    scorer: Scorer,
    weights: Mapping[str, torch.nn.Parameter],
    demonstrations: Callable[[int], Sequence[Demonstration]],
    config: WarmStart,
    encode: Callable[[Demonstration], Probe],
) -> Metrics:
    settings = OptimizerSettings(
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        betas=(0.9, 0.95),
        clip=config.clip,
        schedule="linear",
        warmup_steps=config.warmup_steps,
        final_share=config.final_share,
        horizon=config.steps,
    )
    optimizer = PolicyOptimizer(weights, settings)
    metrics: Metrics = {"steps": float(config.steps), "tokens": 0.0, "skipped_steps": 0.0}
    for step in range(config.steps):
        rows = [encode(one) for one in demonstrations(step)]
        tokens = sum(int(row.loss_mask.sum()) for row in rows)
        loss = 0.0
        for indices in scorer.plan(rows):
            part = -scorer([rows[index] for index in indices]).logprobs.sum() / tokens
            part.backward()
            optimizer.absorb()
            loss += float(part.detach())
        taken: StepInfo = optimizer.step()
        metrics["tokens"] += tokens
        metrics["skipped_steps"] += taken.skipped
        metrics["grad_norm"], metrics["loss"] = taken.norm, loss
        metrics.setdefault("loss_first", loss)
        log.debug("warm start, step %d: loss %.4f", step, loss)
    return metrics
