"""Where code binds a name: what the symbol table tells of its scopes."""

from __future__ import annotations

import ast
import symtable
import sys
from collections.abc import Iterator
from typing import NamedTuple

from coterie.plugins.envs.code.sources import UNPARSABLE, parsed


class Bound(NamedTuple):
    """The scopes in which code binds a name, in any form that Python has."""

    globally: bool
    """At the top level, or in any scope that declares it `global`."""
    inside: bool
    """In a scope of its own: as a parameter, or as a name of a function, a class or a comprehension."""


def bound(code: str, name: str) -> Bound:
    """Where code binds a name; nowhere if it doesn't compile.

    A star import binds every name, but one from the standard library, which has no such names as `aux`.
    """
    tree = parsed(code)
    try:
        scopes = list(_scopes(symtable.symtable(code, "program.py", "exec"))) if tree is not None else []
    except UNPARSABLE:
        return Bound(False, False)
    globally, inside = tree is not None and any(map(_binds_all, ast.walk(tree))), False
    for scope in scopes:
        if name not in scope.get_identifiers():
            continue
        symbol = scope.lookup(name)
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter():
            if scope.get_type() == "module" or symbol.is_declared_global():
                globally = True
            else:
                inside = True
    return Bound(globally, inside)


def without(code: str, name: str, entry_point: str) -> str:
    """Code without the statements at its top level that bind a name, such as those that replace it.

    The entry point stays whatever it binds. Code that doesn't parse is kept whole.
    """
    tree = parsed(code)
    if tree is None:
        return code
    parts = [(getattr(node, "name", ""), ast.unparse(node) + "\n") for node in tree.body]
    return "".join(part for of, part in parts if of == entry_point or not bound(part, name).globally)


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _binds_all(node: ast.AST) -> bool:
    """Whether a statement is a star import from outside the standard library."""
    if not isinstance(node, ast.ImportFrom) or node.names[0].name != "*":
        return False
    return bool(node.level) or (node.module or "").partition(".")[0] not in sys.stdlib_module_names
