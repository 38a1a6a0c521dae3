"""Supervised steps before RL; they replace pretraining for newly initialised models."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.backends.models.policy import OptimizerSettings, WarmStart
from coterie.backends.trainers.forward import TokenScorer
from coterie.backends.trainers.optim import PolicyOptimizer, StepInfo, finite
from coterie.backends.trainers.out_of_memory import halving, optimiser_memory
from coterie.backends.trainers.packing import Probe
from coterie.backends.trainers.parameters import plain_parameters
from coterie.backends.trainers.policies import InitialWeights, PolicyWeights
from coterie.core.errors import ConfigError
from coterie.core.protocols import Demonstration
from coterie.core.types import Metrics

log = logging.getLogger("coterie")


def warm_start(
    initial: InitialWeights,
    policies: Mapping[str, PolicyWeights],
    demonstrations: Callable[[int], Sequence[Demonstration]],
    config: WarmStart,
    codec: Any,
) -> Metrics:
    """Train initial weights on completions, and copy them to all policies that begin with them.

    All weights are trained, whatever the policies' `train` is, since this replaces pretraining. One module
    is trained (the frozen one, if there is one) and copied to the others; adapters don't change.

    Args:
        policies: the policies that begin with these weights.
        demonstrations: called with each step's number.
        codec: a Codec that also has `encode_completion(text)`, which gives ids that end with the stop token.

    Returns:
        `loss` (token-mean cross-entropy in nats) of the last step, `loss_first`, `tokens`, `steps`,
        `skipped_steps`, and the last `grad_norm`.

    Raises:
        ConfigError: the loss or the weights are not finite after the last step.
    """
    first = policies[initial.name]
    model, scorer = (
        (first.model, first.scorer) if initial.scorer is None else (initial.frozen, initial.scorer)
    )
    weights = plain_parameters(model)
    with initial.plain(), scorer.session():
        model.requires_grad_(True)
        try:
            metrics = _steps(
                initial.name, scorer, weights, demonstrations, config, _encoder(codec, initial.context)
            )
        finally:
            model.requires_grad_(initial.frozen is None)
    if not (math.isfinite(metrics["loss"]) and finite(weights.values())):
        raise ConfigError(
            f"the weights of policy '{initial.name}' can't be trained on after its warm start",
            path=f"policies.{initial.name}.warm_start.learning_rate",
            why=f"its last loss is {metrics['loss']:g}, and {metrics['skipped_steps']:.0f} of "
            f"{config.steps} steps had a gradient that is not finite",
            fix="lower the learning rate",
        )
    initial.warmed = True
    for policy in policies.values():
        if policy.model is not model:
            with torch.no_grad():
                for name, weight in plain_parameters(policy.model).items():
                    weight.copy_(weights[name])
        policy.renew_optimizer()  # the old masters hold the old weights
    return metrics


def _encoder(codec: Any, context: int) -> Callable[[Demonstration], Probe]:
    """What converts demonstrations to rows; it keeps encoded completions, since texts recur."""

    @cache
    def completed(text: str) -> tuple[int, ...]:
        return tuple(codec.encode_completion(text))

    def encode(demonstration: Demonstration) -> Probe:
        prompt = demonstration.prompt_ids
        if prompt is None:
            prompt = codec.encode(demonstration.messages).ids
        ids = np.array([*prompt, *completed(demonstration.completion)], dtype=np.int64)
        if len(ids) > context:
            raise ConfigError(
                f"a demonstration has {len(ids)} tokens, and the context is {context}",
                path=f"policies.{demonstration.policy}.model.context",
                fix="make the context longer, or the demonstrations shorter",
            )
        return Probe(ids, np.arange(len(ids)) >= len(prompt))

    return encode


def _accumulate(scorer: TokenScorer, rows: Sequence[Probe], tokens: int, optimizer: PolicyOptimizer) -> float:
    """Add the gradients of a step's rows; returns the loss."""

    def loss(indices: Sequence[int]) -> Tensor:
        return -scorer([rows[index] for index in indices]).logprobs.sum() / tokens

    parts = scorer.plan(rows)
    return sum(float(optimizer.accumulate(partial(loss, part), last=part is parts[-1])) for part in parts)


def _steps(
    name: str,
    scorer: TokenScorer,
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
        rows = [encode(demonstration) for demonstration in demonstrations(step)]
        tokens = sum(int(row.loss_mask.sum()) for row in rows)
        loss = halving(
            scorer, name, partial(_accumulate, scorer, rows, tokens, optimizer), optimizer.clear_gradients
        )
        with optimiser_memory(name):
            step_info: StepInfo = optimizer.step()
        metrics["tokens"] += tokens
        metrics["skipped_steps"] += step_info.skipped
        metrics["grad_norm"], metrics["loss"] = step_info.norm, loss
        metrics.setdefault("loss_first", loss)
        log.debug("warm start, step %d: loss %.4f", step, loss)
    return metrics
