"""Configurations of CoMLRL's training scripts (arXiv 2508.04652), read as recipes of ours."""

from coterie.api.comlrl.reading import Flags, read
from coterie.api.comlrl.translation import Translation, translate

__all__ = ["Flags", "Translation", "read", "translate"]
