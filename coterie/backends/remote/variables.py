"""Environment variables in settings, written `${NAME}`, for values that are not always secret.

`secrets.secrets_in` fills headers and addresses, and redacts the values from then on. The environment of a
tool's server may hold `${HOME}` too, whose value stands in many texts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from coterie.backends.remote.secrets import NAME
from coterie.core.errors import ConfigError


def filled(settings: Mapping[str, str], path: str) -> dict[str, str]:
    """The settings with every `${NAME}` replaced.

    Raises:
        ConfigError: a variable is not set.
    """
    for key, value in settings.items():
        for name in NAME.findall(value):
            if name not in os.environ:
                raise ConfigError(
                    f"the environment variable {name} is not set",
                    path=f"{path}.{key}",
                    fix=f"export {name}=...",
                )
    return {key: NAME.sub(lambda match: os.environ[match[1]], value) for key, value in settings.items()}
