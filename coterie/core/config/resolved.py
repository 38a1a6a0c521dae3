"""A resolved configuration: its table, its digest, and the origin of each value."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ruamel.yaml import YAML

from coterie.core.config.schema import RunConfig
from coterie.core.types import MAX_STAGES

Table = dict[str, Any]
NEUTRAL: Table = {
    "policies.*.from": None,
    "policies.*.context": None,
    "team.max_stages": MAX_STAGES,
    "trainer.attention": "auto",
    "chat_models": {},
    "evaluate": None,
    "schedule.max_staleness": 0,
    "schedule.play": "auto",
    "team.overflow": "floor",  # a run that it changes was stopped by an error
}
"""By pattern of a dotted path: the value that means the same as a table without the key. The digest leaves it
out, so that a new key changes no digest, and run folders and study jobs stay valid."""
_LAST_KEYS = frozenset(path.rpartition(".")[2] for path in NEUTRAL)  # few keys of a configuration are one


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration with the origins of its values."""

    name: str
    config: RunConfig
    table: Table
    """The merged layers, with the defaults of `RunConfig`."""
    origins: dict[str, str]
    """The layer of each value, by dotted path."""
    by_content: Callable[[Table], Table] = dict
    """The table with the digests of files in place of their paths: a file that is moved is the same."""

    def text(self) -> str:
        """The configuration as YAML, as in a run's `config.yaml`."""
        return to_yaml({"name": self.name, **self.table})

    def digest(self) -> str:
        """sha256 of the settings, which decide the results, and of the files that they name."""
        return table_digest(self.by_content(self.table))


def table_digest(table: Mapping[str, Any]) -> str:
    """sha256 of a configuration table without its name, its summary, its cluster and neutral values."""
    kept = {
        key: _without_neutral(value, key)
        for key, value in table.items()
        if key not in ("summary", "name", "cluster") and (key not in NEUTRAL or value != NEUTRAL[key])
    }
    if kept.get("deterministic") == "auto":
        kept["deterministic"] = True  # which is the same on a CPU
    if "schedule" in kept:  # where it was 0
        decides = {key: value for key, value in kept["schedule"].items() if key != "patience"}
        kept["schedule"] = {key: 0 if value == "auto" else value for key, value in decides.items()}
    modes = {"none": "plain", "plain": "plain, which revises"}  # the words that are hashed
    transition = kept.get("transition", {})
    kept["transition"] = {**transition, "type": modes.get(transition.get("type"), transition.get("type"))}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def _without_neutral(value: Any, at: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {
        key: _without_neutral(inner, f"{at}.{key}")
        for key, inner in value.items()
        if key not in _LAST_KEYS
        or not any(fnmatchcase(f"{at}.{key}", name) and inner == NEUTRAL[name] for name in NEUTRAL)
    }


def json_like(value: Any) -> Any:
    """The value with plain dicts and lists, and keys as text."""
    if isinstance(value, Mapping):
        return {str(key): json_like(inner) for key, inner in value.items()}
    return [json_like(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def to_yaml(table: Mapping[str, Any]) -> str:
    """A table as block-style YAML.

    Raises:
        ruamel.yaml.representer.RepresenterError: a value is of a type that YAML has none for.
    """
    stream, yaml = io.StringIO(), YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False  # type: ignore[assignment]
    yaml.dump(json_like(table), stream)
    return stream.getvalue()
