"""What is written about plugins in the code: hooks, members of Protocols, fields of a Config."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from coterie.compose.tables import model_of
from coterie.core.plugins import MayChange, composed_fields
from coterie.discovery import hookspecs

BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook of the plugin API."""

    name: str
    signature: str
    when: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Field:
    """A setting of a plugin."""

    name: str
    """Dotted, where it is in a table of the plugin's table; `*` is any name."""
    type: str
    default: Any
    """As JSON; None where the setting is required, too."""
    required: bool
    meaning: str
    may_change: str
    """Whether a resumed run may change it: empty (no), `yes`, `exact`, `asked`."""
    composed: str
    """The kind of the component that it holds; empty: it holds a value."""


def hooks() -> list[Hook]:
    """Every hook, in the order of `discovery/hookspecs.py`."""
    listed = []
    for name, value in vars(hookspecs).items():
        if inspect.isfunction(value) and hasattr(value, "coterie_spec"):
            signature = str(inspect.signature(value)).replace("'", "")
            when = hookspecs.WHEN.get(name, "when the plugin is loaded")
            listed.append(Hook(name, signature, when, " ".join((value.__doc__ or "").split())))
    return listed


class SourcePlace(NamedTuple):
    """Where a class or a function is written."""

    file: str = ""
    """Empty: unknown."""
    line: int | None = None
    docstring: str = ""


def source_of(target: Any) -> SourcePlace:
    """Where a plugin is written: an object, or `module:attribute`, which is read and not imported, since it
    may need a large library."""
    if not isinstance(target, str):
        described = target if inspect.isclass(target) or inspect.isroutine(target) else type(target)
        try:
            file, line = inspect.getsourcefile(described) or "", inspect.getsourcelines(described)[1]
        except (OSError, TypeError):  # a built-in, or a class that was made at run time
            return SourcePlace()
        return SourcePlace(file, line, inspect.getdoc(target) or "")
    module, _, attribute = target.partition(":")
    try:
        spec = importlib.util.find_spec(module)
        source = Path(spec.origin or "") if spec is not None else Path()
        body = ast.parse(source.read_text(encoding="utf-8")).body
    except Exception:  # a package around the module may raise anything
        return SourcePlace()
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == attribute:
            return SourcePlace(str(source), node.lineno, ast.get_docstring(node) or "")
    for imported in (node for node in body if isinstance(node, ast.ImportFrom)):  # from a module below it
        for alias in imported.names if imported.module and not imported.level else ():
            if (alias.asname or alias.name) == attribute:
                return source_of(f"{imported.module}:{alias.name}")
    return SourcePlace(str(source))


def documented(protocol: type) -> Iterator[tuple[str, str]]:
    """(member as it is written, its docstring) of each member of a Protocol."""
    for node, text in _statements(protocol):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [argument.arg for argument in node.args.args[1:]]
            returns = ast.unparse(node.returns) if node.returns else "None"
            arrow = "" if returns == "None" else f" -> {returns}"
            start = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
            yield (
                f"{start}{node.name}({', '.join(names)}){arrow}",
                " ".join((ast.get_docstring(node) or "").split()),
            )
        elif isinstance(node, ast.AnnAssign) and text:
            yield ast.unparse(node), text


def fields(model: type[BaseModel], outer: str = "", given: BaseModel | None = None) -> Iterator[Field]:
    """The settings of a Config, those of its inner tables after the table that has them.

    Args:
        outer: what stands before their names.
        given: the table's default in the Config around it, whose values are then the defaults.
    """
    composed = composed_fields(model)
    for name, info in model.model_fields.items():
        where = outer + (info.alias or name)
        inner = None if name in composed else model_of(info.annotation)
        required = info.is_required() and given is None
        default = None if info.is_required() else default_of(info)
        default = default if given is None else getattr(given, name, default)
        yield Field(
            name=where,
            type=written(info.annotation, composed.get(name, ""), info),
            default=to_jsonable_python(default, fallback=_named),
            required=required,
            meaning=meaning(model, name),
            may_change=_may_change(info),
            composed=composed.get(name, ""),
        )
        if inner is not None and inner is not model:
            within = "" if _type(info.annotation).split(" | ")[0] == "table" else "*."  # a table of tables
            yield from fields(inner, f"{where}.{within}", default if isinstance(default, inner) else None)


def _named(thing: Any) -> str:
    if isinstance(thing, NoDefault):
        return f"<{thing.why}>"
    return f"<{type(thing).__qualname__}>"


class NoDefault:
    """What a default is whose `default_factory` raises."""

    def __init__(self, why: str) -> None:
        self.why = why


def default_of(info: FieldInfo) -> Any:
    """The default of a field that isn't required; `NoDefault` where the plugin's factory of it raises."""
    try:
        return info.get_default(call_default_factory=True)
    except Exception as error:  # a plugin's function may raise anything, or need the other settings
        return NoDefault(f"its default_factory raised {type(error).__name__}")


def meaning(model: type[BaseModel], name: str) -> str:
    """What a field means: its `description`, else the docstring under it; a deprecated one says so."""
    info = model.model_fields[name]
    text = info.description or next(filter(None, (_below(cls).get(name) for cls in model.__mro__)), "")
    if info.deprecated:
        text = f"(deprecated: {getattr(info.deprecated, 'message', info.deprecated)}) {text}"
    return " ".join(text.split())


def written(annotation: Any, composed: str = "", info: FieldInfo | None = None) -> str:
    """A type in few words: `int >= 1 | null`, `"a" | "b"`, `table`, `a reward`."""
    if composed:
        may_be_null = info is not None and info.default is None and not info.is_required()
        several = "s" if get_origin(annotation) not in (None, Union, UnionType, Annotated) else ""
        what = composed.replace("_", " ")
        article = "an" if what[0] in "aeiou" else "a"
        return (f"{what}s" if several else f"{article} {what}") + (" | null" if may_be_null else "")
    text = _type(annotation)
    marks = info.metadata if info is not None else ()
    bounds = [f"{sign} {getattr(mark, bound)}" for mark in marks for bound, sign in BOUNDS.items()
              if getattr(mark, bound, None) is not None]  # fmt: skip
    first, *others = text.split(" | ")
    return " | ".join([" ".join([first, *bounds]), *others]) if bounds else text


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in (None, NoneType):
        return "null"
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(map(_type, arguments)))
    if origin is not None:
        inner = ", ".join("..." if argument is ... else _type(argument) for argument in arguments)
        return f"{getattr(origin, '__name__', str(origin)).lower()}[{inner}]"
    if isinstance(annotation, type):
        return "table" if issubclass(annotation, BaseModel) else annotation.__name__
    return str(getattr(annotation, "__name__", annotation)).removeprefix("typing.")


def _may_change(info: FieldInfo) -> str:
    for mark in info.metadata:
        if isinstance(mark, MayChange):
            return "asked" if mark.asked else "exact" if mark.exact else "yes"
    return ""


@cache
def _below(cls: type) -> dict[str, str]:
    """The docstrings under the annotated attributes of a class."""
    if cls in (object, BaseModel):
        return {}
    return {
        node.target.id: text
        for node, text in _statements(cls)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and text
    }


def _statements(cls: type) -> Iterator[tuple[ast.stmt, str]]:
    """The statements of a class's body, each with the text of the docstring below it."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # made at run time, or its source isn't there
        return
    body = tree.body[0]
    if not isinstance(body, ast.ClassDef):
        return
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = " ".join(str(following.value.value).split())
        yield node, text
