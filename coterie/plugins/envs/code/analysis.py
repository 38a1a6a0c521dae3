"""What `ast` tells of a team's function: how the main role's code uses `aux`."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coterie.plugins.envs.code.entry import AUX, bound, entry_of
from coterie.plugins.envs.code.reachable import reachable
from coterie.plugins.envs.code.sources import Function

_LAZY = frozenset({"map", "filter", "iter"})
"""Builtins that call what they are given when somebody reads their result."""
_CALLERS = _LAZY | {"sorted", "min", "max"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BUILTINS = frozenset(dir(builtins))
"""All but the callers call none of their arguments, such as `print` and `callable`."""
_HOLDING = (ast.keyword, ast.Starred, ast.NamedExpr, ast.List, ast.Tuple, ast.Dict, ast.IfExp)
_PURE = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.List, ast.Tuple, ast.Set, ast.Starred, ast.Await)
"""Expressions whose value is made of the values in them, and which do nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxUsage:
    """How a function uses `aux`."""

    called: bool = False
    """It calls `aux`, or hands it on (`map(aux, items)`)."""
    ignored: tuple[str, ...] = ()
    """Why no result of a call is used, with the line of each call; empty: one is, or there is no call."""
    thin: bool = False
    """It does nothing but call `aux`."""


def usage(code: str, entry_point: str) -> AuxUsage:
    """How the entry point uses `aux`, where its body reaches a call, as far as syntax shows it; nothing of it
    where the code doesn't parse, or the name stands for something of the function's own."""
    written = entry_of(code, entry_point)
    if written is None or any(bound(ast.unparse(written), AUX)):
        return AuxUsage()
    function = reachable(written)
    unread = _unread(function)
    uses = list(_uses(function, unread))
    if not uses:
        return AuxUsage()
    return AuxUsage(called=True, ignored=_ignored(function, uses, unread), thin=_is_thin(function))


class _Use(NamedTuple):
    line: str
    """In the function, from 1; of a function of the top level that it calls, with its name."""
    call: ast.Call | None
    """The call whose value `aux` makes; None: a function that we don't know gets `aux`, and may call it."""


def _uses(function: Function, unread: set[str]) -> Iterator[_Use]:
    """The calls of `aux`, under other names of it too, and where it is handed on."""
    parents, names = _parents(function), _names_of_aux(function)
    for node in _inside(function):
        if not (isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)):
            continue
        line = _line(node, function)
        held, holder = _holder(node, parents)
        if isinstance(holder, ast.Call):
            to = holder.func.id if isinstance(holder.func, ast.Name) else ""
            lazy = to in _LAZY and _reason(holder, parents, unread)
            if holder.func is held or (to in _CALLERS and not lazy):
                yield _Use(line, holder)
            elif to not in _BUILTINS:
                yield _Use(line, None)
        elif held is not node and isinstance(holder, ast.Assign) and not _all_unread(holder, unread):
            yield _Use(line, None)  # kept in a container, which something reads


def _line(node: ast.Name, function: Function) -> str:
    for callee in function.body:
        outside = callee.lineno < function.lineno or callee.lineno > (function.end_lineno or 0)
        if outside and isinstance(callee, _FUNCTIONS) and node in ast.walk(callee):
            return f"line {node.lineno - callee.lineno + 1} of {callee.name}"
    return f"line {node.lineno - function.lineno + 1}"


def _holder(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> tuple[ast.AST, ast.AST | None]:
    """What holds a function, as (a part of the holder, the holder): containers and choices are passed."""
    while True:
        parent = parents.get(node)
        if not isinstance(parent, _HOLDING) or (isinstance(parent, ast.IfExp) and parent.test is node):
            return node, parent
        assert parent is not None
        node = parent


def _names_of_aux(function: Function) -> set[str]:
    """`aux`, and the names that are assigned `aux` itself."""
    names = {AUX}
    while True:
        more = {
            name
            for node in _inside(function)
            if isinstance(node, (ast.Assign, ast.NamedExpr))
            and isinstance(node.value, ast.Name)
            and node.value.id in names
            for name in _targets(node)
        }
        if more <= names:
            return names
        names |= more


def _inside(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body."""
    for statement in function.body:
        yield from ast.walk(statement)


def _parents(function: Function) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}


def _ignored(function: Function, uses: Sequence[_Use], unread: set[str]) -> tuple[str, ...]:
    """The reason for each call, where the function uses no result of `aux`."""
    parents = _parents(function)
    reasons = [(line, _reason(call, parents, unread) if call is not None else "") for line, call in uses]
    return tuple(f"{line}: {reason}" for line, reason in reasons) if all(r for _, r in reasons) else ()


def _reason(
    call: ast.AST,
    parents: Mapping[ast.AST, ast.AST],
    unread: set[str],
    seen: set[ast.AST] | None = None,
) -> str:
    """Why the value of a call, or of an expression around it, is not used; empty: it may be."""
    node: ast.AST | None = parents.get(call)
    named: list[str] = []
    while isinstance(node, (*_PURE, ast.NamedExpr)):
        if isinstance(node, ast.NamedExpr):
            if not _all_unread(node, unread):
                return ""
            named += _targets(node)
        node = parents.get(node)
    if isinstance(node, ast.Expr):
        return f"{', '.join(named)} is never used" if named else "the result is dropped"
    if isinstance(node, ast.Return):
        return _returned(node, parents, unread, set() if seen is None else seen)
    targets = _targets(node)
    if targets and _all_unread(node, unread):
        return f"{', '.join(dict.fromkeys(targets))} is never used"
    return ""


def _returned(node: ast.AST, parents: Mapping[ast.AST, ast.AST], unread: set[str], seen: set[ast.AST]) -> str:
    """Why no call of the inner function that returns a value uses it; empty: one may, or there is none.

    Args:
        seen: the functions whose calls have been looked at.
    """
    holder: ast.AST | None = node
    while holder is not None and not isinstance(holder, _FUNCTIONS):
        holder = parents.get(holder)
    if not isinstance(holder, _FUNCTIONS) or holder not in parents:
        return ""
    if holder in seen:
        return "the result is dropped"  # nothing else was found, so its other calls decide
    seen.add(holder)
    reads = [part for part in parents if isinstance(part, ast.Name) and part.id == holder.name]
    calls = [parents[part] for part in reads]
    if not all(isinstance(c, ast.Call) and c.func is part for c, part in zip(calls, reads, strict=True)):
        return ""
    reasons = [_reason(inner, parents, unread, seen) for inner in calls]
    return reasons[0] if reasons and all(reasons) else ""


def _all_unread(statement: ast.AST | None, unread: set[str]) -> bool:
    """Whether a statement assigns to names alone that nothing reads."""
    targets = _targets(statement)
    return bool(targets) and all(name in unread for name in targets)


def _targets(statement: ast.AST | None) -> list[str]:
    """The names that an assignment of one value sets; none where it sets anything else, such as an item."""
    if isinstance(statement, ast.Assign):
        parts = list(statement.targets)
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        parts = [statement.target]
    else:
        return []
    names: list[str] = []
    while parts:
        part = parts.pop()
        if isinstance(part, (ast.Tuple, ast.List)):
            parts += part.elts
        elif isinstance(part, ast.Starred):
            parts.append(part.value)
        elif isinstance(part, ast.Name):
            names.append(part.id)
        else:
            return []
    return names


def _unread(function: Function) -> set[str]:
    """Names that no statement reads but assignments to names that are themselves unread."""
    assigned = {name for node in ast.walk(function) for name in _targets(node)}
    scoped = (node for node in ast.walk(function) if isinstance(node, (ast.Global, ast.Nonlocal)))
    shared = {name for node in scoped for name in node.names}
    reads = [(name, targets) for name, targets in _reads(function) if name in assigned]
    unread = assigned - shared
    while True:
        used = {name for name, targets in reads if not targets or not set(targets) <= unread}
        if not used & unread:
            return unread
        unread -= used


def _reads(function: Function) -> Iterator[tuple[str, list[str]]]:
    """(name, the names that the reading assignment sets; empty for any other statement)."""
    stack: list[tuple[ast.AST, list[str]]] = [(node, []) for node in function.body]
    while stack:
        node, targets = stack.pop()
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and not _has_call(node.value):
            targets = _targets(node)
        elif isinstance(node, ast.stmt):
            targets = []
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id, targets
        stack.extend((child, targets) for child in ast.iter_child_nodes(node))


def _has_call(value: ast.AST | None) -> bool:
    """Whether a value calls something, which may use its arguments whatever becomes of the value."""
    nodes = ast.walk(value) if value is not None else ()
    return any(isinstance(node, (ast.Call, ast.Await, ast.Yield)) for node in nodes)


def _is_thin(function: Function) -> bool:
    """Whether the body is `return aux(...)`, or a name for that result and its return."""
    body = function.body
    last = body[-1] if body else None
    value = last.value if isinstance(last, ast.Return) else None
    if len(body) == 2 and isinstance(value, ast.Name) and _targets(body[0]) == [value.id]:
        value = getattr(body[0], "value", None)
    elif len(body) != 1:
        return False
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == AUX):
        return False
    return all(_is_plain(part) for part in (*value.args, *value.keywords))


def _is_plain(argument: ast.AST) -> bool:
    """Whether an argument is handed on as it is: a name or a constant, starred or by keyword too."""
    if isinstance(argument, (ast.Starred, ast.keyword)):
        argument = argument.value
    return isinstance(argument, (ast.Name, ast.Constant))
