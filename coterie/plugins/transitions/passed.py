"""The transition mode `passed`: whether all levels passed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.types import HistoryEntry, all_passed
from coterie.plugins.transitions.levels import Levels

ALL = "All levels passed."
NOT_ALL = "Not all levels passed."


class Passed(Levels):
    """Tells each role its earlier answer, and whether every check of the team's work passed."""

    words = (ALL, NOT_ALL)

    async def remarks(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """One sentence; where there is no check, not all passed."""
        return (ALL if all_passed(tuple(await self.findings(role, state, environment))) else NOT_ALL,)
