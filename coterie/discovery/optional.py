"""What a plugin may have beside the members that authors read of (`core/protocols`, `discovery/members.py`).

One class a kind, of members that one place of Coterie asks for, each with what holds of a plugin without it:

    with_defaults(executor, ExecutorDefaults).host_trainers(trainer, make)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from coterie.core.config import PolicyConfig
from coterie.core.protocols import ChatFormat, Engine, Loss, Trainer
from coterie.core.rollout.engine_client import LocalEngineClient

K = TypeVar("K")


def with_defaults(thing: object, kind: type[K]) -> K:
    """A plugin, its class or its settings, with the members that it lacks; None takes an inherited one away.

    Args:
        kind: one of the classes below, or another that is made without arguments.
    """
    return cast(K, _WithDefaults(thing, kind()))


class _WithDefaults:
    def __init__(self, thing: object, defaults: object) -> None:
        self._thing, self._defaults = thing, defaults

    def __getattr__(self, name: str) -> Any:
        default, member = getattr(self._defaults, name), getattr(self._thing, name, None)
        return default if member is None else member


class ExecutorDefaults:
    """An executor that plays in this process alone."""

    Cluster: type | None = None
    """The schema of the table `cluster`."""
    cluster: Any = None
    """The connection to a cluster on which other components may have processes of their own; it is closed
    after those components."""
    processes: Callable[[], Mapping[str, int]] | None = None
    """What its processes do now, by its name, such as {"hosts": 8, "in play": 120}; any thread may ask."""

    def host_engine(self, engine: Engine, make: Callable[[], Engine], shared: Any) -> LocalEngineClient:
        """The client whose engine passes weights to the one that `make` makes in a process of its own, near
        the rollout sides.

        Args:
            engine: the same engine in this process, which is never opened then.
            make: picklable.
            shared: what the run has once (`compose.account.Shared`), and how a rollout side is made that
                asks for it.
        """
        return LocalEngineClient(engine)

    def host_trainers(
        self, trainer: Trainer, make: Callable[[], tuple[Trainer, Loss, ChatFormat]]
    ) -> Trainer:
        """The trainer that the run sees: `trainer` itself, or what passes calls to those that `make` makes,
        one for each set of weights.

        Args:
            trainer: of this process.
            make: makes the same, with its loss and its chat format. Picklable.
        """
        return trainer


class EngineDefaults:
    """An engine that can play all policies ahead, if it leases versions."""

    def check_ahead(self, policies: Mapping[str, PolicyConfig], ahead: int, pinned: bool) -> None:
        """Raise ConfigError for settings or policies that can't be played ahead; the engine isn't open yet.

        Args:
            ahead: steps that are played beside the one that is due; pinned ones need `ahead` + 1 versions.
        """

    def use_actors(self, actors: Any) -> None:
        """Start its processes as actors; called before `open` in a process of a cluster.

        Args:
            actors: `backends.cluster.hosts.Actors`.
        """


class TrainerDefaults:
    """A trainer of one process."""

    def use_cluster(self, cluster: Any) -> None:
        """Take the executor's cluster, to start other ranks there; called before `open`."""

    async def offload(self) -> None:
        """Free device memory until it computes again, if its settings say so. What an engine reads of its
        weights stays readable."""


class EstimatorDefaults:
    """An estimator whose paper takes any loss."""

    paper_loss: str = ""
    """The loss of its paper, as `ppo_clip, sequence_mean, kl`: its type, then its length and what else it
    has."""


class EnvironmentDefaults:
    """An environment in whose turns each role acts at most once, and whose states hold no answers."""

    actions_per_turn: Mapping[str, int] = {}
    """By role, most actions in one turn, which a plan counts; a role that is absent acts at most once."""
    reports: Sequence[str] = ()
    """Names of its reports, plain data in `Step.info` that reward sources weigh (`plugins/reports.py`)."""
    latest: Callable[[Any], Mapping[str, str]] | None = None
    """Of a state, the latest answer of every role that has acted, as the model wrote it, by role."""


class ConfigDefaults:
    """The `Config` of a component that needs no optional package."""

    def check_packages(self) -> None:
        """Raise MissingExtra for a package that is not installed; a class method."""


class TrainerConfigDefaults:
    """The `Config` of a trainer that updates once, on any device."""

    repeats: str = ""
    """The setting by which an update has several optimiser steps, as `key=value`; empty: it has one."""

    def is_deterministic(self, wanted: Any) -> bool:
        """Whether results must repeat on the device that the settings choose, by the setting
        `deterministic`."""
        return True

    def check_needs(self, needs: Collection[str], path: str) -> None:
        """Raise ConfigError for a setting without an effect, before the trainer is imported.

        Args:
            needs: annotations that the estimator or the loss reads.
            path: dotted path of the settings.
        """

    def check_size(
        self,
        policies: Mapping[str, PolicyConfig],
        vocabulary: Sequence[str],
        tokens: Mapping[str, int],
        memory: int | None,
    ) -> None:
        """Raise ConfigError for models that the device can't hold, before any is loaded; warn of steps that
        take hours.

        Args:
            tokens: by policy, most tokens that a step generates.
            memory: bytes of this machine; None: unknown.
        """


class PolicyDefaults:
    """A policy's table that is read by no tokenizer and begins with any weights."""

    warm_start: Any = None
    """The settings of its warm start, with `noise`, `steps` and `batch`."""

    def check_words(self, path: str, vocabulary: Sequence[str] | None, longest: Mapping[str, int]) -> None:
        """Raise ConfigError for words that the model can't write, before it is made; warn of long answers.

        Args:
            path: dotted path of the policy's table.
            vocabulary: words of the environment and the roles; None: they follow from data that isn't here.
            longest: by role of the policy: most tokens of an answer.
        """

    def check_source(self, path: str, source: PolicyConfig | Path) -> None:
        """Raise ConfigError for a source that the policy can't begin with, before anything is loaded.

        Args:
            path: dotted path of the policy's table.
            source: the settings of a policy of another run, or a folder without a run.
        """


DEFAULTS: dict[str, type] = {
    "executor": ExecutorDefaults,
    "engine": EngineDefaults,
    "trainer": TrainerDefaults,
    "estimator": EstimatorDefaults,
    "environment": EnvironmentDefaults,
}
"""The members of a kind's plugins, by kind; those of settings and policies are no plugin's."""
