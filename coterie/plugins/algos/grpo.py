"""GRPO: group-relative policy optimisation (DeepSeekMath, arXiv 2402.03300, equation 3); Dr. GRPO."""

from __future__ import annotations

from pydantic import Field

from coterie.plugins.algos.blocks.estimator import GroupEstimator, SumConfig
from coterie.plugins.algos.blocks.groups import Normaliser


class GRPO(GroupEstimator):
    """The G chains of one task share a baseline, one value per (chain, role): the episode's return.

    A = (R - mean) / (std + eps) over the group, the same for every action of the chain. With several agents
    each role is compared with itself in the other chains. When it degenerates: with G = 1 there is no
    baseline (refused); a group of equally good chains teaches nothing; credit inside a chain is not divided,
    so the actions of the other roles change an idle role's policy too.
    """

    class Config(SumConfig):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(eps=1e-4))

    group = "task"
    returns = "episode"
    paper_loss = "ppo_clip, sequence_mean, kl"


class DrGRPO(GRPO):
    """A = R - mean: GRPO's advantage, not divided by the group's deviation (arXiv 2503.20783).

    GRPO's division gives the largest weight to tasks whose chains are nearly equal, that is, too easy or too
    hard. The paper's other correction concerns the loss: a sum over tokens divided by a *constant*
    (`loss.length: constant`), since a mean over a sequence's own length makes long wrong answers cheap. When
    it degenerates: as GRPO does. K/(K-1) times its advantage is RLOO's.
    """

    paper_loss = "ppo_clip, constant"

    class Config(GRPO.Config):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(type="none"))
