"""The pytest plugin: the fixture `coterie_build`.

pytest imports this module wherever Coterie is installed, so it imports nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def coterie_build() -> Callable[..., Any]:
    """`coterie.testing.build`: a component from its table, as a run makes it."""
    from coterie.testing import build

    return build
