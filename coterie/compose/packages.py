"""What this machine must have, looked for before any model is loaded: optional packages of the chosen engine
and trainer, and what sandboxes need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from coterie.core.config import RunConfig
from coterie.core.plugins.base import as_table, composed_fields
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Limits
from coterie.core.training.run import Run
from coterie.discovery import plugins
from coterie.discovery.members import ChecksHost
from coterie.discovery.optional import ConfigDefaults, with_defaults


def check_packages(config: RunConfig) -> None:
    """Look for the packages that engine and trainer need, and so do their components.

    Raises:
        MissingExtra: the first that is not installed.
    """
    for kind in ("engine", "trainer"):
        _check(kind, getattr(config, kind))


def check_hosts(run: Run) -> None:
    """Have the sandboxes look for what this machine must have, where programs run on it.

    Raises:
        ConfigError: of the first sandbox that misses something: packages, or memory.
    """
    if run.config.executor["type"] != "local":
        return  # the machines of the rollout hosts count, which check it when they open the sandbox
    resources = run.rollout_side.resources
    for resource in resources:
        if isinstance(resource, ChecksHost):
            limits = {path: limit for user in resources for path, limit in _limits(user, resource)}
            with plugin_call(resource, "check_host"):
                resource.check_host(limits)


def _limits(user: Any, sandbox: Any) -> Iterator[tuple[str, Limits]]:
    """The limits, by the path of their setting, with which a component runs programs in a sandbox."""
    config = getattr(user, "config", None)
    if not isinstance(config, BaseModel) or getattr(config, "sandbox", None) is not sandbox:
        return
    place = getattr(getattr(user, "build", None), "path", "") or type(user).__name__
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Limits):
            yield f"{place}.{name}", value
        elif isinstance(value, Mapping):  # by role
            yield from (
                (f"{place}.{name}.{key}", inner) for key, inner in value.items() if isinstance(inner, Limits)
            )


def _check(kind: str, table: Any) -> None:
    table = as_table(table)
    if not isinstance(table, dict) or "type" not in table:
        return
    model = plugins().registry.config_of(kind, table["type"], path=f"{kind}.type")
    with_defaults(model, ConfigDefaults).check_packages()
    for name, inner in composed_fields(model).items() if model is not None else ():
        _check(inner, table.get(name))
