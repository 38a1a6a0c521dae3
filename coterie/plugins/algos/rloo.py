"""RLOO: REINFORCE with a leave-one-out baseline (arXiv 2402.14740)."""

from __future__ import annotations

from pydantic import Field

from coterie.plugins.algos.blocks.estimator import GroupEstimator, SumConfig
from coterie.plugins.algos.blocks.groups import Normaliser


class RLOO(GroupEstimator):
    """A_i = R_i - mean of the other chains' returns, for the k chains of a task.

    The baseline doesn't contain the chain's own return, so the gradient is unbiased at any k; it is k/(k-1)
    times Dr. GRPO's advantage, and under a normaliser that re-centres it is GRPO's. When it degenerates: with
    k = 1 nothing is left out of (refused). An idle role is moved by what the others did, as in GRPO.
    """

    class Config(SumConfig):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(type="none"))

    group = "task"
    returns = "episode"
    baseline = "loo"
