"""Where code binds a name: what the symbol table tells of its scopes."""

from __future__ import annotations

import ast
import symtable
import sys
from collections.abc import Iterator
from typing import NamedTuple

from coterie.plugins.envs.code.sources import UNPARSABLE, Function, parsed

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
