"""From a configuration to a `Run`: the one place that knows every kind of plugin."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import partial

from coterie.compose.account import shared_parts
from coterie.compose.builder import ComponentBuilder
from coterie.compose.layer_errors import layer_named
from coterie.compose.rollout_side import make_rollout_parts, make_rollout_side
from coterie.compose.rules.facts import ComposedParts, WeightHolders
from coterie.compose.rules.staleness import plays_pinned
from coterie.compose.rules.table import OF_COMPONENTS, OF_WEIGHTS, ask, check
from coterie.compose.strata import task_order
from coterie.compose.tables import TABLES
from coterie.core.config import Resolved, RunConfig, ScheduleConfig
from coterie.core.protocols import ChatFormat, Engine, Loss, Trainer
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.training.run import Run
from coterie.core.training.state import CurriculumState, RunState
from coterie.core.types.splits import Split
from coterie.discovery import plugins
from coterie.discovery.optional import ExecutorDefaults, TrainerDefaults, with_defaults
from coterie.watchdog import watched


@dataclass(frozen=True, slots=True)
class PreparedRun:
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


def prepare(resolved: Resolved, splits: Collection[Split] = ()) -> PreparedRun:
    """Check a configuration, and make every component but its engine and its trainer.

    Args:
        splits: splits that will be played. Their tasks are asked for, so that a missing file is told now.

    Raises:
        UserError: whatever is wrong with the configuration, with its path, or with the data of `splits`.
    """
    with layer_named(resolved.origins), watched(resolved.config.schedule.patience):
        return _prepare(resolved, splits)


def _prepare(resolved: Resolved, splits: Collection[Split]) -> PreparedRun:
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
    composed = ComposedParts(
        **{part.name: getattr(parts, part.name) for part in fields(parts)},
        loss=components["loss"],
        executor=components["executor"],
        trainer_config=late["trainer"].config,
        consumed=builder.consumed,
        splits=splits,
    )
    ask(OF_COMPONENTS, composed)
    # Those that a component of the learning side made, a chat format's for one, are opened with the others.
    side.resources = tuple(builder.resources)

    def make() -> Run:
        engine, trainer = late["engine"](), late["trainer"]()
        pinned = plays_pinned(config, trainer)
        ask(OF_WEIGHTS, WeightHolders(config, engine, trainer, pinned))
        members = with_defaults(components["executor"], ExecutorDefaults)
        if members.cluster is not None:
            with_defaults(trainer, TrainerDefaults).use_cluster(members.cluster)
        trainer = members.host_trainers(trainer, partial(make_trainer, resolved))
        shared = shared_parts(resolved, side, builder.chat_models)
        client = members.host_engine(engine, partial(make_engine, resolved), shared)
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

    return PreparedRun(config, side, make)


def trained_splits(schedule: ScheduleConfig) -> tuple[Split, ...]:
    """The splits that training plays: `train`, and `val` where an evaluation comes due."""
    every, last = stated_interval(schedule), schedule.steps
    if last is None:  # passes may end before the first evaluation: how many steps they are is not known here
        last = 0 if schedule.epochs is not None else every
    return ("train", "val") if 0 < every <= last else ("train",)


def stated_interval(schedule: ScheduleConfig) -> int:
    """Steps between evaluations as stated; 0: none, or `auto`, which nobody can tell without the tasks."""
    return 0 if schedule.evaluate_every == "auto" else schedule.evaluate_every


# --------------------------------- engine and trainer in processes of their own, where the executor has some


def make_trainer(resolved: Resolved) -> tuple[Trainer, Loss, ChatFormat]:
    """The trainer of a run, its loss and its chat format, in any process."""
    config, builder = resolved.config, ComponentBuilder(resolved.config)
    loss: Loss = builder.make("loss", config.loss, "loss")
    chat: ChatFormat = builder.make("chat_format", config.chat, "chat")
    trainer: Trainer = builder.make("trainer", config.trainer, "trainer")
    return trainer, loss, chat


def make_engine(resolved: Resolved) -> Engine:
    """The engine of a run, in any process."""
    engine: Engine = ComponentBuilder(resolved.config).make("engine", resolved.config.engine, "engine")
    return engine
