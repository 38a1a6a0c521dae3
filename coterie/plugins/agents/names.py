"""Names of roles: an environment that gives every role its own part knows roles by their names."""

from __future__ import annotations

from typing import Any

from coterie.core.errors import ConfigError
from coterie.discovery import plugins


def check_name(build: Any, role: str, environment: str) -> None:
    """Refuse a role under another name than the one that its environment knows.

    Raises:
        ConfigError: the role is called otherwise in the team.
    """
    if build.name != role:
        its_type = f"{environment}_{build.name}"
        exists = its_type in plugins().registry.names("role")
        raise ConfigError(
            f"role '{build.name}' can't have the type of the role '{role}'",
            path=f"{build.path}.type",
            why=f"the environment {environment} distinguishes roles by name",
            fix=f"name the role '{role}'" + f", or give it type {its_type}" * exists,
        )
