"""Scores that are taken from the record: of judged programs and coaches that aren't asked again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.core.errors import PolicyFault
from coterie.core.plugins import PluginConfig, composed_fields
from coterie.core.plugins.origin import origin_of, record_origin
from coterie.core.protocols import NamedRewardSource
from coterie.core.protocols.reward import CountsCalls, RunsInBackground, ShowsFeedback
from coterie.core.types import Key, Score, Scores

Row = Mapping[str, Any]
Cell = Mapping[tuple[str, str], Score]
ASKED = "taken from the record"
"""The reason of the scores for which `RecordedScores` writes the recorded ones."""
KINDS = {"sandbox": "sandbox", "chat_model": "coach"}
"""What `--again` calls the component that a plugin asks."""


def asks(plugin: Any) -> set[str]:
    """What a plugin needs besides this process: `sandbox`, `coach`."""
    config = getattr(plugin, "config", None)
    fields = composed_fields(type(config)) if isinstance(config, PluginConfig) else {}
    needed = {KINDS[kind] for name, kind in fields.items() if kind in KINDS and getattr(config, name)}
    if isinstance(plugin, CountsCalls) and plugin.calls_per_view:
        needed.add("coach")
    return needed


class RecordedSource:
    """A reward source that isn't asked: `RecordedScores` has what it answered."""

    def __init__(self, plugin: Any) -> None:
        self.scope, self.components, self.weights = plugin.scope, plugin.components, plugin.weights
        self.policy_fault = plugin.policy_fault
        self.background = isinstance(plugin, RunsInBackground) and plugin.background
        record_origin(self, origin_of(plugin))

    async def score(self, view: Any) -> Any:
        """Raise a fault, which the core writes as a score of this source without a warning."""
        raise PolicyFault(ASKED)


class RecordedSourceWithFeedback(RecordedSource):
    """One whose scores later roles read of."""

    def __init__(self, plugin: Any) -> None:
        super().__init__(plugin)
        self._plugin = plugin

    def feedback(self, role: str, score: Score) -> str:
        return str(self._plugin.feedback(role, score))


def recorded_source(source: NamedRewardSource) -> NamedRewardSource:
    """The source with its plugin replaced."""
    made = RecordedSourceWithFeedback if isinstance(source.plugin, ShowsFeedback) else RecordedSource
    return replace(source, plugin=made(source.plugin), _slots=None)


class RecordedScores(Scores):
    """A table that writes a source's recorded scores where the source would have been asked."""

    __slots__ = ("_recorded", "_written")

    def __init__(self, recorded: Mapping[str, Mapping[str, Cell]]) -> None:
        super().__init__()
        self._recorded = recorded
        self._written: set[tuple[Key, str]] = set()

    def add(self, key: Key, role: str, component: str, score: Score) -> None:
        """Add one score; of a source that wasn't asked all that the record has at the place, once."""
        if score.reason != f"floor: {ASKED}":
            super().add(key, role, component, score)
        elif (key, score.source) not in self._written:
            self._written.add((key, score.source))
            for owner, known in self._recorded.get(key.text(), {}).get(score.source, {}).items():
                super().add(key, *owner, known)


def recorded_cells(
    rows: Iterable[Row], sources: Sequence[NamedRewardSource]
) -> dict[str, dict[str, dict[tuple[str, str], Score]]]:
    """Text of a key -> source -> {(role or TEAM, component): score}, of the sources' components."""
    source_of = {component: source.name for source in sources for component in source.plugin.components}
    table: dict[str, dict[str, dict[tuple[str, str], Score]]] = {}
    for row in rows if source_of else ():
        if row["kind"] not in ("branch", "joint"):
            continue
        branch = row["kind"] == "branch"
        key = f"{row['node']}/{row['role']}/b{row['branch']}" if branch else f"{row['node']}/j{row['joint']}"
        for owner, value, reason, comment in _scores_of(row, source_of):
            name, whole = source_of[owner[1]], owner[1] in row.get("whole", ())
            score = Score(value, reason, name, whole, comment)
            table.setdefault(key, {}).setdefault(name, {})[owner] = score
    return table


def _scores_of(
    row: Row, components: Iterable[str]
) -> Iterator[tuple[tuple[str, str], float | None, str, str]]:
    """((role or TEAM, component), value, reason, comment) of a row's own scores."""
    names = sorted(components, key=len, reverse=True)
    for text, value in row["own_scores" if row["kind"] == "branch" else "scores"].items():
        for component in names:
            if text.endswith(f".{component}"):
                owner = text.removesuffix(f".{component}")
                short = component if owner == row.get("role") else text
                yield (
                    (owner, component),
                    value,
                    row["reasons"].get(short, ""),
                    row.get("comments", {}).get(short, ""),
                )
                break
