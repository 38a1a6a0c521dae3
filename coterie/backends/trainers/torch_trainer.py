"""Trainer `torch`: trains all policies with plain PyTorch, on one device or with whole copies on several."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.backends.models.compute_threads import compute
from coterie.backends.models.device_memory import RankDevice, occupy, rank_device, reclaim, vacate
from coterie.backends.models.devices import fix_cublas, repeatable
from coterie.backends.models.minibatches import count_minibatches, minibatches, token_coefficients
from coterie.backends.models.policy import TorchPolicy, WarmStart, declared, diverged
from coterie.backends.trainers import torch_state
from coterie.backends.trainers.annotations import annotated, check_annotation
from coterie.backends.trainers.apart import Apart
from coterie.backends.trainers.devices import device_of
from coterie.backends.trainers.dtypes import OpenDtypes
from coterie.backends.trainers.export import export
from coterie.backends.trainers.forward import TokenScorer
from coterie.backends.trainers.kept_versions import KeptVersions
from coterie.backends.trainers.losses import add_gradients
from coterie.backends.trainers.offloading import Offloading, present
from coterie.backends.trainers.optim import Optimizer, PolicyOptimizer
from coterie.backends.trainers.out_of_memory import halving, optimiser_memory
from coterie.backends.trainers.policies import InitialWeights, PolicySetup, PolicyWeights, set_up
from coterie.backends.trainers.ranks.commands import Commands
from coterie.backends.trainers.ranks.place import RankAddress, RankPlace
from coterie.backends.trainers.replicas import TrainerLayout, check_equal, layout_of, receive
from coterie.backends.trainers.settings import TorchConfig
from coterie.backends.trainers.source_weights import SourceWeights, hollow, read_sources
from coterie.backends.trainers.token_batches import check_samples
from coterie.backends.trainers.update_metrics import Meter
from coterie.backends.trainers.warm_start import warm_start
from coterie.backends.trainers.with_ranks import WithRanks
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Plugin
from coterie.core.plugins.origin import origin_of
from coterie.core.protocols import Demonstration, TrainerContext
from coterie.core.protocols.loss import HasLengthConstant
from coterie.core.types import Key, Metrics, Sample, Weights
from coterie.core.types.seeding import seed64

log = logging.getLogger("coterie")


class TorchTrainer(WithRanks, Offloading, KeptVersions, OpenDtypes, Apart, Plugin):
    """Updates policies with plain PyTorch: `full`, `lora` on a shared base, or `none`.

    An update runs `epochs` passes over a policy's samples, in minibatches that keep siblings together. The
    loss of a minibatch is the sum of coefficient * value over its tokens. Gradients of micro-batches are
    therefore added, and the division into micro-batches doesn't change the result (invariant 6).

    With `ranks`, each rank holds all weights and computes its share of every minibatch; the gradients of all
    ranks are added before the clip, so that each rank takes the same optimiser step. Methods that begin with
    `rank_` run on every rank (see `ranks.commands`).
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
        self.place, self._commands = RankPlace(), Commands(self)

    def begin_with(self, weights: Mapping[str, Weights]) -> None:
        """Copy the weights of policies with a `from` into memory; `open` gives them to the policies.

        Raises:
            ConfigError: they can't be read, or are no tensors.
        """
        self._sources = read_sources(weights)

    async def open(self, ctx: TrainerContext) -> None:
        self.config.check_needs(ctx.needs, "trainer")
        self._check_ranks()
        _ = self.offloads  # a setting that the run doesn't allow is refused before anything is loaded
        sources, self._sources = self._sources, None
        await compute(self._open, ctx, sources)

    def _open(self, ctx: TrainerContext, sources: dict[str, SourceWeights] | None) -> None:
        ctx = self._with_dtypes(ctx)
        if self.config.ranks > 1:
            self._commands = self._start_ranks()
        occupy(self, self._commands.run("rank_open", ctx, sources, others=(ctx, hollow(sources))))
        self._equalise()

    def join(self, address: RankAddress) -> None:
        """Take this rank's place among the others; every rank does."""
        from coterie.backends.trainers.ranks.collectives import DistributedPlace

        device = device_of(self.config.device, address.local)
        self.place = DistributedPlace(address, device)

    def rank_open(self, ctx: TrainerContext, sources: dict[str, SourceWeights] | None) -> RankDevice:
        """Make the weights of all policies. The others are filled by rank 0's afterwards."""
        self._ctx = ctx
        fix_cublas(wanted=ctx.deterministic)
        self._device = device_of(self.config.device, self.place.local if self.place.world > 1 else None)
        self._setup = PolicySetup(
            ctx=ctx, config=self.config, device=self._device, make_optimizer=self._new_optimizer
        )
        remote = {name for name, policy in ctx.policies.items() if getattr(policy, "behind_endpoint", False)}
        loaded = {name: policy for name, policy in ctx.policies.items() if name not in remote}
        self._initial_weights, self._policies = set_up(declared(loaded, TorchPolicy), self._setup, sources)
        return rank_device(self._device)

    def _new_optimizer(self, policy: PolicyWeights) -> Optimizer:
        """An optimiser over the policy's present weights."""
        return PolicyOptimizer(policy.weights(), policy.config.optimizer, policy.rates)

    def _equalise(self) -> None:
        """Give every rank rank 0's weights, optimisers and versions."""
        if self.config.ranks > 1:
            self._commands.run("rank_receive", layout_of(self._initial_weights, self._policies))
        self.offload_optimizer()

    @present
    def rank_receive(self, layout: TrainerLayout) -> None:
        """Take the state that rank 0 has."""
        configs = layout.configs(self._policies)
        if configs is not None or layout.groups != [initial.policies for initial in self._initial_weights]:
            configs = configs or {name: policy.config for name, policy in self._policies.items()}
            self._initial_weights, self._policies = set_up(configs, self._setup, groups=layout.groups)
        receive(self.place, layout, self._initial_weights, self._policies)

    async def close(self) -> None:
        vacate(self)
        self._commands.close()
        self.place.close()
        self.place, self._commands = RankPlace(), Commands(self)
        self._initial_weights, self._policies, self._away = [], {}, None

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
        metrics: dict[str, Metrics] = (await compute(self._commands.run, "rank_update", samples, step))[0]
        await compute(self.offload_optimizer)
        return metrics

    def set_progress(self, share: float) -> None:
        """Set the share of the token budget that is spent; the horizon `budget` decays with it."""
        self._commands.run("rank_progress", share)

    def rank_progress(self, share: float) -> None:
        """`set_progress` on one rank."""
        for policy in self._policies.values():
            if policy.optimizer is not None:
                policy.optimizer.spent = share

    @present
    def rank_update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """`update` on one rank: its share of every minibatch, and the step that all ranks take."""
        with self._computing, repeatable(self._ctx.deterministic, self._device):
            trained = [name for name, policy in self._policies.items() if policy.optimizer is not None]
            return {name: self._update_policy(name, samples.get(name, ()), step) for name in trained}

    def _update_policy(self, name: str, samples: Sequence[Sample], step: int) -> Metrics:
        policy = self._policies[name]
        meter = Meter(samples, policy.version)
        place = f"{policy.name}/{step}"
        # Each rank drops in its own samples, so its draws are others; rank 0's are those of one process.
        drops = f"{place}/rank {self.place.number}" if self.place.number else place
        with policy.training(seed64(self._ctx.seed, drops, "dropout")) as scorer:
            for epoch in range(self.config.epochs):
                seed = seed64(self._ctx.seed, f"{place}/{epoch}", "minibatches")
                for batch in minibatches(samples, self.config.minibatch_size, seed):
                    self._optimiser_step(policy, scorer, batch, meter)
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
                        origin_of(self._ctx.loss))  # fmt: skip
        return metrics

    def _optimiser_step(
        self, policy: PolicyWeights, scorer: TokenScorer, batch: Sequence[Sample], meter: Meter
    ) -> None:
        objective = self._ctx.loss
        constant = objective.length_constant if isinstance(objective, HasLengthConstant) else None
        coefficients = token_coefficients(batch, objective.length, constant)
        if policy.optimizer is None or not any(row.any() for row in coefficients):
            return
        back, clear = meter.mark(), getattr(policy.optimizer, "clear_gradients", None)
        total = halving(
            scorer,
            policy.name,
            lambda: self._gradients(policy, scorer, batch, coefficients, meter),
            clear and (lambda: (back(), clear())),
        )
        total = self.place.sum_gradients(list(policy.optimizer.masters().values()), total)
        with optimiser_memory(policy.name):
            meter.stepped(total, policy.optimizer.step())

    def _gradients(
        self,
        policy: PolicyWeights,
        scorer: TokenScorer,
        batch: Sequence[Sample],
        coefficients: Sequence[np.ndarray],
        meter: Meter,
    ) -> float:
        """Add this rank's gradients of a minibatch, one micro-batch after the other; returns the loss."""
        total, loss, settings = 0.0, self._ctx.loss, self.config.value
        micro_batches = list(self._micro_batches(policy, scorer, batch, coefficients, meter))
        for number, (rows, weights, seen_by) in enumerate(micro_batches, 1):
            last = number == len(micro_batches)
            total += add_gradients(loss, settings, policy, scorer, rows, weights, seen_by, last=last)
        return total

    def _planned(self, scorer: TokenScorer, batch: Sequence[Sample]) -> list[list[int]]:
        """This rank's micro-batches, as indices of a minibatch's samples."""
        here = self.place.share(batch, scorer.mode.packed)
        return [
            [here[index] for index in indices] for indices in scorer.plan([batch[index] for index in here])
        ]

    def _micro_batches(
        self,
        policy: PolicyWeights,
        scorer: TokenScorer,
        batch: Sequence[Sample],
        coefficients: Sequence[np.ndarray],
        meter: Meter,
    ) -> Iterator[tuple[list[Sample], list[np.ndarray], Meter]]:
        """Samples, coefficients and the meter of each of this rank's micro-batches."""
        for indices in self._planned(scorer, batch):
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
        parts = self._commands.run("rank_annotate", by_policy, what)
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
            policy = self._policies[name]
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
            with self._computing, repeatable(self._ctx.deterministic, self._device):
                self.come_back()
                metrics = warm_start(initial, members, demonstrations, config, codec)
            self._equalise()
            return metrics

        return await compute(run)

    def weights(self, policy: str) -> Weights:
        """The live module. If `module` is a PeftModel and `adapter` is None, adapters are disabled."""
        if policy in self._ctx.policies and policy not in self._policies:  # behind an endpoint
            return Weights(policy=policy, version=0)
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

    @present
    def load(self, folder: Path) -> None:
        if other := self._saved_setup(Path(folder), self._initial_weights, self._policies):
            self._initial_weights, self._policies = [], {}  # freed before the others are made
            self._initial_weights, self._policies = set_up(other.configs, self._setup, groups=other.groups)
        torch_state.load(Path(folder), self._initial_weights, self._policies)
        self._equalise()

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
