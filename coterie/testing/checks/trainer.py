"""`check_trainer`: policies are trained apart, and a trainer that is loaded continues identically."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from coterie.core.config import PolicyConfig
from coterie.core.protocols import Surrogate, TokenBatch, TrainerContext
from coterie.core.protocols.loss import HasLengthConstant
from coterie.core.protocols.trainer import KeepsVersions
from coterie.core.types import Key, Sample, Span, Weights
from coterie.testing.checks.kept_versions import check_kept_versions
from coterie.testing.support.building import build, declared_policy
from coterie.testing.support.failure import finite, guarded, require, require_kind
from coterie.testing.support.toys import PolicyGradient

_FROZEN = "frozen"


def check_trainer(
    make: Callable[[], Any],
    *,
    model: Any,
    token_ids: Sequence[int],
    train: str = "full",
    policy: dict[str, Any] | None = None,
    loss: Any = None,
    chat: Any = "auto",
    vocabulary: Sequence[str] = ("left", "right", "up", "down"),
    annotates: Sequence[str] = ("ref_logprobs", "old_logprobs", "values"),
    seed: int = 0,
) -> None:
    """Check a trainer with two policies that are trained and one that isn't.

    - Two trainers with one seed start from the same weights; `digest` names every trained policy.
    - An update changes the digest and version of the policies that it has samples for, and of no others.
      Without samples nothing changes. Metrics are finite numbers by policy.
    - A fresh trainer that loads what `save` wrote has the same digests and versions, and still has when both
      train on (the optimiser's state is saved too).
    - `annotate` gives one finite number per sampled token, and log-probs are at most 0. An update changes
      `old_logprobs`, never `ref_logprobs`, and brings `values` nearer to their targets.
    - The loss receives the sequence of every token, and the annotations of the samples.
    - A trainer with `keep` gives a kept version by `weights_at`, after updates and after `load`, and has its
      present weights again afterwards.
    - With `train="none"` for all policies no update changes anything.

    Args:
        make: makes a new trainer, e.g. `lambda: build("trainer", {"type": "tabular"})`.
        model: the `model` table of the policies in the configuration.
        token_ids: ids that such a model can generate; the samples consist of them.
        train: the `train` setting of the two trained policies: full, lora, or none.
        policy: more settings of a trained policy, e.g. {"optimizer": {...}}.
        loss: a loss; by default -A times the ratio.
        chat: the table of the chat format.
        vocabulary: words of the environment.
        annotates: annotations that the trainer offers; they are the `needs` of its context.
        seed: seed of the samples.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    schema = declared_policy(make())
    checker = _TrainerChecker(
        make, _context(schema, model, train, policy or {}, loss, chat, vocabulary, annotates), seed, token_ids
    )

    async def check() -> None:
        with TemporaryDirectory() as folder:
            await checker.check(train, annotates, Path(folder))

    asyncio.run(check())


def _context(
    schema: type[PolicyConfig],
    model: Any,
    train: str,
    settings: dict[str, Any],
    loss: Any,
    chat: Any,
    vocabulary: Any,
    needs: Any,
) -> TrainerContext:
    trained = schema.model_validate({"model": model, "train": train, **settings})
    frozen = schema.model_validate({"model": model, "train": "none"})
    return TrainerContext(
        policies={"one": trained, "two": trained, _FROZEN: frozen},
        loss=loss if loss is not None else PolicyGradient(),
        chat=build("chat_format", chat),
        seed=11,
        deterministic=True,
        vocabulary=tuple(vocabulary),
        needs=tuple(needs) if train != "none" else (),
    )


class _RecordingLoss:
    """A loss that keeps the batches that it receives."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss
        self.needs, self.length, self.entropy = loss.needs, loss.length, loss.entropy
        self.length_constant = loss.length_constant if isinstance(loss, HasLengthConstant) else None
        self.batches: list[TokenBatch] = []

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        self.batches.append(tokens)
        surrogate: Surrogate = self._loss(xp, tokens)
        return surrogate


class _TrainerChecker:
    """Makes trainers and checks them on synthetic samples."""

    def __init__(
        self, make: Callable[[], Any], ctx: TrainerContext, seed: int, token_ids: Sequence[int]
    ) -> None:
        self.loss = _RecordingLoss(ctx.loss)
        self.make, self.ctx = make, replace(ctx, loss=self.loss)
        self.seed, self.ids = seed, np.array(token_ids, dtype=np.int64)
        self.name = "trainer"

    async def check(self, train: str, annotates: Sequence[str], folder: Path) -> None:
        first, second = await self._opened(), await self._opened()
        try:
            self._check_start(first, second, train)
            if train == "none":
                await self._check_nothing_moves(first)
            else:
                await self._check_update(first)
                await self._check_annotations(first, annotates)
                await self._check_annotated_update(first, annotates)
            await self._check_resume(first, second, folder, train)
            if train != "none" and isinstance(first, KeepsVersions):
                update = partial(self._update, first, 8, "one")
                await check_kept_versions(first, second, update, folder / "kept", self.name)
        finally:
            with guarded(f"{self.name}.close"):
                await first.close()
                await second.close()

    async def _opened(self) -> Any:
        trainer = self.make()
        self.name = require_kind(trainer, "trainer")
        with guarded(f"{self.name}.open"):
            await trainer.open(self.ctx)
        return trainer

    def _samples(self, policy: str, step: int, task: str = "train-0") -> list[Sample]:
        """Two groups of three siblings; the prompts are equal in every step, the answers differ."""
        rng, prompts = np.random.default_rng([self.seed, step]), np.random.default_rng(self.seed)
        samples = []
        for group in range(2):
            prompt = prompts.choice(self.ids, 3)
            for branch in range(3):
                answer = rng.choice(self.ids, int(rng.integers(1, 4)))
                ids = np.concatenate([prompt, answer])
                mask = np.arange(len(ids)) >= len(prompt)
                key = Key(f"{task}{group}", step).of_branch("solver", branch)
                samples.append(
                    Sample(
                        key=key,
                        policy=policy,
                        token_ids=ids,
                        loss_mask=mask,
                        logprobs=np.where(mask, -np.log(len(self.ids)), 0).astype(np.float32),
                        advantages=np.where(mask, branch - 0.9, 0).astype(np.float32),
                        spans=(Span(len(prompt), len(ids), key, 1.0),),
                        version=0,
                        prompt_tokens=len(prompt),
                    )
                )
        return samples

    def _check_start(self, first: Any, second: Any, train: str) -> None:
        where = f"{self.name}.digest"
        digests = first.digest()
        trained = {"one", "two"} if train != "none" else set()
        sound = trained <= digests.keys() <= self.ctx.policies.keys()
        require(sound, f"names {sorted(digests)}", where=where, fix="every policy that is trained")
        require(
            digests == second.digest(),
            "differs between two trainers with one seed",
            where=where,
            fix="draw initial weights from ctx.seed",
        )
        require(
            digests == first.digest(),
            "changes without an update",
            where=where,
            fix="digest the weights alone",
        )
        for policy in self.ctx.policies:
            weights = first.weights(policy)
            sound = isinstance(weights, Weights) and weights.policy == policy
            require(
                sound, f"returned {weights!r} for '{policy}'", where=f"{self.name}.weights", fix="Weights"
            )

    async def _update(self, trainer: Any, step: int, *policies: str) -> Any:
        samples = {policy: self._samples(policy, step) for policy in policies}
        with guarded(f"{self.name}.update"):
            return await trainer.update(samples, step)

    async def _check_update(self, trainer: Any) -> None:
        where = f"{self.name}.update"
        before, versions = trainer.digest(), self._versions(trainer)
        await self._update(trainer, 1)
        require(
            trainer.digest() == before,
            "changed weights without samples",
            where=where,
            fix="no weight decay and no optimiser step without samples",
        )
        metrics = await self._update(trainer, 2, "one")
        after = trainer.digest()
        require(
            after["one"] != before["one"],
            "left the policy that it had samples of unchanged",
            where=where,
            fix="step the optimiser of every policy with samples",
        )
        moved = [policy for policy in after if policy != "one" and after[policy] != before[policy]]
        require(
            not moved,
            f"trained '{', '.join(moved)}' on the samples of 'one'",
            where=where,
            fix="give every policy its own weights and optimiser",
        )
        now = self._versions(trainer)
        require(
            now["one"] > versions["one"],
            "didn't raise the version of changed weights",
            where=where,
            fix="count an update of a policy in Weights.version",
        )
        require(
            all(now[policy] == versions[policy] for policy in now if policy != "one"),
            "raised the version of weights that didn't change",
            where=where,
            fix="count versions by policy",
        )
        require("one" in metrics, f"returned {metrics!r}", where=where, fix="{policy: {metric: number}}")
        for policy, row in metrics.items():
            for metric, value in row.items():
                require(finite(value), f"{policy}/{metric} is {value!r}", where=where, fix="a finite number")

    async def _check_nothing_moves(self, trainer: Any) -> None:
        before, versions = trainer.digest(), self._versions(trainer)
        await self._update(trainer, 1)
        require(
            trainer.digest() == before and self._versions(trainer) == versions,
            "changed weights of policies with `train: none`",
            where=f"{self.name}.update",
            fix="skip policies that aren't trained",
        )

    def _versions(self, trainer: Any) -> dict[str, int]:
        return {policy: trainer.weights(policy).version for policy in self.ctx.policies}

    async def _check_annotations(self, trainer: Any, annotates: Sequence[str]) -> None:
        where = f"{self.name}.annotate"
        samples = self._samples("one", 5)
        for annotation in annotates:
            with guarded(where):
                table = await trainer.annotate(samples, annotation)
            for sample in samples:
                count = int(sample.loss_mask.sum())
                values = table.get(sample.key)
                sound = values is not None and np.shape(values) == (count,) and np.isfinite(values).all()
                require(
                    sound,
                    f"gave {values!r} for {count} tokens ({annotation})",
                    where=where,
                    fix="{sample key: one finite number a sampled token}",
                )
                require(
                    not annotation.endswith("logprobs") or (np.asarray(values) <= 1e-5).all(),
                    f"gave {annotation} above 0",
                    where=where,
                    fix="log-probabilities",
                )

    async def _check_annotated_update(self, trainer: Any, annotates: Sequence[str]) -> None:
        """Check an update on samples with all annotations and value targets of 1."""
        samples = self._samples("one", 5)
        before = {name: await trainer.annotate(samples, name) for name in annotates}
        annotated = [replace(row, extras=_extras(row, before)) for row in samples]
        self.loss.batches.clear()
        with guarded(f"{self.name}.update"):
            await trainer.update({"one": annotated}, 5)
        ranks = getattr(getattr(trainer, "config", None), "ranks", 1)
        self._check_batches(annotated, annotates, whole=ranks == 1)
        after = {name: await trainer.annotate(samples, name) for name in annotates}
        for name in annotates:
            then, now = (
                np.concatenate([np.asarray(table[name][row.key]) for row in samples])
                for table in (before, after)
            )
            where = f"{self.name}.annotate"
            if name == "ref_logprobs":
                require(
                    np.allclose(then, now, atol=1e-5),
                    f"gave other {name} after an update",
                    where=where,
                    fix="compute them with the policy's initial weights",
                )
            elif name == "old_logprobs":
                require(
                    not np.array_equal(then, now),
                    f"gave the same {name} after an update",
                    where=where,
                    fix="compute them with the present weights",
                )
            elif name == "values":
                require(
                    np.square(now - 1.0).mean() < np.square(then - 1.0).mean(),
                    "brought the values no nearer to the samples' `targets`",
                    where=f"{self.name}.update",
                    fix="train the value head on extras['targets']",
                )

    def _check_batches(self, samples: Sequence[Sample], annotates: Sequence[str], *, whole: bool) -> None:
        """Check what the loss got: of a trainer on several ranks, its rank's share of the samples alone."""
        where = f"{self.name}.update"
        tokens = sequences = 0
        for batch in self.loss.batches:
            require(
                batch.sequence is not None,
                "gave the loss no sequence ids",
                where=where,
                fix="set TokenBatch.sequence and .sequences: coterie.span_ids",
            )
            ids = _numpy(batch.sequence)
            tokens, sequences = tokens + len(ids), sequences + batch.sequences
            numbered = np.array_equal(np.unique(ids), np.arange(batch.sequences))
            require(
                numbered,
                f"numbered {batch.sequences} sequences {np.unique(ids)}",
                where=where,
                fix="from 0, without gaps",
            )
            for field, annotation in (("ref_logprobs", "ref_logprobs"), ("old", "old_logprobs")):
                require(
                    annotation not in annotates or getattr(batch, field) is not None,
                    f"gave the loss no {annotation}, which the samples have",
                    where=where,
                    fix=f"set TokenBatch.{field}",
                )
        expected = sum(int(row.loss_mask.sum()) for row in samples)
        share = tokens <= expected and sequences <= min(len(samples), tokens)
        require(
            tokens > 0 and (tokens * len(samples) == sequences * expected if whole else share),
            f"gave the loss {sequences} sequences in {tokens} tokens, where {len(samples)} samples have "
            f"{expected}",
            where=where,
            fix="make each span of a sample a sequence",
        )

    async def _check_resume(self, first: Any, second: Any, folder: Path, train: str) -> None:
        where = f"{self.name}.load"
        with guarded(f"{self.name}.save"):
            first.save(folder)
        with guarded(where):
            second.load(folder)
        same = second.digest() == first.digest() and self._versions(second) == self._versions(first)
        require(same, "didn't load the weights and versions that were saved", where=where, fix="save both")
        for step in (6, 7) if train != "none" else ():
            for trainer in (first, second):
                await self._update(trainer, step, "one", "two")
            require(
                second.digest() == first.digest(),
                "a loaded trainer continues differently",
                where=where,
                fix="save the optimiser's state, its step counts and every generator",
            )


def _extras(sample: Sample, annotations: dict[str, Any]) -> dict[str, np.ndarray]:
    """A sample's annotations with shape (T,), T all its tokens; targets of 1 where there are values."""
    extras = {}
    for name, table in annotations.items():
        extras[name] = np.zeros(len(sample.token_ids), dtype=np.float32)
        extras[name][sample.loss_mask] = table[sample.key]
    if "values" in extras:
        extras["targets"] = sample.loss_mask.astype(np.float32)
    return extras


def _numpy(array: Any) -> np.ndarray:
    """An array or tensor of any library as a numpy array."""
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
