"""Trainer `torch`: trains all policies with plain PyTorch, on one device or with whole copies on several."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.backends.models.compute_threads import compute
from coterie.backends.models.device_memory import reclaim
from coterie.backends.models.devices import repeatable
from coterie.backends.models.minibatches import (
    count_minibatches,
    minibatches,
    span_ids,
    token_coefficients,
    token_values,
    trained_values,
)
from coterie.backends.models.policy import TorchPolicy, WarmStart, diverged
from coterie.backends.trainers.annotations import annotated, check_annotation
from coterie.backends.trainers.out_of_memory import halving, optimiser_memory
from coterie.backends.trainers.policies import PolicyWeights
from coterie.backends.trainers.replicas import check_equal
from coterie.backends.trainers.settings import TorchConfig, ValueSettings
from coterie.backends.trainers.surrogates import AGED, check_finite, surrogate_of
from coterie.backends.trainers.torch_weights import TorchWeights, present
from coterie.backends.trainers.update_metrics import Meter
from coterie.backends.trainers.value_head import value_loss
from coterie.backends.trainers.warm_start import warm_start
from coterie.core.plugins.origin import origin_of
from coterie.core.protocols import Demonstration, Surrogate, TokenBatch
from coterie.core.types import Key, Metrics, Sample
from coterie.core.types.seeding import seed64
from coterie.discovery.members import HasLengthConstant

log = logging.getLogger("coterie")
_FOR_ALL = ("ref_logprobs", "old_logprobs")
"""Annotations that a loss reads for every token."""


class TorchTrainer(TorchWeights):
    """Updates policies with plain PyTorch: `full`, `lora` on a shared base, or `none`.

    An update runs `epochs` passes over a policy's samples, in minibatches that keep siblings together. The
    loss of a minibatch is the sum of coefficient * value over its tokens. Gradients of micro-batches are
    therefore added, and the division into micro-batches doesn't change the result (invariant 6).

    With `ranks`, each rank holds all weights and computes its share of every minibatch; the gradients of all
    ranks are added before the clip, so that each rank takes the same optimiser step.
    """

    Config = TorchConfig
    Policy = TorchPolicy

    # ------------------------------------------------------------------------------------------ updates

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """Run one training step of each policy on its samples.

        Returns:
            by trained policy: `samples`, `tokens`, `optimizer_steps` and `skipped_steps`. If samples had
            trained tokens: `loss` and `grad_norm` (means over the optimiser steps), token means of `entropy`
            and of the loss's own metrics, and the last `learning_rate`.

            `mismatch`, `mismatch_max` (|log current - log behaviour| in nats, mean and largest) and
            `mismatch_kl` (its k3 estimate) compare engine and trainer in the first optimiser step, whose
            weights are those that sampled. Samples of other versions are left out, and counted as
            `stale_samples`: of tokens that are k updates old, `mismatch/staleness/<k>` is that mean, and
            `clip_fraction/staleness/<k>` the share that the loss clipped. With value targets: `value`,
            `value_loss` (before its coefficient), `value_clipped` (shares) and `explained_variance`.

        Raises:
            ValueError: samples are of another policy or of an untrained one, or some lack annotations.
            UserError: a policy's weights are not finite after its update.
        """
        for name, rows in samples.items():
            policy = self._policy(name)
            check_samples(
                name, rows, trained=policy.optimizer is not None, values=policy.value_head is not None
            )
        await reclaim()
        metrics: dict[str, Metrics] = (await compute(self.commands.run, "rank_update", samples, step))[0]
        await compute(self.offload_optimizer)
        return metrics

    def set_progress(self, share: float) -> None:
        """Set the share of the token budget that is spent; the horizon `budget` decays with it."""
        self.commands.run("rank_progress", share)

    def rank_progress(self, share: float) -> None:
        """`set_progress` on one rank."""
        for policy in self.policies.values():
            if policy.optimizer is not None:
                policy.optimizer.spent = share

    @present
    def rank_update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """`update` on one rank: its share of every minibatch, and the step that all ranks take."""
        with self._computing, repeatable(self.ctx.deterministic, self._device):
            trained = [name for name, policy in self.policies.items() if policy.optimizer is not None]
            return {name: self._update_policy(name, samples.get(name, ()), step) for name in trained}

    def _update_policy(self, name: str, samples: Sequence[Sample], step: int) -> Metrics:
        policy = self.policies[name]
        meter = Meter(samples, policy.version)
        place = f"{policy.name}/{step}"
        # Each rank drops in its own samples, so its draws are others; rank 0's are those of one process.
        drops = f"{place}/rank {self.place.number}" if self.place.number else place
        with policy.training(seed64(self.ctx.seed, drops, "dropout")):
            for epoch in range(self.config.epochs):
                seed = seed64(self.ctx.seed, f"{place}/{epoch}", "minibatches")
                for batch in minibatches(samples, self.config.minibatch_size, seed):
                    self._optimiser_step(policy, batch, meter)
        policy.version += meter.steps > 0
        if self.place.world > 1:
            meter.combine(self.place.gather(meter.share()))
            check_equal(name, self.place, policy)
        metrics = meter.metrics()
        if meter.steps and policy.optimizer is not None and not policy.optimizer.finite():
            raise diverged(name, step, f"policies.{name}.optimizer.learning_rate", metrics["loss"])
        if self.place.number > 0:
            return metrics
        if meter.skipped:
            log.warning("policy '%s', step %d: %d optimiser steps were skipped, their gradient is not finite",
                        policy.name, step + 1, meter.skipped)  # fmt: skip
        elif not math.isfinite(metrics.get("loss", 0.0)):
            log.warning("policy '%s', step %d: the loss is %g, by %s", policy.name, step + 1, metrics["loss"],
                        origin_of(self.ctx.loss))  # fmt: skip
        return metrics

    def _optimiser_step(self, policy: PolicyWeights, batch: Sequence[Sample], meter: Meter) -> None:
        objective = self.ctx.loss
        constant = objective.length_constant if isinstance(objective, HasLengthConstant) else None
        coefficients = token_coefficients(batch, objective.length, constant)
        if policy.optimizer is None or not any(row.any() for row in coefficients):
            return
        back, clear = meter.mark(), policy.optimizer.clear_gradients

        def undo() -> None:
            back()
            assert clear is not None
            clear()

        attempt = partial(self._gradients, policy, batch, coefficients, meter)
        total = halving(policy.scorer, policy.name, attempt, undo if clear else None)
        total = self.place.sum_gradients(list(policy.optimizer.masters().values()), total)
        with optimiser_memory(policy.name):
            meter.stepped(total, policy.optimizer.step())

    def _gradients(
        self,
        policy: PolicyWeights,
        batch: Sequence[Sample],
        coefficients: Sequence[np.ndarray],
        meter: Meter,
    ) -> float:
        """Add this rank's gradients of a minibatch, one micro-batch after the other; returns the loss.

        Raises:
            PluginError: the loss made NaN, or a gradient that is not finite, from finite numbers.
        """
        assert policy.optimizer is not None
        total, micro_batches = 0.0, list(self._micro_batches(policy, batch, coefficients, meter))
        for number, micro_batch in enumerate(micro_batches, 1):
            given: list[tuple[TokenBatch, Surrogate]] = []
            loss = partial(self._loss, policy, *micro_batch, given)
            part = float(policy.optimizer.accumulate(loss, last=number == len(micro_batches)))
            if not math.isfinite(part):  # asked only then: every look at the numbers waits for the device
                check_finite(self.ctx.loss, torch, *given[-1])
            total += part
        return total

    def _loss(
        self,
        policy: PolicyWeights,
        rows: Sequence[Sample],
        coefficients: Sequence[np.ndarray],
        meter: Meter,
        given: list[tuple[TokenBatch, Surrogate]],
    ) -> Tensor:
        """A micro-batch's part of the minibatch's loss: with the entropy bonus and the value loss.

        Args:
            coefficients: one array of shape (T,) per row (see `token_coefficients`).
            given: gets what the configured loss got and returned.
        """
        objective = self.ctx.loss
        head = policy.value_head if any("targets" in row.extras for row in rows) else None
        scores = policy.scorer(rows, entropy_grad=objective.entropy > 0, value_head=head)
        tokens = token_batch(rows, scores.logprobs)
        surrogate = surrogate_of(objective, torch, tokens)
        given.append((tokens, surrogate))
        weights = flat(rows, coefficients, scores.logprobs)
        loss = (weights * surrogate.value).sum()
        if objective.entropy > 0:
            loss = loss - objective.entropy * (weights * scores.entropy).sum()
        if scores.values is not None:
            loss = loss + _value_loss(self.config.value, rows, scores.values, weights, meter)
        meter.seen({"entropy": scores.entropy, **surrogate.metrics})
        meter.compared(rows, tokens)
        meter.by_age(rows, {name: surrogate.metrics[name] for name in AGED & surrogate.metrics.keys()})
        return loss

    def _planned(self, policy: PolicyWeights, batch: Sequence[Sample]) -> list[list[int]]:
        """This rank's micro-batches, as indices of a minibatch's samples."""
        here = self.place.share(batch, policy.scorer.mode.packed)
        planned = policy.scorer.plan([batch[index] for index in here])
        return [[here[index] for index in indices] for indices in planned]

    def _micro_batches(
        self,
        policy: PolicyWeights,
        batch: Sequence[Sample],
        coefficients: Sequence[np.ndarray],
        meter: Meter,
    ) -> Iterator[tuple[list[Sample], list[np.ndarray], Meter]]:
        """Samples, coefficients and the meter of each of this rank's micro-batches."""
        for indices in self._planned(policy, batch):
            yield [batch[index] for index in indices], [coefficients[index] for index in indices], meter

    # ------------------------------------------------------------------------- annotations, warm start, state

    async def annotate(self, samples: Sequence[Sample], what: str) -> dict[Key, np.ndarray]:
        """One number for every trained token.

        - `ref_logprobs`: log-probs under the policy's initial weights.
        - `old_logprobs`: log-probs under the policy's present weights, without dropout.
        - `values`: V of the state before the token; 0 for a policy with `train: none`.

        Returns:
            by sample key: float32, shape (trained tokens,); log-probs at the sample's temperature.
        """
        check_annotation(what)
        by_policy: dict[str, list[Sample]] = {}
        for sample in samples:
            self._policy(sample.policy)
            by_policy.setdefault(sample.policy, []).append(sample)
        await reclaim()
        return await compute(self._annotate, by_policy, what)

    def _annotate(self, by_policy: Mapping[str, Sequence[Sample]], what: str) -> dict[Key, np.ndarray]:
        by_key: dict[Key, np.ndarray] = {}
        parts = self.commands.run("rank_annotate", by_policy, what)
        for name, samples in by_policy.items():
            values = {index: array for part in parts for index, array in part[name].items()}
            for sample, value in zip(samples, (values[index] for index in range(len(samples))), strict=True):
                earlier = by_key.get(sample.key)
                by_key[sample.key] = value if earlier is None else np.concatenate([earlier, value])
        return by_key

    @present
    def rank_annotate(
        self, by_policy: Mapping[str, Sequence[Sample]], what: str
    ) -> dict[str, dict[int, np.ndarray]]:
        """The annotations of this rank's share of the samples: by policy, by the sample's index."""
        values = {}
        for name, samples in by_policy.items():
            policy = self.policies[name]
            here = self.place.share(samples, policy.scorer.mode.packed)
            with self._computing:
                arrays = self._annotated(policy, samples, here, what)
            values[name] = dict(zip(here, arrays, strict=True))
        return values

    def _annotated(
        self, policy: PolicyWeights, samples: Sequence[Sample], here: Sequence[int], what: str
    ) -> list[np.ndarray]:
        """The annotations of those of the samples that are this rank's."""
        return annotated(policy, [samples[index] for index in here], what)

    async def warm_start(
        self, policy: str, demonstrations: Callable[[int], Sequence[Demonstration]], config: WarmStart
    ) -> Metrics:
        """Train the initial weights of `policy`, which other policies may share, on demonstrations.

        Call this once for each of `bases()`, before the first update.

        Args:
            demonstrations: gives the demonstrations of a step, for all policies with these initial weights.
        """
        initial = self._policy(policy).initial
        members = {name: self.policies[name] for name in initial.policies}
        if any(member.version for member in members.values()):
            raise ValueError(f"policy '{policy}' can't be warm-started: it has been updated already")
        codec = self.ctx.chat.codec(initial.tokenizer, initial.context)

        def run() -> Metrics:
            with self._computing, repeatable(self.ctx.deterministic, self._device):
                self.come_back()
                metrics = warm_start(initial, members, demonstrations, config, codec)
            self._equalise()
            return metrics

        return await compute(run)

    def optimizer_steps(self, samples: int, siblings: int) -> int:
        """Optimiser steps of one update, for `coterie plan`."""
        return count_minibatches(samples, siblings, self.config.minibatch_size, self.config.epochs)


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
