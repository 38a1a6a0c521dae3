"""Dr. GRPO: GRPO without its two biases (arXiv 2503.20783)."""

from __future__ import annotations

from pydantic import Field

from coterie.plugins.algos.blocks.groups import Normaliser
from coterie.plugins.algos.grpo import GRPO


class DrGRPO(GRPO):
    """A = R - mean: GRPO's advantage, not divided by the group's deviation.

    The division weighs a task by how nearly equal its chains are: the too easy and the too hard count most.
    The paper's other correction is the loss's: a sum over tokens divided by a *constant* (`loss.length:
    constant`), since a mean over a sequence's own length makes long wrong answers cheap. When it degenerates:
    as GRPO does; with K/(K-1) before it, it is RLOO.
    """

    class Config(GRPO.Config):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(type="none"))
