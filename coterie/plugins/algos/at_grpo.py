"""AT-GRPO: agent- and turn-wise group-relative policy optimisation (arXiv 2510.11062, Algorithm 1)."""

from __future__ import annotations

from pydantic import Field

from coterie.plugins.algos.blocks.estimator import GroupConfig, GroupEstimator
from coterie.plugins.algos.blocks.groups import Normaliser


class ATGRPO(GroupEstimator):
    """The K branches of one decision share a baseline.

    For environment e, agent i and turn t, K candidates are sampled from one prompt and rewarded with
    r = alpha * r_team + r_local, at once and without a look at the future; A = (r - mean) / F_norm over
    those K (the paper's code: standard deviation with ddof 1, + 1e-6; equal rewards give 0). The best one
    goes on.

    Why sample a tree: with parallel trajectories every prompt after the first turn is unique, so its group
    would have size one. What it costs: T * N * K generations, linear. When it degenerates: with K = 1 there
    is no baseline (refused); with one agent and one turn it is GRPO; and since credit is immediate, a
    reward that comes only turns later is invisible to it.
    """

    class Config(GroupConfig):
        normalise: Normaliser = Field(default_factory=Normaliser)

    group = "decision"
    returns = "immediate"
