"""A team: its members, their order, and the feedback between turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.core.protocols.role import Role
from coterie.core.protocols.tool import Tool
from coterie.core.protocols.transition import TransitionMode
from coterie.core.types import MAX_STAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A role of a team, with the policy that plays it and its tools."""

    role: Role
    policy: str
    """Name of the policy that plays the role."""
    trainable: bool = True
    """Whether that policy is trained."""
    tools: tuple[Tool, ...] = ()
    max_tool_turns: int = 4
    """Most rounds of tool results in one action."""
    show_thoughts: bool = False
    """Whether the text of the role's actions includes the thought."""

    @property
    def tool_turns(self) -> int:
        """Most rounds of tool results in one action; 0 without tools."""
        return self.max_tool_turns if self.tools else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The members of a team by role, and the order in which they act."""

    members: Mapping[str, Member]
    order: tuple[tuple[str, ...], ...]
    """The stages of a turn. Roles of one stage act at once."""
    max_turns: int
    transition: TransitionMode
    max_stages: int = MAX_STAGES
    """Most stages of one turn."""
    overflow: str = "floor"
    """`team.overflow`: what becomes of a prompt that doesn't fit the context."""

    @property
    def policies(self) -> dict[str, str]:
        """Policy by role."""
        return {role: member.policy for role, member in self.members.items()}
