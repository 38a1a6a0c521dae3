"""Rules between the tables of a configuration, and between its policies and the words that they read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from coterie.compose.members import HasVocabulary
from coterie.core.config.schema import RunConfig, ScheduleConfig
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins.origin import plugin_call
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.types import TEAM, as_tuple

FILE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def check(config: RunConfig, *, policies: bool = True) -> None:
    """Check the tables of a configuration against each other.

    Args:
        policies: whether trainer and engine check the policies, e.g. that their models are there.

    Raises:
        ConfigError: an unknown role, policy or tool; a role without a policy; a role, policy, tool or setting
            that nothing uses; a policy that trainer or engine refuse; two ends of the run; no reward.
    """
    _check_order(config)
    _check_policies(config)
    if policies:
        for name, policy in config.policies.items():
            with plugin_call(policy, "check"):
                policy.check(f"policies.{name}", config)
    used_tools = {tool for table in config.team.roles.values() for tool in table.get("tools", ())}
    for tool in sorted(used_tools):
        _known("tool", tool, config.tools, "team.roles")
    _unused("tools", set(config.tools) - used_tools, "no role uses it: name it in team.roles.<role>.tools")
    check_ends(config.schedule)
    for name in config.trackers:
        if not FILE_NAME.fullmatch(name):  # what a tracker keeps for a resume is in RUN/trackers/NAME.json
            fix = "use letters, digits, '_', '-' and '.', beginning with a letter or a digit"
            raise ConfigError(f"a tracker can't be named {name!r}", path="trackers", fix=fix)
    if not config.rewards:
        fix = "leave the table out for the environment's own reward"
        raise ConfigError("a run needs a reward", path="rewards", fix=fix)


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


def _check_order(config: RunConfig) -> None:
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


def _check_policies(config: RunConfig) -> None:
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


def _known(kind: str, name: str, known: Iterable[str], path: str) -> None:
    if name not in known:
        raise ConfigError(f"unknown {kind} '{name}'", path=path, fix=did_you_mean(str(name), known))


def _unused(table: str, names: Iterable[str], why: str) -> None:
    for name in sorted(names):
        raise ConfigError("nothing uses this", path=f"{table}.{name}", why=why, fix="use it or remove it")


@runtime_checkable
class ReadsWords(Protocol):
    """A policy's table that is checked against words and answers before its model is made."""

    def check_words(self, path: str, vocabulary: Sequence[str] | None, longest: Mapping[str, int]) -> None:
        """Raise ConfigError for words that the model can't write, before it is made; warn of long answers.

        Args:
            path: dotted path of the policy's table.
            vocabulary: words of the environment and the roles; None: they follow from data that isn't here.
            longest: by role of the policy: most tokens of an answer.
        """


def check_words(config: RunConfig, side: LocalRolloutSide) -> None:
    """Let policies look at the words of prompts and answers, and at the lengths of answers."""
    parts = (side.environment, side.team.transition, *(member.role for member in side.team.members.values()))
    lists = any(isinstance(part, HasVocabulary) for part in parts)
    vocabulary = side.vocabulary or (None if lists else ())
    for name, policy in config.policies.items():
        if isinstance(policy, ReadsWords):
            longest = {
                role: side.sampler.sampling(role).max_new_tokens
                for role, member in side.team.members.items()
                if member.policy == name
            }
            with plugin_call(policy, "check_words"):
                policy.check_words(f"policies.{name}", vocabulary, longest)
