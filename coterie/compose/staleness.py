"""Rules of `schedule.max_staleness`: which losses, engines and trainers can play steps ahead, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.errors import ConfigError
from coterie.core.protocols import Engine, Loss, Trainer
from coterie.core.protocols.engine import LeasesVersions
from coterie.core.protocols.loss import NeedsFreshSamples
from coterie.core.protocols.trainer import KeepsVersions

PATH = "schedule.max_staleness"
NONE = "set schedule.max_staleness=0"


@runtime_checkable
class ChoosesDevice(Protocol):
    """A trainer's `Config` that chooses the device on which a run computes."""

    def is_deterministic(self, wanted: Any) -> bool:
        """Whether results must repeat there, by the setting `deterministic`."""


@runtime_checkable
class ChecksAhead(Protocol):
    """An engine with settings or policies that can't be played ahead."""

    def check_ahead(self, policies: Mapping[str, PolicyConfig], ahead: int, pinned: bool) -> None:
        """Raise ConfigError for them; the engine isn't open yet.

        Args:
            ahead: steps that are played beside the one that is due; pinned ones need `ahead` + 1 versions.
        """


def check_staleness(config: RunConfig, loss: Loss) -> None:
    """Refuse steps ahead that the loss can't train, before the engine is imported.

    Raises:
        ConfigError: the loss needs fresh samples; `play` without steps ahead; versions in flight where
            results must repeat.
    """
    schedule = config.schedule
    if not schedule.max_staleness:
        if schedule.play != "auto":
            why = "no step is played ahead: schedule.max_staleness is 0"
            raise ConfigError("this setting has no effect", path="schedule.play", why=why, fix="leave it out")
        return
    if isinstance(loss, NeedsFreshSamples) and loss.fresh_samples:
        raise ConfigError(
            "the loss needs samples of the present weights, and steps ahead are played by older ones",
            path=PATH,
            why="it has no ratio: its gradient would be of a policy that is gone",
            fix=f"{NONE}, choose a loss with a ratio (loss.type=ppo_clip), or set loss.correction",
        )
    if schedule.play == "in_flight" and config.deterministic is True:
        raise ConfigError(
            "a run whose weights change within an episode can't repeat",
            path="schedule.play",
            why="deterministic is true, and when new weights arrive depends on the speed of both sides",
            fix="set schedule.play=pinned, or leave deterministic out",
        )


def plays_pinned(config: RunConfig, trainer: Trainer) -> bool:
    """Whether one version of each policy plays all of a step."""
    schedule, settings = config.schedule, getattr(trainer, "config", None)
    if schedule.play != "auto" or not schedule.max_staleness:
        return schedule.play != "in_flight"
    return not isinstance(settings, ChoosesDevice) or settings.is_deterministic(config.deterministic)


def check_versions(config: RunConfig, engine: Engine, trainer: Trainer, pinned: bool) -> None:
    """Refuse steps ahead that the engine can't play, and pinned ones where engine or trainer has one version.

    Raises:
        ConfigError: of all policies, or of the one that is named.
    """
    ahead = config.schedule.max_staleness
    if not ahead:
        return
    if isinstance(engine, ChecksAhead):
        engine.check_ahead(config.policies, ahead, pinned)
    if not pinned:
        return
    for kind, plugin, protocol in (("engine", engine, LeasesVersions), ("trainer", trainer, KeepsVersions)):
        if not isinstance(plugin, protocol):
            named = getattr(config, kind)["type"]
            raise ConfigError(
                f"the {kind} '{named}' keeps one version of the weights, and pinned steps ahead need "
                f"{ahead + 1}",
                path=PATH,
                why=f"it has no {'lease and release' if kind == 'engine' else 'keep, drop and weights_at'}",
                fix=f"{NONE}, set schedule.play=in_flight, or choose another {kind}",
            )
