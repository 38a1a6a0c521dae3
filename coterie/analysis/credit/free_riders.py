"""Whether what a role earns depends on what it does, judged from recorded actions alone.

Two things are measured by role, over the prompts that it answered differently.

*Varying prompts*: those whose answers differ in value. A role whose prompts vary significantly more seldom
than a fifth as often as another role's is a free-rider: its siblings earn the same, whatever they do.

*Own share*: the share of a value's variance that goes with the answer itself, rather than with what others do
at once, what follows, or chance. Values are taken less the mean of their siblings, which removes the prompt,
its state and the step. Over all actions that answered the same prompt of a task, an analysis of variance with
the answers as its factor gives the sum of squares S_a (d_a degrees of freedom) of the answers, S_r (d_r) of
the rest, and m = S_r / d_r. The own share is (S_a - d_a m) / (S_a + S_r), whose expectation is 0 for a role
whose answers don't matter. Its standard error is m sqrt(2 (d_a + 2 l)) / (S_a + S_r), of a chi-squared
variable with d_a degrees of freedom and non-centrality l, the excess S_a / m - d_a or 0. A role is a
free-rider where the own share plus 1.645 standard errors is below a quarter of an equal share, 1 / roles.
Where no answer repeats, as in long texts, it is not known; `--check` plays the counterfactual instead.

A role that answers each prompt with the same text shows neither.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from coterie.analysis.credit.actions import CreditedAction, credited_actions, grouped_by, return_kind_of
from coterie.analysis.credit.component_returns import (
    Component,
    ReturnKind,
    Rules,
    ScoreRange,
    add_ranges,
    differ,
)
from coterie.api.episodes import RecordedTree
from coterie.stats import wilson

LEAST_PROMPTS = 20
"""Fewest prompts with different answers that are judged."""
SELDOM = 0.2
"""How often a free-rider's prompts vary at most, as a share of how often another role's do."""
OF_EQUAL_SHARE = 0.25
"""The own share of a free-rider at most, as a share of 1 / roles."""
MOST_ANSWERS = 512
"""Most actions of one prompt that are compared."""
ONE_SIDED = 1.645
"""Standard errors of a one-sided bound of 95 %."""


@dataclass(frozen=True, slots=True)
class OwnEffect:
    """How far a role's value depends on its answers."""

    role: str
    prompts: int
    """Prompts with different answers and known values."""
    varying: int
    """Those of them whose values differ."""
    compared: int
    """Degrees of freedom of the rest: how many actions repeat an answer, less the siblings' means."""
    share: float | None
    """The own share; None: no answer repeats, or values don't differ."""
    share_hi: float | None
    """Its one-sided upper bound of 95 %."""
    unscored: int = 0
    """Prompts with different answers of which fewer than two have a known value."""
    partner: str = ""
    """The role whose prompts vary most often; empty: there is no other."""
    partner_varying: float = math.nan
    """How often they do."""
    rides: str = ""
    """What shows that the role is a free-rider: `siblings` or `own share`; empty: nothing does."""

    @property
    def often(self) -> float:
        """Share of the prompts that vary; NaN without one."""
        return self.varying / self.prompts if self.prompts else math.nan

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompts": self.prompts,
            "varying": self.varying,
            "compared": self.compared,
            "own_share": self.share,
            "own_share_hi": self.share_hi,
            "free_rider": self.rides or None,
        }


def own_effects(actions: Sequence[CreditedAction], kind: ReturnKind) -> dict[str, OwnEffect]:
    """By role, in the order in which they first acted."""
    by_role = grouped_by(actions, lambda action: action.role)
    measured = {role: _measured(role, of, kind, len(by_role)) for role, of in by_role.items()}
    return {role: _compared(effect, measured) for role, effect in measured.items()}


def _measured(role: str, actions: Sequence[CreditedAction], kind: ReturnKind, roles: int) -> OwnEffect:
    """The effect without a comparison with other roles."""
    prompts = varying = unscored = 0
    for siblings in grouped_by(actions, lambda action: action.siblings_of_prompt).values():
        known = {action.text: value for action in siblings if (value := action.value(kind)) is not None}
        unscored += len(known) < 2 <= len({action.text for action in siblings})
        if len(known) > 1:
            prompts += 1
            varying += differ([v for a in siblings if (v := a.value(kind)) is not None])
    share, hi, rest = own_share(actions, kind)
    # Far below 0, which no share is, siblings depend on each other, as where all joint actions are expanded.
    small = hi is not None and abs(hi) < OF_EQUAL_SHARE / max(roles, 1)
    rides = "own share" if small and rest >= LEAST_PROMPTS and roles > 1 else ""
    return OwnEffect(role, prompts, varying, rest, share, hi, unscored, rides=rides)


def own_share(actions: Sequence[CreditedAction], kind: ReturnKind) -> tuple[float | None, float | None, int]:
    """The own share, its upper bound, and the degrees of freedom of the rest."""
    answers = rest = 0.0
    of_answers = of_rest = 0
    for same_prompt in grouped_by(actions, lambda action: action.prompt).values():
        repeated = _repeated(same_prompt[:MOST_ANSWERS], kind)
        if len(repeated) > 2:
            explained, left, rank, degrees = _variance(repeated)
            answers, rest = answers + explained, rest + left
            of_answers, of_rest = of_answers + rank, of_rest + degrees
    total = answers + rest
    if not of_rest or not of_answers or total <= 1e-12:
        return None, None, of_rest
    mean = rest / of_rest
    share = (answers - of_answers * mean) / total
    excess = max(answers / mean - of_answers, 0.0) if mean > 1e-12 * total else math.inf
    error = 0.0 if excess == math.inf else mean * math.sqrt(2 * (of_answers + 2 * excess)) / total
    return share, share + ONE_SIDED * error, of_rest


def _repeated(actions: Sequence[CreditedAction], kind: ReturnKind) -> list[tuple[Any, str, float]]:
    """(siblings, text, value) of the actions whose text occurs twice or more, with a sibling among them."""
    known = [(a.siblings_of_prompt, a.text, value) for a in actions if (value := a.value(kind)) is not None]
    texts = Counter(text for _, text, _ in known)
    known = [each for each in known if texts[each[1]] > 1]
    groups = Counter(group for group, _, _ in known)
    return [each for each in known if groups[each[0]] > 1]


def _variance(known: Sequence[tuple[Any, str, float]]) -> tuple[float, float, int, int]:
    """Sums of squares of the answers and of the rest within siblings, and their degrees of freedom."""
    groups = np.unique([str(group) for group, _, _ in known], return_inverse=True)[1]
    texts = np.unique([text for _, text, _ in known], return_inverse=True)[1]
    values = np.array([value for _, _, value in known], dtype=np.float64)
    factors = np.column_stack([values, np.eye(texts.max() + 1)[texts]])
    sums = np.zeros((groups.max() + 1, factors.shape[1]))
    np.add.at(sums, groups, factors)
    centred = factors - (sums / np.bincount(groups)[:, None])[groups]
    solution, _, rank, _ = np.linalg.lstsq(centred[:, 1:], centred[:, 0], rcond=None)
    left = float(((centred[:, 0] - centred[:, 1:] @ solution) ** 2).sum())
    explained = max(float((centred[:, 0] ** 2).sum()) - left, 0.0)
    return explained, left, int(rank), len(known) - int(groups.max()) - 1 - int(rank)


def _compared(effect: OwnEffect, measured: dict[str, OwnEffect]) -> OwnEffect:
    """The effect with the role whose prompts vary most often beside it."""
    others = [other for role, other in measured.items() if role != effect.role and other.prompts]
    if not others:
        return effect
    partner = max(others, key=lambda other: other.often)
    beside = replace(effect, partner=partner.role, partner_varying=partner.often)
    if effect.prompts >= LEAST_PROMPTS and partner.prompts >= LEAST_PROMPTS:
        hi = wilson(effect.often, effect.prompts)[1]
        if hi < SELDOM * wilson(partner.often, partner.prompts)[0]:
            return replace(beside, rides="siblings")
    return beside


# ---------------------------------------------------------------------------- as a diagnosis wants them


@dataclass(frozen=True, slots=True)
class CreditSickness:
    """What is wrong with the credit of a run."""

    kind: Literal["free_rider", "dead_component"]
    subject: str
    """The role, or the component as `owner.component`."""
    metric: str
    """What is compared with the threshold, in words."""
    value: float
    threshold: float
    since: int
    """The first of the steps that show it."""
    says: str


def sicknesses(
    trees: Mapping[int, Sequence[RecordedTree]], rules: Mapping[int, Rules] | None = None
) -> list[CreditSickness]:
    """The free-riders and the dead components of some recorded steps.

    Args:
        trees: by step.
        rules: by step, weights and kinds of components (`Rules.of` a row of kind `step`); None: weights of 1.
    """
    actions: list[CreditedAction] = []
    ranges: dict[Component, ScoreRange] = {}
    for step, of_step in trees.items():
        how = Rules({}) if rules is None else rules[step]
        actions += credited_actions(of_step, how)
        add_ranges(ranges, of_step, how)
    kind, _ = return_kind_of(actions)
    since = min(trees, default=0)
    effects = own_effects(actions, kind)
    riders = [_rider(effect, since, len(effects)) for effect in effects.values() if effect.rides]
    return riders + [_dead(component, since) for component in ranges.values() if component.dead]


def rider_text(effect: OwnEffect) -> str:
    """How it shows, in a sentence without its subject."""
    if effect.rides == "siblings":
        return (
            f"earns the same whatever it does: its answers differ in value at {effect.often:.0%} of "
            f"{effect.prompts} prompts, those of '{effect.partner}' at {effect.partner_varying:.0%}"
        )
    share, most = (f"{max(value or 0.0, 0.0):.0%}" for value in (effect.share, effect.share_hi))
    return (
        f"earns the same whatever it does: {share} of what its values vary goes with its answers (at most "
        f"{most}, over {effect.compared:,} repeated answers)"
    )


def _rider(effect: OwnEffect, since: int, roles: int) -> CreditSickness:
    if effect.rides == "siblings":
        metric, value = "share of its prompts whose answers differ in value", effect.often
        threshold = SELDOM * effect.partner_varying
    else:
        metric = "upper bound of the share of its values' variance that goes with its answers"
        value, threshold = effect.share_hi or 0.0, OF_EQUAL_SHARE / roles
    says = f"'{effect.role}' {rider_text(effect)}"
    return CreditSickness("free_rider", effect.role, metric, value, threshold, since, says)


def dead_text(component: ScoreRange) -> str:
    """That it never varies, in a sentence without its subject."""
    only = component.lo + 0.0  # no -0
    return f"is {only:.4g} in all of its {component.known:,} scores: it tells no answer from another"


def _dead(component: ScoreRange, since: int) -> CreditSickness:
    says = f"component '{component.name}' {dead_text(component)}"
    metric = "difference of its largest and smallest score"
    return CreditSickness("dead_component", component.name, metric, 0.0, 0.0, since, says)
