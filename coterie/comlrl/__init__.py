"""Configurations of CoMLRL's training scripts (arXiv 2508.04652), read as recipes of ours."""

from coterie.comlrl.reading import Flags, read
from coterie.comlrl.translation import Translation, translate

__all__ = ["Flags", "Translation", "read", "translate"]
