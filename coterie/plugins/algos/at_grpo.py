"""AT-GRPO: agent- and turn-wise group-relative policy optimisation (arXiv 2510.11062, Algorithm 1)."""

from __future__ import annotations

from pydantic import Field

from coterie.plugins.algos.blocks.estimator import GroupConfig, GroupEstimator
from coterie.plugins.algos.blocks.groups import Normaliser


class ATGRPO(GroupEstimator):
    """The K branches of one decision share a baseline.

    For environment e, agent i and turn t, K candidates are sampled from one prompt. Their reward is
    immediate, r = alpha * r_team + r_local, and A = (r - mean) / F_norm over the K candidates (the paper's
    code: standard deviation with ddof 1, + 1e-6; equal rewards give 0). Play continues from the best
    candidate.

    Why it samples a tree: with parallel trajectories every prompt after the first turn is unique, so its
    group would have size one. Cost: T * N * K generations, linear in each. When it degenerates: with K = 1
    there is no baseline (refused); with one agent and one turn it is GRPO; a reward that comes turns later
    gives no credit, since credit is immediate.
    """

    class Config(GroupConfig):
        normalise: Normaliser = Field(default_factory=Normaliser)

    group = "decision"
    returns = "immediate"
    paper_loss = "ppo_clip, token_mean (code) or sequence_mean (paper)"
