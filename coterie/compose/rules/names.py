"""Rules of names and tables that nothing has, or that nothing reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from coterie.compose.builder import SHARED
from coterie.compose.rules.facts import ComposedParts
from coterie.compose.settings import REFERRED
from coterie.core.config import RunConfig, ScheduleConfig
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins.origin import plugin_call
from coterie.core.types import TEAM, as_tuple
from coterie.discovery.optional import ExecutorDefaults, with_defaults

FILE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def _known(kind: str, name: str, known: Iterable[str], path: str) -> None:
    if name not in known:
        raise ConfigError(f"unknown {kind} '{name}'", path=path, fix=did_you_mean(str(name), known))


def _unused(table: str, names: Iterable[str], why: str) -> None:
    for name in sorted(names):
        raise ConfigError("nothing uses this", path=f"{table}.{name}", why=why, fix="use it or remove it")


# ------------------------------------------------------------------------------------------- the tables alone


def stages(config: RunConfig) -> None:
    """Refuse stages without roles; roles that are unknown, in no stage, twice in one, or named `team`."""
    roles = config.team.roles
    ordered: set[str] = set()
    for stage in as_tuple(config.team.order):
        if not stage:
            raise ConfigError("a stage has no roles", path="team.order")
        for role in stage:
            _known("role", role, roles, "team.order")
        if len(set(stage)) != len(stage):
            raise ConfigError("a stage names a role twice", path="team.order")
        ordered.update(stage)
    _unused("team.roles", set(roles) - ordered, "it is not in team.order")
    if TEAM in roles:
        what = f"'{TEAM}' is the name for scores that all roles share"
        raise ConfigError(what, path=f"team.roles.{TEAM}", fix="give the role another name")
    sampled_roles = config.sampler.get("roles")
    for role in sampled_roles if isinstance(sampled_roles, dict) else ():
        _known("role", role, roles, f"sampler.roles.{role}")


def policies(config: RunConfig) -> None:
    """Refuse roles without a policy, unknown policies, and those that nothing plays."""
    played = set()
    for role, table in config.team.roles.items():
        path, policy_name = f"team.roles.{role}.policy", table.get("policy")
        if policy_name is None:
            fix = f"set {path}=... to one of: {', '.join(sorted(config.policies)) or 'none defined'}"
            raise ConfigError(f"role '{role}' has no policy", path=path, fix=fix)
        _known("policy", policy_name, config.policies, path)
        played.add(policy_name)
    for path, chat_model in _chat_models(config):
        if isinstance(policy_name := chat_model.get("policy"), str):
            _known("policy", policy_name, config.policies, f"{path}.policy")
            played.add(policy_name)
    why = "no role plays it: name it in team.roles.<role>.policy, or in a chat model of type policy"
    _unused("policies", set(config.policies) - played, why)


def _chat_models(config: RunConfig) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(path, table) of the entries of `chat_models`, and of tables inside a source or the transition."""
    yield from ((f"chat_models.{name}", table) for name, table in config.chat_models.items())
    askers = {f"rewards.{name}": table for name, table in config.rewards.items()}
    for path, asker in {**askers, "transition": config.transition}.items():
        for key, value in asker.items():
            if isinstance(value, Mapping) and "type" in value:
                yield f"{path}.{key}", value


def settings_of_policies(config: RunConfig) -> None:
    """Refuse policies that trainer or engine refuse, e.g. since their models aren't there."""
    for name, policy in config.policies.items():
        with plugin_call(policy, "check"):
            policy.check(f"policies.{name}", config)


def tools(config: RunConfig) -> None:
    """Refuse unknown tools, and those that no role uses."""
    used_tools = {tool for table in config.team.roles.values() for tool in table.get("tools", ())}
    for tool in sorted(used_tools):
        _known("tool", tool, config.tools, "team.roles")
    _unused("tools", set(config.tools) - used_tools, "no role uses it: name it in team.roles.<role>.tools")


def one_end(config: RunConfig) -> None:
    """Refuse two ends of the run."""
    check_ends(config.schedule)


def check_ends(schedule: ScheduleConfig, origins: Mapping[str, str] = MappingProxyType({})) -> None:
    """Refuse `steps` beside `epochs`, which one layer set, or layers of one rank.

    Args:
        origins: by dotted path, where a value was set, for the error.
    """
    if schedule.steps is None or schedule.epochs is None:
        return
    ends = {"schedule.steps": schedule.steps, "schedule.epochs": schedule.epochs}
    why = " and ".join(
        f"{path}={value}" + (f" is set by {origins[path]}" if path in origins else "")
        for path, value in ends.items()
    )
    fix = "leave one of them out, or null it: schedule.steps=null"
    raise ConfigError("set steps or epochs, not both", path="schedule.epochs", why=why, fix=fix)


def trackers(config: RunConfig) -> None:
    """Refuse a name that is no file's: what a tracker keeps for a resume is in RUN/trackers/NAME.json."""
    for name in config.trackers:
        if not FILE_NAME.fullmatch(name):
            fix = "use letters, digits, '_', '-' and '.', beginning with a letter or a digit"
            raise ConfigError(f"a tracker can't be named {name!r}", path="trackers", fix=fix)


def a_reward(config: RunConfig) -> None:
    """Refuse a run without a reward."""
    if not config.rewards:
        fix = "leave the table out for the environment's own reward"
        raise ConfigError("a run needs a reward", path="rewards", fix=fix)


# ----------------------------------------------------------------------------------- tables and their readers


def cluster(run: ComposedParts) -> None:
    """Refuse a cluster for an executor that has none."""
    if run.config.cluster is not None and with_defaults(run.executor, ExecutorDefaults).Cluster is None:
        why = f"executor '{run.config.executor['type']}' plays in this process alone"
        fix = "set executor=ray, or remove it"
        raise ConfigError("nothing consumes this table", path="cluster", why=why, fix=fix)


def shared_tables(run: ComposedParts) -> None:
    """Refuse a shared table that no component reads."""
    for table in SHARED.values():
        if getattr(run.config, table) is not None and table not in run.consumed:
            why = f"no chosen component has a field for a {table}"
            raise ConfigError("nothing consumes this table", path=table, why=why, fix="remove it")


def chat_models(run: ComposedParts) -> None:
    """Refuse an entry of `chat_models` that no component names."""
    for table in REFERRED.values():
        for name in getattr(run.config, table):
            if f"{table}.{name}" not in run.consumed:
                why = "no component names it"
                fix = f"remove it, or name it, as in rewards.coach.model={name}"
                raise ConfigError("nothing uses this", path=f"{table}.{name}", why=why, fix=fix)
