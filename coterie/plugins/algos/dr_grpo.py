"""Dr. GRPO: GRPO without its two biases (arXiv 2503.20783)."""

from __future__ import annotations

from pydantic import Field

from coterie.plugins.algos.blocks.groups import Normaliser
from coterie.plugins.algos.grpo import GRPO


class DrGRPO(GRPO):
    """A = R - mean: GRPO's advantage, not divided by the group's deviation.

    GRPO's division gives the largest weight to tasks whose chains are nearly equal, that is, too easy or too
    hard. The paper's other correction concerns the loss: a sum over tokens divided by a *constant*
    (`loss.length: constant`), since a mean over a sequence's own length makes long wrong answers cheap. When
    it degenerates: as GRPO does. K/(K-1) times its advantage is RLOO's.
    """

    paper_loss = "ppo_clip, constant"

    class Config(GRPO.Config):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(type="none"))
