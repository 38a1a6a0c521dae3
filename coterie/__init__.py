"""Coterie: reinforcement learning for teams of language models.

Importing this package is cheap: public names load on first use (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from coterie.api.evaluate import evaluate as evaluate
    from coterie.api.export import export as export
    from coterie.api.train import train as train
    from coterie.core.config import PolicyConfig as PolicyConfig
    from coterie.core.errors import PolicyFault as PolicyFault, SystemFault as SystemFault
    from coterie.core.plugins import Composed as Composed, Plugin as Plugin, PluginConfig as PluginConfig
    from coterie.core.protocols import Batch as Batch
    from coterie.core.types import (
        TEAM as TEAM,
        Credit as Credit,
        Message as Message,
        Step as Step,
        Task as Task,
    )
    from coterie.plugins.algos.blocks.estimator import GroupEstimator as GroupEstimator
    from coterie.plugins.algos.blocks.groups import by_decision as by_decision, by_task as by_task

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("coterie")
"""Marks a function as an implementation of one of the hooks in `coterie.core.plugins.hookspecs`."""

_LAZY = {
    "train": "coterie.api.train",
    "evaluate": "coterie.api.evaluate",
    "export": "coterie.api.export",
    "Plugin": "coterie.core.plugins",
    "PluginConfig": "coterie.core.plugins",
    "Composed": "coterie.core.plugins",
    "PolicyConfig": "coterie.core.config",
    "PolicyFault": "coterie.core.errors",
    "SystemFault": "coterie.core.errors",
    "TEAM": "coterie.core.types",
    "Task": "coterie.core.types",
    "Step": "coterie.core.types",
    "Message": "coterie.core.types",
    "Credit": "coterie.core.types",
    "Batch": "coterie.core.protocols",
    "GroupEstimator": "coterie.plugins.algos.blocks.estimator",
    "by_decision": "coterie.plugins.algos.blocks.groups",
    "by_task": "coterie.plugins.algos.blocks.groups",
}
__all__ = ["__version__", "hookimpl", *_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
