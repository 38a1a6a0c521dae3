"""From pydantic's errors to ours: the dotted path, what is wrong, and the nearest known key."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from coterie.core.errors import ConfigError, did_you_mean

Loc = tuple[int | str, ...]


def validate(
    model: type[BaseModel],
    table: Any,
    path: str = "",
    context: Mapping[str, Any] | None = None,
    also: Sequence[str] = (),
) -> Any:
    """Validate a table against a model.

    Args:
        path: dotted path of the table in the configuration, for messages.
        also: keys that the table may have besides the model's (they were taken out before), for hints.

    Raises:
        ConfigError: for the first thing that is wrong.
    """
    try:
        return model.model_validate(table, context=dict(context) if context is not None else None)
    except ValidationError as error:
        raise explain(error, model, table, path, also) from None


def explain(
    error: ValidationError, model: type[BaseModel], table: Any, path: str, also: Sequence[str] = ()
) -> ConfigError:
    """One ConfigError for the most telling of pydantic's errors.

    Where a field is a union, pydantic reports every member's complaint; the deepest is about the member
    that the user meant.
    """
    problems = error.errors()
    extra = [p for p in problems if p["type"] == "extra_forbidden"]
    first = extra[0] if extra else max(problems, key=lambda p: len(p["loc"]))
    loc, parent = _walk(first["loc"], table)
    where = ".".join(filter(None, (path, *map(str, loc))))
    if first["type"] == "extra_forbidden":
        known = [*_fields(model, loc[:-1]), *(also if len(loc) == 1 else ())]
        return ConfigError(f"unknown key '{loc[-1]}'", path=where, fix=did_you_mean(str(loc[-1]), known))
    if first["type"] == "missing":
        holder = ".".join(filter(None, (path, *map(str, loc[:-1])))) or "the configuration"
        return ConfigError(
            f"'{loc[-1]}' is missing", path=where, why=f"{holder} needs it", fix=f"set {where}=..."
        )
    given: Any = table
    if loc and isinstance(parent, (Mapping, list)) and _has(parent, loc[-1]):
        given = parent[loc[-1]]  # type: ignore[index]
    return ConfigError(f"{first['msg'][0].lower()}{first['msg'][1:]}", path=where, why=f"got {given!r}")


def _has(parent: Any, part: int | str) -> bool:
    return part in parent if isinstance(parent, Mapping) else isinstance(part, int) and part < len(parent)


def _walk(loc: Loc, table: Any) -> tuple[Loc, Any]:
    """The location without pydantic's names of union members, and the value that holds its last part."""
    here, kept, parent = table, [], table
    for index, part in enumerate(loc):
        inside = isinstance(here, (Mapping, list)) and _has(here, part)
        last = index == len(loc) - 1
        if inside:
            kept.append(part)
            parent, here = here, here[part]
        elif last and isinstance(here, Mapping):
            kept.append(part)  # a missing key
            parent = here
    return tuple(kept), parent


def _fields(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Field names of the model at a location inside `model`."""
    annotation: Any = model
    for part in loc:
        annotation = _descend(annotation, part)
    found = _model_in(annotation)
    return list(found.model_fields) if found is not None else []


def _descend(annotation: Any, part: int | str) -> Any:
    found = _model_in(annotation)
    if found is not None and isinstance(part, str) and part in found.model_fields:
        return found.model_fields[part].annotation
    origin = typing.get_origin(annotation)
    if origin in (dict, Mapping):
        return typing.get_args(annotation)[1]
    if origin in (list, tuple):
        return typing.get_args(annotation)[0]
    return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            found = _model_in(member)
            if found is not None:
                return found
    return None
