"""MAREINFORCE: MAGRPO's tree without a baseline (CoMLRL)."""

from __future__ import annotations

from coterie.plugins.algos.magrpo import MAGRPO


class MAREINFORCE(MAGRPO):
    """A_g = R_g, the return itself: unbiased and noisy, for every candidate of a paying game is reinforced.

    With a normaliser that re-centres it is MAGRPO (and a warning says so); K = 1 is allowed, since nothing is
    compared.
    """

    baseline = "none"
