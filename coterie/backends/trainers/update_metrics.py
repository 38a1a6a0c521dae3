"""The metrics of one update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.backends.trainers.optim import StepInfo
from coterie.backends.trainers.surrogates import BY_AGE
from coterie.backends.trainers.value_head import explained_variance
from coterie.core.protocols import TokenBatch
from coterie.core.types import Metrics, Sample

_WIDEST = 20.0
"""Log-ratios are clamped to this absolute value before they are exponentiated, as in the losses."""

Share = tuple[dict[str, tuple[float, int]], float | None]
"""One rank's sums and counts by metric, and its largest mismatch."""


def drawn_by(rows: Sequence[Sample]) -> np.ndarray:
    """The version that drew each sampled token, row after row: shape (N,)."""
    runs = [run for row in rows for run in row.version_runs or ((row.version, int(row.loss_mask.sum())),)]
    versions, tokens = zip(*runs, strict=True)
    return np.repeat(np.array(versions), tokens)


class Meter:
    """The sums of an update's metrics: token means of the loss's metrics, optimiser-step means of the rest.

    Args:
        samples: all samples of the update.
        version: the policy's version before the update.
    """

    def __init__(self, samples: Sequence[Sample], version: int) -> None:
        self.steps = self.skipped = 0
        self._version = version
        self._counted: Metrics = {
            "samples": float(len(samples)),
            "tokens": float(sum(int(sample.loss_mask.sum()) for sample in samples)),
        }
        stale = sum(sample.version != version for sample in samples)
        if stale:
            self._counted["stale_samples"] = float(stale)
        self._aged = any(sample.version < version for sample in samples)
        explained = explained_variance(samples)
        if explained is not None:
            self._counted["explained_variance"] = explained
        self._sums: dict[str, tuple[Tensor, int]] = {}
        """Sum and count of numbers by metric."""
        self._worst: Tensor | None = None
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._rate = math.nan

    def mark(self) -> Callable[[], None]:
        """The sums so far; a call of the result goes back to them."""
        sums, worst = dict(self._sums), self._worst

        def back() -> None:
            self._sums, self._worst = dict(sums), worst

        return back

    def seen(self, values: Mapping[str, Tensor]) -> None:
        """Add per-token quantities of one micro-batch, each of shape (N,)."""
        for name, value in values.items():
            self._add(name, value.detach().double().sum(), len(value))

    def _add(self, name: str, total: Tensor, count: int) -> None:
        before, counted = self._sums.get(name, (None, 0))
        self._sums[name] = total if before is None else before + total, counted + count

    def by_age(self, rows: Sequence[Sample], values: Mapping[str, Tensor]) -> None:
        """Add per-token quantities of a micro-batch, tokens of each age apart: `<name>/staleness/<updates>`.

        Nothing is added where all of the update's tokens are of the present version.
        """
        if not self._aged or not values:
            return
        ages = self._version - drawn_by(rows)
        for age in np.unique(ages).tolist():
            at = torch.from_numpy(np.flatnonzero(ages == age))
            self.seen({f"{name}{BY_AGE}{age}": value[at.to(value.device)] for name, value in values.items()})

    def compared(self, rows: Sequence[Sample], tokens: TokenBatch) -> None:
        """Add the difference between engine and trainer, from a micro-batch of the first optimiser step.

        The weights of that step are the ones that sampled, so its log-probs should equal the behaviour
        log-probs, and no other forward is needed. Tokens of other versions are left out, since their
        difference is staleness: `by_age` has them. (A LoRA adapter's dropout counts as a mismatch.)
        """
        if self._losses:
            return
        difference = (tokens.logprobs.detach() - tokens.behaviour).double()
        self.by_age(rows, {"mismatch": difference.abs()})
        fresh = np.array([row.version == self._version for row in rows])
        if not fresh.any():
            return
        if not fresh.all():
            trained_by_this_version = np.repeat(fresh, [int(row.loss_mask.sum()) for row in rows])
            difference = difference[torch.from_numpy(trained_by_this_version).to(difference.device)]
        bounded = difference.clamp(-_WIDEST, _WIDEST)
        self.seen({"mismatch": difference.abs(), "mismatch_kl": bounded.exp() - 1.0 - bounded})
        worst = difference.abs().max()
        self._worst = worst if self._worst is None else torch.maximum(self._worst, worst)

    def stepped(self, loss: float, step_info: StepInfo) -> None:
        self._losses.append(loss)
        self._rate = step_info.learning_rate
        if step_info.skipped:
            self.skipped += 1
        else:
            self.steps += 1
            self._norms.append(step_info.norm)

    def share(self) -> Share:
        """The sums over this rank's tokens."""
        sums = {name: (float(total), count) for name, (total, count) in self._sums.items()}
        return sums, None if self._worst is None else float(self._worst)

    def combine(self, shares: Sequence[Share]) -> None:
        """Replace the sums by those over the tokens of all ranks."""
        self._sums = {}
        for sums, _ in shares:
            for name, (total, count) in sums.items():
                self._add(name, torch.tensor(total, dtype=torch.float64), count)
        worst = [largest for _, largest in shares if largest is not None]
        self._worst = torch.tensor(max(worst), dtype=torch.float64) if worst else None

    def metrics(self) -> Metrics:
        metrics = {
            **self._counted,
            "optimizer_steps": float(self.steps),
            "skipped_steps": float(self.skipped),
        }
        metrics.update({name: float(total) / count for name, (total, count) in self._sums.items()})
        if self._worst is not None:
            metrics["mismatch_max"] = float(self._worst)
        if self._losses:
            metrics["loss"] = sum(self._losses) / len(self._losses)
            metrics["learning_rate"] = self._rate
        if self._norms:
            metrics["grad_norm"] = sum(self._norms) / len(self._norms)
        return metrics
