"""The seats of a game, and which of them play with each other.

`planner` and `executor` play the light form: no code, different languages or information. `tool` and `plan`
play the paper's (PettingLLMs, arXiv 2510.11062): the tool's program runs in the sandbox and what it prints is
its proposal; the plan role adopts or overrules it and moves. `solver` is alone, with the same turns and
feedback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.errors import ConfigError
from coterie.plugins.envs.common.parsing import Rendering

COMPACT_ROLES = ("planner", "executor", "solver")
"""Roles that the compact rendering has a word for."""
PROSE_ROLES = ("tool", "plan")
"""Roles that it has none for: it can't show a program."""
ROLES = (*COMPACT_ROLES, *PROSE_ROLES)
MOVERS = ("executor", "solver", "plan")
"""Roles whose message moves the world."""
PROPOSERS = ("planner", "tool")
"""Roles whose message is a plan for the others; with `plan_moves` it moves the world."""


def named(role: str, *, to: str) -> tuple[str, str]:
    """The role as one of a sentence's first words, and whose: ("You", "Your") for itself."""
    if role == to:
        return "You", "Your"
    name = "The plan role" if role == "plan" else f"The {role}"
    return name, f"{name}'s"


def check_movers(order: Sequence[Sequence[str]], movers: Sequence[str], path: str) -> None:
    """Somebody must move, and no two at once.

    Raises:
        ConfigError: `team.order` has no mover, or two in one stage.
    """
    moving = [[role for role in stage if role in movers] for stage in order]
    if not any(moving):
        raise ConfigError(
            "nobody in team.order moves",
            path=path,
            why="the messages of the others only advise",
            fix=f"add one of: {', '.join(movers)}; or set env.plan_moves: true for a planner or a tool that "
            "plays alone",
        )
    for stage in moving:
        if len(stage) > 1:
            raise ConfigError(
                f"{' and '.join(stage)} can't move at once",
                path=path,
                fix="give them stages of their own in team.order, or keep one",
            )


def check_programs(order: Sequence[Sequence[str]], rendering: Rendering, path: str) -> None:
    """Tool and plan play with each other, in prose.

    Raises:
        ConfigError: they don't; names the setting.
    """
    seats = {role for stage in order for role in stage}
    ours = [role for role in PROSE_ROLES if role in seats]
    if not ours:
        return
    if rendering != "prose":
        raise ConfigError(
            f"the seat '{ours[0]}' is for the prose rendering",
            path=f"{path}.rendering",
            why="the compact one has no words for a program",
            fix="set env.rendering: prose",
        )
    others = sorted(seats - set(PROSE_ROLES))
    if others:
        raise ConfigError(
            f"{' and '.join(ours)} can't play with {' and '.join(others)}",
            path="team.order",
            why="no other seat is shown what a program printed, and 'plan' no words of a planner",
            fix="keep tool and plan, or planner and executor, or solver",
        )


def check_sandbox(order: Sequence[Sequence[str]], sandbox: Any, run: Any, path: str) -> None:
    """Programs need a sandbox, and a sandbox programs.

    The run's table `sandbox` fills the game's field whether or not it is wanted there, so the core takes it
    for used. It may be meant for a tool or for a reward that runs programs; where there is neither, nothing
    uses it.

    Args:
        run: the run's configuration.

    Raises:
        ConfigError: one is there without the other.
    """
    if any("tool" in stage for stage in order):
        if sandbox is None:
            raise ConfigError(
                "the role 'tool' writes programs, and there is no sandbox to run them in",
                path=f"{path}.sandbox",
                fix="add the table `sandbox: local`, or set env.sandbox: local",
            )
        return
    if sandbox is None:
        return
    shared = getattr(run, "sandbox", None) is not None and "sandbox" not in (getattr(run, "env", None) or {})
    if shared and (getattr(run, "tools", None) or _judges(getattr(run, "rewards", None) or {})):
        return
    raise ConfigError(
        "nobody in team.order writes programs, so nothing would run in this sandbox",
        path="sandbox" if shared else f"{path}.sandbox",
        why="a game runs those of the role 'tool', and no other",
        fix="remove it, or play with the roles tool and plan",
    )


def _judges(rewards: Mapping[str, Any]) -> list[str]:
    """Reward sources that may run something: all but what the game itself pays."""
    return [
        name
        for name, table in rewards.items()
        if (table.get("type") if isinstance(table, Mapping) else table) != "environment"
    ]
