"""The pytest plugin: the kit's functions as fixtures.

pytest imports this module wherever Coterie is installed (entry point `coterie` of the group `pytest11`), so
it imports nothing else. Where the entry point is switched off, a conftest.py names the module:
`pytest_plugins = ["coterie.testing.fixtures"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = [
    "coterie_build",
    "coterie_check",
    "coterie_run",
    "play_episode",
    "scripted_engine",
    "tree_literals",
]


@pytest.fixture(scope="session")
def coterie_build() -> Callable[..., Any]:
    """`coterie.testing.build`: a component from its table, as a run makes it."""
    from coterie.testing import build

    return build


@pytest.fixture(scope="session")
def coterie_check() -> Callable[..., Any]:
    """`coterie.testing.check`: what `coterie check` does, in this process: `coterie_check("countdown")`."""
    from coterie import testing

    return testing.check


@pytest.fixture(scope="session")
def coterie_run() -> Callable[..., Any]:
    """`coterie.testing.coterie_run`: a small composed run of a toy game, or of your own."""
    from coterie import testing

    return testing.coterie_run


@pytest.fixture(scope="session")
def play_episode() -> Callable[..., Any]:
    """`coterie.testing.play_episode`: the trees and scores of one step of a run."""
    from coterie import testing

    return testing.play_episode


@pytest.fixture(scope="session")
def scripted_engine() -> Callable[..., Any]:
    """`coterie.testing.scripted_engine`: the table of an engine that answers without a model."""
    from coterie import testing

    return testing.scripted_engine


@pytest.fixture(scope="session")
def tree_literals() -> Callable[..., Any]:
    """`coterie.testing.tree_literals`: a step's trees and scores, written as nested lists."""
    from coterie import testing

    return testing.tree_literals
