"""The conformance kit: checks that plugin authors run on their own components.

    from coterie.testing import build, check_environment

    def test_my_game():
        game = build("environment", {"type": "my_package.game:Countdown", "start": 3})
        check_environment(game, roles=["counter"], act=["2", "1", "0", "what?"])

Every check is a plain function that returns None or raises `ConformanceError`: what is wrong, where, and how
to fix it. No check needs torch. Names load on first use, because pytest imports this package wherever Coterie
is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PUBLIC = {
    "coterie.testing.checking.component": "check",
    "coterie.testing.checking.results": "Checked NotChecked",
    "coterie.testing.checks.unconfigured": "check_column check_command check_study",
    "coterie.testing.example": "Example",
    "coterie.testing.support.building": "build",
    "coterie.testing.support.failure": "ConformanceError ConformanceWarning",
    "coterie.testing.support.runs": "coterie_run play_episode scripted_engine",
    "coterie.testing.support.trees": "Forest J tree_literals",
}
"""Module -> its public names. After a change: `python docs/generate.py`, which makes the stub of them."""
CHECKS = """
    chat_format chat_model data_source engine environment estimator executor loss plugin reward role sampler
    sandbox tool tracker trainer transition
"""
"""Kinds, of which each has its `check_<kind>` in a module of its name."""
MODULE_OF = {name: module for module, names in PUBLIC.items() for name in names.split()}
MODULE_OF |= {f"check_{kind}": f"coterie.testing.checks.{kind}" for kind in CHECKS.split()}
__all__ = list(MODULE_OF)


def __getattr__(name: str) -> Any:
    if name in MODULE_OF:
        return getattr(import_module(MODULE_OF[name]), name)
    raise AttributeError(f"module 'coterie.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
