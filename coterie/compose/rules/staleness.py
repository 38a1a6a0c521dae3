"""Rules of `schedule.max_staleness`: which losses, engines and trainers can play steps ahead, and how."""

from __future__ import annotations

from coterie.compose.rules.facts import ComposedParts, WeightHolders
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError
from coterie.core.protocols import Trainer
from coterie.core.protocols.engine import LeasesVersions
from coterie.core.protocols.trainer import KeepsVersions
from coterie.discovery.members import NeedsFreshSamples
from coterie.discovery.optional import EngineDefaults, TrainerConfigDefaults, with_defaults

PATH = "schedule.max_staleness"
NONE = "set schedule.max_staleness=0"


def plays_pinned(config: RunConfig, trainer: Trainer) -> bool:
    """Whether one version of each policy plays all of a step."""
    schedule = config.schedule
    if schedule.play != "auto" or not schedule.max_staleness:
        return schedule.play != "in_flight"
    settings = with_defaults(getattr(trainer, "config", None), TrainerConfigDefaults)
    return settings.is_deterministic(config.deterministic)


def play_has_an_effect(run: ComposedParts) -> None:
    """Refuse `play` where no step is played ahead."""
    if run.config.schedule.play != "auto" and not run.config.schedule.max_staleness:
        why = "no step is played ahead: schedule.max_staleness is 0"
        raise ConfigError("this setting has no effect", path="schedule.play", why=why, fix="leave it out")


def loss_of_older_samples(run: ComposedParts) -> None:
    """Refuse samples of older weights where the loss needs fresh ones."""
    fresh = isinstance(run.loss, NeedsFreshSamples) and run.loss.fresh_samples
    if fresh and run.config.schedule.max_staleness:
        raise ConfigError(
            "the loss needs samples of the present weights, and steps ahead are played by older ones",
            path=PATH,
            why="it has no ratio: its gradient would be of a policy that is gone",
            fix=f"{NONE}, choose a loss with a ratio (loss.type=ppo_clip), or set loss.correction",
        )


def versions_in_flight(run: ComposedParts) -> None:
    """Refuse weights that change within an episode where results must repeat."""
    schedule = run.config.schedule
    if schedule.max_staleness and schedule.play == "in_flight" and run.config.deterministic is True:
        raise ConfigError(
            "a run whose weights change within an episode can't repeat",
            path="schedule.play",
            why="deterministic is true, and when new weights arrive depends on the speed of both sides",
            fix="set schedule.play=pinned, or leave deterministic out",
        )


def engine_plays_ahead(run: WeightHolders) -> None:
    """Refuse settings and policies that the engine can't play ahead."""
    if ahead := run.config.schedule.max_staleness:
        with_defaults(run.engine, EngineDefaults).check_ahead(run.config.policies, ahead, run.pinned)


def versions_are_kept(run: WeightHolders) -> None:
    """Refuse pinned steps ahead where engine or trainer has one version of the weights."""
    ahead = run.config.schedule.max_staleness
    if not ahead or not run.pinned:
        return
    for kind, has, lacks in (
        ("engine", isinstance(run.engine, LeasesVersions), "lease and release"),
        ("trainer", isinstance(run.trainer, KeepsVersions), "keep, drop and weights_at"),
    ):
        if not has:
            named = getattr(run.config, kind)["type"]
            raise ConfigError(
                f"the {kind} '{named}' keeps one version of the weights, and pinned steps ahead need "
                f"{ahead + 1}",
                path=PATH,
                why=f"it has no {lacks}",
                fix=f"{NONE}, set schedule.play=in_flight, or choose another {kind}",
            )
