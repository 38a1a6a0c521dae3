"""The worth of k samples of a task: the best of them (pass@k), their vote (majority@k), their mean (avg@n).

Each is the exact mean over all subsets of k of a task's n samples: unbiased for k draws of the policy, and
without a random number. An interval takes one such value from each task, and the task is the unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coterie.core.errors import UserError
from coterie.stats import Interval, clustered_bootstrap, pass_at_k

Answers = Mapping[str, Sequence[str | None]]
"""task id -> the final answer of each sample; None: it has none."""


@dataclass(frozen=True, slots=True)
class AtK:
    """A statistic of k samples a task."""

    name: str
    """`pass@4`, `majority@4` or `avg@4`."""
    interval: Interval
    left_out: int = 0
    """Tasks with fewer than k finished samples."""

    def as_dict(self) -> dict[str, Any]:
        left_out = {"left_out": self.left_out} if self.left_out else {}
        return {**self.interval.as_dict(), **left_out}


def best_at_k(values: Sequence[float], k: int) -> float:
    """The expected best of k of a task's n values, drawn without replacement.

    Of values that are 0 or 1 it is pass@k, `coterie.stats.pass_at_k`. Of others, the value at rank i counts
    in C(i - 1, k - 1) of the C(n, k) subsets.

    Raises:
        ValueError: not 1 <= k <= n.
    """
    n = len(values)
    if all(value in (0.0, 1.0) for value in values):
        return pass_at_k(n, sum(value == 1.0 for value in values), k)
    if not 1 <= k <= n:
        raise ValueError(f"the best of {k} needs 1 <= k <= n, and n is {n}")
    every = math.comb(n, k)
    ranked = enumerate(sorted(values), 1)
    return math.fsum(value * (math.comb(rank - 1, k - 1) / every) for rank, value in ranked if rank >= k)


def majority_at_k(answers: Sequence[str | None], values: Sequence[float], k: int) -> float:
    """The expected success of the answer that most of k samples give, over all subsets of k of n samples.

    Ties are broken uniformly, as an expected value. A sample without an answer doesn't vote; where none of
    the k votes, the success is 0. The success of an answer is the mean over the samples that gave it.

    Computed in exact integers. For each top count t, classes are added one by one to a table by (samples
    chosen, answers with t votes), which holds the number of subsets and, beside it, the sum of the successes
    of those answers.

    Raises:
        ValueError: not 1 <= k <= n, or the lengths differ.
    """
    n = len(answers)
    if len(values) != n or not 1 <= k <= n:
        raise ValueError(f"majority@{k} of {n} answers and {len(values)} values")
    of: dict[str, list[float]] = {}
    for answer, value in zip(answers, values, strict=True):
        if answer is not None:
            of.setdefault(answer, []).append(value)
    classes = [(len(given), sum(map(Fraction, given), Fraction(0)) / len(given)) for given in of.values()]
    scale = math.lcm(1, *(worth.denominator for _, worth in classes))
    worths = [(count, int(worth * scale)) for count, worth in classes]
    silent, won = n - sum(count for count, _ in classes), Fraction(0)
    for top in range(1, min(k, max((count for count, _ in classes), default=0)) + 1):
        won += _won_with(worths, silent, k, top)
    return float(won / (math.comb(n, k) * scale))


def _won_with(classes: Sequence[tuple[int, int]], silent: int, k: int, top: int) -> Fraction:
    """Sum over the subsets of k whose winners have `top` votes of the winners' mean worth."""
    table: dict[tuple[int, int], tuple[int, int]] = {
        (none, 0): (math.comb(silent, none), 0) for none in range(min(silent, k) + 1)
    }
    for count, worth in classes:
        grown: dict[tuple[int, int], tuple[int, int]] = {}
        for (chosen, winners), (ways, sums) in table.items():
            for votes in range(min(count, top, k - chosen) + 1):
                wins = votes == top
                subsets = math.comb(count, votes)
                at = chosen + votes, winners + wins
                before = grown.get(at, (0, 0))
                gain = sums + ways * worth if wins else sums
                grown[at] = before[0] + ways * subsets, before[1] + gain * subsets
        table = grown
    return sum(
        (
            Fraction(sums, winners)
            for (chosen, winners), (_, sums) in table.items()
            if chosen == k and winners
        ),
        Fraction(0),
    )


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `most`, and `most`."""
    powers = {2**power for power in range(most.bit_length()) if 2**power <= most}
    return tuple(sorted({*powers, most}))


def ks_of(given: Sequence[int] | None, samples: int) -> tuple[int, ...]:
    """The ks that are given, else powers of two, and none for a single sample.

    Raises:
        UserError: it is below 1 or above `samples`, or a k is there twice.
    """
    if given is None:
        return powers_of_two(samples) if samples > 1 else ()
    ks = tuple(given)
    for k in ks:
        if not 1 <= k <= samples:
            why = f"pass@{k} has an unbiased estimate from {k} samples a task on, and there are {samples}"
            raise UserError(f"k = {k}", path="--k", why=why, fix=f"--samples {max(k, 1)}, or a smaller k")
    if len(set(ks)) < len(ks):
        raise UserError("a k is named twice", path="--k", fix="name it once")
    return ks


def at_k(
    per_task: Mapping[str, Sequence[float]],
    answers: Answers | None,
    ks: Sequence[int],
    samples: int,
    *,
    seed: int = 0,
) -> dict[str, AtK]:
    """avg@n, and pass@k and majority@k of each k, by name, each with an interval over tasks.

    Args:
        per_task: success of each finished sample, from 0 to 1.
        answers: as many for each task; None: nothing can be voted on, and there is no majority@k.
        samples: n, samples that were asked for.
        seed: of the intervals.
    """
    rows = {f"avg@{samples}": AtK(f"avg@{samples}", clustered_bootstrap(per_task, seed=seed, share=True))}
    for k in ks:
        enough = {task: values for task, values in per_task.items() if len(values) >= k}
        best = {task: [best_at_k(values, k)] for task, values in enough.items()}
        rows[f"pass@{k}"] = _row(f"pass@{k}", best, len(per_task), seed)
    answers = answers or {}
    for k in ks if any(answer is not None for each in answers.values() for answer in each) else ():
        vote = {
            task: [majority_at_k(answers[task], values, k)]
            for task, values in per_task.items()
            if len(values) >= k
        }
        rows[f"majority@{k}"] = _row(f"majority@{k}", vote, len(per_task), seed)
    return rows


def _row(name: str, values: Mapping[str, Sequence[float]], tasks: int, seed: int) -> AtK:
    return AtK(name, clustered_bootstrap(values, seed=seed, share=True), tasks - len(values))
