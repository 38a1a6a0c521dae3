"""The parts of `check_trainer` for weights, updates, annotations, and what an update makes of these."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import PluginError, did_you_mean, type_text
from coterie.core.protocols import TokenBatch
from coterie.core.rollout.contracts import check_weights
from coterie.core.types import Sample, Weights
from coterie.discovery.members import CountsOptimizerSteps
from coterie.testing.support.failure import ConformanceError, awaited, finite, guarded, require
from coterie.testing.support.values import unchanged


def weights_digest(weights: Weights) -> str | None:
    """A digest of the tensors, of the module, or of the files in the folder; None: there is nothing to read.

    It is computed while the weights may be read, since a trainer may change a module in place.
    """
    hasher, numbers = hashlib.sha256(), 0
    for name, value in sorted(_values(weights), key=lambda pair: pair[0]):
        hasher.update(f"{name}:{len(value)}:".encode() + value)
        numbers += len(value)
    return hasher.hexdigest() if numbers else None


def digest_of(trainer: Any, name: str) -> dict[str, str]:
    """What a trainer's `digest` returns.

    Raises:
        ConformanceError: it is no table by policy.
    """
    with guarded(f"{name}.digest"):
        digests = trainer.digest()
    fix = "{policy: sha256 of its weights}"
    require(isinstance(digests, Mapping), f"returned {digests!r:.200}", f"{name}.digest", fix=fix)
    return dict(digests)


def _values(weights: Weights) -> Iterator[tuple[str, bytes]]:
    if weights.tensors is not None:
        for name, tensor in weights.tensors():
            yield name, _bytes(tensor)
    elif weights.module is not None:
        yield from _of_module(weights.module, weights.adapter)
    elif weights.folder is not None:
        folder = Path(weights.folder)
        for file in folder.rglob("*"):
            if file.is_file():
                yield str(file.relative_to(folder)), file.read_bytes()


def _of_module(module: Any, adapter: str | None) -> Iterator[tuple[str, bytes]]:
    """The tensors of a module, or those of one adapter of it; of another object the arrays and numbers."""
    if not callable(getattr(module, "state_dict", None)):
        yield from _of_object(module, "", ())
        return
    state = module.state_dict()
    of_adapter = {name: tensor for name, tensor in state.items() if adapter and adapter in name.split(".")}
    for name, tensor in (of_adapter or state).items():
        yield name, _bytes(tensor)


def _of_object(value: Any, name: str, inside: tuple[int, ...]) -> Iterator[tuple[str, bytes]]:
    if id(value) in inside:
        return
    inside = (*inside, id(value))
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        yield name, _bytes(value)
    elif isinstance(value, float):
        yield name, repr(value).encode()
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _of_object(inner, f"{name}[{key!r}]", inside)
    elif isinstance(value, (str, bytes, int, AbstractSet, type)) or value is None:
        return  # names and settings, which are no weights
    elif isinstance(value, Sequence):
        for index, inner in enumerate(value):
            yield from _of_object(inner, f"{name}[{index}]", inside)
    else:
        for attribute, inner in getattr(value, "__dict__", {}).items():
            if not attribute.startswith("_"):  # what a class caches for itself
                yield from _of_object(inner, f"{name}.{attribute}", inside)


def _bytes(tensor: Any) -> bytes:
    return np.ascontiguousarray(_numpy(tensor)).tobytes()


_GROUPS = ((0, 3), (1, 1), (6, 3), (64, 4))
"""Numbers of samples, and of the siblings of one decision, for `optimizer_steps`."""


def weights_of(trainer: Any, policy: str, name: str) -> Weights:
    """The present weights of a policy, as a run requires them.

    Raises:
        ConformanceError: they are no Weights, or another policy's, or their version is no integer.
    """
    where = f"{name}.weights"
    with guarded(where):
        weights = trainer.weights(policy)
    try:
        return check_weights(trainer, "weights", weights, policy)
    except PluginError as error:
        raise ConformanceError(f"returned {weights!r} for '{policy}'", where=where, fix=error.fix) from error


def versions_of(trainer: Any, policies: Collection[str], name: str) -> dict[str, int]:
    """The version of each policy's weights."""
    return {policy: weights_of(trainer, policy, name).version for policy in policies}


async def checked_update(
    trainer: Any, samples: Mapping[str, Sequence[Sample]], step: int, policies: Collection[str], name: str
) -> Mapping[str, Any]:
    """Update, and check the metrics and the versions as a run does.

    Returns:
        the metrics, by policy.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    where = f"{name}.update"
    before = versions_of(trainer, policies, name)
    with unchanged(samples, "the samples", where, "copy their arrays"):
        metrics: Mapping[str, Any] = await awaited(where, trainer.update, samples, step)
    _check_metrics(metrics, policies, where)
    after = versions_of(trainer, policies, name)
    for policy, version in after.items():
        require(
            version - before[policy] in (0, 1),
            f"brought the version of '{policy}' from {before[policy]!r} to {version!r}",
            where,
            fix="raise the version by 1 where an update changes weights, and leave it where it changes none",
        )
        require(
            version != before[policy] or not metrics.get(policy, {}).get("optimizer_steps"),
            f"says that it took optimizer_steps of '{policy}', and didn't raise the version {version!r}",
            where,
            fix="raise the version by 1 where an update changes weights",
        )
    return metrics


def _check_metrics(metrics: Any, policies: Collection[str], where: str) -> None:
    fix = "return {policy: {metric: number}}; {} where there is nothing to say"
    require(isinstance(metrics, Mapping), f"returned {metrics!r:.200}", where, fix=fix)
    for policy, row in metrics.items():
        require(
            policy in policies,
            f"returned metrics of {policy!r}, which is no policy",
            where,
            fix=f"name policies of ctx.policies; {did_you_mean(str(policy), policies)}",
        )
        sound = isinstance(row, Mapping) and all(isinstance(metric, str) for metric in row)
        require(sound, f"returned {row!r:.200} as the metrics of '{policy}'", where, fix=fix)
        for metric, value in row.items():
            require(finite(value), f"{policy}/{metric} is {value!r}", where, fix="a finite number")
        steps = row.get("optimizer_steps", 0)
        fix = "the number of optimiser steps of this update, 0 or more"
        require(steps >= 0, f"{policy}/optimizer_steps is {steps!r}", where, fix=fix)


def check_optimizer_steps(trainer: Any, name: str) -> None:
    """Check `optimizer_steps`, where the trainer has it: `coterie plan` calls it.

    Raises:
        ConformanceError: it raised, or returned no number of steps.
    """
    if not isinstance(trainer, CountsOptimizerSteps):
        return
    where = f"{name}.optimizer_steps"
    for samples, siblings in _GROUPS:
        with guarded(where, "take (samples, siblings); a policy that isn't trained has 0 samples"):
            steps: Any = trainer.optimizer_steps(samples, siblings)
        sound = isinstance(steps, Integral) and not isinstance(steps, bool)
        shown = f"{steps!r}" if sound else f"{type_text(steps)}, {steps!r:.100},"
        what = f"returned {shown} for {samples} samples in groups of {siblings}"
        require(sound and steps >= 0, what, where, fix="an int, 0 or more")


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
    if not hasattr(array, "detach"):
        return np.asarray(array)
    array = array.detach().cpu()
    try:
        return np.asarray(array)
    except TypeError:  # numpy has no bfloat16; every one is a float32
        return np.asarray(array.float())
