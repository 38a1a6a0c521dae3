"""REINFORCE++-baseline: a group's mean first, the batch's deviation after (arXiv 2501.03262)."""

from __future__ import annotations

from pydantic import Field

from coterie.plugins.algos.blocks.estimator import GroupConfig, GroupEstimator
from coterie.plugins.algos.reinforce_pp import BatchNormaliser


class ReinforcePPBaseline(GroupEstimator):
    """A = (score - mean of the same task, role and turn) / the deviation of that over the batch.

    The group's mean takes out how hard the task is; the batch's deviation, unlike a group's, doesn't
    stretch a group of nearly equal scores, and a group of equal ones stays at 0. The KL leaves the reward
    for the loss, where it is k2 (`loss: {kl: 0.01, kl_form: k2}`): k1's gradient is zero in expectation
    there. When it degenerates: with one chain a task there is no baseline (refused); after turn 1 the
    members of a group have seen different things.
    """

    class Config(GroupConfig):
        normalise: BatchNormaliser = Field(default_factory=lambda: BatchNormaliser(type="scale"))

    group = "turn"
    returns = "immediate"
