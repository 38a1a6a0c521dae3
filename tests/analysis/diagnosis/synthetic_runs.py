"""Synthetic runs, healthy and with a planted sickness: rows of `metrics.jsonl` and of rollouts, with noise.

Lengths go from 10 to 500 steps, log-uniformly. Success is counted over a step's episodes: its noise is
binomial; other metrics have log-normal noise that neighbouring steps share in part. Some runs lose rows, some
play steps ahead, some record no rollouts, and a healthy one may sharpen, write longer answers, or drift in
mismatch as real runs do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.api.episodes import RecordedTree, trees_of

KINDS = ("entropy_collapse", "length_hacking", "stale_weights")
ROLES = ("writer", "critic")


@dataclass
class SyntheticRun:
    """A run as a diagnosis reads it."""

    rows: list[dict[str, Any]]
    settings: dict[str, Any]
    rollouts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Rollout rows by recorded step."""
    onset: int = 0
    """The step from which on it is sick; 0: it is healthy."""

    @property
    def trees(self) -> dict[int, list[RecordedTree]]:
        return {step: trees_of(rows, step) for step, rows in self.rollouts.items()}


class _Noise:
    """Log-normal noise around 1, half of which the next step keeps."""

    def __init__(self, rng: np.random.Generator, size: float) -> None:
        self.rng, self.size, self.kept = rng, size, 0.0

    def __call__(self) -> float:
        self.kept = 0.5 * self.kept + self.rng.normal(0, self.size)
        return math.exp(self.kept)


def make(kind: str | None, seed: int) -> SyntheticRun:
    """A run with a planted sickness, or a healthy one.

    Args:
        kind: one of `KINDS`; None: healthy.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind) + 1 if kind else 0])
    n = round(math.exp(rng.uniform(math.log(10), math.log(500))))
    plan = _Plan(rng, n, kind)
    rows = [plan.row(step) for step in range(1, n + 1)]
    if rng.random() < 0.4:  # of a damaged disk
        kept = rng.random(n) > 0.06
        rows = [row for row, stays in zip(rows, kept, strict=True) if stays or row["step"] in (1, n)]
    recorded = plan.recorded()
    settings = {
        "team": {"roles": {role: {"policy": plan.policy[role]} for role in ROLES}},
        "policies": {policy: {"train": "lora"} for policy in plan.policies},
        "schedule": {"max_staleness": plan.ahead},
    }
    rollouts = {step: list(plan.rollout_rows(step)) for step in recorded}
    return SyntheticRun(rows, settings, rollouts, plan.onset if kind else 0)


class _Plan:
    """How a run goes: every curve, and what is wrong with it."""

    def __init__(self, rng: np.random.Generator, n: int, kind: str | None) -> None:
        self.rng, self.n, self.kind = rng, n, kind
        self.onset = max(2, round(n * rng.uniform(0.1, 0.5)))
        self.policies = ("shared",) if rng.random() < 0.6 else ROLES
        self.policy = {role: self.policies[min(at, len(self.policies) - 1)] for at, role in enumerate(ROLES)}
        self.episodes = int(rng.integers(16, 129))
        self.first, gain = rng.uniform(0.05, 0.5), rng.uniform(0.12, 0.45)
        self.last = min(self.first + gain, 0.97)
        self.entropy, self.sharpens = rng.uniform(0.25, 1.5), rng.uniform(0.15, 1.05)
        self.low = rng.uniform(0.004, 0.05)
        self.speed = rng.uniform(0.02, 0.12) * n
        self.tokens = {role: rng.uniform(30, 400) for role in ROLES}
        self.grows = {role: rng.uniform(0.6, 2.5) for role in ROLES}
        self.hacked, self.hack = ROLES[int(rng.integers(2))], rng.uniform(1.9, 5.0)
        self.floor = 2e-7 if rng.random() < 0.3 else rng.uniform(0.004, 0.03)
        self.drift = rng.uniform(0.8, 2.0)
        self.stale_to = rng.uniform(0.08, 0.5)
        self.ahead = 0 if rng.random() < 0.6 else int(rng.integers(1, 3))
        # Either the engine says which weights it has, or a broken one claims to have the newest.
        self.claims = bool(rng.random() < 0.5)
        self.rollouts = rng.random() < 0.7 or (kind == "stale_weights" and not self.claims)
        self.falls = rng.uniform(0.0, 0.5)
        self.evaluate_every = int(rng.integers(2, 12))
        # Without success and without rollouts nobody can tell a longer answer from a better one.
        self.has_success = bool(rng.random() < 0.8) or not self.rollouts
        self.noise = {
            name: _Noise(rng, size)
            for name, size in {"entropy": 0.08, "length": 0.06, "mismatch": 0.2, "grad": 0.35, "clip": 0.4,
                               "kl": 0.5, "reward": 0.05}.items()
        }  # fmt: skip
        self.version = 0
        self.versions: dict[int, int] = {}

    def since(self, step: int) -> float:
        """How far the sickness has gone, from 0 to 1."""
        return 0.0 if step < self.onset else 1.0 - math.exp(-(step - self.onset + 1) / max(self.speed, 1.0))

    def success(self, step: int) -> float:
        def healthy(at: float) -> float:
            share = 1 / (1 + math.exp(-8 * (at / self.n - 0.4)))
            return self.first + (self.last - self.first) * share

        if self.kind is None or step < self.onset:
            return healthy(step)
        held = healthy(self.onset)
        return held * (1 - self.falls * (step - self.onset) / self.n)

    def length(self, role: str, step: int) -> float:
        grown = self.tokens[role] * (1 + (self.grows[role] - 1) * step / self.n)
        if self.kind == "length_hacking" and role == self.hacked:
            grown = self.tokens[role] * (1 + (self.hack - 1) * self.since(step))
        return grown

    def row(self, step: int) -> dict[str, Any]:
        rng, noise, ill = self.rng, self.noise, self.since(step)
        p = self.success(step)
        row: dict[str, Any] = {
            "step": step,
            "missing/share": float(rng.random() < 0.1) * rng.uniform(0, 0.03),
        }
        if self.has_success:
            row["success"] = rng.binomial(self.episodes, p) / self.episodes
        if step % self.evaluate_every == 0:
            row["eval/success"] = rng.binomial(100, p) / 100
        flat = min(1.0, p**4 + (1 - p) ** 4 + rng.normal(0, 0.05))
        if self.kind == "entropy_collapse":
            flat = max(flat, 0.9 * ill + rng.normal(0, 0.04))
        for role in ROLES:
            length = self.length(role, step) * noise["length"]()
            paid = 0.5 * (length / self.tokens[role] - 1) if self._hacks(role) else 0.0
            shaping = rng.normal(0, 0.3 / math.sqrt(self.episodes))
            row |= {
                f"reward/{role}": p * noise["reward"]() + paid + shaping, f"length/{role}": length,
                f"finish_length/{role}": abs(rng.normal(0, 0.03)), f"empty/{role}": abs(rng.normal(0, 0.01)),
                f"faults/{role}/policy": min(1.0, 0.3 * math.exp(-step / 20) + abs(rng.normal(0, 0.02))),
                f"groups/{role}/zero_variance": min(max(flat, 0.0), 1.0), f"groups/{role}/too_small": 0.0,
                f"advantage/{role}/abs": abs(rng.normal(0.4, 0.05)),
            }  # fmt: skip
        trained = rng.random() > 0.03
        for policy in self.policies:
            row |= {f"policy/{policy}/{name}": value for name, value in self._update(step, trained).items()}
        row["episodes/missing"] = row["missing/share"]
        self.versions[step] = self._drawn_by(step)
        self.version += trained
        return row

    def _hacks(self, role: str) -> bool:
        return self.kind == "length_hacking" and role == self.hacked

    def _drawn_by(self, step: int) -> int:
        """The version of the weights that play a step."""
        if self.kind == "stale_weights" and not self.claims and step >= self.onset:
            return self.versions[self.onset - 1]
        return max(0, self.version - int(self.rng.integers(0, self.ahead + 1)))

    def _update(self, step: int, trained: bool) -> dict[str, Any]:
        rng, noise, ill = self.rng, self.noise, self.since(step)
        entropy = self.entropy * (1 + (self.sharpens - 1) * step / self.n)
        if self.kind == "entropy_collapse":
            low = min(self.low, 0.06 * self.entropy)
            entropy = entropy ** (1 - ill) * low**ill
        mismatch = self.floor * (1 + (self.drift - 1) * step / self.n)
        if self.kind == "stale_weights" and step >= self.onset:
            mismatch += self.stale_to * ((step - self.onset + 1) / (self.n - self.onset + 1)) ** 0.7
        spike = 8.0 if rng.random() < 0.02 else 1.0
        return {
            "entropy": entropy * noise["entropy"](), "mismatch": mismatch * noise["mismatch"](),
            "grad_norm": 0.4 * (1 + 3 * step / self.n) * noise["grad"]() * spike,
            "clip_fraction": min(1.0, 0.02 * noise["clip"]()), "approx_kl": 0.002 * noise["kl"](),
            "optimizer_steps": 2.0 * trained, "skipped_steps": 0.0, "samples": 64.0 * trained,
        }  # fmt: skip

    def recorded(self) -> list[int]:
        """The steps whose rollouts are there: at most 12."""
        every = max(1, math.ceil(self.n / 12))
        return list(range(every, self.n + 1, every)) if self.rollouts else []

    def rollout_rows(self, step: int) -> Iterator[dict[str, Any]]:
        """Four tasks, both roles at once, four branches each."""
        for task in range(4):
            place = {"task_id": f"t{task}", "epoch": 0, "chain": 0, "node": f"t{task}/e0/c0/{step}"}
            for role in ROLES:
                yield {"kind": "node", **place, "turn": 0, "stage": 0, "role": role, "prompt": "p"}
                for branch in range(4):
                    yield {"kind": "branch", **place, "branch": branch, **self._branch(role, step)}

    def _branch(self, role: str, step: int) -> dict[str, Any]:
        length = max(1, round(self.length(role, step) * math.exp(self.rng.normal(0, 0.25))))
        reward = float(self.rng.random() < self.success(step))
        if self._hacks(role):
            reward = 0.3 * reward + 1.2 * length / self.tokens[role] + self.rng.normal(0, 0.1)
        return {
            "role": role, "policy": self.policy[role], "version": self.versions[step], "completion": "words",
            "calls": [{"token_ids": [1] * length, "finish": "stop"}], "fault": None, "reward": reward,
            "scores": {}, "advantage": reward,
        }  # fmt: skip
