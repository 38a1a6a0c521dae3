"""Marks these slow tests `sandbox`: `make test-sandbox` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.sandboxes.support import close_shared

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.sandbox)


@pytest.fixture(autouse=True, scope="module")
def _sandboxes_end_with_their_module() -> Iterator[None]:
    yield
    close_shared()
