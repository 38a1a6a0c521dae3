"""How a check is seen to catch something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coterie.testing import ConformanceError


def caught(says: str, check: Callable[..., Any], *arguments: Any, **more: Any) -> None:
    """The check fails, and says this."""
    with pytest.raises(ConformanceError) as error:
        check(*arguments, **more)
    assert says in str(error.value), str(error.value)
    assert error.value.where and error.value.what
