"""The part of `check_trainer` for each update: what it returns, and the versions after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from numbers import Integral
from typing import Any

from coterie.core.errors import PluginError, did_you_mean, type_text
from coterie.core.rollout.contracts import check_weights
from coterie.core.types import Sample, Weights
from coterie.discovery.members import CountsOptimizerSteps
from coterie.testing.support.failure import ConformanceError, awaited, finite, guarded, require
from coterie.testing.support.values import unchanged

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
