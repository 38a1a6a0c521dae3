"""What `ast` tells of a team's function: how the main role's code uses `aux`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from coterie.plugins.envs.code.sources import Function, function_of

AUX = "aux"
"""The name of the helper's function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How a function uses `aux`."""

    called: bool = False
    """It calls `aux`, or hands it on (`map(aux, items)`)."""
    ignored: tuple[str, ...] = ()
    """Why no result of a call is used, with the line of each call; empty: one is, or there is no call."""
    thin: bool = False
    """It does nothing but call `aux`."""


def usage(code: str, entry_point: str) -> Usage:
    """How the entry point uses `aux`; nothing of it where the code doesn't parse."""
    function = function_of(code, entry_point)
    if function is None:
        return Usage()
    references = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == AUX]
    loaded = [isinstance(node.ctx, ast.Load) for node in references]
    parameters = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    if not any(loaded) or not all(loaded) or AUX in parameters:  # the name stands for something of its own
        return Usage()
    return Usage(called=True, ignored=_ignored(function), thin=_is_thin(function))


def _is_call(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == AUX


def _ignored(function: Function) -> tuple[str, ...]:
    """The reason for each call, where the function uses no result of any reference to `aux`."""
    parents = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    unread = _unread(function)
    reasons: list[str] = []
    for node in ast.walk(function):
        if not (isinstance(node, ast.Name) and node.id == AUX and isinstance(node.ctx, ast.Load)):
            continue
        call = parents[node]
        if not isinstance(call, ast.Call) or call.func is not node:
            return ()  # handed on
        reason = _reason(parents.get(call), unread)
        if not reason:
            return ()
        reasons.append(f"line {node.lineno - function.lineno + 1}: {reason}")
    return tuple(reasons)


def _reason(statement: ast.AST | None, unread: set[str]) -> str:
    """Why the value of a call that is the whole of a statement's value is not used; empty: it may be."""
    if isinstance(statement, ast.Expr):
        return "the result is dropped"
    targets = _targets(statement)
    if targets and all(name in unread for name in targets):
        return f"{', '.join(dict.fromkeys(targets))} is never used"
    return ""


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
    shared = {name for node in ast.walk(function) for name in _declared(node)}
    reads = [(name, targets) for name, targets in _reads(function) if name in assigned]
    unread = assigned - shared
    while True:
        used = {name for name, targets in reads if not targets or not set(targets) <= unread}
        if not used & unread:
            return unread
        unread -= used


def _declared(node: ast.AST) -> list[str]:
    return list(node.names) if isinstance(node, (ast.Global, ast.Nonlocal)) else []


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
    if ast.get_docstring(function) is not None:
        body = body[1:]
    body = [node for node in body if not isinstance(node, ast.Pass)]
    last = body[-1] if body else None
    value = last.value if isinstance(last, ast.Return) else None
    if len(body) == 2 and isinstance(value, ast.Name) and _targets(body[0]) == [value.id]:
        value = getattr(body[0], "value", None)
    elif len(body) != 1:
        return False
    return _is_call(value) and all(_is_plain(part) for part in (*value.args, *value.keywords))  # type: ignore[union-attr]


def _is_plain(argument: ast.AST) -> bool:
    """Whether an argument is handed on as it is: a name or a constant, starred or by keyword too."""
    if isinstance(argument, (ast.Starred, ast.keyword)):
        argument = argument.value
    return isinstance(argument, (ast.Name, ast.Constant))
