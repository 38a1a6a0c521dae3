"""From a configuration to a `Run`: the one place that knows every kind of plugin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from coterie.core.concurrency.request_batching import ActiveRollouts
from coterie.core.config import TABLES, TEAM_KEYS, Resolved, RoleConfig, RunConfig, check, validate
from coterie.core.errors import ConfigError, PluginError, did_you_mean
from coterie.core.protocols import Environment, NamedRewardSource, Team
from coterie.core.training.builder import SHARED, ComponentBuilder
from coterie.core.training.curriculum import KEY as CURRICULUM, Curriculum, make_curriculum, taken
from coterie.core.training.run import Run
from coterie.core.types import TEAM, ComponentKind, RewardWeights, as_tuple

log = logging.getLogger("coterie")


def compose(resolved: Resolved) -> Run:
    """Build every component of a run, cheaply: weights and connections come with `Run.open`.

    Raises:
        UserError: whatever is wrong with the configuration, with its path.
    """
    return prepare(resolved)()


def prepare(resolved: Resolved) -> Callable[[], Run]:
    """Check a configuration; the result makes its engine and its trainer, which may import large libraries.

    Raises:
        UserError: whatever is wrong with the configuration, with its path.
    """
    config = resolved.config
    check(config)
    builder = ComponentBuilder(config)
    environment, curriculum = _environment(builder, config)
    environments = [environment, *(level.environment for level in (curriculum.levels if curriculum else ()))]
    team = _team(builder, config, environment)
    sampler = builder.make("sampler", config.sampler, "sampler")
    estimator = builder.make("estimator", config.algorithm, "algorithm")
    estimator.check(sampler.plan, team)
    reward_sources, reward_weights = _rewards(builder, config, estimator)
    components = {
        name: builder.make(TABLES[name], getattr(config, name), name) for name in ("loss", "executor", "chat")
    }
    trackers = {
        name: builder.make("tracker", table, f"trackers.{name}", name)
        for name, table in config.trackers.items()
    }
    late = {kind: builder.prepare(kind, getattr(config, kind), kind) for kind in ("engine", "trainer")}
    for table in SHARED.values():
        if getattr(config, table) is not None and table not in builder.consumed:
            raise ConfigError(
                "nothing consumes this table",
                path=table,
                why=f"no chosen component has a field for a {table}",
                fix="remove it",
            )
    if reward_weights.weights and all(weight == 0 for weight in reward_weights.weights.values()):
        raise ConfigError("every component has weight 0", path="rewards", why="then all rewards are 0")
    _check_selection(sampler, estimator, reward_sources)
    _warn_stopping(estimator, reward_weights)
    for played in environments:
        _check_summable(estimator, played, reward_weights)
    _warn_truncation(sampler, team)
    vocabulary = _vocabulary(environments, team)

    def make() -> Run:
        components.update({kind: maker() for kind, maker in late.items()})
        return Run(
            resolved=resolved,
            environment=environment,
            team=team,
            reward_sources=reward_sources,
            reward_weights=reward_weights,
            sampler=sampler,
            estimator=estimator,
            trackers=trackers,
            active_rollouts=ActiveRollouts(),
            resources=tuple(builder.resources),
            vocabulary=vocabulary,
            curriculum=curriculum,
            **components,
        )

    return make


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


def _team(builder: ComponentBuilder, config: RunConfig, environment: Environment) -> Team:
    roles: dict[str, Any] = {}
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
        roles[name] = builder.make("role", settings, f"team.roles.{name}", name, also=TEAM_KEYS)
    return Team(
        roles=roles,
        order=as_tuple(config.team.order),
        max_turns=config.team.max_turns,
        policies={name: role.policy for name, role in role_configs.items()},
        trainable={name: policy.train != "none" for name, policy in config.policies.items()},
        transition=builder.make("transition", config.transition, "transition"),
        tools={name: tuple(all_tools[tool] for tool in role.tools) for name, role in role_configs.items()},
        max_tool_turns=config.team.max_tool_turns,
        role_tool_turns={
            name: role.max_tool_turns
            for name, role in role_configs.items()
            if role.max_tool_turns is not None
        },
        show_thoughts=frozenset(name for name, role in role_configs.items() if role.show_thoughts),
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
        settings = {key: value for key, value in table.items() if key != "weights"}
        plugin = builder.make("reward", settings, f"rewards.{name}", name, also=["weights"])
        given = table.get("weights") or {}
        if not isinstance(given, Mapping):
            raise ConfigError("weights is no table", path=f"rewards.{name}.weights", fix="component: weight")
        for component in given:
            if component not in plugin.components:
                raise ConfigError(
                    f"unknown component '{component}'",
                    path=f"rewards.{name}.weights.{component}",
                    fix=did_you_mean(component, plugin.components),
                )
        for component, kind in plugin.components.items():
            if component in owner:
                raise ConfigError(
                    f"component '{component}' also comes from rewards.{owner[component]}",
                    path=f"rewards.{name}",
                    fix="give one of them another name",
                )
            _check_kind(component, kind, f"rewards.{name}")
            owner[component], kinds[component] = name, kind
            weights[component] = _number(
                given.get(component, plugin.weights.get(component, 1.0)),
                f"rewards.{name}.weights.{component}",
            )
        reward_sources.append(NamedRewardSource(name, plugin, {c: weights[c] for c in plugin.components}))
    return reward_sources, RewardWeights(
        weights=weights, team_weight=float(estimator.weights.get(TEAM, 1.0)), kinds=kinds
    )


def _check_kind(component: str, kind: Any, path: str) -> None:
    known = get_args(ComponentKind)
    if kind not in known:
        renamed = "`level` is called `potential` since 0.2" if kind == "level" else ""
        raise PluginError(
            f"component '{component}' is of an unknown kind {kind!r}",
            path=path,
            why=renamed,
            fix=did_you_mean("potential" if kind == "level" else str(kind), known),
        )


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError("a weight is a number", path=path, why=f"got {value!r}")
    return float(value)


def _vocabulary(environments: Sequence[Environment], team: Team) -> tuple[str, ...]:
    """Every word that the environment, at every level, and the roles write, each once, sorted."""
    words: set[str] = set()
    for part in (*environments, *team.roles.values()):
        vocabulary = getattr(part, "vocabulary", None)
        if vocabulary is not None:
            words.update(vocabulary())
    return tuple(sorted(words))


def _check_selection(sampler: Any, estimator: Any, reward_sources: Sequence[NamedRewardSource]) -> None:
    """Refuse a selection during play by a score of the episode's end (invariant 11)."""
    late = [
        source.name for source in reward_sources if source.scope == "episode" and any(source.weights.values())
    ]
    if late and sampler.plan.expand == "best" and sampler.plan.branches > 1:
        raise ConfigError(
            "the best branch can't be chosen by a score of the whole episode",
            path=f"rewards.{late[0]}",
            why="the choice is made before the episode has ended",
            fix="set sampler.expand to sampled or all, or give its components weight 0",
        )
    if late and getattr(estimator, "stop_above", None) is not None:
        raise ConfigError(
            "an episode can't be stopped by a score of the whole episode",
            path="algorithm.termination_threshold",
            why=f"rewards.{late[0]} is known only after it has ended",
            fix="leave the threshold out, or give the source's components weight 0",
        )


def _warn_stopping(estimator: Any, reward_weights: RewardWeights) -> None:
    """Warn that stopping early forgoes increments; with potentials it costs nothing."""
    gains = sorted(
        name
        for name, weight in reward_weights.weights.items()
        if weight and reward_weights.kinds.get(name) == "increment"
    )
    if gains and getattr(estimator, "stop_above", None) is not None:
        log.warning(
            "algorithm.termination_threshold: an episode that is stopped forgoes what %s would pay in later "
            "turns; where that can be positive, stopping is punished (potentials have no such cost)",
            ", ".join(f"'{name}'" for name in gains),
        )


def _check_summable(estimator: Any, environment: Environment, reward_weights: RewardWeights) -> None:
    """Refuse returns that sum what an episode can earn again and again (invariant 10)."""
    not_summable = [
        name for name in getattr(environment, "not_summable", ()) if reward_weights.weights.get(name)
    ]
    if not_summable and getattr(estimator, "sums_over_turns", False):
        raise ConfigError(
            f"component '{not_summable[0]}' can't be summed over turns",
            path="algorithm.type",
            why="it pays again when a state is left and reached again; it is for immediate credit only",
            fix="choose a form whose sum is bounded (plan_path: env.team=potential), or give it weight 0",
        )


def _warn_truncation(sampler: Any, team: Team) -> None:
    for role in team.roles:
        if sampler.sampling(role).filtered:
            log.warning(
                "role '%s' samples with top_p/top_k: what is trained is not what is sampled (log-probs are "
                "of the untruncated distribution)",
                role,
            )
