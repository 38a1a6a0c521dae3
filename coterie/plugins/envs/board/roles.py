"""The roles of a game, and which of them form a team.

`planner` and `executor` are the form without code; their messages or observations may differ. `tool` and
`plan` are the paper's form (PettingLLMs, arXiv 2510.11062): the tool's program runs in the sandbox and its
output is the proposal; the plan role adopts or overrules it and moves. `solver` plays alone, with the same
turns and feedback.
"""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.errors import ConfigError
from coterie.plugins.envs.common.teams import Rendering

COMPACT_ROLES = ("planner", "executor", "solver")
"""Roles that the compact rendering can prompt."""
PROSE_ROLES = ("tool", "plan")
"""Roles that need the prose rendering: the compact one can't show a program."""
ROLES = (*COMPACT_ROLES, *PROSE_ROLES)
MOVERS = ("executor", "solver", "plan")
"""Roles whose message changes the state of the game."""
PROPOSERS = ("planner", "tool")
"""Roles whose message is a plan for the others; with `plan_moves` it changes the state."""


def names_of(role: str, *, to: str) -> tuple[str, str]:
    """A role's name and its possessive at the start of a sentence for `to`: ("You", "Your") for itself."""
    if role == to:
        return "You", "Your"
    name = "The plan role" if role == "plan" else f"The {role}"
    return name, f"{name}'s"


def check_movers(order: Sequence[Sequence[str]], movers: Sequence[str], path: str) -> None:
    """Check that the team has a mover, and that no two movers act at once.

    Raises:
        ConfigError: `team.order` has no mover, or two in one stage.
    """
    moving = [[role for role in stage if role in movers] for stage in order]
    if not any(moving):
        raise ConfigError(
            "no role in team.order moves",
            path=path,
            why="the messages of planner and tool are only plans",
            fix=f"add one of: {', '.join(movers)}; or set env.plan_moves: true for a planner or a tool that "
            "plays alone",
        )
    for stage in moving:
        if len(stage) > 1:
            raise ConfigError(
                f"{' and '.join(stage)} can't move at once",
                path=path,
                why="a stage can play only one message",
                fix="put them into separate stages of team.order, or keep one",
            )


def check_programs(order: Sequence[Sequence[str]], rendering: Rendering, path: str) -> None:
    """Check that tool and plan play in prose, and with no other role.

    Raises:
        ConfigError: they don't; names the setting.
    """
    roles = {role for stage in order for role in stage}
    prose_roles = [role for role in PROSE_ROLES if role in roles]
    if not prose_roles:
        return
    if rendering != "prose":
        raise ConfigError(
            f"the role '{prose_roles[0]}' needs the prose rendering",
            path=f"{path}.rendering",
            why="the compact one can't show a program",
            fix="set env.rendering: prose",
        )
    others = sorted(roles - set(PROSE_ROLES))
    if others:
        raise ConfigError(
            f"{' and '.join(prose_roles)} can't play with {' and '.join(others)}",
            path="team.order",
            why="no other role sees a program's output, and 'plan' doesn't see a planner's message",
            fix="keep tool and plan, or planner and executor, or solver",
        )
