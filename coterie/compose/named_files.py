"""Settings that name files: which texts of a component's table they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic.types import PathType

FILE, DATASET, MODEL, FUNCTION, WEIGHTS = "file-path", "dataset-path", "model-path", "function", "run-path"
FORMATS = (FILE, DATASET, MODEL, FUNCTION, WEIGHTS)
"""Formats of a field's JSON schema: a file, a folder or a pattern of files; the hub id or the folder of a
data set; that of a model; `module:function`; what a `from` names."""


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A text of a configuration that names a file."""

    keys: tuple[str | int, ...]
    """Its place in the configuration's table."""
    text: str
    form: str
    """One of FORMATS."""

    @property
    def path(self) -> str:
        """The dotted path of the setting."""
        return ".".join(map(str, self.keys))


def named_in(
    fields: Mapping[str, FieldInfo], table: Mapping[str, Any], keys: tuple[str | int, ...]
) -> Iterator[NamedFile]:
    """The texts of a table that name files.

    Args:
        keys: the place of the table.
    """
    for name, info in fields.items():
        key = info.alias or name
        if table.get(key) is not None:
            marks = (info, *info.metadata)
            named = _walk(info.annotation, marks, table[key], (*keys, key), "")
            yield from {file.keys: file for file in named}.values()


def _walk(
    annotation: Any, marks: Sequence[Any], value: Any, keys: tuple[str | int, ...], form: str
) -> Iterator[NamedFile]:
    """The texts in a value that its type says are names; `form` is that of the value around it."""
    form = next(filter(None, map(_form, marks)), form)
    if isinstance(value, str) and form:
        if not _is_word(annotation, value):
            yield NamedFile(keys, value, form)
        return
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _walk(args[0], args[1:], value, keys, form)
    elif origin in (Union, UnionType):
        if not _is_word(annotation, value):
            for member in args:
                yield from _walk(member, (), value, keys, form)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if isinstance(value, Mapping):
            yield from named_in(annotation.model_fields, value, keys)
    elif args and isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(args[-1], (), inner, (*keys, str(key)), form)
    elif args and isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _walk(args[0], (), inner, (*keys, index), form)


def _form(mark: Any) -> str:
    """The format that a field, or a mark of its type, declares; empty: none of ours."""
    if isinstance(mark, PathType):
        return FILE if mark.path_type == "file" else ""
    schema = (
        mark.json_schema if isinstance(mark, WithJsonSchema) else getattr(mark, "json_schema_extra", None)
    )
    form = schema.get("format") if isinstance(schema, Mapping) else None
    return str(form) if form in FORMATS else ""


def _is_word(annotation: Any, value: Any) -> bool:
    """Whether a value is one of the words that its type lists, such as `agree`."""
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    return get_origin(annotation) in (Annotated, Union, UnionType) and any(
        _is_word(member, value) for member in get_args(annotation)
    )
