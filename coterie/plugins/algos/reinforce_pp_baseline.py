"""REINFORCE++-baseline: a group's mean first, the batch's deviation after (arXiv 2501.03262)."""

from __future__ import annotations

from pydantic import Field

from coterie.plugins.algos.blocks.estimator import GroupConfig, GroupEstimator
from coterie.plugins.algos.reinforce_pp import BatchNormaliser


class ReinforcePPBaseline(GroupEstimator):
    """A = (score - mean of the same task, role and turn) / the deviation of that over the batch.

    The group's mean removes the difficulty of the task. The batch's deviation, unlike a group's, doesn't
    stretch a group of nearly equal scores, and a group of equal scores stays at 0. The KL moves from the
    reward into the loss, in the form k2 (`loss: {kl: 0.01, kl_form: k2}`), since the gradient of k1 is zero
    in expectation there. When it degenerates: with one chain per task there is no baseline (refused); after
    turn 1 the prompts of a group differ.
    """

    class Config(GroupConfig):
        normalise: BatchNormaliser = Field(default_factory=lambda: BatchNormaliser(type="scale"))

    group = "turn"
    returns = "immediate"
    paper_loss = "ppo_clip, kl as k2"
