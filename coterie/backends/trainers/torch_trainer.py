"""Trainer `torch`: all policies in this process, on one device."""

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
from pydantic import Field
from torch import Tensor

from coterie.backends.trainers import torch_state
from coterie.backends.trainers.export import export
from coterie.backends.trainers.forward import Scorer
from coterie.backends.trainers.optim import Taken
from coterie.backends.trainers.policies import Plan, Policy, Start, set_up
from coterie.backends.trainers.warm_start import warm_start
from coterie.core.batching import minibatches, token_coefficients
from coterie.core.config import PluginConfig, WarmStart
from coterie.core.draws import seed64
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Plugin
from coterie.core.protocols import Demonstration, TokenBatch, TrainerContext
from coterie.core.threads import compute
from coterie.core.types import Key, Metrics, Sample, Weights

log = logging.getLogger("coterie")


class TorchTrainer(Plugin):
    """Updates policies with plain PyTorch: `full`, `lora` on a shared base, or `none`.

    An update runs `epochs` passes over a policy's samples, in minibatches that keep siblings together. The
    loss of a minibatch is a sum of coefficient * value over its tokens, so gradients of micro-batches are
    just added and no split can change it (invariant 6).
    """

    class Config(PluginConfig):
        minibatch_size: int | None = Field(
            None, ge=1, description="Samples of one optimiser step; null: all."
        )
        epochs: int = Field(1, ge=1, description="Passes over the samples of a step.")
        micro_tokens: int = Field(
            16384, ge=1, description="Tokens of one forward, shared prompts counted once."
        )
        packing: bool = Field(True, description="Compute a prompt once for all its completions.")
        gradient_checkpointing: bool = Field(
            False, description="Recompute activations: less memory, more time."
        )
        device: str = Field("auto", description="`auto`, or what torch calls it: cpu, cuda, cuda:1.")

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._starts: list[Start] = []
        self._policies: dict[str, Policy] = {}
        # Adapters are switched in a shared module: two threads at once would train through each other's.
        self._turn = threading.Lock()

    async def open(self, ctx: TrainerContext) -> None:
        self._ctx = ctx
        self._device = _device(self.config.device)
        plan = Plan(
            seed=ctx.seed,
            vocabulary=ctx.vocabulary,
            device=self._device,
            packing=self.config.packing,
            budget=self.config.micro_tokens,
            checkpointing=self.config.gradient_checkpointing,
            references="ref_logprobs" in ctx.needs,
        )
        self._starts, self._policies = await compute(set_up, ctx.policies, plan)

    async def close(self) -> None:
        self._starts, self._policies = [], {}

    # ------------------------------------------------------------------------------------------ updates

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """One training step of each policy on its samples.

        Returns:
            by trained policy: `samples`, `tokens`, `optimizer_steps`, `skipped_steps`, and where samples had
            trained tokens `loss` and `grad_norm` (means over the optimiser steps), token means of `entropy`
            and of the loss's own metrics, and the last `learning_rate`.
        """
        for name, rows in samples.items():
            policy = self._policy(name)
            wrong = next((row for row in rows if row.policy != name), None)
            if wrong is not None:
                raise ValueError(f"{wrong.key.text()} is a sample of '{wrong.policy}', given to '{name}'")
            if rows and policy.optimizer is None:
                raise ValueError(f"policy '{name}' is not trained (train: none), and was given samples")
        return await compute(self._update, samples, step)

    def _update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        with self._turn, _repeatable(self._ctx.deterministic and self._device.type == "cuda"):
            trained = [name for name, policy in self._policies.items() if policy.optimizer is not None]
            return {name: self._update_policy(name, samples.get(name, ()), step) for name in trained}

    def _update_policy(self, name: str, samples: Sequence[Sample], step: int) -> Metrics:
        policy, meter = self._policies[name], Meter(samples)
        place = f"{policy.name}/{step}"
        with policy.training(seed64(self._ctx.seed, place, "dropout")) as scorer:
            for epoch in range(self.config.epochs):
                seed = seed64(self._ctx.seed, f"{place}/{epoch}", "minibatches")
                for batch in minibatches(samples, self.config.minibatch_size, seed):
                    self._optimiser_step(policy, scorer, batch, meter)
        policy.version += meter.steps > 0
        if meter.skipped:
            log.warning("policy '%s', step %d: %d optimiser steps were skipped, their gradient is not finite",
                        policy.name, step, meter.skipped)  # fmt: skip
        return meter.metrics()

    def _optimiser_step(self, policy: Policy, scorer: Scorer, batch: Sequence[Sample], meter: Meter) -> None:
        coefficients = token_coefficients(batch, self._ctx.loss.length)
        if policy.optimizer is None or not any(row.any() for row in coefficients):
            return
        total = 0.0
        for indices in scorer.plan(batch):
            rows = [batch[index] for index in indices]
            loss = self._loss(scorer, rows, [coefficients[index] for index in indices], meter)
            loss.backward()
            policy.optimizer.absorb()
            total += float(loss.detach())
        meter.stepped(total, policy.optimizer.step())

    def _loss(
        self, scorer: Scorer, rows: Sequence[Sample], coefficients: Sequence[np.ndarray], meter: Meter
    ) -> Tensor:
        """This micro-batch's part of the minibatch's loss."""
        objective = self._ctx.loss
        scores = scorer(rows, entropy_slope=objective.entropy > 0)
        like = scores.logprobs
        reference = None
        if all("ref_logprobs" in row.extras for row in rows):
            reference = _trained(rows, [row.extras["ref_logprobs"] for row in rows], like)
        surrogate = objective(
            torch,
            TokenBatch(
                logprobs=like,
                behaviour=_trained(rows, [row.logprobs for row in rows], like),
                advantages=_trained(rows, [row.advantages for row in rows], like),
                ref_logprobs=reference,
            ),
        )
        share = _trained(rows, coefficients, like)
        loss = (share * surrogate.value).sum()
        if objective.entropy > 0:
            loss = loss - objective.entropy * (share * scores.entropy).sum()
        meter.seen({"entropy": scores.entropy, **surrogate.metrics})
        return loss

    # ------------------------------------------------------------------------------------------ the rest

    async def annotate(self, samples: Sequence[Sample], what: str) -> dict[Key, np.ndarray]:
        """`ref_logprobs`: log-probs of the trained tokens under the weights that the policy started with.

        Returns:
            by sample key: float32, shape (trained tokens,), at the sample's temperature.
        """
        if what != "ref_logprobs":
            raise ConfigError(f"trainer 'torch' has no {what}", path="trainer", why="it gives ref_logprobs")
        by_policy: dict[str, list[Sample]] = {}
        for sample in samples:
            self._policy(sample.policy)
            by_policy.setdefault(sample.policy, []).append(sample)
        return await compute(self._annotate, by_policy)

    def _annotate(self, by_policy: Mapping[str, Sequence[Sample]]) -> dict[Key, np.ndarray]:
        found: dict[Key, np.ndarray] = {}
        for name, samples in by_policy.items():
            with self._turn, torch.no_grad(), self._policies[name].reference() as scorer:
                values = [np.zeros(0, np.float32)] * len(samples)
                for indices in scorer.plan(samples):
                    rows = [samples[index] for index in indices]
                    counts = [int(row.loss_mask.sum()) for row in rows]
                    parts = scorer(rows).logprobs.float().split(counts)
                    for index, part in zip(indices, parts, strict=True):
                        values[index] = part.cpu().numpy()
            for sample, value in zip(samples, values, strict=True):
                before = found.get(sample.key)
                found[sample.key] = value if before is None else np.concatenate([before, value])
        return found

    def bases(self) -> dict[str, tuple[str, ...]]:
        """What a warm start is called for: first policy -> all policies that start from the same weights."""
        return {start.name: start.policies for start in self._starts}

    async def warm_start(
        self, policy: str, demonstrations: Callable[[int], Sequence[Demonstration]], config: WarmStart
    ) -> Metrics:
        """Train the starting weights of `policy`, and of all that share its start, on demonstrations.

        To be called once for each of `bases()`, before the first update.

        Args:
            demonstrations: those of a step, of all the policies of the start.
        """
        start = self._policy(policy).start
        members = {name: self._policies[name] for name in start.policies}
        if any(member.version for member in members.values()):
            raise ValueError(f"policy '{policy}' can't be warm-started: it has been updated already")
        codec = self._ctx.chat.codec(start.tokenizer, start.context)

        def run() -> Metrics:
            with self._turn, _repeatable(self._ctx.deterministic and self._device.type == "cuda"):
                return warm_start(start, members, demonstrations, config, codec)

        return await compute(run)

    def weights(self, policy: str) -> Weights:
        """The live module. Where `module` is a PeftModel and `adapter` is None, no adapter acts."""
        found = self._policy(policy)
        return Weights(
            policy=policy,
            version=found.version,
            module=found.module,
            adapter=found.adapter,
            tokenizer=found.start.tokenizer,
        )

    def save(self, folder: Path) -> None:
        torch_state.save(Path(folder), self._starts, self._policies)

    def load(self, folder: Path) -> None:
        torch_state.load(Path(folder), self._starts, self._policies)

    def digest(self) -> dict[str, str]:
        return {name: policy.digest() for name, policy in self._policies.items()}

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        export(self._policy(policy), Path(folder), merge=merge)

    def _policy(self, name: str) -> Policy:
        if name not in self._policies:
            raise ConfigError(
                f"there is no policy '{name}'", path="policies", mend=did_you_mean(name, self._policies)
            )
        return self._policies[name]


class Meter:
    """Sums over an update: token means of the loss's metrics, means over optimiser steps of the rest."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.steps = self.skipped = 0
        self._samples = len(samples)
        self._tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._rate = math.nan

    def seen(self, values: Mapping[str, Tensor]) -> None:
        """Per-token quantities of one micro-batch, shape (N,)."""
        for name, value in values.items():
            total = value.detach().double().sum()
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] = self._counts.get(name, 0) + len(value)

    def stepped(self, loss: float, taken: Taken) -> None:
        self._losses.append(loss)
        self._rate = taken.learning_rate
        if taken.skipped:
            self.skipped += 1
        else:
            self.steps += 1
            self._norms.append(taken.norm)

    def metrics(self) -> Metrics:
        found = {
            "samples": float(self._samples),
            "tokens": float(self._tokens),
            "optimizer_steps": float(self.steps),
            "skipped_steps": float(self.skipped),
        }
        found.update({name: float(total) / self._counts[name] for name, total in self._sums.items()})
        if self._losses:
            found["loss"] = sum(self._losses) / len(self._losses)
            found["learning_rate"] = self._rate
        if self._norms:
            found["grad_norm"] = sum(self._norms) / len(self._norms)
        return found


def _trained(rows: Sequence[Sample], arrays: Sequence[np.ndarray], like: Tensor) -> Tensor:
    """Per-token arrays of rows, shape (T,) each, cut to trained tokens and joined: shape (N,)."""
    values = np.concatenate([array[row.loss_mask] for row, array in zip(rows, arrays, strict=True)])
    return torch.from_numpy(values).to(device=like.device, dtype=like.dtype)


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
    """Kernels that give the same bits every time, on GPUs; on CPUs ours do anyway."""
    if not wanted or torch.are_deterministic_algorithms_enabled():
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
