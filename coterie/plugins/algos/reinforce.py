"""REINFORCE: the policy gradient with rewards to go (Williams, 1992); RLOO: with a leave-one-out baseline."""

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


class RLOO(GroupEstimator):
    """A_i = R_i - mean of the other chains' returns, for the k chains of a task (arXiv 2402.14740).

    The baseline doesn't contain the chain's own return, so the gradient is unbiased at any k. The advantage
    is k/(k-1) times Dr. GRPO's; under a normaliser that re-centres it is GRPO's. When it degenerates: with k
    = 1 there are no other chains (refused). The actions of the other roles change an idle role's policy, as
    in GRPO.
    """

    Config = RowConfig
    group = "task"
    returns = "episode"
    paper_loss = "reinforce, sequence_sum"
    baseline = "loo"
