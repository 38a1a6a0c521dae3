"""The transition mode `plain`: the observation says it all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.plugins import Plugin
from coterie.core.protocols import Environment
from coterie.core.types import HistoryEntry


class Plain(Plugin):
    """Tells nothing beyond the observation."""

    async def tell(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Environment
    ) -> Sequence[str]:
        return ()
