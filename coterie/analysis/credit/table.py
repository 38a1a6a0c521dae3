"""Credit by role and turn, read off recorded actions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coterie.analysis.credit.actions import CreditedAction, grouped_by
from coterie.analysis.credit.component_returns import Component, ReturnKind, differ
from coterie.analysis.credit.free_riders import own_share
from coterie.core.types import TEAM


@dataclass(frozen=True, slots=True)
class ComponentCredit:
    """What one component adds to the values of a role's actions in a turn."""

    owner: str
    """A role, or `team`."""
    component: str
    weight: float
    scores: int
    """Actions that it was scored for, those without a number included."""
    mean: float | None
    """Of the scores as they are, without the weight; None: none has a number."""
    missing: float
    """Share of the scores without a number."""
    share: float | None
    """Its part in the variance of values between siblings: cov(part, value) / var(value). Parts add up to 1;
    one is negative where it works against the others. None: siblings don't differ, or the weight is 0."""

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.component}"


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """What a role was credited with in a turn, over all recorded actions."""

    role: str
    turn: int
    """From 0."""
    policy: str
    actions: int
    """Those that the system lost are left out."""
    trained: int
    """Actions with an advantage."""
    mean: float | None
    """Mean advantage, of one per token the mean over its tokens; None: nothing is trained."""
    spread: float | None
    """Standard deviation of the advantages."""
    positive: float | None
    """Share of the trained actions with an advantage above 0."""
    groups: int
    """Groups of two siblings or more with known values: branches of one prompt, else a task's chains."""
    flat: int
    """Groups whose values are all equal, so that nothing is compared."""
    alone: int
    """Groups with one known value or none."""
    tokens: int
    """Sampled tokens of trained actions."""
    gradient: float | None
    """Share of its policy's gradient tokens: those with an advantage other than 0, each with its part of the
    loss's denominator. None: the policy has none."""
    own_share: float | None = None
    """Share of the values' variance that goes with the answers of this turn (`free_riders.py`)."""
    components: tuple[ComponentCredit, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "turn": self.turn,
            "policy": self.policy,
            "actions": self.actions,
            "trained": self.trained,
            "advantage": {"mean": self.mean, "spread": self.spread, "positive": self.positive},
            "groups": {"compared": self.groups, "flat": self.flat, "alone": self.alone},
            "tokens": self.tokens,
            "gradient_share": self.gradient,
            "own_share": self.own_share,
            "components": [asdict(component) for component in self.components],
        }


def turn_credits(
    actions: Sequence[CreditedAction],
    kind: ReturnKind,
    weights: dict[Component, float],
    length: str = "token_mean",
) -> list[TurnCredit]:
    """One entry for each role and turn, roles in the order in which they first acted.

    Args:
        weights: of each component in rewards, by owner; 0: it doesn't count.
        length: how the loss sums its tokens (`loss.length`).
    """
    roles = list(grouped_by(actions, lambda action: action.role))
    cells = grouped_by(actions, lambda action: (action.role, action.turn))
    masses = _gradient_masses(actions, length)
    of_policy: dict[str, float] = {}
    for action in actions:
        of_policy[action.policy] = of_policy.get(action.policy, 0.0) + masses[id(action)]
    return [
        _turn(role, turn, cells[role, turn], kind, weights, masses, of_policy)
        for role, turn in sorted(cells, key=lambda place: (roles.index(place[0]), place[1]))
    ]


def _gradient_masses(actions: Iterable[CreditedAction], length: str) -> dict[int, float]:
    """By `id` of an action: the sum of its tokens' coefficients whose advantage is not 0.

    As `coterie.token_coefficients`, with all samples of a policy and step as one optimiser step's.
    """
    masses: dict[int, float] = {}
    for of_update in grouped_by(actions, lambda action: (action.step, action.policy)).values():
        trained = [a for a in of_update if a.advantage is not None and a.tokens]
        by_token = length == "token_mean"
        denominator = math.fsum(a.weight * (a.tokens if by_token else 1) for a in trained)
        for action in of_update:
            per = max(action.tokens, 1) if length == "sequence_mean" else 1
            mass = action.weight * action.credited / per
            masses[id(action)] = mass / denominator if denominator else 0.0
    return masses


def _turn(
    role: str,
    turn: int,
    actions: Sequence[CreditedAction],
    kind: ReturnKind,
    weights: dict[Component, float],
    masses: dict[int, float],
    of_policy: dict[str, float],
) -> TurnCredit:
    trained = [action for action in actions if action.advantage is not None]
    advantages = np.array([action.advantage for action in trained], dtype=np.float64)
    groups = [*grouped_by(actions, lambda action: action.siblings).values()]
    values = [[v for a in group if (v := a.value(kind)) is not None] for group in groups]
    compared = [group for group in values if len(group) > 1]
    policy = actions[0].policy
    mass = math.fsum(masses[id(action)] for action in actions)
    return TurnCredit(
        role=role,
        turn=turn,
        policy=policy,
        actions=len(actions),
        trained=len(trained),
        mean=float(advantages.mean()) if trained else None,
        spread=float(advantages.std()) if trained else None,
        positive=float((advantages > 0).mean()) if trained else None,
        groups=len(compared),
        flat=sum(not differ(group) for group in compared),
        alone=len(groups) - len(compared),
        tokens=sum(action.tokens for action in trained),
        gradient=mass / of_policy[policy] if of_policy[policy] else None,
        own_share=own_share(actions, kind)[0],
        components=_components(actions, groups, kind, weights),
    )


def _components(
    actions: Sequence[CreditedAction],
    groups: Sequence[Sequence[CreditedAction]],
    kind: ReturnKind,
    weights: dict[Component, float],
) -> tuple[ComponentCredit, ...]:
    """Of every component that was scored for an action, or that adds to its value."""
    shares = _variance_shares(groups, kind)
    names = dict.fromkeys(name for action in actions for name in action.scores)
    names |= dict.fromkeys(shares)
    result = []
    for owner, component in names:
        scores = [a.scores[owner, component] for a in actions if (owner, component) in a.scores]
        known = [score for score in scores if score is not None]
        result.append(
            ComponentCredit(
                owner=owner,
                component=component,
                weight=weights.get((owner, component), 0.0 if owner not in (TEAM, actions[0].role) else 1.0),
                scores=len(scores),
                mean=math.fsum(known) / len(known) if known else None,
                missing=1 - len(known) / len(scores) if scores else 0.0,
                share=shares.get((owner, component)),
            )
        )
    return tuple(result)


def _variance_shares(groups: Sequence[Sequence[CreditedAction]], kind: ReturnKind) -> dict[Component, float]:
    """By component, cov(part, value) / var(value) within groups of siblings; empty: values don't differ."""
    covariances: dict[Component, list[float]] = {}
    variance: list[float] = []
    for group in groups:
        parts = [action.returns[kind] for action in group if not action.returns[kind].missing]
        values = np.array([part.value for part in parts], dtype=np.float64)
        if len(values) < 2 or not differ(values.tolist()):
            continue
        centred = values - values.mean()
        variance.append(float((centred**2).sum()))
        for name in dict.fromkeys(name for part in parts for name in part.by_component):
            of_part = np.array([part.by_component.get(name, 0.0) for part in parts])
            covariances.setdefault(name, []).append(float((centred * of_part).sum()))
    total = math.fsum(variance)
    return {name: math.fsum(several) / total for name, several in covariances.items()} if total else {}
