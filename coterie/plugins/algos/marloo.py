"""MARLOO: MAGRPO with a leave-one-out baseline (CoMLRL; RLOO is arXiv 2402.14740)."""

from __future__ import annotations

from coterie.plugins.algos.magrpo import MAGRPO


class MARLOO(MAGRPO):
    """A_g = R_g - mean of the other candidates' returns: K/(K-1) times MAGRPO's, which makes it unbiased.

    With a normaliser that re-centres it is MAGRPO (and logs a warning).
    """

    baseline = "loo"
