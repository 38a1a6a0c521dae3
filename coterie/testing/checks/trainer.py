"""`check_trainer`: policies are trained apart, and a trainer that is loaded continues identically."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from coterie.core.config import PolicyConfig
from coterie.core.protocols import Surrogate, TokenBatch, TrainerContext
from coterie.core.protocols.trainer import KeepsVersions
from coterie.core.types import Key, Sample, Span, Weights
from coterie.discovery.members import HasLengthConstant
from coterie.testing.support.building import build, declared_policy
from coterie.testing.support.failure import awaited, guarded, require, require_kind
from coterie.testing.support.promises import promise
from coterie.testing.support.toys import PolicyGradient
from coterie.testing.support.training import (
    check_annotated_update,
    check_annotations,
    check_optimizer_steps,
    checked_update,
    digest_of,
    versions_of,
    weights_digest,
    weights_of,
)

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
    - An update changes the digest of the policies that it has samples for, raises their version by 1, and
      changes no others. Without samples nothing changes. Metrics are finite numbers by policy.
    - A fresh trainer that loads what `save` wrote has the same digests and versions, and still has when both
      train on (the optimiser's state is saved too).
    - `annotate` gives one finite number per sampled token, and log-probs are at most 0. An update changes
      `old_logprobs`, never `ref_logprobs`, and brings `values` nearer to their targets.
    - The loss receives the sequence of every token, and the annotations of the samples.
    - A trainer with `keep` gives a kept version by `weights_at`, after updates and after `load`: an engine
      reads from it what it read when it was kept. The trainer has its present weights again afterwards.
    - `optimizer_steps`, where the trainer has it, gives a number of steps.
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
    promise("it opens with its policies")
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
            promise("two trainers with one seed start alike")
            self._check_start(first, second, train)
            promise("optimizer_steps is a number of steps")
            check_optimizer_steps(first, self.name)
            if train == "none":
                promise("nothing moves that is not trained")
                await self._check_nothing_moves(first)
            else:
                promise("an update trains the policies that have samples, and no others")
                await self._check_update(first)
                promise("annotations are one finite number a sampled token")
                samples = self._samples("one", 5)
                await check_annotations(first, samples, annotates, self.name)
                update = partial(self._update_on, first, 5)
                batches = self.loss.batches
                await check_annotated_update(first, samples, annotates, update, batches, self.name)
            promise("a trainer that is loaded continues identically")
            await self._check_resume(first, second, folder, train)
            if train != "none" and isinstance(first, KeepsVersions):
                promise("a kept version reads as it did")
                move = partial(self._update, first, 8, "one")
                await check_kept_versions(first, second, move, folder / "kept", self.name)
        finally:
            for trainer in (first, second):
                await awaited(f"{self.name}.close", trainer.close)

    async def _opened(self) -> Any:
        trainer = self.make()
        self.name = require_kind(trainer, "trainer")
        await awaited(f"{self.name}.open", trainer.open, self.ctx)
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
        digests = self._digest(first)
        trained = {"one", "two"} if train != "none" else set()
        sound = trained <= digests.keys() <= self.ctx.policies.keys()
        require(sound, f"names {sorted(digests)}", where, fix="every policy that is trained")
        require(
            digests == self._digest(second),
            "differs between two trainers with one seed",
            where,
            fix="draw initial weights from ctx.seed",
        )
        require(
            digests == self._digest(first), "changes without an update", where, fix="digest the weights alone"
        )
        self._versions(first)

    async def _update(self, trainer: Any, step: int, *policies: str) -> Any:
        samples = {policy: self._samples(policy, step) for policy in policies}
        return await checked_update(trainer, samples, step, self.ctx.policies, self.name)

    async def _update_on(self, trainer: Any, step: int, samples: Sequence[Sample]) -> Any:
        of_policy = {samples[0].policy: samples}
        return await checked_update(trainer, of_policy, step, self.ctx.policies, self.name)

    async def _check_update(self, trainer: Any) -> None:
        where = f"{self.name}.update"
        before, versions = self._digest(trainer), self._versions(trainer)
        await self._update(trainer, 1)
        require(
            self._digest(trainer) == before and self._versions(trainer) == versions,
            "changed weights or versions without samples",
            where,
            fix="no weight decay, no optimiser step and no new version without samples",
        )
        metrics = await self._update(trainer, 2, "one")
        after, now = self._digest(trainer), self._versions(trainer)
        moved = [policy for policy in after if policy != "one" and after[policy] != before[policy]]
        raised = [policy for policy in now if policy != "one" and now[policy] != versions[policy]]
        for holds, what, fix in (
            (after["one"] != before["one"], "left the digest of 'one' as it was, which it had samples of",
             "step the optimiser of every policy with samples, and let `digest` tell weights apart"),
            (not moved, f"trained '{', '.join(moved)}' on the samples of 'one'",
             "give every policy its own weights and optimiser"),
            (now["one"] > versions["one"], "didn't raise the version of changed weights",
             "count an update of a policy in Weights.version"),
            (not raised, "raised the version of weights that didn't change", "count versions by policy"),
            ("one" in metrics, f"returned {metrics!r}", "{policy: {metric: number}}"),
        ):  # fmt: skip
            require(holds, what, where, fix)

    async def _check_nothing_moves(self, trainer: Any) -> None:
        before, versions = self._digest(trainer), self._versions(trainer)
        await self._update(trainer, 1)
        require(
            self._digest(trainer) == before and self._versions(trainer) == versions,
            "changed weights of policies with `train: none`",
            f"{self.name}.update",
            fix="skip policies that aren't trained",
        )

    def _digest(self, trainer: Any) -> dict[str, str]:
        return digest_of(trainer, self.name)

    def _versions(self, trainer: Any) -> dict[str, int]:
        return versions_of(trainer, self.ctx.policies, self.name)

    async def _check_resume(self, first: Any, second: Any, folder: Path, train: str) -> None:
        where = f"{self.name}.load"
        with guarded(f"{self.name}.save"):
            first.save(folder)
        with guarded(where):
            second.load(folder)
        same = self._digest(second) == self._digest(first) and self._versions(second) == self._versions(first)
        require(same, "didn't load the weights and versions that were saved", where, fix="save both")
        for step in (6, 7) if train != "none" else ():
            for trainer in (first, second):
                await self._update(trainer, step, "one", "two")
            require(
                self._digest(second) == self._digest(first),
                "a loaded trainer continues differently",
                where,
                fix="save the optimiser's state, its step counts and every generator",
            )


POLICY = "one"


async def check_kept_versions(
    trainer: Any, loaded: Any, update: Callable[[], Awaitable[Any]], folder: Path, name: str
) -> None:
    """Keep a version, update, read the kept version, and read it again after `save` and `load`.

    Args:
        loaded: a second trainer, which loads what the first one saves.
        update: updates the first trainer's policy `one`.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    present = weights_of(trainer, POLICY, name)
    version, kept = present.version, _read(present, f"{name}.weights")
    with guarded(f"{name}.keep"):
        trainer.keep(POLICY)
        trainer.keep(POLICY)  # of a second step that is pinned to it
    await update()
    after = digest_of(trainer, name)
    _check_at(trainer, version, kept, name)
    require(
        digest_of(trainer, name) == after and weights_of(trainer, POLICY, name).version > version,
        "changed the present weights",
        f"{name}.weights_at",
        fix="put the present weights back when its context ends",
    )
    folder.mkdir()
    with guarded(f"{name}.save"):
        trainer.save(folder)
    with guarded(f"{name}.load"):
        loaded.load(folder)
    _check_at(loaded, version, kept, name, " after `save` and `load`")
    for each in (trainer, loaded):
        with guarded(f"{name}.drop"):
            each.drop(POLICY, version)
            each.drop(POLICY, version)  # one that isn't kept is ignored
    require(
        digest_of(loaded, name) == digest_of(trainer, name) == after,
        "changed the present weights",
        f"{name}.drop",
        fix="forget the kept copy alone",
    )


def _check_at(trainer: Any, version: int, kept: str | None, name: str, when: str = "") -> None:
    where = f"{name}.weights_at"
    with guarded(where), trainer.weights_at(POLICY, version) as weights:
        sound = isinstance(weights, Weights) and (weights.policy, weights.version) == (POLICY, version)
        what = f"gave {weights!r} for version {version!r}{when}"
        require(sound, what, where, fix="Weights of that version")
        given = _read(weights, where)
    if kept is None or given is None:  # an engine reads them in a way that only it and the trainer know
        return
    now = _read(weights_of(trainer, POLICY, name), f"{name}.weights")
    which = "the present weights" if given == now else "other weights"
    require(
        given == kept,
        f"gave {which} under version {version!r}{when}, not those that were kept",
        where,
        fix="copy the weights in `keep`, and give that copy: a resume draws with it",
    )


def _read(weights: Weights, where: str) -> str | None:
    with guarded(where):
        return weights_digest(weights)
