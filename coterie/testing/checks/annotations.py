"""The part of `check_trainer` for annotations, and for what an update makes of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.protocols import TokenBatch
from coterie.core.types import Sample
from coterie.testing.support.failure import awaited, require

Update = Callable[[Sequence[Sample]], Awaitable[Any]]
_TABLE = "{sample key: one finite number a sampled token}"


async def check_annotations(
    trainer: Any, samples: Sequence[Sample], annotates: Sequence[str], name: str
) -> None:
    """Check each annotation of the samples.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    where = f"{name}.annotate"
    for annotation in annotates:
        table = await awaited(where, trainer.annotate, samples, annotation)
        require(isinstance(table, Mapping), f"returned {table!r:.200}", where, fix=_TABLE)
        for sample in samples:
            count = int(sample.loss_mask.sum())
            values = table.get(sample.key)
            sound = values is not None and np.shape(values) == (count,) and np.isfinite(values).all()
            require(sound, f"gave {values!r} for {count} tokens ({annotation})", where, fix=_TABLE)
            require(
                not annotation.endswith("logprobs") or (np.asarray(values) <= 1e-5).all(),
                f"gave {annotation} above 0",
                where,
                fix="log-probabilities",
            )


async def check_annotated_update(
    trainer: Any,
    samples: Sequence[Sample],
    annotates: Sequence[str],
    update: Update,
    batches: list[TokenBatch],
    name: str,
) -> None:
    """Check an update on samples with all annotations and value targets of 1.

    Args:
        update: updates the trainer on samples of their policy.
        batches: what the loss receives.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    before = {annotation: await trainer.annotate(samples, annotation) for annotation in annotates}
    annotated = [replace(row, extras=_extras(row, before)) for row in samples]
    batches.clear()
    await update(annotated)
    ranks = getattr(getattr(trainer, "config", None), "ranks", 1)
    _check_batches(batches, annotated, annotates, name, whole=ranks == 1)
    after = {annotation: await trainer.annotate(samples, annotation) for annotation in annotates}
    _check_moved(samples, before, after, name)


def _check_moved(
    samples: Sequence[Sample], before: Mapping[str, Any], after: Mapping[str, Any], name: str
) -> None:
    """Check what an update did to the annotations."""
    for annotation in before:
        then, now = (
            np.concatenate([np.asarray(table[annotation][row.key]) for row in samples])
            for table in (before, after)
        )
        where = f"{name}.annotate"
        if annotation == "ref_logprobs":
            require(
                np.allclose(then, now, atol=1e-5),
                f"gave other {annotation} after an update",
                where,
                fix="compute them with the policy's initial weights",
            )
        elif annotation == "old_logprobs":
            require(
                not np.array_equal(then, now),
                f"gave the same {annotation} after an update",
                where,
                fix="compute them with the present weights",
            )
        elif annotation == "values":
            require(
                np.square(now - 1.0).mean() < np.square(then - 1.0).mean(),
                "brought the values no nearer to the samples' `targets`",
                f"{name}.update",
                fix="train the value head on extras['targets']",
            )


def _check_batches(
    batches: Sequence[TokenBatch],
    samples: Sequence[Sample],
    annotates: Sequence[str],
    name: str,
    *,
    whole: bool,
) -> None:
    """Check what the loss got: of a trainer on several ranks, its rank's share of the samples alone."""
    where = f"{name}.update"
    tokens = sequences = 0
    for batch in batches:
        require(
            batch.sequence is not None,
            "gave the loss no sequence ids",
            where,
            fix="set TokenBatch.sequence and .sequences: coterie.span_ids",
        )
        ids = _numpy(batch.sequence)
        tokens, sequences = tokens + len(ids), sequences + batch.sequences
        numbered = np.array_equal(np.unique(ids), np.arange(batch.sequences))
        require(
            numbered,
            f"numbered {batch.sequences} sequences {np.unique(ids)}",
            where,
            fix="from 0, without gaps",
        )
        for field, annotation in (("ref_logprobs", "ref_logprobs"), ("old", "old_logprobs")):
            require(
                annotation not in annotates or getattr(batch, field) is not None,
                f"gave the loss no {annotation}, which the samples have",
                where,
                fix=f"set TokenBatch.{field}",
            )
    expected = sum(int(row.loss_mask.sum()) for row in samples)
    share = tokens <= expected and sequences <= min(len(samples), tokens)
    require(
        tokens > 0 and (tokens * len(samples) == sequences * expected if whole else share),
        f"gave the loss {sequences} sequences in {tokens} tokens, where {len(samples)} samples have "
        f"{expected}",
        where,
        fix="make each span of a sample a sequence",
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
