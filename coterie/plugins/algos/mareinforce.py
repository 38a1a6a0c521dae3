"""MAREINFORCE: MAGRPO's tree without a baseline (CoMLRL)."""

from __future__ import annotations

from coterie.plugins.algos.magrpo import MAGRPO


class MAREINFORCE(MAGRPO):
    """A_g = R_g, the return itself: unbiased and noisy, since every candidate with a positive return is
    reinforced.

    With a normaliser that re-centres it is MAGRPO (and logs a warning). K = 1 is allowed, since nothing is
    compared.
    """

    baseline = "none"
