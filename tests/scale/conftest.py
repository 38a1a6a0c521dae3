"""What the modules of vLLM's tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for a module: its engines live in it."""
    with asyncio.Runner() as runner:
        yield runner
