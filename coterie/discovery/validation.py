"""Validation of tables: one `ConfigError` with the dotted path, instead of pydantic's list of errors."""

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
    why: str = "",
) -> Any:
    """An instance of the model from a table.

    Args:
        path: dotted path of the table, for the error.
        context: pydantic's validation context.
        also: keys of the table that the caller removed before; the error suggests them too.
        why: the reason why no other key of the table is known, for the error.

    Raises:
        ConfigError: for one wrong key or value.
    """
    try:
        return model.model_validate(table, context=dict(context) if context is not None else None)
    except ValidationError as error:
        raise explain(error, model, table, path, also, why) from None


def explain(
    error: ValidationError,
    model: type[BaseModel],
    table: Any,
    path: str,
    also: Sequence[str] = (),
    why: str = "",
) -> ConfigError:
    """The ConfigError for the most specific of pydantic's errors: an unknown key, or else the deepest one.

    pydantic reports an error for every member of a union; the deepest is that of the member the user meant.
    """
    problems = error.errors()
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    problem = unknown[0] if unknown else max(problems, key=lambda p: len(p["loc"]))
    loc, parent = _walk(problem["loc"], table)
    full_path = ".".join(filter(None, (path, *map(str, loc))))
    if problem["type"] == "extra_forbidden":
        inner = len(loc) > 1
        fix = did_you_mean(str(loc[-1]), [*_fields(model, loc[:-1]), *(() if inner else also)])
        return ConfigError(f"unknown key '{loc[-1]}'", path=full_path, why="" if inner else why, fix=fix)
    if problem["type"] == "missing":
        why = f"{full_path.rpartition('.')[0] or 'the configuration'} needs it"
        return ConfigError(f"'{loc[-1]}' is missing", path=full_path, why=why, fix=f"set {full_path}=...")
    value: Any = table
    if loc and isinstance(parent, (Mapping, list)) and _has(parent, loc[-1]):
        value = parent[loc[-1]]  # type: ignore[index]
    message = problem["msg"]
    return ConfigError(f"{message[0].lower()}{message[1:]}", path=full_path, why=f"got {value!r}")


def _has(parent: Any, part: int | str) -> bool:
    return part in parent if isinstance(parent, Mapping) else isinstance(part, int) and part < len(parent)


def _walk(loc: Loc, table: Any) -> tuple[Loc, Any]:
    """The location without pydantic's names of union members, and the table or list that contains its end."""
    value, kept, parent = table, [], table
    for index, part in enumerate(loc):
        if isinstance(value, (Mapping, list)) and _has(value, part):
            kept.append(part)
            parent, value = value, value[part]  # type: ignore[index]
        elif index == len(loc) - 1 and isinstance(value, Mapping):
            kept.append(part)  # a missing key
            parent = value
    return tuple(kept), parent


def _fields(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Field names of the model at a location inside `model`."""
    annotation: Any = model
    for part in loc:
        annotation = _descend(annotation, part)
    member = _model_in(annotation)
    fields = member.model_fields.items() if member is not None else ()
    return [field.alias or name for name, field in fields]


def _descend(annotation: Any, part: int | str) -> Any:
    model = _model_in(annotation)
    if model is not None and isinstance(part, str) and part in model.model_fields:
        return model.model_fields[part].annotation
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
        models = (_model_in(member) for member in typing.get_args(annotation))
        return next((model for model in models if model is not None), None)
    return None
