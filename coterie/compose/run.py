"""From a configuration to a `Run`: the one place that knows every kind of plugin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sized
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, Literal, Protocol, get_args, get_origin, runtime_checkable

from coterie.compose.builder import SHARED, ComponentBuilder
from coterie.compose.checks import check, check_words
from coterie.compose.evaluation_sets import check_apart, leave_out, sources_of
from coterie.compose.hosting import HostsEngine, engine_client, placed_trainer
from coterie.compose.layer_errors import layer_named
from coterie.compose.members import Demonstrates
from coterie.compose.rollout_side import RolloutParts, make_rollout_parts, make_rollout_side
from coterie.compose.settings import REFERRED
from coterie.compose.staleness import check_staleness, check_versions, plays_pinned
from coterie.compose.strata import check_strata, task_order
from coterie.core.config import TABLES, Resolved, RunConfig, ScheduleConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.plugins.origin import origin_of, plugin_call
from coterie.core.protocols import AdvantageEstimator, Environment, Executor, Length, Loss
from coterie.core.protocols.environment import HasNotSummable
from coterie.core.protocols.estimator import SumsOverTurns
from coterie.core.protocols.loss import NeedsFreshSamples
from coterie.core.rollout.contracts import refuse
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.training.curriculum import LevelTasks, trained_on
from coterie.core.training.run import Run
from coterie.core.training.state import CurriculumState, RunState
from coterie.core.types import RewardWeights, Sampling, Task
from coterie.core.types.splits import Split
from coterie.discovery import plugins
from coterie.watchdog import watched

log = logging.getLogger("coterie")


@runtime_checkable
class ChecksNeeds(Protocol):
    """A trainer's `Config` that is checked against estimator and loss before the trainer is imported."""

    def check_needs(self, needs: Collection[str], path: str) -> None:
        """Raise ConfigError for a setting without an effect.

        Args:
            needs: annotations that the estimator or the loss reads.
            path: dotted path of the settings.
        """


@runtime_checkable
class RepeatsSteps(Protocol):
    """A trainer's `Config` that may set several optimiser steps an update."""

    @property
    def repeats(self) -> str:
        """The setting that does, as `key=value`; empty: an update is one step."""


@runtime_checkable
class NamesLoss(Protocol):
    """An estimator whose paper has a loss of its own."""

    paper_loss: str
    """The loss, as `ppo_clip, sequence_mean, kl`: its type, then its length and what else it has."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked configuration, without an engine and a trainer."""

    config: RunConfig
    side: LocalRolloutSide
    make: Callable[[], Run]
    """Makes engine and trainer, which may import large libraries, and the run of all components."""


def compose(resolved: Resolved, splits: Collection[Split] = ()) -> Run:
    """Build every component of a run, cheaply: weights and connections come with `Run.open`.

    Args:
        splits: as of `prepare`.

    Raises:
        UserError: whatever is wrong with the configuration, with its path.
    """
    return prepare(resolved, splits).make()


def prepare(resolved: Resolved, splits: Collection[Split] = ()) -> Prepared:
    """Check a configuration, and make every component but its engine and its trainer.

    Args:
        splits: splits that will be played. Their tasks are asked for, so that a missing file is told now.

    Raises:
        UserError: whatever is wrong with the configuration, with its path, or with the data of `splits`.
    """
    with layer_named(resolved.origins), watched(resolved.config.schedule.patience):
        return _prepare(resolved, splits)


def _prepare(resolved: Resolved, splits: Collection[Split]) -> Prepared:
    config = resolved.config
    check(config)
    builder = ComponentBuilder(config)
    parts = make_rollout_parts(resolved, builder)
    side = parts.side
    components = {
        name: builder.make(TABLES[name], getattr(config, name), name) for name in ("loss", "executor", "chat")
    }
    trackers = {
        name: builder.make("tracker", table, f"trackers.{name}", name)
        for name, table in config.trackers.items()
    }
    late = {kind: builder.prepare(kind, getattr(config, kind), kind) for kind in ("engine", "trainer")}
    _check_consumed(config, builder, components["executor"])
    weights = side.reward_weights.weights
    if weights and all(weight == 0 for weight in weights.values()):
        raise ConfigError("every component has weight 0", path="rewards", why="then all rewards are 0")
    _check_selection(side, parts.estimator)
    _warn_stopping(side)
    for played in (side.environment, *side.levels, *(each.environment for each in side.sets.values())):
        _check_summable(parts.estimator, played, side.reward_weights)
    _warn_sampling(side, config)
    _warn_of_loss(resolved, parts.estimator, components["loss"])
    _check_oracle(config, side.environment)
    settings = late["trainer"].config
    if isinstance(settings, ChecksNeeds):
        settings.check_needs({*parts.estimator.needs, *components["loss"].needs}, "trainer")
    _check_steps(components["loss"], settings)
    _check_tasks(parts, splits)
    check_words(config, side)
    # Those that a component of the learning side made, a chat format's for one, are opened with the others.
    side.resources = tuple(builder.resources)
    check_staleness(config, components["loss"])

    def make() -> Run:
        engine, trainer = late["engine"](), late["trainer"]()
        pinned = plays_pinned(config, trainer)
        check_versions(config, engine, trainer, pinned)
        trainer = placed_trainer(resolved, components["executor"], trainer)
        client = engine_client(resolved, engine, components["executor"], side, builder.chat_models)
        return Run(
            resolved=resolved,
            rollout_side=side,
            make_rollout_side=partial(make_rollout_side, resolved),
            engine=client.engine,
            engine_client=client,
            estimator=parts.estimator,
            trainer=trainer,
            pinned=pinned,
            trackers=trackers,
            curriculum=parts.curriculum,
            make_order=partial(task_order, config.schedule.stratify, config.seed),
            notify=plugins().notify,
            state=RunState(curriculum=CurriculumState() if parts.curriculum is not None else None),
            evaluate_every=stated_interval(config.schedule),
            **components,
        )

    return Prepared(config, side, make)


def trained_splits(schedule: ScheduleConfig) -> tuple[Split, ...]:
    """The splits that training plays: `train`, and `val` where an evaluation comes due."""
    every, last = stated_interval(schedule), schedule.steps
    if last is None:  # passes may end before the first evaluation: how many steps they are is not known here
        last = 0 if schedule.epochs is not None else every
    return ("train", "val") if 0 < every <= last else ("train",)


def stated_interval(schedule: ScheduleConfig) -> int:
    """Steps between evaluations as stated; 0: none, or `auto`, which nobody can tell without the tasks."""
    return 0 if schedule.evaluate_every == "auto" else schedule.evaluate_every


def _check_tasks(parts: RolloutParts, splits: Collection[Split]) -> None:
    """Ask for the tasks of these splits: those of `train` of every level of a curriculum, those of `val` of
    the sets that the run names."""
    environment, seed, sets = parts.environment, parts.config.seed, parts.side.sets
    leave_out([environment, *parts.side.levels], sets, environment, seed)
    for split in splits:
        played: list[tuple[Environment, Any]]
        if split == "val" and (named := sources_of(sets, seed)):
            for owner, tasks, path in named:
                _check_source(owner, tasks, split, path)
            continue
        with plugin_call(environment, "tasks"):
            if split != "train":
                played = [(environment, environment.tasks(split, seed))]
            else:
                played = [*trained_on(environment, parts.curriculum, seed)]
        for owner, tasks in played:
            _check_source(owner, tasks.source if isinstance(tasks, LevelTasks) else tasks, split)
            if split == "train":
                check_strata(owner, tasks, parts.config.schedule.stratify)
                check_apart(owner, tasks, sets, seed)


def _check_source(environment: Environment, tasks: Any, split: Split, path: str = "env") -> None:
    """Refuse what is no source of tasks. One that makes its tasks when it is asked shows its first two."""
    if isawaitable(tasks) or not isinstance(tasks, Sized):
        fix = (
            "a list of coterie.Task, or an object with `__len__` and `__getitem__`; `tasks` isn't `async def`"
        )
        refuse(environment, "tasks", tasks, fix)
    source: Any = tasks
    if len(source) == 0:
        origin = origin_of(environment)
        raise ConfigError(f"the {split} split has no tasks", path=path, why=f"{origin}: tasks returned none")
    with plugin_call(environment, "tasks"):
        shown = source if isinstance(source, (list, tuple)) else [source[at] for at in range(len(source))[:2]]
    ids: set[str] = set()
    for task in shown:
        if not isinstance(task, Task):
            refuse(environment, "tasks", task, "every task is a coterie.Task")
        if task.id in ids:
            refuse(
                environment, "tasks", task.id, f"give each task of '{split}' another id: this one is twice"
            )
        ids.add(task.id)


def _check_consumed(config: RunConfig, builder: ComponentBuilder, executor: Executor) -> None:
    """Refuse a table of the top level that no component reads."""
    if config.cluster is not None and not isinstance(executor, HostsEngine):
        why = f"executor '{config.executor['type']}' plays in this process alone"
        fix = "set executor=ray, or remove it"
        raise ConfigError("nothing consumes this table", path="cluster", why=why, fix=fix)
    for table in SHARED.values():
        if getattr(config, table) is not None and table not in builder.consumed:
            raise ConfigError(
                "nothing consumes this table",
                path=table,
                why=f"no chosen component has a field for a {table}",
                fix="remove it",
            )
    for table in REFERRED.values():
        for name in getattr(config, table):
            if f"{table}.{name}" not in builder.consumed:
                why = "no component names it"
                fix = f"remove it, or name it, as in rewards.coach.model={name}"
                raise ConfigError("nothing uses this", path=f"{table}.{name}", why=why, fix=fix)


def _check_steps(loss: Loss, settings: Any) -> None:
    """Refuse steps on samples that the policy has left behind, where the loss doesn't notice."""
    repeats = settings.repeats if isinstance(settings, RepeatsSteps) else ""
    if repeats and isinstance(loss, NeedsFreshSamples) and loss.fresh_samples:
        key = repeats.split("=")[0]
        single = "1" if key == "epochs" else "null (micro_tokens bounds the memory)"
        raise ConfigError(
            f"the loss needs one optimiser step an update, and trainer.{repeats} makes several",
            path=f"trainer.{key}",
            why="it has no ratio: after the first step its gradient is of a policy that is gone",
            fix=f"set trainer.{key}={single}, or choose a loss with a ratio: loss.type=ppo_clip",
        )


def _warn_of_loss(resolved: Resolved, estimator: AdvantageEstimator, loss: Loss) -> None:
    """Say which loss an override of the algorithm keeps, where its paper has another."""
    origins = resolved.origins
    if origins.get("algorithm.type") != "override" or origins.get("loss.type") == "override":
        return
    kept, settings = str(resolved.config.loss["type"]), getattr(loss, "config", None)
    paper = estimator.paper_loss if isinstance(estimator, NamesLoss) else kept
    length = getattr(settings, "length", "")
    other_length = length not in paper and any(name in paper for name in get_args(Length))
    if not paper.startswith(kept) or other_length or (", kl" in paper and not getattr(settings, "kl", 0)):
        log.warning(
            "algorithm=%s keeps the loss that was there (%s, %s, kl %s), and its paper has another: %s. "
            "Set loss.type and its keys for the paper's",
            *(resolved.config.algorithm["type"], kept, length, getattr(settings, "kl", 0), paper),
        )


def _check_oracle(config: RunConfig, environment: Environment) -> None:
    """Refuse a warm start in an environment without demonstrations."""
    for name, policy in config.policies.items():
        if policy.warm_started and not isinstance(environment, Demonstrates):
            raise ConfigError(
                "the environment has no oracle to imitate",
                path=f"policies.{name}.warm_start",
                why=f"'{config.env['type']}' has no demonstrate(state, role, noise, rng)",
                fix="remove it",
            )


def _check_selection(side: LocalRolloutSide, estimator: AdvantageEstimator) -> None:
    """Refuse to select or to compare siblings by a score that not all of them get (invariant 11)."""
    late = [
        source.name
        for source in side.reward_sources
        if source.scope in ("episode", "trajectory") and any(source.weights.values())
    ]
    plan = side.sampler.plan
    trajectory = [source.name for source in side.reward_sources if source.scope == "trajectory"]
    if trajectory and plan.branches > 1:
        raise ConfigError(
            "a trajectory can't be scored in one call where episodes fork",
            path=f"rewards.{trajectory[0]}",
            why=f"sampler.branches is {plan.branches}: some actions are in several episodes, others in none",
            fix="set sampler.branches=1 and sampler.chains to the group's size, or score single actions",
        )
    whole = (
        "play whole episodes (sampler.branches=1, sampler.chains to the group's size, a return over turns)"
    )
    fix = f"{whole}, or set sampler.expand=all with the return tree, or give its components weight 0"
    if late and plan.expand == "best" and plan.branches > 1:
        raise ConfigError(
            "the best branch can't be chosen by a score of the whole episode",
            path=f"rewards.{late[0]}",
            why="the choice is made before the episode has ended",
            fix=fix,
        )
    sums = isinstance(estimator, SumsOverTurns) and estimator.sums_over_turns
    if late and plan.expand == "sampled" and plan.branches > 1 and not sums:
        raise ConfigError(
            "siblings can't be compared by a score of the whole episode",
            path=f"rewards.{late[0]}",
            why="with sampler.expand=sampled one branch of a decision is played on, and gets the score alone",
            fix=fix,
        )
    if late and side.stop_above is not None:
        raise ConfigError(
            "an episode can't be stopped by a score of the whole episode",
            path="algorithm.termination_threshold",
            why=f"rewards.{late[0]} is known only after it has ended",
            fix="leave the threshold out, or give the source's components weight 0",
        )


def _warn_stopping(side: LocalRolloutSide) -> None:
    """Warn that stopping early forgoes increments; with potentials it costs nothing."""
    gains = sorted(
        name
        for name, weight in side.reward_weights.weights.items()
        if weight and side.reward_weights.kinds.get(name) == "increment"
    )
    if gains and side.stop_above is not None:
        log.warning(
            "algorithm.termination_threshold: an episode that is stopped forgoes what %s would pay in later "
            "turns; where that can be positive, stopping is punished (potentials have no such cost)",
            ", ".join(f"'{name}'" for name in gains),
        )


def _check_summable(
    estimator: AdvantageEstimator, environment: Environment, reward_weights: RewardWeights
) -> None:
    """Refuse returns that sum what an episode can earn again and again (invariant 10)."""
    declared = environment.not_summable if isinstance(environment, HasNotSummable) else ()
    not_summable = [name for name in declared if reward_weights.weights.get(name)]
    if not_summable and isinstance(estimator, SumsOverTurns) and estimator.sums_over_turns:
        raise ConfigError(
            f"component '{not_summable[0]}' can't be summed over turns",
            path="algorithm.type",
            why=f"{origin_of(environment)} lists it in `not_summable`: an episode can earn it repeatedly",
            fix=f"{_potential_form(environment)}choose an algorithm of immediate returns (at_grpo), "
            "or give the component weight 0 in its table of `rewards`",
        )


def _potential_form(environment: Environment) -> str:
    """How to choose a form of the reward that is a potential, where the environment has such a setting."""
    settings = type(environment.config).model_fields.items() if isinstance(environment, Plugin) else ()
    for name, field in settings:
        if get_origin(field.annotation) is Literal and "potential" in get_args(field.annotation):
            return f"set env.{name}=potential, "
    return ""


def _warn_sampling(side: LocalRolloutSide, config: RunConfig) -> None:
    """Warn of samples that training can't compare, or that are of another distribution than it assumes."""
    plan = side.sampler.plan
    for role in side.team.members:
        with plugin_call(side.sampler, "sampling"):
            sampling = side.sampler.sampling(role)
        if not isinstance(sampling, Sampling):
            refuse(side.sampler, "sampling", sampling, "a coterie.Sampling")
        if sampling.filtered:
            log.warning(
                "role '%s' samples with top_p/top_k: what is trained is not what is sampled (log-probs are "
                "of the untruncated distribution)",
                role,
            )
        trained = config.policies[side.team.policies[role]].train != "none"
        if sampling.temperature == 0 and trained and plan.chains * plan.branches > 1:
            log.warning(
                "role '%s' samples at temperature 0: all its answers to one prompt are equal, so training "
                "that compares them learns nothing; fix: sampler.sampling.temperature=1",
                role,
            )
