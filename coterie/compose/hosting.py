"""The engine and the ranks of a run in processes of their own, where the executor has a place for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

from coterie.compose.account import Shared, shared_parts
from coterie.compose.builder import ComponentBuilder, MadeModel
from coterie.core.config import Resolved
from coterie.core.protocols import ChatFormat, Engine, Executor, Loss, Trainer
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.rollout.side import LocalRolloutSide


@runtime_checkable
class HostsEngine(Protocol):
    """An executor that runs the engine in a process of its own, near the rollout sides."""

    def host_engine(self, engine: Engine, make: Callable[[], Engine], shared: Shared) -> LocalEngineClient:
        """The client whose engine passes weights to the one that `make` makes there.

        Args:
            engine: the same engine in this process, which is never opened.
            make: picklable.
            shared: what the run has once, and how a rollout side is made that asks for it.
        """


@runtime_checkable
class HostsTrainers(Protocol):
    """An executor that may give each set of weights a trainer of its own, in processes of their own."""

    def host_trainers(
        self, trainer: Trainer, make: Callable[[], tuple[Trainer, Loss, ChatFormat]]
    ) -> Trainer:
        """The trainer that the run sees: `trainer` itself, or what passes calls to those that `make` makes.

        Args:
            trainer: of this process.
            make: makes the same, with its loss and its chat format. Picklable.
        """


@runtime_checkable
class ReportsProcesses(Protocol):
    """An executor that plays in other processes, and says for a display of progress what they do."""

    def processes(self) -> Mapping[str, int]:
        """What there is now, by its name, such as {"hosts": 8, "in play": 120}; any thread may ask."""


@runtime_checkable
class HasCluster(Protocol):
    """An executor with a cluster, on which other components may have processes of their own."""

    @property
    def cluster(self) -> Any:
        """The connection, which is closed after those components."""


@runtime_checkable
class UsesCluster(Protocol):
    """A trainer that starts its other ranks on the cluster of the executor."""

    def use_cluster(self, cluster: Any) -> None:
        """Take the cluster, before `open`."""


def placed_trainer(resolved: Resolved, executor: Executor, trainer: Trainer) -> Trainer:
    """The trainer that the run sees: this one, with the executor's cluster if it has processes for that; or
    what passes calls to those that the executor has elsewhere.

    Raises:
        ConfigError: the executor is to have several, and the trainer can't be divided.
    """
    if isinstance(executor, HasCluster) and isinstance(trainer, UsesCluster):
        trainer.use_cluster(executor.cluster)
    if not isinstance(executor, HostsTrainers):
        return trainer
    return executor.host_trainers(trainer, partial(make_trainer, resolved))


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
    if not isinstance(executor, HostsEngine):
        return LocalEngineClient(engine)
    shared = shared_parts(resolved, side, chat_models)
    return executor.host_engine(engine, partial(make_engine, resolved), shared)


def make_engine(resolved: Resolved) -> Engine:
    """The engine of a run, in any process."""
    engine: Engine = ComponentBuilder(resolved.config).make("engine", resolved.config.engine, "engine")
    return engine
