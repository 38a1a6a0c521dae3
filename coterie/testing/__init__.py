"""The conformance kit: checks that plugin authors run on their own components.

    from coterie.testing import build, check_environment

    def test_my_game():
        game = build("environment", {"type": "my_package.game:Countdown", "start": 3})
        check_environment(game, roles=["counter"], act=["2", "1", "0", "what?"])

Every check is a plain function that returns None or raises `ConformanceError`: what is wrong, where, and how
to mend it. Nothing here needs torch. Names load on first use: pytest imports this package wherever Coterie is
installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.testing.building import build as build
    from coterie.testing.chats import check_chat as check_chat
    from coterie.testing.columns import check_column as check_column
    from coterie.testing.engines import check_engine as check_engine
    from coterie.testing.environments import check_environment as check_environment
    from coterie.testing.estimators import check_estimator as check_estimator
    from coterie.testing.failure import ConformanceError as ConformanceError
    from coterie.testing.losses import check_loss as check_loss
    from coterie.testing.modules import check_plugin as check_plugin
    from coterie.testing.rewards import check_reward as check_reward
    from coterie.testing.roles import check_role as check_role
    from coterie.testing.samplers import check_sampler as check_sampler
    from coterie.testing.sandboxes import check_sandbox as check_sandbox
    from coterie.testing.systems import (
        check_data as check_data,
        check_executor as check_executor,
        check_tracker as check_tracker,
    )
    from coterie.testing.tools import check_tool as check_tool
    from coterie.testing.trainers import check_trainer as check_trainer
    from coterie.testing.transitions import check_transition as check_transition

_LAZY = {
    "build": "building",
    "ConformanceError": "failure",
    "check_environment": "environments",
    "check_role": "roles",
    "check_reward": "rewards",
    "check_estimator": "estimators",
    "check_loss": "losses",
    "check_transition": "transitions",
    "check_sampler": "samplers",
    "check_engine": "engines",
    "check_trainer": "trainers",
    "check_executor": "systems",
    "check_sandbox": "sandboxes",
    "check_tool": "tools",
    "check_chat": "chats",
    "check_data": "systems",
    "check_tracker": "systems",
    "check_column": "columns",
    "check_plugin": "modules",
}
__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"coterie.testing.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'coterie.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
