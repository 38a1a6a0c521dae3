"""The protocol of kind `sampler`, and how it describes its sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from coterie.core.types import Sampling, Task, Tree

if TYPE_CHECKING:
    from coterie.core.rollout.context import Play

    # Optional: calls_per_view: int, how often one `score` asks something outside (a judge, a coach):
    # `coterie plan` counts them.


@runtime_checkable
class Sampler(Protocol):
    """Grows trees."""

    @property
    def plan(self) -> Plan:
        """How it samples, for an estimator's `check`."""

    def sampling(self, role: str) -> Sampling:
        """How a role's tokens are drawn."""

    def for_evaluation(self, greedy: bool) -> Sampler:
        """The same, playing each task once as the policy would."""

    async def play(self, task: Task, epoch: int, chain: int, ctx: Play) -> Tree:
        """One tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How trees are sampled, as an estimator's `check` sees it."""

    chains: int
    branches: int
    expand: str
    pairing: str
    recombines: bool = False
    """Where roles act at once, one more joint is played: the best branch of each (`commit: per_role`)."""
