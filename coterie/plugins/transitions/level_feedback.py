"""The transition mode `level_feedback`: all earlier answers, and every finding in detail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coterie.core.types import HistoryEntry
from coterie.plugins.transitions.level_passed import RESULTS
from coterie.plugins.transitions.levels import FAILED, PASSED, Levels
from coterie.plugins.transitions.revision import titled


class LevelFeedback(Levels):
    """Tells each role all its earlier answers, by turn, and the details of the findings, in their order."""

    words = (RESULTS, PASSED, FAILED)

    def answers(self, history: Sequence[HistoryEntry]) -> list[str]:
        """Every answer under its title, oldest first."""
        return [text for entry in history for text in titled(_title(entry.turn + 1), entry.action.text)]

    async def remarks(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """A title and the details, of a finding without them its summary; nothing without findings."""
        findings = await self.findings(role, state, environment)
        lines = [
            line for finding in findings for line in (finding.details or (finding.summary,)) if line.strip()
        ]
        return (RESULTS, *lines) if lines else ()

    def vocabulary(self) -> Iterable[str]:
        """The words of the mode's own sentences, with the number of every turn."""
        turns = range(1, self.build.run.team.max_turns + 1)
        titles = [text for turn in turns for text in (f"{_title(turn)}:", f"{_title(turn)} was empty.")]
        return sorted({*super().vocabulary(), *(word for title in titles for word in title.split())})


def _title(turn: int) -> str:
    return f"Your answer of turn {turn}"
