"""REINFORCE: the policy gradient with rewards to go (Williams, 1992)."""

from __future__ import annotations

from coterie.plugins.algos.blocks.estimator import GroupEstimator, RowConfig


class Reinforce(GroupEstimator):
    """A_t = sum of gamma^k r_{t+k}: the return to go, with no baseline.

    Unbiased and noisy: an advantage has the sign of the return, so where all rewards are positive every
    sampled action is reinforced, the better ones more. `normalise: {type: whiten, scope: global}` subtracts
    the step's mean. The return to go leaves out earlier rewards, so a role that acts last gets no credit for
    what the others had earned before.
    """

    Config = RowConfig
    group = "batch"
    returns = "to_go"
    paper_loss = "reinforce, sequence_sum"
    baseline = "none"
