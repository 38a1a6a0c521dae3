"""The rollout side from a configuration: environment, team, sampler, reward sources, tools, sandbox."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.compose.builder import ComponentBuilder
from coterie.compose.curriculum import make_curriculum, taken
from coterie.compose.evaluation_sets import make_sets
from coterie.compose.rules.facts import RolloutParts as RolloutParts
from coterie.compose.rules.table import OF_SIDE, ask, check
from coterie.compose.tables import CURRICULUM, TEAM_KEYS, RewardConfig, RoleConfig
from coterie.core.config import Resolved, RunConfig
from coterie.core.errors import ConfigError, PluginError, did_you_mean
from coterie.core.plugins.origin import origin_of, plugin_call
from coterie.core.protocols import Environment, Member, NamedRewardSource, Plan, Team
from coterie.core.protocols.reward import CONCURRENCY
from coterie.core.rollout.contracts import refuse
from coterie.core.rollout.side import EvaluationSet, LocalRolloutSide
from coterie.core.training.curriculum import Curriculum
from coterie.core.types import TEAM, RewardWeights, as_tuple
from coterie.discovery.members import BoundsCalls, HasVocabulary, ScoresRoles, StopsEpisodes
from coterie.discovery.validation import validate

log = logging.getLogger("coterie")


def make_rollout_side(resolved: Resolved) -> LocalRolloutSide:
    """The rollout side of a run, in any process: from its resolved configuration and its plugins alone.

    Raises:
        UserError: whatever is wrong with the configuration, with its path.
    """
    return make_rollout_parts(resolved).side


def make_rollout_parts(resolved: Resolved, builder: ComponentBuilder | None = None) -> RolloutParts:
    """The rollout side and what belongs to it, without trainer, engine and models.

    Args:
        builder: it remembers what was consumed and made.

    Raises:
        UserError: whatever is wrong with this part of the configuration, with its path.
    """
    config = resolved.config
    if builder is None:
        check(config, policies=False)
        builder = ComponentBuilder(config)
    environment, curriculum = _environment(builder, config)
    levels = [level.environment for level in (curriculum.levels if curriculum else ())]
    team = _team(builder, config, environment)
    sampler = builder.make("sampler", config.sampler, "sampler")
    estimator = builder.make("estimator", config.algorithm, "algorithm")
    with plugin_call(sampler, "plan"):
        plan = sampler.plan
    if not isinstance(plan, Plan):
        what = f"{origin_of(sampler)}: plan is {plan!r:.200}"
        raise PluginError(what, path="sampler", fix="a coterie.Plan")
    with plugin_call(estimator, "check"):
        estimator.check(plan, team)
    reward_sources, reward_weights = _rewards(builder, config, estimator)
    sets = make_sets(builder, environment, sampler)
    side = LocalRolloutSide(
        environment=environment,
        levels=levels,
        team=team,
        sampler=sampler,
        reward_sources=reward_sources,
        reward_weights=reward_weights,
        stop_above=estimator.stop_above if isinstance(estimator, StopsEpisodes) else None,
        seed=config.seed,
        sets=sets,
        resources=tuple(builder.resources),
    )
    ask(OF_SIDE, side)
    side.vocabulary = _vocabulary([environment, *levels, *_others(sets, environment), team.transition], team)
    return RolloutParts(resolved, side, estimator, curriculum)


def _environment(builder: ComponentBuilder, config: RunConfig) -> tuple[Environment, Curriculum | None]:
    """The target environment, used by every evaluation, and the levels that training goes through."""
    table, settings = taken(config.env)
    builder.environment = builder.make("environment", settings, "env", also=[CURRICULUM])
    curriculum = make_curriculum(
        table, settings, builder.environment, lambda level: builder.make("environment", level, "env")
    )
    if curriculum is not None and config.schedule.epochs is not None:
        raise ConfigError(
            "a curriculum has no passes",
            path="schedule.epochs",
            why="its levels have tasks of their own, and how long each is played is not known before",
            fix="set schedule.steps or schedule.tokens instead",
        )
    return builder.environment, curriculum


def _others(sets: Mapping[str, EvaluationSet], target: Environment) -> list[Environment]:
    """The environments of sets that have one of their own."""
    return [each.environment for each in sets.values() if each.environment is not target]


def _team(builder: ComponentBuilder, config: RunConfig, environment: Environment) -> Team:
    members: dict[str, Member] = {}
    role_configs = _role_configs(config)
    all_tools = {
        name: builder.make("tool", table, f"tools.{name}", name) for name, table in config.tools.items()
    }
    for name, table in config.team.roles.items():
        if environment.roles and name not in environment.roles:
            raise ConfigError(
                f"the environment '{config.env['type']}' has no role '{name}'",
                path=f"team.roles.{name}",
                fix=did_you_mean(name, environment.roles),
            )
        settings = {key: value for key, value in table.items() if key not in TEAM_KEYS}
        keys = role_configs[name]
        most = config.team.max_tool_turns if keys.max_tool_turns is None else keys.max_tool_turns
        members[name] = Member(
            role=builder.make("role", settings, f"team.roles.{name}", name, also=TEAM_KEYS),
            policy=keys.policy,
            trainable=config.policies[keys.policy].train != "none",
            tools=tuple(all_tools[tool] for tool in keys.tools),
            max_tool_turns=most,
            show_thoughts=keys.show_thoughts,
        )
    return Team(
        members=members,
        order=as_tuple(config.team.order),
        max_turns=config.team.max_turns,
        max_stages=config.team.max_stages,
        overflow=config.team.overflow,
        transition=builder.make("transition", config.transition, "transition"),
    )


def _role_configs(config: RunConfig) -> dict[str, RoleConfig]:
    """The team's settings in every role's table.

    Raises:
        ConfigError: a key of the wrong type, or a limit of tools for a role that has none.
    """
    role_configs = {}
    for name, table in config.team.roles.items():
        settings = {key: value for key, value in table.items() if key in TEAM_KEYS}
        role_configs[name] = role = validate(RoleConfig, settings, f"team.roles.{name}")
        if role.max_tool_turns is not None and not role.tools:
            raise ConfigError(
                "nothing reads this",
                path=f"team.roles.{name}.max_tool_turns",
                why="the role has no tools",
                fix=f"name some in team.roles.{name}.tools, or remove it",
            )
    return role_configs


def _rewards(
    builder: ComponentBuilder, config: RunConfig, estimator: Any
) -> tuple[list[NamedRewardSource], RewardWeights]:
    reward_sources: list[NamedRewardSource] = []
    weights: dict[str, float] = {}
    kinds: dict[str, Any] = {}
    owner: dict[str, str] = {}
    for name, table in config.rewards.items():
        keys = list(RewardConfig.model_fields)
        settings = {key: value for key, value in table.items() if key not in keys}
        plugin = builder.make("reward", settings, f"rewards.{name}", name, also=keys)
        common = validate(RewardConfig, {key: table[key] for key in keys if key in table}, f"rewards.{name}")
        given = common.weights or {}
        for component in given:
            if component not in plugin.components:
                raise ConfigError(
                    f"unknown component '{component}'",
                    path=f"rewards.{name}.weights.{component}",
                    fix=did_you_mean(component, plugin.components),
                )
        for component, kind in plugin.components.items():
            if component == "share":
                why = "the metric missing/share is that of all components together"
                fix = "call it otherwise, such as 'portion'"
                raise ConfigError(
                    "a component can't be named 'share'", path=f"rewards.{name}", why=why, fix=fix
                )
            if component in owner:
                raise ConfigError(
                    f"component '{component}' also comes from rewards.{owner[component]}",
                    path=f"rewards.{name}",
                    fix="remove one of the two; a plugin of yours may call its component otherwise",
                )
            owner[component], kinds[component] = name, kind
            weights[component] = _number(
                given.get(component, plugin.weights.get(component, 1.0)),
                f"rewards.{name}.weights.{component}",
            )
            if weights[component] < 0 and plugin.policy_fault < 0:
                log.warning(
                    "rewards.%s: the floor %g times the weight %g of '%s' is a bonus: a fault pays",
                    *(name, plugin.policy_fault, weights[component], component),
                )
        reward_sources.append(
            NamedRewardSource(
                name,
                plugin,
                {component: weights[component] for component in plugin.components},
                common.concurrency
                or (plugin.concurrency if isinstance(plugin, BoundsCalls) else CONCURRENCY),
                plugin.per_role if isinstance(plugin, ScoresRoles) else (),
                common.max_missing,
            )
        )
    return reward_sources, RewardWeights(
        weights=weights, team_weight=float(estimator.weights.get(TEAM, 1.0)), kinds=kinds
    )


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError("a weight is a finite number", path=path, why=f"got {value!r}")
    return float(value)


def _vocabulary(parts: Sequence[Any], team: Team) -> tuple[str, ...]:
    """Every word that these and the roles write, each once, sorted.

    Args:
        parts: the environment, at every level, and the transition mode.
    """
    words: set[str] = set()
    for part in (*parts, *(member.role for member in team.members.values())):
        if isinstance(part, HasVocabulary):
            with plugin_call(part, "vocabulary"):
                given = part.vocabulary()
                if isinstance(given, str) or not isinstance(given, Iterable):
                    refuse(part, "vocabulary", given, "return a list of words")
                given = list(given)  # it may be a generator, which can still raise
            for word in given:
                if not isinstance(word, str):
                    refuse(part, "vocabulary", word, "every word is a text")
            words.update(given)
    return tuple(sorted(words))
