"""The engine and the ranks of a run in processes of their own, where the executor has a place for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from coterie.compose.account import shared_parts
from coterie.compose.builder import ComponentBuilder, MadeModel
from coterie.core.config import Resolved
from coterie.core.protocols import ChatFormat, Engine, Executor, Loss, Trainer
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.rollout.side import LocalRolloutSide
from coterie.discovery.optional import ExecutorDefaults, TrainerDefaults, with_defaults


def placed_trainer(resolved: Resolved, executor: Executor, trainer: Trainer) -> Trainer:
    """The trainer that the run sees: this one, with the executor's cluster if it has processes for that; or
    what passes calls to those that the executor has elsewhere.

    Raises:
        ConfigError: the executor is to have several, and the trainer can't be divided.
    """
    members = with_defaults(executor, ExecutorDefaults)
    if members.cluster is not None:
        with_defaults(trainer, TrainerDefaults).use_cluster(members.cluster)
    return members.host_trainers(trainer, partial(make_trainer, resolved))


def make_trainer(resolved: Resolved) -> tuple[Trainer, Loss, ChatFormat]:
    """The trainer of a run, its loss and its chat format, in any process."""
    config, builder = resolved.config, ComponentBuilder(resolved.config)
    loss: Loss = builder.make("loss", config.loss, "loss")
    chat: ChatFormat = builder.make("chat_format", config.chat, "chat")
    trainer: Trainer = builder.make("trainer", config.trainer, "trainer")
    return trainer, loss, chat


def engine_client(
    resolved: Resolved,
    engine: Engine,
    executor: Executor,
    side: LocalRolloutSide,
    chat_models: Sequence[MadeModel],
) -> LocalEngineClient:
    """The client of the engine, which the executor may have elsewhere.

    Args:
        chat_models: of the rollout side, in the order in which they were made.
    """
    members, shared = with_defaults(executor, ExecutorDefaults), shared_parts(resolved, side, chat_models)
    return members.host_engine(engine, partial(make_engine, resolved), shared)


def make_engine(resolved: Resolved) -> Engine:
    """The engine of a run, in any process."""
    engine: Engine = ComponentBuilder(resolved.config).make("engine", resolved.config.engine, "engine")
    return engine
