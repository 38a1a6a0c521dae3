"""The Protocol of every kind of component, and the capabilities that its plugins may have."""

from __future__ import annotations

import inspect

from coterie.core.protocols import (
    chat_format,
    data_source,
    engine,
    environment,
    estimator,
    executor,
    loss,
    reward,
    role,
    sampler,
    sandbox,
    tool,
    tracker,
    trainer,
    transition,
)

PROTOCOL: dict[str, type] = {
    "environment": environment.Environment,
    "role": role.Role,
    "reward": reward.RewardSource,
    "estimator": estimator.AdvantageEstimator,
    "loss": loss.Loss,
    "transition": transition.TransitionMode,
    "sampler": sampler.Sampler,
    "engine": engine.Engine,
    "trainer": trainer.Trainer,
    "executor": executor.Executor,
    "sandbox": sandbox.Sandbox,
    "tool": tool.Tool,
    "chat_format": chat_format.ChatFormat,
    "data_source": data_source.DataSource,
    "tracker": tracker.Tracker,
}
CAPABILITIES: dict[str, tuple[type, ...]] = {
    "environment": (
        environment.DigestsStates,
        environment.Diagnoses,
        environment.HasVocabulary,
        environment.Demonstrates,
        environment.StepsConcurrently,
        environment.HasNotSummable,
        environment.HasFields,
        environment.RecordsTasks,
        environment.FingerprintsTasks,
        environment.DrawsTasks,
    ),
    "role": (environment.HasVocabulary, role.Remembers),
    "reward": (reward.CountsCalls, reward.RunsInBackground),
    "estimator": (estimator.SumsOverTurns, estimator.StopsEpisodes),
    "loss": (loss.HasLengthConstant,),
    "trainer": (trainer.FollowsBudget, trainer.WarmStarts),
    "sandbox": (sandbox.ReportsProtections,),
    "tool": (tool.Opens, tool.Closes, tool.HasSchemas),
}
"""Protocols of optional members, by kind. `isinstance(plugin, Diagnoses)` asks whether a plugin has one."""


def members(protocol: type) -> list[str]:
    """The names of a Protocol's methods, properties and attributes."""
    methods = [
        name
        for name, value in vars(protocol).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    ]
    return methods + [name for name in protocol.__annotations__ if not name.startswith("_")]
