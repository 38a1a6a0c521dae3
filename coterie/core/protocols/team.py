"""A team: its roles, their order, and the policies that play them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.core.protocols.role import Role
from coterie.core.protocols.tool import Tool
from coterie.core.protocols.transition import TransitionMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The roles of a run, their order, and the policy of each."""

    roles: Mapping[str, Role]
    order: tuple[tuple[str, ...], ...]
    """The stages of a turn. Roles of one stage act at once."""
    max_turns: int
    policies: Mapping[str, str]
    """Policy by role."""
    trainable: Mapping[str, bool]
    """Whether a policy is trained, by policy."""
    transition: TransitionMode
    tools: Mapping[str, tuple[Tool, ...]]
    """Tools by role."""
    max_tool_turns: int = 4
    role_tool_turns: Mapping[str, int] = field(default_factory=dict)
    """`max_tool_turns` of single roles."""
    show_thoughts: frozenset[str] = frozenset()
    """Roles whose actions' text includes the thought."""

    def tool_turns(self, role: str) -> int:
        """The most rounds of tool results in one action of a role."""
        return self.role_tool_turns.get(role, self.max_tool_turns) if self.tools.get(role) else 0
