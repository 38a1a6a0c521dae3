"""The transition mode `none`: no feedback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.plugins import Plugin
from coterie.core.protocols import Environment
from coterie.core.types import HistoryEntry


class NoTransitionFeedback(Plugin):
    """Roles get the observation alone."""

    async def tell(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Environment
    ) -> Sequence[str]:
        """No sentences."""
        return ()
