"""`check_trainer`: one policy is trained at a time, and a state that is read back goes on the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from coterie.core.config import PolicyConfig
from coterie.core.protocols import Surrogate, TokenBatch, TrainerContext
from coterie.core.types import Key, Sample, Span, Weights
from coterie.testing.support.building import build
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
    - An update moves the policies that it has samples for: their digest and version change, those of the
      others don't. Without samples nothing moves. Metrics are finite numbers by policy.
    - What `save` wrote, `load` reads into a fresh trainer: digests and versions are equal, and stay equal
      when both go on training (the optimiser's state is saved too).
    - `annotate` gives one finite number per sampled token, and log-probs are at most 0. An update changes
      `old_logprobs`, never `ref_logprobs`, and brings `values` nearer to their targets.
    - The loss is shown which tokens are of one sequence, and the notes that the samples carry.
    - With `train="none"` for all policies no update changes anything.

    Args:
        make: gives a new trainer, e.g. `lambda: build("trainer", {"type": "tabular"})`.
        model: of the policies in the configuration.
        token_ids: ids that such a model can write; samples are made of them.
        train: of the two trained policies: full, lora, or none.
        policy: more settings of a trained policy, e.g. {"optimizer": {...}}.
        loss: by default -A times the ratio.
        annotates: notes that the trainer offers; they are named in its context's `needs`.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    bench = _Bench(
        make, _context(model, train, policy or {}, loss, chat, vocabulary, annotates), seed, token_ids
    )

    async def go() -> None:
        with TemporaryDirectory() as folder:
            await bench.check(train, annotates, Path(folder))

    asyncio.run(go())


def _context(
    model: Any, train: str, more: dict[str, Any], loss: Any, chat: Any, vocabulary: Any, needs: Any
) -> TrainerContext:
    trained = PolicyConfig.model_validate({"model": model, "train": train, **more})
    return TrainerContext(
        policies={"one": trained, "two": trained, _FROZEN: PolicyConfig(model=model, train="none")},
        loss=loss if loss is not None else PolicyGradient(),
        chat=build("chat_format", chat),
        seed=11,
        deterministic=True,
        vocabulary=tuple(vocabulary),
        needs=tuple(needs) if train != "none" else (),
    )


class _Watched:
    """A loss that keeps what it is shown."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss
        self.shown: list[TokenBatch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loss, name)

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        self.shown.append(tokens)
        found: Surrogate = self._loss(xp, tokens)
        return found


class _Bench:
    def __init__(
        self, make: Callable[[], Any], ctx: TrainerContext, seed: int, token_ids: Sequence[int]
    ) -> None:
        self.loss = _Watched(ctx.loss)
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
                await self._check_notes(first, annotates)
            await self._check_resume(first, second, folder, train)
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
        """Two groups of three siblings; their prompts are the same in every step, what they say is not."""
        rng, prompts = np.random.default_rng([self.seed, step]), np.random.default_rng(self.seed)
        found = []
        for group in range(2):
            prompt = prompts.choice(self.ids, 3)
            for branch in range(3):
                own = rng.choice(self.ids, int(rng.integers(1, 4)))
                ids = np.concatenate([prompt, own])
                mask = np.arange(len(ids)) >= len(prompt)
                key = Key(f"{task}{group}", step).of_branch("solver", branch)
                found.append(
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
        return found

    def _check_start(self, first: Any, second: Any, train: str) -> None:
        where = f"{self.name}.digest"
        digests = first.digest()
        wanted = {"one", "two"} if train != "none" else set()
        known = wanted <= digests.keys() <= self.ctx.policies.keys()
        require(known, f"names {sorted(digests)}", where=where, fix="every policy that is trained")
        require(digests == second.digest(), "differs between two trainers with one seed", where=where)
        require(digests == first.digest(), "changes without an update", where=where)
        for policy in self.ctx.policies:
            found = first.weights(policy)
            sound = isinstance(found, Weights) and found.policy == policy
            require(sound, f"returned {found!r} for '{policy}'", where=f"{self.name}.weights", fix="Weights")

    async def _update(self, trainer: Any, step: int, *policies: str) -> Any:
        samples = {policy: self._samples(policy, step) for policy in policies}
        with guarded(f"{self.name}.update"):
            return await trainer.update(samples, step)

    async def _check_update(self, trainer: Any) -> None:
        where = f"{self.name}.update"
        before, versions = trainer.digest(), self._versions(trainer)
        await self._update(trainer, 1)
        require(trainer.digest() == before, "without samples changed weights", where=where)
        metrics = await self._update(trainer, 2, "one")
        after = trainer.digest()
        require(
            after["one"] != before["one"], "left the policy that it had samples of as it was", where=where
        )
        moved = [policy for policy in after if policy != "one" and after[policy] != before[policy]]
        require(
            not moved,
            f"trained '{', '.join(moved)}' on the samples of 'one'",
            where=where,
            fix="give every policy weights and an optimiser of its own",
        )
        now = self._versions(trainer)
        require(now["one"] > versions["one"], "didn't raise the version of new weights", where=where)
        still = all(now[policy] == versions[policy] for policy in now if policy != "one")
        require(still, "raised the version of weights that didn't change", where=where)
        require("one" in metrics, f"returned {metrics!r}", where=where, fix="{policy: {metric: number}}")
        for policy, row in metrics.items():
            for metric, value in row.items():
                require(finite(value), f"{policy}/{metric} is {value!r}", where=where, fix="a finite number")

    async def _check_nothing_moves(self, trainer: Any) -> None:
        before, versions = trainer.digest(), self._versions(trainer)
        await self._update(trainer, 1)
        still = trainer.digest() == before and self._versions(trainer) == versions
        require(still, "changed weights that nothing trains", where=f"{self.name}.update")

    def _versions(self, trainer: Any) -> dict[str, int]:
        return {policy: trainer.weights(policy).version for policy in self.ctx.policies}

    async def _check_annotations(self, trainer: Any, annotates: Sequence[str]) -> None:
        where = f"{self.name}.annotate"
        samples = self._samples("one", 5)
        for what in annotates:
            with guarded(where):
                found = await trainer.annotate(samples, what)
            for sample in samples:
                count = int(sample.loss_mask.sum())
                values = found.get(sample.key)
                shaped = values is not None and np.shape(values) == (count,) and np.isfinite(values).all()
                require(
                    shaped, f"gave {values!r} for {count} tokens ({what})", where=where, fix="by sample key"
                )
                logprobs = not what.endswith("logprobs") or (np.asarray(values) <= 1e-5).all()
                require(logprobs, f"gave {what} above 0", where=where)

    async def _check_notes(self, trainer: Any, annotates: Sequence[str]) -> None:
        """One update on samples that carry all notes, with value targets of 1."""
        samples = self._samples("one", 5)
        before = {what: await trainer.annotate(samples, what) for what in annotates}
        noted = [replace(row, extras=_extras(row, before)) for row in samples]
        self.loss.shown.clear()
        with guarded(f"{self.name}.update"):
            await trainer.update({"one": noted}, 5)
        self._check_shown(noted, annotates)
        after = {what: await trainer.annotate(samples, what) for what in annotates}
        for what in annotates:
            then, now = (
                np.concatenate([np.asarray(table[what][row.key]) for row in samples])
                for table in (before, after)
            )
            where = f"{self.name}.annotate"
            if what == "ref_logprobs":
                require(
                    np.allclose(then, now, atol=1e-5),
                    f"gave other {what} after an update",
                    where=where,
                    fix="they are of the weights that the policy started with",
                )
            elif what == "old_logprobs":
                require(
                    not np.array_equal(then, now),
                    f"gave the same {what} after an update",
                    where=where,
                    fix="they are of the present weights",
                )
            elif what == "values":
                require(
                    np.square(now - 1.0).mean() < np.square(then - 1.0).mean(),
                    "brought the values no nearer to the samples' `targets`",
                    where=f"{self.name}.update",
                )

    def _check_shown(self, samples: Sequence[Sample], annotates: Sequence[str]) -> None:
        where = f"{self.name}.update"
        tokens = sequences = 0
        for batch in self.loss.shown:
            require(
                batch.sequence is not None,
                "didn't tell the loss which tokens are of one sequence",
                where=where,
                fix="give TokenBatch `sequence` and `sequences`, see coterie.core.training.samples.span_ids",
            )
            ids = _numpy(batch.sequence)
            tokens, sequences = tokens + len(ids), sequences + batch.sequences
            numbered = np.array_equal(np.unique(ids), np.arange(batch.sequences))
            require(numbered, f"numbered {batch.sequences} sequences {np.unique(ids)}", where=where)
            for name, note in (("ref_logprobs", "ref_logprobs"), ("old", "old_logprobs")):
                given = note not in annotates or getattr(batch, name) is not None
                require(given, f"kept the samples' {note} from the loss", where=where)
        wanted = sum(int(row.loss_mask.sum()) for row in samples)
        require(
            tokens > 0 and tokens * len(samples) == sequences * wanted,
            f"told the loss of {sequences} sequences in {tokens} tokens, where {len(samples)} samples have "
            f"{wanted}",
            where=where,
            fix="a span of a sample is a sequence",
        )

    async def _check_resume(self, first: Any, second: Any, folder: Path, train: str) -> None:
        where = f"{self.name}.load"
        with guarded(f"{self.name}.save"):
            first.save(folder)
        with guarded(where):
            second.load(folder)
        same = second.digest() == first.digest() and self._versions(second) == self._versions(first)
        require(same, "didn't read back the weights and versions that were saved", where=where)
        for step in (6, 7) if train != "none" else ():
            for trainer in (first, second):
                await self._update(trainer, step, "one", "two")
            require(
                second.digest() == first.digest(),
                "a trainer that was read back goes on differently",
                where=where,
                fix="save the optimiser's state, its step counts, and every generator",
            )


def _extras(sample: Sample, notes: dict[str, Any]) -> dict[str, np.ndarray]:
    """A sample's notes as it carries them, shape (T,); targets of 1 where there are values."""
    found = {}
    for what, table in notes.items():
        found[what] = np.zeros(len(sample.token_ids), dtype=np.float32)
        found[what][sample.loss_mask] = table[sample.key]
    if "values" in found:
        found["targets"] = sample.loss_mask.astype(np.float32)
    return found


def _numpy(array: Any) -> np.ndarray:
    """A numpy array, or a tensor of whatever library, as a numpy array."""
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
