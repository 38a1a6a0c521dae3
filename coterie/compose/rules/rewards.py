"""Rules of rewards: what samplers, algorithms, roles and transition modes can do with them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Literal, get_args, get_origin

from coterie.compose.rules.facts import ComposedParts
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.plugins.origin import origin_of, plugin_call
from coterie.core.protocols import AdvantageEstimator, Environment
from coterie.core.protocols.reward import ShowsFeedback
from coterie.core.protocols.transition import RepeatsTask
from coterie.core.rollout.contracts import refuse
from coterie.core.rollout.side import LocalRolloutSide
from coterie.discovery.members import (
    ChecksComponents,
    HasNotSummable,
    MayLackFeedback,
    OmitsTask,
    SumsOverTurns,
)

log = logging.getLogger("coterie")
WHOLE = "play whole episodes (sampler.branches=1, sampler.chains to the group's size, a return over turns)"
FIX = f"{WHOLE}, or set sampler.expand=all with the return tree, or give its components weight 0"


def named_components(side: LocalRolloutSide) -> None:
    """Let reward sources refuse components that their settings name and no source scores."""
    components = {name: source.name for source in side.reward_sources for name in source.plugin.components}
    for source in side.reward_sources:
        if isinstance(source.plugin, ChecksComponents):
            with plugin_call(source.plugin, "check_components"):
                source.plugin.check_components(components)


def feedback(side: LocalRolloutSide) -> None:
    """Refuse feedback of reward sources that roles can't show, or that is of branches not their own."""
    shown = [source for source in side.reward_sources if isinstance(source.plugin, ShowsFeedback)]
    if not shown:
        return
    source, path, plan, team = shown[0], f"rewards.{shown[0].name}", side.sampler.plan, side.team
    off = "switch the source's feedback off, where it has a setting for it (show_feedback: false)"
    if plan.branches > 1:
        raise ConfigError(
            f"{origin_of(source.plugin)} shows later roles its feedback, where decisions have branches",
            path=path,
            why=f"sampler.branches is {plan.branches}: a role would read of branches that are not its own",
            fix=f"set sampler.branches=1 (and sampler.chains to the group's size), or {off}",
        )
    first = team.order[0] if team.max_turns == 1 else ()  # they act before anything is scored
    for role, member in team.members.items():
        if role not in first and isinstance(member.role, MayLackFeedback):
            with plugin_call(member.role, "without_feedback"):
                setting = member.role.without_feedback()
            if not isinstance(setting, str):
                refuse(member.role, "without_feedback", setting, "a text; an empty one where prompts show it")
            if setting:
                raise ConfigError(
                    f"role '{role}' can't show the feedback of {origin_of(source.plugin)}",
                    path=path,
                    why=f"{setting}: its prompts have no place for feedback",
                    fix=f"change that setting, or {off}",
                )


def task_shown(side: LocalRolloutSide) -> None:
    """Refuse a transition mode that leaves the task out of later turns with roles that repeat it anyway."""
    team = side.team
    transition = team.transition
    if not isinstance(transition, RepeatsTask) or transition.original_prompt or team.max_turns == 1:
        return
    for role, member in team.members.items():
        if not (isinstance(member.role, OmitsTask) and member.role.omits_task):
            raise ConfigError(
                f"role '{role}' states the task in every turn",
                path="transition.original_prompt",
                why=f"{origin_of(member.role)} has no prompt without it",
                fix="set transition.original_prompt=true",
            )


def any_weight(run: ComposedParts) -> None:
    """Refuse weights that are all 0."""
    weights = run.side.reward_weights.weights
    if weights and all(weight == 0 for weight in weights.values()):
        raise ConfigError("every component has weight 0", path="rewards", why="then all rewards are 0")


def trajectories_without_forks(run: ComposedParts) -> None:
    """Refuse to score trajectories in one call where episodes fork."""
    plan = run.side.sampler.plan
    trajectory = [source.name for source in run.side.reward_sources if source.scope == "trajectory"]
    if trajectory and plan.branches > 1:
        raise ConfigError(
            "a trajectory can't be scored in one call where episodes fork",
            path=f"rewards.{trajectory[0]}",
            why=f"sampler.branches is {plan.branches}: some actions are in several episodes, others in none",
            fix="set sampler.branches=1 and sampler.chains to the group's size, or score single actions",
        )


def _late(run: ComposedParts, expand: Collection[str] = ()) -> str:
    """The first source that scores episodes after their end and counts; empty: none.

    Args:
        expand: only where the sampler expands decisions of several branches like this.
    """
    plan = run.side.sampler.plan
    sources = [
        source.name
        for source in run.side.reward_sources
        if source.scope in ("episode", "trajectory") and any(source.weights.values())
    ]
    forks = not expand or (plan.expand in expand and plan.branches > 1)
    return sources[0] if sources and forks else ""


def best_branch(run: ComposedParts) -> None:
    """Refuse to select siblings by a score that comes after the choice."""
    if late := _late(run, ["best"]):
        raise ConfigError(
            "the best branch can't be chosen by a score of the whole episode",
            path=f"rewards.{late}",
            why="the choice is made before the episode has ended",
            fix=FIX,
        )


def compared_siblings(run: ComposedParts) -> None:
    """Refuse to compare siblings by a score that only one of them gets."""
    if (late := _late(run, ["sampled"])) and not _sums(run.estimator):
        raise ConfigError(
            "siblings can't be compared by a score of the whole episode",
            path=f"rewards.{late}",
            why="with sampler.expand=sampled one branch of a decision is played on, and gets the score alone",
            fix=FIX,
        )


def stopped_episodes(run: ComposedParts) -> None:
    """Refuse to stop episodes by a score that comes after their end."""
    if (late := _late(run)) and run.side.stop_above is not None:
        raise ConfigError(
            "an episode can't be stopped by a score of the whole episode",
            path="algorithm.termination_threshold",
            why=f"rewards.{late} is known only after it has ended",
            fix="leave the threshold out, or give the source's components weight 0",
        )


def stopping_forgoes_increments(run: ComposedParts) -> None:
    """Warn that stopping early forgoes increments; with potentials it costs nothing."""
    weights, kinds = run.side.reward_weights.weights, run.side.reward_weights.kinds
    gains = sorted(name for name, weight in weights.items() if weight and kinds.get(name) == "increment")
    if gains and run.side.stop_above is not None:
        log.warning(
            "algorithm.termination_threshold: an episode that is stopped forgoes what %s would pay in later "
            "turns; where that can be positive, stopping is punished (potentials have no such cost)",
            ", ".join(f"'{name}'" for name in gains),
        )


def sums_over_turns(run: ComposedParts) -> None:
    """Refuse returns that sum what an episode can earn again and again."""
    side = run.side
    for environment in (side.environment, *side.levels, *(each.environment for each in side.sets.values())):
        declared = environment.not_summable if isinstance(environment, HasNotSummable) else ()
        not_summable = [name for name in declared if side.reward_weights.weights.get(name)]
        if not_summable and _sums(run.estimator):
            raise ConfigError(
                f"component '{not_summable[0]}' can't be summed over turns",
                path="algorithm.type",
                why=f"{origin_of(environment)} lists it in `not_summable`: an episode can earn it repeatedly",
                fix=f"{_potential_form(environment)}choose an algorithm of immediate returns (at_grpo), "
                "or give the component weight 0 in its table of `rewards`",
            )


def _sums(estimator: AdvantageEstimator) -> bool:
    return isinstance(estimator, SumsOverTurns) and estimator.sums_over_turns


def _potential_form(environment: Environment) -> str:
    """How to choose a form of the reward that is a potential, where the environment has such a setting."""
    settings = type(environment.config).model_fields.items() if isinstance(environment, Plugin) else ()
    for name, field in settings:
        if get_origin(field.annotation) is Literal and "potential" in get_args(field.annotation):
            return f"set env.{name}=potential, "
    return ""
