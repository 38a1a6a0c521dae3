"""All settings of a configuration, with the defaults that plugins declare, and which of them may change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from coterie.compose.named_files import FUNCTION, WEIGHTS, NamedFile, named_in
from coterie.compose.policies import policy_schema
from coterie.compose.tables import RewardConfig, RoleConfig, component_tables, model_of
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import MayChange, Table, as_table, composed_fields
from coterie.discovery import plugins
from coterie.discovery.optional import ExecutorDefaults, with_defaults

REFERRED = {"chat_model": "chat_models"}
"""By kind: the table of the top level whose components a field for the kind may name."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A configuration's table with every default."""

    table: Table
    may_change: dict[str, MayChange] = field(default_factory=dict)
    """By dotted path: what the plugins declare of a resumed run. It holds for everything below the path."""
    components: dict[str, tuple[str, str]] = field(default_factory=dict)
    """(kind, name) of the plugin at each dotted path."""
    files: dict[str, NamedFile] = field(default_factory=dict)
    """By dotted path: the settings that name files. What a file says is a part of the configuration."""

    def mark(self, path: str) -> MayChange | None:
        """The mark of the setting at a path, or of the one it is in."""
        parts = path.split(".")
        places = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((self.may_change[place] for place in places if place in self.may_change), None)


def settings_of(config: RunConfig) -> Settings:
    """The settings of a configuration; no component is made.

    Raises:
        ConfigError: a component's table has no `type`.
        PluginError: a plugin of the table is unknown, or its Config can't be imported.
    """
    settings = Settings(config.model_dump(mode="json"))
    common = {**RoleConfig.model_fields, **RewardConfig.model_fields}
    del common["weights"]  # they are the plugin's own business
    for path, kind, name, component, also in component_tables(settings.table):
        if component.get("type") is None and (kind == "reward" or name in plugins().registry.names(kind)):
            component["type"] = name  # `rewards: {environment: {}}`: the name is the type
        _fill(settings, component, kind, path)
        _fill_fields(settings, component, {key: common[key] for key in also if key in common}, path)
    _note_sets(settings, config)
    if config.cluster is not None:
        executor = plugins().registry.find("executor", config.executor["type"], path="executor.type")
        declared: Any = with_defaults(executor.load("executor.type"), ExecutorDefaults).Cluster
        if declared is not None:
            _fill_fields(settings, settings.table["cluster"], declared.model_fields, "cluster")
    schema = policy_schema(config.trainer["type"], config.engine["type"])
    for name, policy in settings.table["policies"].items():
        _fill_fields(settings, policy, schema.model_fields, f"policies.{name}")
        if config.policies[name].weights_kind:  # else the model's name is an endpoint's
            _note_files(settings, named_in(schema.model_fields, policy, ("policies", name)))
        if policy.get("from") is not None:
            _note_files(settings, [NamedFile(("policies", name, "from"), str(policy["from"]), WEIGHTS)])
    for path, (_, name) in settings.components.items():
        if ":" in name:  # an object of a module, or `distribution:name`, which is no module
            _note_files(settings, [NamedFile((*path.split("."), "type"), name, FUNCTION)])
    return settings


def _note_files(settings: Settings, named: Iterable[NamedFile]) -> None:
    settings.files.update({file.path: file for file in named})


def _note_sets(settings: Settings, config: RunConfig) -> None:
    """Note the files that the sets of `evaluate` name, in place of the environment's."""
    sets = (config.evaluate or {}).get("sets")
    kind = config.env.get("type")
    if not isinstance(sets, Mapping) or kind is None:
        return
    model = plugins().registry.config_of("environment", str(kind), path="env.type")
    for name, given in sets.items():
        env = given.get("env") if isinstance(given, Mapping) else None
        if model is not None and isinstance(env, Mapping):
            _note_files(settings, named_in(model.model_fields, env, ("evaluate", "sets", str(name), "env")))


def type_missing(kind: str, path: str) -> ConfigError:
    """The error about a component whose table doesn't name a plugin."""
    fix = f"one of: {', '.join(plugins().registry.names(kind))}"
    return ConfigError("'type' is missing", path=f"{path}.type", fix=fix)


def _fill(settings: Settings, component: Table, kind: str, path: str) -> None:
    """Add the defaults of a component's plugin to its table, and note what may change."""
    if component.get("type") is None:
        raise type_missing(kind, path)
    name = str(component["type"])
    settings.components.setdefault(path, (kind, name))
    model = plugins().registry.config_of(kind, name, path=f"{path}.type")
    if model is None:
        return
    inner = composed_fields(model)
    _fill_fields(settings, component, model.model_fields, path)
    _note_files(settings, named_in(model.model_fields, component, tuple(path.split("."))))
    for key, composed in inner.items():
        given = component.get(key)
        if isinstance(given, str) and given in settings.table.get(REFERRED.get(composed, ""), ()):
            continue  # by name: its settings are there
        component[key] = as_table(component.get(key))
        if isinstance(component[key], dict):
            _fill(settings, component[key], composed, f"{path}.{key}")


def _fill_fields(settings: Settings, table: Table, fields: Mapping[str, FieldInfo], path: str) -> None:
    for name, info in fields.items():
        key = info.alias or name
        for mark in info.metadata:
            if isinstance(mark, MayChange):
                settings.may_change[f"{path}.{key}"] = mark
        if key not in table:
            if info.is_required():
                continue
            table[key] = _plain(info.get_default(call_default_factory=True))
        elif isinstance(table[key], dict) and (model := model_of(info.annotation)) is not None:
            _fill_fields(settings, table[key], model.model_fields, f"{path}.{key}")


def _plain(value: Any) -> Any:
    """The value as JSON; an object that has no JSON is named by its class."""
    return to_jsonable_python(value, fallback=lambda thing: f"<{type(thing).__qualname__}>")
