"""The schema of a run's policies, which its trainer and its engine declare, and a RunConfig from a table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from pydantic import create_model
from pydantic.fields import FieldInfo

from coterie.compose.tables import DEFAULT_TYPES, warn_of_settings
from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.config.schema import POLICY_READERS
from coterie.core.errors import PluginError
from coterie.core.plugins import Table, as_table
from coterie.discovery import plugins
from coterie.discovery.validation import validate


def run_config(table: Mapping[str, Any]) -> RunConfig:
    """The configuration of a table.

    Raises:
        ConfigError: for one wrong key or value.
        PluginError: see `policy_schema`.
    """
    config: RunConfig = validate(RunConfig, table)
    warn_of_settings(RunConfig, table, "", "coterie")
    return config


def read_policies(table: Mapping[str, Any]) -> dict[str, PolicyConfig]:
    """The policies of a run's table, validated by what the chosen trainer and engine declare."""
    trainer, engine = (_type_of(table, kind) for kind in ("trainer", "engine"))
    schema = policy_schema(trainer, engine)
    why = f"neither the trainer '{trainer}' nor the engine '{engine}' declares it"
    for name, policy in table["policies"].items():
        warn_of_settings(schema, policy, f"policies.{name}", f"trainer '{trainer}' or engine '{engine}'")
    return {
        name: validate(schema, policy, f"policies.{name}", why=why)
        for name, policy in table["policies"].items()
    }


POLICY_READERS.append(read_policies)


def _type_of(table: Mapping[str, Any], kind: str) -> str:
    component = as_table(table.get(kind))
    named = component.get("type") if isinstance(component, Mapping) else None
    return str(named or DEFAULT_TYPES[kind]["type"])  # a missing type is told when the component is made


def policy_schema(trainer: str, engine: str) -> type[PolicyConfig]:
    """The schema of a run's policies: every field that the trainer or the engine declares.

    Raises:
        PluginError: no such plugin, a `Policy` that is no PolicyConfig, or one field declared in two ways.
    """
    first, second = _declared("trainer", trainer), _declared("engine", engine)
    if issubclass(first, second) or issubclass(second, first):  # the derived one may narrow a field
        return first if issubclass(first, second) else second
    fields = _own_fields(first)
    for name, field in _own_fields(second).items():
        if name in fields and _meaning(fields[name]) != _meaning(field):
            raise PluginError(
                f"trainer '{trainer}' and engine '{engine}' declare a policy's `{name}` differently",
                path=f"policies.*.{name}",
                why=f"{fields[name]!r} and {field!r}",
                fix="choose another trainer or engine, or derive one `Policy` from the other",
            )
    return _joined(first, second)


def _declared(kind: str, plugin: str) -> type[PolicyConfig]:
    schema = plugins().registry.policy_of(kind, plugin, path=f"{kind}.type") or PolicyConfig
    if not (isinstance(schema, type) and issubclass(schema, PolicyConfig)):
        what, why = f"the `Policy` of {kind} '{plugin}' is no PolicyConfig", f"it is {schema!r}"
        raise PluginError(what, path=f"{kind}.type", why=why, fix="class Policy(coterie.PolicyConfig)")
    return schema


def _own_fields(schema: type[PolicyConfig]) -> dict[str, FieldInfo]:
    """The fields that a schema adds to PolicyConfig or declares again."""
    common = {name: _meaning(field) for name, field in PolicyConfig.model_fields.items()}
    return {name: field for name, field in schema.model_fields.items() if common.get(name) != _meaning(field)}


def _meaning(field: FieldInfo) -> str:
    """What two declarations of one field must agree in."""
    return repr((field.annotation, field.default, field.default_factory, field.metadata))


@cache
def _joined(first: type[PolicyConfig], second: type[PolicyConfig]) -> type[PolicyConfig]:
    fields = {**_own_fields(first), **_own_fields(second)}
    both: Any = {name: (field.annotation, field) for name, field in fields.items()}
    try:
        joined: Any = create_model("Policy", __base__=(first, second), **both)
    except TypeError as error:  # their bases stand in two orders
        what = f"the `Policy` of {first.__module__} and that of {second.__module__} can't be joined"
        raise PluginError(what, why=str(error), fix="derive one from the other") from None
    # pickle can't import a class that was made at run time.
    setattr(joined, "__reduce__", lambda self: (_revived, (first, second, self.model_dump())))  # noqa: B010
    return cast(type[PolicyConfig], joined)


def _revived(first: type[PolicyConfig], second: type[PolicyConfig], values: Table) -> PolicyConfig:
    return _joined(first, second).model_validate(values)
