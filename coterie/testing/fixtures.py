"""The pytest plugin: the kit's functions as fixtures.

pytest imports this module wherever Coterie is installed (entry point `coterie` of the group `pytest11`), so
it imports nothing else. Where the entry point is switched off, a conftest.py names the module:
`pytest_plugins = ["coterie.testing.fixtures"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

__all__ = [
    "coterie_build",
    "coterie_check",
    "coterie_run",
    "play_episode",
    "scripted_engine",
    "tree_literals",
]


def _fixture(name: str, doc: str) -> Any:
    def function() -> Callable[..., Any]:
        from coterie import testing

        return cast(Callable[..., Any], getattr(testing, name))

    function.__doc__ = f"`coterie.testing.{name}`: {doc}"
    return pytest.fixture(scope="session")(function)


coterie_build = _fixture("build", "a component from its table, as a run makes it.")
coterie_check = _fixture("check", 'what `coterie check` does, in this process: `coterie_check("countdown")`.')
coterie_run = _fixture("coterie_run", "a small composed run of a toy game, or of your own.")
play_episode = _fixture("play_episode", "the trees and scores of one step of a run.")
scripted_engine = _fixture("scripted_engine", "the table of an engine that answers without a model.")
tree_literals = _fixture("tree_literals", "a step's trees and scores, written as nested lists.")
