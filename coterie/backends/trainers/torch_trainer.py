"""Trainer `torch`: trains all policies in this process, on one device."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.backends.models.compute_threads import compute
from coterie.backends.models.minibatches import count_minibatches, minibatches, token_coefficients
from coterie.backends.models.policy import TorchPolicy, WarmStart, declared, diverged
from coterie.backends.trainers import torch_state
from coterie.backends.trainers.annotations import annotated, check_annotation
from coterie.backends.trainers.export import export
from coterie.backends.trainers.forward import Scorer
from coterie.backends.trainers.policies import InitialWeights, Plan, Policy as PolicyWeights, set_up
from coterie.backends.trainers.settings import TorchConfig
from coterie.backends.trainers.source_weights import SourceWeights, read_sources
from coterie.backends.trainers.surrogates import check_finite, surrogate_of
from coterie.backends.trainers.token_batches import check_samples, flat, token_batch
from coterie.backends.trainers.update_metrics import Meter
from coterie.backends.trainers.value_head import value_loss
from coterie.backends.trainers.warm_start import warm_start
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Plugin
from coterie.core.plugins.origin import origin_of
from coterie.core.protocols import Demonstration, Surrogate, TokenBatch, TrainerContext
from coterie.core.protocols.loss import HasLengthConstant
from coterie.core.types import Key, Metrics, Sample, Weights
from coterie.core.types.seeding import seed64

log = logging.getLogger("coterie")


class TorchTrainer(Plugin):
    """Updates policies with plain PyTorch: `full`, `lora` on a shared base, or `none`.

    An update runs `epochs` passes over a policy's samples, in minibatches that keep siblings together. The
    loss of a minibatch is the sum of coefficient * value over its tokens. Gradients of micro-batches are
    therefore added, and the division into micro-batches doesn't change the result (invariant 6).
    """

    Config = TorchConfig
    Policy = TorchPolicy

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._initial_weights: list[InitialWeights] = []
        self._policies: dict[str, PolicyWeights] = {}
        self._sources: dict[str, SourceWeights] | None = None
        # The active adapter is a setting of the shared module, so only one thread may compute at a time.
        self._computing = threading.Lock()

    def begin_with(self, weights: Mapping[str, Weights]) -> None:
        """Copy the weights of policies with a `from` into memory; `open` gives them to the policies.

        Raises:
            ConfigError: they can't be read, or are no tensors.
        """
        self._sources = read_sources(weights)

    async def open(self, ctx: TrainerContext) -> None:
        self.config.check_needs(ctx.needs, "trainer")
        self._ctx = ctx
        self._device = _device(self.config.device)
        self._plan = Plan(
            seed=ctx.seed,
            vocabulary=ctx.vocabulary,
            device=self._device,
            packing=self.config.packing,
            budget=self.config.micro_tokens,
            checkpointing=self.config.gradient_checkpointing,
            references="ref_logprobs" in ctx.needs,
            values="values" in ctx.needs,
            value_rate=self.config.value.learning_rate,
        )
        self._initial_weights, self._policies = await compute(
            set_up, declared(ctx.policies, TorchPolicy), self._plan, self._sources
        )
        self._sources = None

    async def close(self) -> None:
        self._initial_weights, self._policies = [], {}

    # ------------------------------------------------------------------------------------------ updates

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """Run one training step of each policy on its samples.

        Returns:
            by trained policy: `samples`, `tokens`, `optimizer_steps` and `skipped_steps`. If samples had
            trained tokens: `loss` and `grad_norm` (means over the optimiser steps), token means of `entropy`
            and of the loss's own metrics, and the last `learning_rate`.

            `mismatch`, `mismatch_max` (|log current - log behaviour| in nats, mean and largest) and
            `mismatch_kl` (its k3 estimate) compare the engine's numbers with the trainer's. They are computed
            in the first optimiser step, whose weights are the ones that sampled. Samples of other versions
            are left out of the three metrics and counted as `stale_samples`.

            With value targets: `value` and `value_loss` (token means, the latter before its coefficient),
            `value_clipped` (a share of the tokens) and `explained_variance` (by the samples' own values).

        Raises:
            ValueError: samples are of another policy or of an untrained one, or some lack annotations.
            UserError: a policy's weights are not finite after its update.
        """
        for name, rows in samples.items():
            policy = self._policy(name)
            check_samples(
                name, rows, trained=policy.optimizer is not None, values=policy.value_head is not None
            )
        return await compute(self._update, samples, step)

    def set_progress(self, share: float) -> None:
        """Set the share of the token budget that is spent; the horizon `budget` decays with it."""
        for policy in self._policies.values():
            if policy.optimizer is not None:
                policy.optimizer.spent = share

    def _update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        with self._computing, _repeatable(self._ctx.deterministic and self._device.type == "cuda"):
            trained = [name for name, policy in self._policies.items() if policy.optimizer is not None]
            return {name: self._update_policy(name, samples.get(name, ()), step) for name in trained}

    def _update_policy(self, name: str, samples: Sequence[Sample], step: int) -> Metrics:
        policy = self._policies[name]
        meter = Meter(samples, policy.version)
        place = f"{policy.name}/{step}"
        with policy.training(seed64(self._ctx.seed, place, "dropout")) as scorer:
            for epoch in range(self.config.epochs):
                seed = seed64(self._ctx.seed, f"{place}/{epoch}", "minibatches")
                for batch in minibatches(samples, self.config.minibatch_size, seed):
                    self._optimiser_step(policy, scorer, batch, meter)
        policy.version += meter.steps > 0
        metrics = meter.metrics()
        if meter.steps and policy.optimizer is not None and not policy.optimizer.finite():
            raise diverged(name, step, f"policies.{name}.optimizer.learning_rate", metrics["loss"])
        if meter.skipped:
            log.warning("policy '%s', step %d: %d optimiser steps were skipped, their gradient is not finite",
                        policy.name, step + 1, meter.skipped)  # fmt: skip
        elif not math.isfinite(metrics.get("loss", 0.0)):
            log.warning("policy '%s', step %d: the loss is %g, by %s", policy.name, step + 1, metrics["loss"],
                        origin_of(self._ctx.loss))  # fmt: skip
        return metrics

    def _optimiser_step(
        self, policy: PolicyWeights, scorer: Scorer, batch: Sequence[Sample], meter: Meter
    ) -> None:
        objective = self._ctx.loss
        constant = objective.length_constant if isinstance(objective, HasLengthConstant) else None
        coefficients = token_coefficients(batch, objective.length, constant)
        if policy.optimizer is None or not any(row.any() for row in coefficients):
            return
        total = 0.0
        for indices in scorer.plan(batch):
            rows = [batch[index] for index in indices]
            weights = [coefficients[index] for index in indices]
            loss, tokens, surrogate = self._loss(policy, scorer, rows, weights, meter)
            loss.backward()
            policy.optimizer.absorb()
            part = float(loss.detach())
            if not math.isfinite(part):  # asked only then: every look at the numbers waits for the device
                check_finite(objective, torch, tokens, surrogate)
            total += part
        meter.stepped(total, policy.optimizer.step())

    def _loss(
        self,
        policy: PolicyWeights,
        scorer: Scorer,
        rows: Sequence[Sample],
        coefficients: Sequence[np.ndarray],
        meter: Meter,
    ) -> tuple[Tensor, TokenBatch, Surrogate]:
        """The micro-batch's part of the minibatch's loss, and what the loss got and returned."""
        objective = self._ctx.loss
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
            loss = loss + self._value_loss(rows, scores.values, weights, meter)
        meter.seen({"entropy": scores.entropy, **surrogate.metrics})
        meter.compared(rows, tokens)
        return loss, tokens, surrogate

    def _value_loss(self, rows: Sequence[Sample], values: Tensor, weights: Tensor, meter: Meter) -> Tensor:
        """The value loss of the rows with targets; other rows' values are not trained."""
        settings = self.config.value
        has_target = [np.full(int(row.loss_mask.sum()), "targets" in row.extras) for row in rows]
        at = torch.from_numpy(np.concatenate(has_target)).to(values.device)
        rows = [row for row in rows if "targets" in row.extras]
        old, targets = (
            flat(rows, [row.extras[name] for row in rows], values) for name in ("values", "targets")
        )
        losses, clipped = value_loss(values[at], old, targets, settings.clip)
        meter.seen({"value": values[at], "value_loss": losses, "value_clipped": clipped})
        return settings.coefficient * (weights[at] * losses).sum()

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
        return await compute(self._annotate, by_policy, what)

    def _annotate(self, by_policy: Mapping[str, Sequence[Sample]], what: str) -> dict[Key, np.ndarray]:
        by_key: dict[Key, np.ndarray] = {}
        for name, samples in by_policy.items():
            with self._computing:
                values = annotated(self._policies[name], samples, what)
            for sample, value in zip(samples, values, strict=True):
                earlier = by_key.get(sample.key)
                by_key[sample.key] = value if earlier is None else np.concatenate([earlier, value])
        return by_key

    def bases(self) -> dict[str, tuple[str, ...]]:
        """The initial weights, as first policy -> all policies that begin with them."""
        return {initial.name: initial.policies for initial in self._initial_weights}

    async def warm_start(
        self, policy: str, demonstrations: Callable[[int], Sequence[Demonstration]], config: WarmStart
    ) -> Metrics:
        """Train the initial weights of `policy`, which other policies may share, on demonstrations.

        Call this once for each of `bases()`, before the first update.

        Args:
            demonstrations: gives the demonstrations of a step, for all policies with these initial weights.
        """
        initial = self._policy(policy).initial
        members = {name: self._policies[name] for name in initial.policies}
        if any(member.version for member in members.values()):
            raise ValueError(f"policy '{policy}' can't be warm-started: it has been updated already")
        codec = self._ctx.chat.codec(initial.tokenizer, initial.context)

        def run() -> Metrics:
            with self._computing, _repeatable(self._ctx.deterministic and self._device.type == "cuda"):
                return warm_start(initial, members, demonstrations, config, codec)

        return await compute(run)

    def weights(self, policy: str) -> Weights:
        """The live module. If `module` is a PeftModel and `adapter` is None, adapters are disabled."""
        trained = self._policy(policy)
        return Weights(
            policy=policy,
            version=trained.version,
            module=trained.module,
            adapter=trained.adapter,
            tokenizer=trained.initial.tokenizer,
        )

    def save(self, folder: Path) -> None:
        torch_state.save(Path(folder), self._initial_weights, self._policies)

    def load(self, folder: Path) -> None:
        configs = {name: policy.config for name, policy in self._policies.items()}
        if any(config.from_ is not None for config in configs.values()):
            groups = torch_state.groups(Path(folder))
            known = sorted(name for group in groups for name in group) == sorted(configs)
            if known and sorted(groups) != sorted(initial.policies for initial in self._initial_weights):
                self._initial_weights, self._policies = set_up(configs, self._plan, groups=groups)
        torch_state.load(Path(folder), self._initial_weights, self._policies)

    def digest(self) -> dict[str, str]:
        return {name: policy.digest() for name, policy in self._policies.items()}

    def optimizer_steps(self, samples: int, siblings: int) -> int:
        """Optimiser steps of one update, for `coterie plan`."""
        return count_minibatches(samples, siblings, self.config.minibatch_size, self.config.epochs)

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        export(self._policy(policy), Path(folder), merge=merge)

    def _policy(self, name: str) -> PolicyWeights:
        if name not in self._policies:
            raise ConfigError(
                f"there is no policy '{name}'", path="policies", fix=did_you_mean(name, self._policies)
            )
        return self._policies[name]


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"there is no device '{name}'", path="trainer.device", why=str(error)) from error
    return device


@contextmanager
def _repeatable(wanted: bool) -> Iterator[None]:
    """Use deterministic kernels on GPUs; the CPU kernels used here always are."""
    if not wanted or torch.are_deterministic_algorithms_enabled():
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
