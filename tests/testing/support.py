"""`caught`: assert that a check fails with a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coterie.testing import ConformanceError


def caught(message: str, check: Callable[..., Any], *arguments: Any, **keywords: Any) -> str:
    """Assert that the check raises a ConformanceError whose text contains the message; returns the text."""
    with pytest.raises(ConformanceError) as error:
        check(*arguments, **keywords)
    assert message in str(error.value), str(error.value)
    assert error.value.where and error.value.what
    return str(error.value)
