"""A team: its roles, their order, and the policies that play them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.core.protocols.role import Role
from coterie.core.protocols.tool import Tool
from coterie.core.protocols.transition import TransitionMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Who plays, in which order, with which policy."""

    roles: Mapping[str, Role]
    order: tuple[tuple[str, ...], ...]
    """Stages; roles in one stage act at once."""
    max_turns: int
    policies: Mapping[str, str]
    """role -> policy."""
    trainable: Mapping[str, bool]
    """policy -> whether it is trained."""
    transition: TransitionMode
    tools: Mapping[str, tuple[Tool, ...]]
    max_tool_turns: int = 4
    role_tool_turns: Mapping[str, int] = field(default_factory=dict)
    """Of roles that have their own."""
    show_thoughts: frozenset[str] = frozenset()
    """Roles whose thoughts are part of what they say."""

    def tool_turns(self, role: str) -> int:
        """Most rounds of tool results in one action of the role."""
        return self.role_tool_turns.get(role, self.max_tool_turns) if self.tools.get(role) else 0
