"""The function that tests call, with what it calls of its role's own; and where code binds a name."""

from __future__ import annotations

import ast
import copy
import symtable
import sys
from collections.abc import Iterator
from typing import NamedTuple

from coterie.plugins.envs.code.sources import UNPARSABLE, Function, method_wrapper, parsed

AUX = "aux"
"""The name of the helper's function."""
Defined = Function | ast.ClassDef


class BoundNames(NamedTuple):
    """The scopes in which code binds a name, in any form that Python has."""

    globally: bool
    """At the top level, or in any scope that declares it `global`."""
    inside: bool
    """In a scope of its own: as a parameter, or as a name of a function, a class or a comprehension."""


def bound(code: str, name: str) -> BoundNames:
    """Where code binds a name; nowhere if it doesn't compile.

    A star import binds every name, but one from the standard library, which has no such names as `aux`. What
    sets or deletes an attribute or an item of the name (`aux.__code__ = ...`) binds it as `global` does.
    """
    tree = parsed(code)
    try:
        tables = list(scopes(symtable.symtable(code, "program.py", "exec"))) if tree is not None else []
    except UNPARSABLE:
        return BoundNames(False, False)
    globally = tree is not None and any(binds_all(node) or sets_in(node, name) for node in ast.walk(tree))
    inside = False
    for scope in tables:
        if name not in scope.get_identifiers():
            continue
        symbol = scope.lookup(name)
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter():
            if scope.get_type() == "module" or symbol.is_declared_global():
                globally = True
            else:
                inside = True
    return BoundNames(globally, inside)


def without(code: str, name: str, entry_point: str) -> str:
    """Code without the statements at its top level that bind a name, such as those that replace it.

    The last `def` of the entry point stays whatever it binds. Code that doesn't parse is kept whole.
    """
    tree = parsed(code)
    if tree is None:
        return code
    kept = last_of(tree, entry_point, ast.FunctionDef, ast.AsyncFunctionDef)
    parts = [(node, ast.unparse(node) + "\n") for node in tree.body]
    return "".join(part for node, part in parts if node is kept or not bound(part, name).globally)


def last_of(tree: ast.Module, name: str, *kinds: type[Defined]) -> Defined | None:
    """The last definition of a name at the top level, of these kinds; None: there is none."""
    defined = [node for node in tree.body if isinstance(node, kinds) and node.name == name]
    return defined[-1] if defined else None


def sets_in(node: ast.AST, name: str, *, special: bool = False) -> bool:
    """Whether a node sets or deletes an attribute or an item of what a name stands for.

    Args:
        special: such attributes alone as `__code__`.
    """
    if not isinstance(node, (ast.Attribute, ast.Subscript)) or isinstance(node.ctx, ast.Load):
        return False
    part: ast.expr = node
    dunder = False
    while isinstance(part, (ast.Attribute, ast.Subscript)):
        dunder = dunder or (isinstance(part, ast.Attribute) and part.attr.startswith("__"))
        part = part.value
    return isinstance(part, ast.Name) and part.id == name and (dunder or not special)


def scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """A scope and all scopes in it."""
    yield table
    for child in table.get_children():
        yield from scopes(child)


def binds_all(node: ast.AST) -> bool:
    """Whether a statement is a star import from outside the standard library."""
    if not isinstance(node, ast.ImportFrom) or node.names[0].name != "*":
        return False
    return bool(node.level) or (node.module or "").partition(".")[0] not in sys.stdlib_module_names


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTOOLS = {name: name for name in ("functools", "cache", "lru_cache", "wraps")}
"""Names that stand for parts of `functools` where the code binds them in no other way."""


def entry_of(code: str, name: str) -> Function | None:
    """The function of that name at the top level, or the method of class `Solution` where there is none.

    Functions of the top level that it calls, by name and through each other, are put into it as inner ones.
    None: there is none, the code doesn't parse, or something else may stand for the name (`_replaced`).
    """
    tree = parsed(code)
    if tree is None:
        return None
    entry = last_of(tree, name, *_FUNCTIONS)
    if entry is None and method_wrapper(code, name):
        entry = _method(tree, name)
    elif entry is not None and _replaced(tree, entry):
        entry = None
    return _with_callees(tree, entry) if isinstance(entry, _FUNCTIONS) else None


def _method(tree: ast.Module, name: str) -> Function | None:
    """The method of class `Solution` that tests call; None: something may replace it."""
    solution = last_of(tree, "Solution", ast.ClassDef)
    if not isinstance(solution, ast.ClassDef) or solution.keywords or _replaced(tree, solution):
        return None
    body = ast.Module(solution.body, [])
    method = last_of(body, name, *_FUNCTIONS)
    names = {part.name for part in solution.body if isinstance(part, _FUNCTIONS)}
    sets = any(
        isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(solution)
    )
    special = names & {"__new__", "__getattribute__"} or _binds_from_inside(tree, name)
    if not isinstance(method, _FUNCTIONS) or sets or special or _replaced(body, method):
        return None
    return method


def _with_callees(tree: ast.Module, entry: Function) -> Function:
    """A copy of a function with those functions inside of it that it calls and that come to `aux`."""
    callees: dict[str, Function] = {}
    waiting = [entry]
    while waiting:
        caller = waiting.pop()
        text = ast.unparse(caller)
        for name in sorted(_called(caller) - {entry.name, *callees}):
            callee = last_of(tree, name, *_FUNCTIONS)
            if not isinstance(callee, _FUNCTIONS) or bound(text, name).inside or _replaced(tree, callee):
                continue
            if not any(bound(ast.unparse(callee), AUX)):
                callees[name] = callee
                waiting.append(callee)
    coming = {AUX}
    named = {
        name: {node.id for node in ast.walk(callee) if isinstance(node, ast.Name)}
        for name, callee in callees.items()
    }
    while more := {name for name in callees if name not in coming and named[name] & coming}:
        coming |= more
    function = copy.deepcopy(entry)
    function.body = [*(_bare(callees[name]) for name in callees if name in coming), *function.body]
    return function


def _bare(function: Function) -> Function:
    """A copy of a function without what runs where it is defined: decorators, defaults, annotations."""
    bare = copy.deepcopy(function)
    bare.decorator_list, bare.returns = [], None
    bare.args.defaults, bare.args.kw_defaults = [], [None for _ in bare.args.kw_defaults]
    for node in ast.walk(bare.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    return bare


def _called(function: Function) -> set[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {func.id for func in calls if isinstance(func, ast.Name)}


def _replaced(tree: ast.Module, definition: Defined) -> bool:
    """Whether a name may stand for something else than its definition at the top level.

    It may where a later statement binds the name, or a scope that declares it `global`, where something sets
    an attribute of it (of a function: a special one, such as `__code__`), and where a decorator is on it that
    is none of `functools`.
    """
    name = definition.name
    later = tree.body[tree.body.index(definition) + 1 :]
    special = not isinstance(definition, ast.ClassDef)
    return (
        _binds_on_top(later, name)
        or _binds_from_inside(tree, name)
        or any(sets_in(node, name, special=special) for node in ast.walk(tree))
        or not all(_keeps(decorator, tree) for decorator in definition.decorator_list)
    )


def _binds_on_top(statements: list[ast.stmt], name: str) -> bool:
    """Whether statements bind a name in the scope that they stand in."""
    if any(binds_all(node) for statement in statements for node in ast.walk(statement)):
        return True
    try:
        table = symtable.symtable(ast.unparse(ast.Module(statements, [])), "program.py", "exec")
    except UNPARSABLE:
        return True
    symbol = table.lookup(name) if name in table.get_identifiers() else None
    return symbol is not None and (symbol.is_assigned() or symbol.is_imported())


def _binds_from_inside(tree: ast.Module, name: str) -> bool:
    """Whether a scope below the top level binds a name of the top level."""
    try:
        below = list(scopes(symtable.symtable(ast.unparse(tree), "program.py", "exec")))[1:]
    except UNPARSABLE:
        return False
    symbols = [scope.lookup(name) for scope in below if name in scope.get_identifiers()]
    return any(
        symbol.is_declared_global() and (symbol.is_assigned() or symbol.is_imported()) for symbol in symbols
    )


def _keeps(decorator: ast.expr, tree: ast.Module) -> bool:
    """Whether a decorator is one of `functools` that calls the function with the arguments of its caller."""
    call = decorator if isinstance(decorator, ast.Call) else None
    named = call.func if call is not None else decorator
    root = named.value if isinstance(named, ast.Attribute) else named
    if not isinstance(root, ast.Name):
        return False
    names, others = dict(_FUNCTOOLS), list[ast.stmt]()
    for node in tree.body:
        if isinstance(node, ast.Import):
            whole = [part for part in node.names if part.name == "functools"]
            names.update((part.asname or part.name, "functools") for part in whole)
            more = [part for part in node.names if part not in whole]
            others += [ast.Import(more)] if more else []
        elif isinstance(node, ast.ImportFrom) and node.module == "functools" and not node.level:
            names.update((part.asname or part.name, part.name) for part in node.names)
        else:
            others.append(node)
    if bound("".join(ast.unparse(node) + "\n" for node in others), root.id).globally:
        return False
    meant = names.get(root.id, "")
    if isinstance(named, ast.Attribute):
        meant = named.attr if meant == "functools" else ""
    given = [*call.args, *(part.value for part in call.keywords)] if call is not None else []
    if meant == "wraps":
        return len(given) == 1 and isinstance(given[0], ast.Name)
    return meant in ("cache", "lru_cache") and all(isinstance(part, ast.Constant) for part in given)
