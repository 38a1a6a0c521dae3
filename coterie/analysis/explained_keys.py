"""Who reads each key of a configuration, what it may be, and where its value comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from coterie.compose.curriculum import CurriculumConfig
from coterie.compose.described import Field, fields
from coterie.compose.evaluation_sets import EvaluateConfig
from coterie.compose.settings import Settings
from coterie.compose.tables import CURRICULUM, TEAM_KEYS, RewardConfig, RoleConfig
from coterie.core.config import PolicyConfig, Resolved, RunConfig
from coterie.core.errors import ConfigError, did_you_mean
from coterie.discovery import plugins
from coterie.recipes import flatten

PLUGIN_DEFAULT = "default of its plugin"
"""The origin of a value that no layer and no table of the core states."""
_TABLES = {
    "schedule": "the run's schedule",
    "team": "the team",
    "rewards": "the run",
    "evaluate": "the evaluations in training",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedKey:
    """A key of the resolved configuration."""

    path: str
    value: Any
    reader: str
    """The component that reads it, such as `environment 'plan_path' of coterie`; empty: nobody does."""
    declared: str = ""
    """The class whose field it is, as `module:Class`; empty: the composition reads it."""
    origin: str
    """The layer that set the value, as `coterie config` names it."""
    default: Any = None
    required: bool = False
    allowed: str = ""
    """Its type, bounds and choices in few words."""
    meaning: str = ""
    may_change: str = ""
    """Whether a resumed run may change it: empty (no), `yes`, `exact`, `asked`."""


def explained_keys(resolved: Resolved, settings: Settings) -> list[ExplainedKey]:
    """Every key of a configuration, with the defaults of its plugins.

    Args:
        settings: of `resolved.config`; its table may be the one that a run recorded when it was made.
    """
    readers = _Readers(resolved.config, settings)
    return [
        readers.explain(path, value, resolved.origins.get(path, ""))
        for path, value in flatten(settings.table)
    ]


def select(keys: list[ExplainedKey], path: str) -> list[ExplainedKey]:
    """The key at a dotted path, or those of the table there.

    Raises:
        ConfigError: there is neither; the nearest key is in the message.
    """
    chosen = [key for key in keys if key.path == path or key.path.startswith(f"{path}.")]
    if not chosen:
        paths = [key.path for key in keys]
        tables = {path[:at] for path in paths for at, letter in enumerate(path) if letter == "."}
        raise ConfigError(
            f"the configuration has no key '{path}'", path=path, fix=did_you_mean(path, [*paths, *tables])
        )
    return chosen


class _Readers:
    """What the components of one configuration declare."""

    def __init__(self, config: RunConfig, settings: Settings) -> None:
        self._config, self._components = config, settings.components

    def explain(self, path: str, value: Any, origin: str) -> ExplainedKey:
        reader, model, rest = self._reader(path)
        origin = origin or (PLUGIN_DEFAULT if " of " in reader else "default")
        if model is None:
            kind, _ = self._components[path.rpartition(".")[0]]
            names = " | ".join(plugins().registry.names(kind))
            return ExplainedKey(path=path, value=value, reader=reader, origin=origin, allowed=names)
        declared = self._field(model, rest)
        if declared is None:
            return ExplainedKey(path=path, value=value, reader="", origin=origin)
        field, whole = declared
        return ExplainedKey(
            path=path,
            value=value,
            reader=reader,
            declared=_name_of(model),
            origin=origin,
            default=field.default if whole else None,
            required=field.required and whole,
            allowed=field.type,
            meaning=field.meaning,
            may_change=field.may_change,
        )

    def _reader(self, path: str) -> tuple[str, Any, str]:
        """(reader, the model that declares the key, the key in that model); no model: see `declared`."""
        parts = path.split(".")
        if parts[0] == "policies" and len(parts) > 2:
            return self._policy(parts[2], ".".join(parts[2:]))
        if parts[0] == "cluster" and len(parts) > 1:
            kind, name = self._components["executor"]
            entry = plugins().registry.find(kind, name)
            return entry.label, entry.attribute("Cluster") or RunConfig, ".".join(parts[1:])
        if parts[0] == "evaluate" and len(parts) > 1:
            return self._evaluation(parts)
        place = next((".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)
                      if ".".join(parts[:count]) in self._components), None)  # fmt: skip
        if place is None:
            return _TABLES.get(parts[0], "the run"), RunConfig, path
        return self._component(place, path[len(place) + 1 :])

    def _component(self, place: str, rest: str) -> tuple[str, Any, str]:
        """The reader of a key in a component's table."""
        (kind, name), head = self._components[place], rest.partition(".")[0]
        entry = plugins().registry.find(kind, name)
        if rest == "type":
            return f"the composition, which makes the {kind.replace('_', ' ')}", None, rest
        if kind == "role" and head in TEAM_KEYS and place.startswith("team.roles."):
            return "the team", RoleConfig, rest
        if kind == "reward" and head in RewardConfig.model_fields and place.count(".") == 1:
            return "the rewards of the run", RewardConfig, rest
        if place == "env" and head == CURRICULUM:
            return "the curriculum", CurriculumConfig, rest.partition(".")[2] or "field"
        return entry.label, entry.attribute("Config") or RunConfig, rest

    def _policy(self, key: str, rest: str) -> tuple[str, Any, str]:
        """The readers of a field of a policy: all that declare it."""
        registry, declaring = plugins().registry, []
        for kind, table in (("trainer", self._config.trainer), ("engine", self._config.engine)):
            entry = registry.find(kind, str(table["type"]))
            schema = entry.attribute("Policy") or PolicyConfig
            if self._field(schema, key) is not None:
                declaring.append((entry.label, schema))
        if self._field(PolicyConfig, key) is not None:
            declaring.insert(0, ("the run", declaring[0][1] if declaring else PolicyConfig))
        model = declaring[0][1] if declaring else PolicyConfig
        return ", ".join(label for label, _ in declaring), model, rest

    def _evaluation(self, parts: list[str]) -> tuple[str, Any, str]:
        """The reader of a key of `evaluate`: the evaluations, or the component whose setting it replaces."""
        registry, config = plugins().registry, self._config
        if "sampling" in parts[1:-1]:
            entry = registry.find("sampler", str(config.sampler["type"]))
            return entry.label, entry.attribute("Config"), ".".join(parts[parts.index("sampling") :])
        if parts[1] == "sets" and len(parts) > 4 and parts[3] == "env":
            entry = registry.find("environment", str(config.env["type"]))
            return entry.label, entry.attribute("Config"), ".".join(parts[4:])
        return _TABLES["evaluate"], EvaluateConfig, ".".join(parts[1:])

    def _field(self, model: Any, rest: str) -> tuple[Field, bool] | None:
        """(the field of a key, whether the key is that field and not a part of its value); None: none."""
        parts = rest.split(".")
        for count in range(len(parts), 0, -1):
            for names, field in _declared(model):
                if len(names) == count and all(n in ("*", p) for n, p in zip(names, parts, strict=False)):
                    return field, count == len(parts)
        return None


@cache
def _declared(model: Any) -> list[tuple[list[str], Field]]:
    """(path in the table, field) of all that a model declares."""
    return [(each.name.split("."), each) for each in fields(model)]


def _name_of(model: Any) -> str:
    return f"{model.__module__}:{model.__qualname__}"


def by_origin(keys: Sequence[ExplainedKey]) -> Mapping[str, int]:
    """How many keys each layer set, the most frequent layer first."""
    return dict(Counter(key.origin for key in keys).most_common())
