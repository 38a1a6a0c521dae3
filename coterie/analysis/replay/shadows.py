"""Reward sources that score beside the run's own, with other settings: what is played doesn't change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.core.plugins.origin import origin_of, record_origin
from coterie.core.protocols import NamedRewardSource
from coterie.core.types import ComponentKind, RewardWeights, Scores
from coterie.discovery.members import RunsInBackground

SUFFIX = "~again"
"""Of the components of a source that scores beside another one."""


class Shadow:
    """A reward source under other names of its components."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin
        self.scope: Any = plugin.scope
        self.policy_fault: float = plugin.policy_fault
        self.components: Mapping[str, ComponentKind] = {
            f"{name}{SUFFIX}": kind for name, kind in plugin.components.items()
        }
        self.weights: Mapping[str, float] = dict.fromkeys(self.components, 0.0)
        self.background = isinstance(plugin, RunsInBackground) and plugin.background
        record_origin(self, origin_of(plugin))

    async def score(self, view: Any) -> Any:
        table = await self._plugin.score(view)
        return _renamed(table) if isinstance(table, Mapping) else [_renamed(each) for each in table]


def _renamed(table: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    return {(owner, f"{component}{SUFFIX}"): value for (owner, component), value in table.items()}


def with_shadows(
    sources: Sequence[NamedRewardSource], others: Sequence[NamedRewardSource]
) -> list[NamedRewardSource]:
    """The sources, each followed by the one of `others` with its name, which then scores beside it."""
    by_name = {other.name: other for other in others}
    both: list[NamedRewardSource] = []
    for source in sources:
        both.append(source)
        if (other := by_name.get(source.name)) is not None:
            shadow = Shadow(other.plugin)
            per_role = [f"{name}{SUFFIX}" for name in other.per_role]
            weights = dict(shadow.weights)
            both.append(
                replace(other, plugin=shadow, weights=weights, per_role=per_role, failed=True, _slots=None)
            )
    return both


def ignoring_shadows(weights: RewardWeights, others: Sequence[NamedRewardSource]) -> RewardWeights:
    """The weights with which what the shadows score counts nothing during play."""
    names = [f"{name}{SUFFIX}" for other in others for name in other.plugin.components]
    return replace(weights, weights={**weights.weights, **dict.fromkeys(names, 0.0)})


def divided(scores: Scores, replaced: Collection[str]) -> tuple[Scores, Scores]:
    """The scores of the run's own sources, and those with the shadows' in their place.

    Args:
        replaced: components that shadows score too.
    """
    ours, other = Scores(), Scores()
    ours.answers |= scores.answers
    for key, role, component, score in scores:
        if component.endswith(SUFFIX):
            other.add(key, role, component.removesuffix(SUFFIX), score)
        else:
            ours.add(key, role, component, score)
            if component not in replaced:
                other.add(key, role, component, score)
    return ours, other
