"""How prompts are rendered, and what environments check of a team, its sandbox, and the actions in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from coterie.core.errors import ConfigError, SystemFault, did_you_mean
from coterie.core.types import Action

Rendering = Literal["compact", "prose"]
"""Prompts in a few words, or in English."""


def check_not_lost(actions: Mapping[str, Action]) -> None:
    """Refuse to play on after an answer that the system lost.

    Raises:
        SystemFault: there is one.
    """
    lost = [role for role, action in actions.items() if action.fault and action.fault.kind == "system"]
    if lost:
        raise SystemFault(f"the action of '{lost[0]}' was lost")


def team_of(
    order: Sequence[Sequence[str]], forms: Sequence[tuple[str, ...]], environment: str, path: str
) -> tuple[str, ...]:
    """The roles of a team, in the order in which they act.

    Args:
        forms: the roles of each form of a team that the environment knows.
        path: of the environment in the configuration.

    Raises:
        ConfigError: they are those of no form.
    """
    roles = tuple(chain.from_iterable(order))
    known = tuple(chain.from_iterable(forms))
    unknown = [role for role in roles if role not in known]
    choices = [f"[[{', '.join(form)}]]" if len(form) > 1 else f"[{form[0]}]" for form in forms]
    fix = f"team.order: {', or '.join(choices)}"
    if unknown:
        raise ConfigError(
            f"the environment '{environment}' has no role '{unknown[0]}'",
            path=f"team.roles.{unknown[0]}",
            fix=f"{did_you_mean(unknown[0], known)} {fix}",
        )
    if sorted(roles) not in map(sorted, forms):
        raise ConfigError(f"{', '.join(roles)} are no team", path="team.order", fix=fix)
    return roles


def check_sandbox(
    order: Sequence[Sequence[str]], sandbox: Any, run: Any, path: str, writers: Sequence[str] = ("tool",)
) -> None:
    """Check that a team with programs has a sandbox, and that a sandbox has programs to run.

    The run's table `sandbox` fills the game's field in every game, so the core counts it as used. A tool or a
    reward source that runs programs may be its user; where there is neither, nothing uses it.

    Args:
        run: the run's configuration.
        writers: the roles whose programs the environment runs.

    Raises:
        ConfigError: programs without a sandbox, or a sandbox without programs.
    """
    writing = [role for stage in order for role in stage if role in writers]
    if writing:
        if sandbox is None:
            raise ConfigError(
                f"the role '{writing[0]}' writes programs, and no sandbox is configured to run them",
                path=f"{path}.sandbox",
                fix="add the table `sandbox: local`, or set env.sandbox: local",
            )
        return
    if sandbox is None:
        return
    shared = getattr(run, "sandbox", None) is not None and "sandbox" not in (getattr(run, "env", None) or {})
    if shared and (getattr(run, "tools", None) or _other_sources(getattr(run, "rewards", None) or {})):
        return
    raise ConfigError(
        "no role in team.order writes programs, so nothing would run in this sandbox",
        path="sandbox" if shared else f"{path}.sandbox",
        why="a game runs only the programs of the role 'tool'"
        if writers == ("tool",)
        else f"programs are written by: {', '.join(writers) or 'no role of this team'}",
        fix="remove it, or play with the roles tool and plan" if writers == ("tool",) else "remove it",
    )


def _other_sources(rewards: Mapping[str, Any]) -> list[str]:
    """Reward sources that may run programs: all but `environment`."""
    return [
        name
        for name, table in rewards.items()
        if (table.get("type") if isinstance(table, Mapping) else table) != "environment"
    ]
