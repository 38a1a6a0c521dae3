"""RLOO: REINFORCE with a leave-one-out baseline (arXiv 2402.14740)."""

from __future__ import annotations

from coterie.plugins.algos.blocks.estimator import GroupEstimator, RowConfig


class RLOO(GroupEstimator):
    """A_i = R_i - mean of the other chains' returns, for the k chains of a task.

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
