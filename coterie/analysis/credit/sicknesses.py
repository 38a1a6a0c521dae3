"""Free-riders and dead components of recorded steps, as a diagnosis wants them: one value each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.analysis.credit.actions import CreditedAction, credited_actions, return_kind_of
from coterie.analysis.credit.component_returns import Component, Rules
from coterie.analysis.credit.components import ScoreRange, add_ranges
from coterie.analysis.credit.free_riders import OF_EQUAL_SHARE, SELDOM, OwnEffect, own_effects
from coterie.api.episodes import RecordedTree


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
    helps: str


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
    riders = [_rider(effect, since) for effect in own_effects(actions, kind).values() if effect.rides]
    return riders + [_dead(component, since) for component in ranges.values() if component.dead]


RIDER_HELPS = (
    "a reward that tells its answers apart: a component of its role alone, or algorithm.alpha below 1; "
    "credit over turns (a return `tree` or `to_go`) where what it does pays later; `coterie credit RUN "
    "--check` shows whether the team needs the role"
)


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


def _rider(effect: OwnEffect, since: int) -> CreditSickness:
    if effect.rides == "siblings":
        metric, value = "share of its prompts whose answers differ in value", effect.often
        threshold = SELDOM * effect.partner_varying
    else:
        metric, value = "share of its values' variance that goes with its answers", effect.share or 0.0
        threshold = OF_EQUAL_SHARE
    return CreditSickness(
        "free_rider", effect.role, metric, value, threshold, since, f"'{effect.role}' {rider_text(effect)}",
        RIDER_HELPS,
    )  # fmt: skip


DEAD_HELPS = (
    "the source's settings, if its scores should differ; else weight 0 (rewards.<source>.weights), so that "
    "it isn't asked for nothing"
)


def dead_text(component: ScoreRange) -> str:
    """That it never varies, in a sentence without its subject."""
    return f"is {component.lo:.4g} in all of its {component.known:,} scores: it tells no answer from another"


def _dead(component: ScoreRange, since: int) -> CreditSickness:
    says = f"component '{component.name}' {dead_text(component)}"
    return CreditSickness(
        "dead_component", component.name, "difference of its largest and smallest score", 0.0, 0.0, since,
        says, DEAD_HELPS,
    )  # fmt: skip
