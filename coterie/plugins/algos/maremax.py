"""MAReMax: MAGRPO with the best candidate as baseline (CoMLRL)."""

from __future__ import annotations

from coterie.plugins.algos.magrpo import MAGRPO


class MAReMax(MAGRPO):
    """A_g = R_g - max over the node's candidates.

    Biased: the baseline contains the action's own return, so no advantage is positive, the best candidate
    gets none, and learning is by pushing the others down. It is not ReMax (arXiv 2310.10505), whose
    baseline is the return of a *greedy* rollout, which doesn't depend on the sampled actions. With a
    normaliser that re-centres it is MAGRPO (and a warning says so).
    """

    baseline = "max"
