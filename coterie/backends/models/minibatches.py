"""Minibatches of samples, and what each of their tokens weighs in the loss: what every trainer needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.core.protocols import Length
from coterie.core.types import Key, Sample
from coterie.core.types.seeding import generator


def token_coefficients(
    samples: Sequence[Sample], length: Length, constant: float | None = None
) -> list[np.ndarray]:
    """What every token's loss is multiplied with: weight over denominator, 0 off the mask.

    The denominators are taken over all samples given, which are those of one optimiser step and one
    policy; the loss is then a plain sum of coefficient * value, so no split into micro-batches can
    change it (invariant 6). A sequence is a span; a branch whose prefix broke counts once, since its
    spans share a branch key.

    - `token_mean`: sum_i w_i sum_t l_it / sum_i w_i n_i
    - `sequence_mean`: sum_i w_i (1/n_i) sum_t l_it / sum_i w_i
    - `sequence_sum`: sum_i w_i sum_t l_it / sum_i w_i
    - `constant`: sum_i w_i sum_t l_it / (constant * sum_i w_i), Dr. GRPO's (arXiv 2503.20783)

    Args:
        constant: of the last; usually the longest completion allowed.

    Returns:
        one float32 array of shape (T,) per sample.
    """
    tokens: dict[Key, int] = {}
    weight: dict[Key, float] = {}
    for sample in samples:
        for span in sample.spans:
            tokens[span.branch] = tokens.get(span.branch, 0) + int(
                sample.loss_mask[span.start : span.stop].sum()
            )
            weight[span.branch] = span.weight
    if length == "token_mean":
        denominator = sum(weight[branch] * count for branch, count in tokens.items())
    else:
        denominator = sum(weight[branch] for branch, count in tokens.items() if count)
    coefficients = []
    for sample in samples:
        row = np.zeros(len(sample.token_ids), dtype=np.float32)
        for span in sample.spans:
            share = weight[span.branch] / denominator if denominator else 0.0
            if length == "sequence_mean":
                share /= max(tokens[span.branch], 1)
            elif length == "constant":
                if constant is None:
                    raise ValueError("length `constant` needs its constant")
                share /= constant
            row[span.start : span.stop] = share
        row[~sample.loss_mask] = 0.0
        coefficients.append(row)
    return coefficients


def span_ids(samples: Sequence[Sample]) -> tuple[np.ndarray, int]:
    """Which span every trained token is of, for losses of whole sequences.

    Returns:
        int64, shape (trained tokens,), counted from 0 through all samples; and how many spans there are.

    Raises:
        ValueError: a trained token lies in no span.
    """
    rows, count = [], 0
    for sample in samples:
        row = np.full(len(sample.token_ids), -1, dtype=np.int64)
        for span in sample.spans:
            row[span.start : span.stop] = count
            count += 1
        rows.append(row[sample.loss_mask])
        if (rows[-1] < 0).any():
            raise ValueError(f"{sample.key.text()}: a trained token lies in no span")
    return np.concatenate(rows), count


def trained_values(samples: Sequence[Sample], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Per-token arrays of samples, shape (T,) each, cut to trained tokens and joined: shape (N,)."""
    return np.concatenate([array[sample.loss_mask] for sample, array in zip(samples, arrays, strict=True)])


def token_values(samples: Sequence[Sample]) -> dict[str, np.ndarray | None]:
    """The numbers of a loss's `TokenBatch` that samples have; None: an annotation that some of them lack."""

    def annotation(name: str) -> np.ndarray | None:
        if not all(name in sample.extras for sample in samples):
            return None
        return trained_values(samples, [sample.extras[name] for sample in samples])

    return {
        "behaviour": trained_values(samples, [sample.logprobs for sample in samples]),
        "advantages": trained_values(samples, [sample.advantages for sample in samples]),
        "ref_logprobs": annotation("ref_logprobs"),
        "old": annotation("old_logprobs"),
    }


def minibatches(samples: Sequence[Sample], size: int | None, seed: int) -> list[list[Sample]]:
    """Shuffle whole groups of siblings (they share a prompt) and fill minibatches of about `size` samples.

    Siblings stay together, so a minibatch may pass `size` by less than one group. Every sample is
    used once; a remainder smaller than half of `size` joins the batch before it, so that no optimiser
    step rests on a handful of samples.
    """
    groups: dict[Key, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    order = list(groups.values())
    if size is None or len(samples) <= size:
        return [[sample for group in order for sample in group]] if order else []
    permutation = generator(seed, "minibatches", "shuffle").permutation(len(order))
    batches: list[list[Sample]] = [[]]
    for index in permutation:
        if len(batches[-1]) >= size:
            batches.append([])
        batches[-1].extend(order[index])
    if len(batches) > 1 and 2 * len(batches[-1]) < size:
        batches[-2].extend(batches.pop())
    return batches


def repeats(size: int | None, epochs: int) -> str:
    """The setting, as `key=value`, by which an update has several optimiser steps; empty: it has one."""
    if epochs > 1:
        return f"epochs={epochs}"
    return "" if size is None else f"minibatch_size={size}"


def count_minibatches(samples: int, siblings: int, size: int | None, epochs: int = 1) -> int:
    """Number of minibatches over all epochs that `minibatches` makes of groups of `siblings` samples."""
    if size is None or samples <= size:
        return epochs * (samples > 0)
    filled = -(-size // siblings) * siblings  # siblings stay together, so a minibatch may pass its size
    whole, rest = divmod(samples, filled)
    return epochs * max(whole + (rest > 0 and 2 * rest >= size), 1)
