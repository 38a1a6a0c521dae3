"""What the tables of a configuration must say about each other, checked before anything is built."""

from __future__ import annotations

from collections.abc import Iterable

from coterie.core.config.schema import RunConfig
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.types import TEAM, as_tuple


def check(config: RunConfig) -> None:
    """Raise for the first table that doesn't fit the others.

    Raises:
        ConfigError: an order that names an unknown role, a role without policy, a policy, role or tool that
            nothing uses, a schedule without an end.
    """
    _check_order(config)
    _check_policies(config)
    used_tools = {tool for table in config.team.roles.values() for tool in table.get("tools", ())}
    for tool in used_tools - set(config.tools):
        raise ConfigError(f"unknown tool '{tool}'", path="team.roles", fix=did_you_mean(tool, config.tools))
    _unused("tools", set(config.tools) - used_tools, "no role uses it: name it in team.roles.<role>.tools")
    schedule = config.schedule
    if schedule.steps is not None and schedule.epochs is not None:
        raise ConfigError("set steps or epochs, not both", path="schedule.epochs")
    if not config.rewards:
        raise ConfigError(
            "a run needs a reward", path="rewards", fix="leave the table out for the environment's own"
        )


def _check_order(config: RunConfig) -> None:
    roles = config.team.roles
    stages = as_tuple(config.team.order)
    seen: set[str] = set()
    for stage in stages:
        if not stage:
            raise ConfigError("a stage without roles", path="team.order")
        for role in stage:
            if role not in roles:
                raise ConfigError(f"unknown role '{role}'", path="team.order", fix=did_you_mean(role, roles))
        if len(set(stage)) != len(stage):
            raise ConfigError("a role stands twice in one stage", path="team.order")
        seen.update(stage)
    _unused("team.roles", set(roles) - seen, "it is not in team.order")
    if TEAM in roles:
        raise ConfigError(
            f"'{TEAM}' is the name of what belongs to everybody",
            path=f"team.roles.{TEAM}",
            fix="give the role another name",
        )
    own = config.sampler.get("roles")
    for role in own if isinstance(own, dict) else ():
        if role not in roles:
            raise ConfigError(
                f"unknown role '{role}'", path=f"sampler.roles.{role}", fix=did_you_mean(role, roles)
            )


def _check_policies(config: RunConfig) -> None:
    played = set()
    for role, table in config.team.roles.items():
        path = f"team.roles.{role}.policy"
        policy = table.get("policy")
        if policy is None:
            raise ConfigError(
                f"role '{role}' has no policy",
                path=path,
                fix=f"set {path}=... to one of: {', '.join(sorted(config.policies)) or 'none defined'}",
            )
        if policy not in config.policies:
            raise ConfigError(
                f"unknown policy '{policy}'", path=path, fix=did_you_mean(str(policy), config.policies)
            )
        played.add(policy)
    _unused(
        "policies", set(config.policies) - played, "no role plays it: name it in team.roles.<role>.policy"
    )
    for name, policy_config in config.policies.items():
        if policy_config.lora is not None and policy_config.train != "lora":
            raise ConfigError(
                "nothing reads these settings",
                path=f"policies.{name}.lora",
                why=f"policies.{name}.train is {policy_config.train}",
                fix=f"set policies.{name}.train=lora",
            )
        schedule = policy_config.optimizer
        if schedule.schedule != "constant" and schedule.horizon is None:
            raise ConfigError(
                f"a {schedule.schedule} schedule needs its horizon",
                path=f"policies.{name}.optimizer.horizon",
                fix="set it to the number of optimiser steps over which the rate decays, or to `budget` "
                "with schedule.tokens",
            )
        if schedule.horizon == "budget" and config.schedule.tokens is None:
            raise ConfigError(
                "there is no token budget to decay over",
                path=f"policies.{name}.optimizer.horizon",
                why="schedule.tokens is not set",
                fix="set schedule.tokens, or the horizon to a number of optimiser steps",
            )
        if schedule.schedule == "constant" and schedule.horizon is not None:
            raise ConfigError(
                "nothing reads this",
                path=f"policies.{name}.optimizer.horizon",
                why="the schedule is constant",
            )


def _unused(table: str, names: Iterable[str], why: str) -> None:
    for name in sorted(names):
        raise ConfigError("nothing uses this", path=f"{table}.{name}", why=why, fix="use it or remove it")
