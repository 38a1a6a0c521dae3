"""A function without what its syntax shows to be never executed."""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from coterie.plugins.envs.code.sources import Function

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def reachable(function: Function) -> Function:
    """A copy of a function without the parts of its body that never run, as far as syntax shows it.

    These are branches of a constant (`if False`, `while 0`, `0 and ...`), loops over nothing, what follows a
    statement that always leaves, annotations of local names, and inner functions whose name nothing reads.
    Statements that do nothing (`pass`, a constant, a name, the docstring) are left out too.
    """
    kept: Function = copy.deepcopy(function)
    for node in ast.walk(kept):
        if isinstance(node, ast.ClassDef):
            _mark_methods(node)
    kept.body = _Prune().block(kept.body)
    while unread := _unread_functions(kept):
        kept.body = _Drop(unread).block(kept.body)
    return kept


class _Blocks(ast.NodeTransformer):
    """Replaces the blocks of statements; an emptied one becomes `pass`."""

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """What is left of a block; may be empty."""
        kept: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            kept += new if isinstance(new, list) else [new] if new is not None else []
        return kept

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and all(isinstance(part, ast.stmt) for part in value):
                left = self.block(value)
                setattr(node, name, left if left or name in ("orelse", "finalbody") else [ast.Pass()])
            elif isinstance(value, list):
                value[:] = [self.visit(part) if isinstance(part, ast.AST) else part for part in value]
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node


class _Prune(_Blocks):
    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        kept: list[ast.stmt] = []
        for statement in super().block(body):
            kept.append(statement)
            if _leaves(statement):
                break
        return kept

    def visit_If(self, node: ast.If) -> Any:
        truth = _truth(node.test)
        if truth is None:
            return self.generic_visit(node)
        return self.block(node.body if truth else node.orelse)

    def visit_While(self, node: ast.While) -> Any:
        return self.block(node.orelse) if _truth(node.test) is False else self.generic_visit(node)

    def visit_For(self, node: ast.For) -> Any:
        return self.block(node.orelse) if _empty(node.iter) else self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        truth = _truth(node.test)
        if truth is None:
            return self.generic_visit(node)
        return self.visit(node.body if truth else node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        ends = isinstance(node.op, ast.Or)
        at = next((at for at, value in enumerate(node.values) if _truth(value) is ends), len(node.values))
        node.values = node.values[: at + 1]
        return self.generic_visit(node) if len(node.values) > 1 else self.visit(node.values[0])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if not isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        idle = isinstance(node.value, (ast.Constant, ast.Lambda, ast.Name))
        return None if idle else self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> Any:
        return None

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        return self._comprehension(node, ast.List([], ast.Load()))

    def visit_SetComp(self, node: ast.SetComp) -> Any:
        return self._comprehension(node, ast.List([], ast.Load()))

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        return self._comprehension(node, ast.List([], ast.Load()))

    def visit_DictComp(self, node: ast.DictComp) -> Any:
        return self._comprehension(node, ast.Dict([], []))

    def _comprehension(self, node: Any, nothing: ast.expr) -> Any:
        """`nothing` in the place of a comprehension whose loops never reach its item."""
        for loop in node.generators:
            if _empty(loop.iter) or any(_truth(test) is False for test in loop.ifs):
                return ast.copy_location(nothing, node)
        return self.generic_visit(node)


class _Drop(_Blocks):
    """Leaves out the definitions of these functions."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def visit(self, node: ast.AST) -> Any:
        return None if _defined(node) in self.names else self.generic_visit(node)


def _unread_functions(function: Function) -> frozenset[str]:
    """The names of inner functions that nothing but themselves and other such functions reads."""
    names = {name for node in ast.walk(function) if node is not function and (name := _defined(node))}
    names -= {name for node in ast.walk(function) for name in getattr(node, "names", ()) if name in names}
    while True:
        read = names & set(_loaded(function.body, names))
        if not read:
            return frozenset(names)
        names -= read


def _loaded(body: Sequence[ast.AST], unread: set[str]) -> Iterator[str]:
    """The names that statements read, outside of the definitions of these functions."""
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        if _defined(node) not in unread:
            stack += ast.iter_child_nodes(node)


def _mark_methods(node: ast.ClassDef) -> None:
    """Note for the methods of a class that who reads its name may call them; of one that a decorator, a
    base or a metaclass knows, that anybody may."""
    for part in node.body:
        if isinstance(part, _DEFINITIONS):
            known = node.decorator_list or node.bases or node.keywords
            part.read_as = "" if known else node.name  # type: ignore[union-attr]


def _defined(node: ast.AST) -> str:
    """The name of an inner function, or of a lambda that an assignment names; of a method that of its class;
    empty: it is none of them."""
    if isinstance(node, _DEFINITIONS):
        return "" if node.decorator_list else str(getattr(node, "read_as", node.name))
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda) and len(node.targets) == 1:
        target = node.targets[0]
        return target.id if isinstance(target, ast.Name) else ""
    return ""


def _leaves(statement: ast.stmt) -> bool:
    """Whether nothing after a statement of the same block is ever reached."""
    if isinstance(statement, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
        return True
    if isinstance(statement, ast.If):
        return _ends(statement.body) and _ends(statement.orelse)
    if isinstance(statement, ast.While):
        return _truth(statement.test) is True and not any(map(_breaks, statement.body))
    if isinstance(statement, ast.Try):
        tried = _ends(statement.body) or _ends(statement.orelse)
        return _ends(statement.finalbody) or (
            tried and all(_ends(handler.body) for handler in statement.handlers)
        )
    if isinstance(statement, ast.Match):
        last = statement.cases[-1]
        every = last.guard is None and isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        return every and all(_ends(case.body) for case in statement.cases)
    return False


def _ends(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and _leaves(body[-1])


def _breaks(node: ast.AST) -> bool:
    """Whether a statement of a loop's body leaves that loop by `break`."""
    if isinstance(node, ast.Break):
        return True
    if isinstance(node, (*_DEFINITIONS, ast.ClassDef, ast.Lambda)):
        return False
    inner = (
        node.orelse if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) else ast.iter_child_nodes(node)
    )
    return any(map(_breaks, inner))


def _truth(test: ast.expr) -> bool | None:
    """Whether an expression of constants is true; None: syntax doesn't show it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        truth = _truth(test.operand)
        return None if truth is None else not truth
    if isinstance(test, ast.BoolOp):
        truths = [_truth(value) for value in test.values]
        ends = isinstance(test.op, ast.Or)
        return ends if ends in truths else None if None in truths else not ends
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _COMPARED:
        compared = _COMPARED[type(test.ops[0])]
        return _literal(lambda: compared(*map(ast.literal_eval, (test.left, test.comparators[0]))))
    return _literal(lambda: ast.literal_eval(test))


def _literal(value: Callable[[], Any]) -> bool | None:
    try:
        return bool(value())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _empty(items: ast.expr) -> bool:
    """Whether a loop over an expression has no pass: an empty literal, or `range` of such numbers."""
    if isinstance(items, ast.Call) and isinstance(items.func, ast.Name) and items.func.id == "range":
        return _literal(lambda: range(*map(ast.literal_eval, items.args))) is False
    return _truth(items) is False
