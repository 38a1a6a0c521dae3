"""The transition mode `level_passed`: the result of each check in a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.types import HistoryEntry
from coterie.plugins.transitions.levels import FAILED, PASSED, Levels

RESULTS = "Results:"


class LevelPassed(Levels):
    """Tells each role its earlier answer, and the summaries of the findings, in their order."""

    words = (RESULTS, PASSED, FAILED)

    async def remarks(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """A title and the summaries; nothing where no finding has one."""
        findings = await self.findings(role, state, environment)
        lines = [finding.summary for finding in findings if finding.summary.strip()]
        return (RESULTS, *lines) if lines else ()
