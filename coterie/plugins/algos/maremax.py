"""MAReMax: MAGRPO with the best candidate as baseline (CoMLRL)."""

from __future__ import annotations

from coterie.plugins.algos.magrpo import MAGRPO


class MAReMax(MAGRPO):
    """A_g = R_g - max over the node's candidates.

    Biased, since the baseline contains the action's own return: no advantage is positive, the best
    candidate's is 0, and the policy learns only from the negative advantages of the others. It is not ReMax
    (arXiv 2310.10505), whose baseline is the return of a *greedy* rollout and doesn't depend on the sampled
    actions. With a normaliser that re-centres it is MAGRPO (and logs a warning).
    """

    baseline = "max"
