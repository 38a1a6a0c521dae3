"""Simulated coaches: honest, one that favours a role, one that drifts.

PYTHONPATH=. python tests/api/coach_simulation.py  # what the bounds of the report were set on
"""

from __future__ import annotations

import math

import numpy as np

from coterie.api.coach_statistics import Effects, ScoredActions, effects

ROLES, ACTIONS, STEPS, CORRELATION, NOISE = 3, 16, 100, 0.3, 1.5
SETTING, JUDGING = range(100, 120), range(20)


def simulated(seed: int, favour: float = 0.0, drift: float = 0.0) -> ScoredActions:
    """Scores 10 x quality + N(0, 1.5), rounded and clipped to 0..10.

    Quality is uniform: Phi(z) of z = .3 * role + sqrt(1 - .09) * N(0, 1) with standardised roles.

    Args:
        favour: points that the last role is given.
        drift: points in 50 steps.
    """
    rng = np.random.default_rng(seed)
    step, action, role = (
        part.ravel()
        for part in np.meshgrid(np.arange(STEPS), np.arange(ACTIONS), np.arange(ROLES), indexing="ij")
    )
    standard = (role - role.mean()) / role.std()
    z = CORRELATION * standard + math.sqrt(1 - CORRELATION**2) * rng.normal(size=len(role))
    quality = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])
    score = 10 * quality + rng.normal(0, NOISE, len(role)) + favour * (role == ROLES - 1) + drift * step / 50
    task = np.array([f"{s}-{a}" for s, a in zip(step, action, strict=True)])
    kind = rng.integers(0, 2, STEPS * ACTIONS)[step * ACTIONS + action]
    return ScoredActions(
        score=np.clip(np.round(score), 0, 10),
        quality=quality,
        role=np.array(["a", "b", "c"])[role],
        kind=np.array(["x", "y"])[kind],
        step=step + 1,
        task=task,
    )


def alarms(result: Effects) -> tuple[tuple[str, ...], bool]:
    """The roles and task types that are called biased, and whether the coach drifts."""
    return (*result.biased_roles, *result.biased_kinds), result.drifts


if __name__ == "__main__":
    for name, settings in (("honest", {}), ("favours", {"favour": 1.0}), ("drifts", {"drift": 1.0})):
        results = [effects(simulated(seed, **settings)) for seed in SETTING]
        biases = [[e for e in (*r.roles.values(), *r.kinds.values())] for r in results]
        print(
            name,
            "bias", [round(f(max(abs(e.value) for e in row) for row in biases), 3) for f in (min, max)],
            "its t", round(max(abs(e.t) for row in biases for e in row), 2),
            "drift", [round(f(abs(r.drift.value) for r in results), 3) for f in (min, max)],
            "its t", [round(f(abs(r.drift.t) for r in results), 2) for f in (min, max)],
            "favoured", [round(f(r.roles["c"].value for r in results), 3) for f in (min, max)],
        )  # fmt: skip
