"""Environment variables in settings, written `${NAME}`; they keep secret keys out of configurations."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from coterie.core.errors import ConfigError

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def filled(settings: Mapping[str, str], path: str) -> dict[str, str]:
    """The settings with every `${NAME}` replaced.

    Raises:
        ConfigError: a variable is not set.
    """
    for key, value in settings.items():
        for name in _VARIABLE.findall(value):
            if name not in os.environ:
                raise ConfigError(
                    f"the environment variable {name} is not set",
                    path=f"{path}.{key}",
                    fix=f"export {name}=...",
                )
    return {key: _VARIABLE.sub(lambda match: os.environ[match[1]], value) for key, value in settings.items()}
