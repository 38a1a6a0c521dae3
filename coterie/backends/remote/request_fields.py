"""Fields that a configuration adds to a request's body or leaves out; a component's own can't be changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationInfo

from coterie.backends.remote.secrets import NOT_REPEATED, holds_key, path_of
from coterie.core.errors import ConfigError

LIMITS = ("max_tokens", "max_completion_tokens")
_KEY = "set api_key: ${NAME}, or a header with ${NAME}"
_CREDENTIAL = re.compile(r"(x[-_])?api[-_]?key|authorization|password|secret|(access|auth)[-_]token", re.I)
_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I)
"""An id, as `user` and `prompt_cache_key` may be."""


def further_fields(fields: Any, info: ValidationInfo, reserved: Mapping[str, str], by: str) -> Any:
    """Accept fields that the component doesn't set. An error never repeats a value: it may be a key.

    Args:
        reserved: field -> the setting that is meant instead.
        by: the component that sets these, e.g. "the engine".

    Raises:
        ConfigError: a field is reserved, or holds a key.
    """
    path = path_of(info, "fields")
    if fields is not None and not isinstance(fields, Mapping):
        raise ConfigError("fields is a table of field names and values", path=path, why=NOT_REPEATED)
    for name, value in (fields or {}).items():
        lower = str(name).strip().lower()
        if lower in reserved:
            raise ConfigError(
                f"{by} sets the field '{name}' itself",
                path=f"{path}.{name}",
                why="a second value would override the run's settings, and the budget's bound with them",
                fix=reserved[lower],
            )
        if _holds_key({name: value}):
            where = path if holds_key(str(name)) else f"{path}.{name}"
            raise ConfigError("a field of the request holds a key", path=where, why=NOT_REPEATED, fix=_KEY)
    return fields


def omitted_fields(names: Any, info: ValidationInfo, needed: Sequence[str], limit_field: str) -> Any:
    """Accept names of fields that a request can do without.

    Args:
        needed: fields without which there is no answer that can be read.
        limit_field: dotted path of the setting that names the limit's field.

    Raises:
        ConfigError: a field is needed.
    """
    for name in names if isinstance(names, list) else ():
        if name in needed:
            raise ConfigError(
                f"a request without the field '{name}' has no answer",
                path=path_of(info, "omit"),
                fix=f"remove {name} from the list",
            )
        if name in LIMITS:
            raise ConfigError(
                "a request without a limit may generate, and cost, more than was reserved for it",
                path=path_of(info, "omit"),
                fix=f"set {limit_field}=max_completion_tokens where the endpoint refuses max_tokens",
            )
    return names


def _holds_key(value: Any) -> bool:
    """Whether a JSON value has a text in the form of a key, or a table with a key by its name."""
    if isinstance(value, Mapping):
        named = any(_CREDENTIAL.fullmatch(str(name).strip()) for name in value)
        return named or any(map(_holds_key, [*map(str, value), *value.values()]))
    if isinstance(value, list):
        return any(map(_holds_key, value))
    return isinstance(value, str) and holds_key(_UUID.sub("", value))
