"""The part of executor `ray` that gives the engine and the trainers processes of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.executors.ray.account import RunAccount
from coterie.backends.executors.ray.hosted_engine import HostedEngine, HostedIdleTime
from coterie.backends.executors.ray.hosted_trainers import TrainerParts, hosted_trainers
from coterie.core.errors import ConfigError
from coterie.core.plugins.origin import origin_of
from coterie.core.protocols import Engine, Trainer
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.discovery.members import TrainsApart, UsesRunFolder


class Hosting(ABC):
    """Gives other components of a run their processes."""

    settings: ClusterConfig
    _connection: Connection
    _engine: HostedEngine
    _account: RunAccount
    _variables: set[str]
    """Secret environment variables that rollout hosts get."""
    _drawn: Counter[int]
    """Of the engine client: tokens by step in play."""

    @abstractmethod
    def _reconnect(self, why: str, seconds: float) -> None:
        """Go on with another engine host."""

    @abstractmethod
    def _fail(self, error: BaseException) -> None:
        """End all that is played with an error."""

    @property
    def cluster(self) -> Connection:
        """Where a trainer's other ranks are; the engine's close disconnects."""
        return self._connection

    def host_engine(self, engine: Engine, make: Callable[[], Engine], shared: Any) -> LocalEngineClient:
        """The client of an engine that `make` makes in a process of the cluster.

        Args:
            shared: what the run has once, as `compose.account.Shared`.
        """
        self._connection.named, named = shared.variables.every, shared.variables
        self._account = RunAccount(shared, self._connection)
        self._variables = {*named.sides, *self.settings.variables}
        # An engine that stores files in the run's folder calls a server: it has a budget, a cache and a key.
        here = isinstance(engine, UsesRunFolder)
        variables = None if here else {*named.engine, *self.settings.variables}
        self._engine = HostedEngine(make, self._connection, here=here, variables=variables)
        self._engine.replaced, self._engine.failed = self._reconnect, self._fail
        client = LocalEngineClient(self._engine, idle_time=HostedIdleTime(self._engine))
        self._drawn = client.drawn
        return client

    def host_trainers(self, trainer: Trainer, make: Callable[[], TrainerParts]) -> Trainer:
        """The trainer itself; with `updates: at_once` what lets each set of weights have one of its own.

        Args:
            trainer: of this process.
            make: makes the same in any process, with its loss and its chat format. Picklable.

        Raises:
            ConfigError: the trainer's policies can't be divided.
        """
        if self.settings.updates == "in_turn":
            return trainer
        if not isinstance(trainer, TrainsApart):
            raise ConfigError(
                f"{origin_of(trainer)} can't train sets of weights at once",
                path="cluster.updates",
                why="it has no same_start, part_of_state and join_states, which divide its state",
                fix="set cluster.updates=in_turn, or choose another trainer (torch, deepspeed, tabular)",
            )
        hosted = hosted_trainers(trainer, make, self._connection)
        hosted.failed = self._fail
        return hosted
