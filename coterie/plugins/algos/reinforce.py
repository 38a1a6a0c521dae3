"""REINFORCE: the policy gradient with rewards to go (Williams, 1992)."""

from __future__ import annotations

from pydantic import Field

from coterie.plugins.algos.blocks.estimator import GroupEstimator, SumConfig
from coterie.plugins.algos.blocks.groups import Normaliser


class Reinforce(GroupEstimator):
    """A_t = sum of gamma^k r_{t+k}: what came after the action, with no baseline.

    Unbiased, and noisy: the sign of an advantage is that of the reward, so where all rewards are positive
    every sampled action is reinforced, the better ones more. `normalise: {type: whiten, scope: global}`
    compares with the step's mean. What came before an action is not in its return, so a role that acts last
    is not credited for what the others had earned by then.
    """

    class Config(SumConfig):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(type="none"))

    group = "batch"
    returns = "to_go"
    baseline = "none"
