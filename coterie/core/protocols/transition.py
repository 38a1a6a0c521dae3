"""The protocol of kind `transition`: feedback between turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from coterie.core.protocols.environment import Environment
from coterie.core.types import HistoryEntry


@runtime_checkable
class TransitionMode(Protocol):
    """Writes the feedback that roles receive between turns."""

    async def tell(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Environment
    ) -> Sequence[str]:
        """Sentences for `RoleInput.feedback`. Not called for a role's first decision of an episode.

        Raises:
            SystemFault: there is no feedback, and no output caused that: the role's action is missing.
        """


@runtime_checkable
class RepeatsTask(Protocol):
    original_prompt: bool
    """Whether the prompts of later turns state the task again (`RoleInput.shows_task`)."""
