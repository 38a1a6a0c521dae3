"""A function without what its syntax shows to be never executed; what expressions of constants are."""

from __future__ import annotations

import ast
import copy
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from coterie.plugins.envs.code.sources import Function

MOST_NODES, MOST_BITS = 200, 4096
"""Bounds of an expression that is evaluated, and of a whole number in it."""
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_JOINED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.RShift: operator.rshift,
}
"""All but those whose result may be large: `**` and `<<`."""
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_UNKNOWN = (ValueError, TypeError, ArithmeticError, RecursionError, MemoryError)


def truth(test: ast.expr) -> bool | None:
    """Whether an expression is true; None: its syntax doesn't show it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        truths = [truth(value) for value in test.values]
        ends = isinstance(test.op, ast.Or)
        return ends if ends in truths else None if None in truths else not ends
    try:
        return bool(constant(test))
    except _UNKNOWN:
        return None


def empty(items: ast.expr) -> bool:
    """Whether a loop over an expression has no pass: an empty constant, or `range` of such numbers."""
    if not (isinstance(items, ast.Call) and isinstance(items.func, ast.Name) and items.func.id == "range"):
        return truth(items) is False
    try:
        return not items.keywords and not range(*map(constant, items.args))
    except _UNKNOWN:
        return False


def constant(node: ast.expr) -> Any:
    """The value of an expression of constants and operators.

    Raises:
        ValueError: it is another one, or too large. TypeError, ArithmeticError: it has no value.
    """
    if sum(1 for _ in itertools.islice(ast.walk(node), MOST_NODES + 1)) > MOST_NODES:
        raise ValueError("too large")
    return _value(node)


def _value(node: ast.expr | None) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name(id="__debug__"):
            return True
        case ast.Tuple() | ast.List() | ast.Set():
            made = {ast.Tuple: tuple, ast.List: list, ast.Set: set}[type(node)]
            return made(map(_value, node.elts))
        case ast.Dict():
            return dict(zip(map(_value, node.keys), map(_value, node.values), strict=True))
        case ast.Call(func=ast.Name(id="set"), args=[], keywords=[]):
            return set()
        case ast.UnaryOp():
            return _SIGNS[type(node.op)](_value(node.operand))
        case ast.BinOp():
            return _joined(node)
        case ast.BoolOp():
            ends = isinstance(node.op, ast.Or)
            values = [_value(part) for part in node.values]
            return next((value for value in values if bool(value) is ends), values[-1])
        case ast.IfExp():
            return _value(node.body if _value(node.test) else node.orelse)
        case ast.Compare():
            values = [_value(part) for part in (node.left, *node.comparators)]
            pairs = zip(node.ops, itertools.pairwise(values), strict=True)
            return all(_COMPARED[type(op)](*pair) for op, pair in pairs)
        case ast.JoinedStr():
            return "".join(str(_value(part)) for part in node.values)
    raise ValueError("no constant")


def _joined(node: ast.BinOp) -> Any:
    """The value of an operator between two; texts are neither repeated nor filled in, which may be long."""
    left, right = _value(node.left), _value(node.right)
    if type(node.op) not in _JOINED:
        raise ValueError("may be large")
    if isinstance(node.op, (ast.Mult, ast.Mod)) and not all(
        isinstance(v, (int, float)) for v in (left, right)
    ):
        raise ValueError("may be large")
    value = _JOINED[type(node.op)](left, right)
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError("too large")
    return value


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LET_PASS = frozenset(
    {"open", "nullcontext", "closing", "redirect_stdout", "redirect_stderr", "localcontext"}
)


def reachable(function: Function) -> Function:
    """A copy of a function without the parts of its body that never run, where syntax alone shows it.

    These are branches of a condition of constants (of `if`, `while`, `assert`, `case ... if`, `and`, `or`, a
    comprehension; `truth`), loops over nothing, `else` of an endless loop, what follows a statement
    that always leaves, handlers of a `try` that raises nothing, annotations of local names, and inner
    functions and methods whose name, or whose class's, nothing reads. Statements that do nothing (`pass`, a
    constant, a name, the docstring) are left out too.
    """
    kept: Function = copy.deepcopy(function)
    for node in ast.walk(kept):
        if isinstance(node, ast.ClassDef):
            _mark_methods(node)
    kept.body = _Prune().block(kept.body)
    while unread := _unread_functions(kept):
        kept.body = _Drop(unread).block(kept.body)
    return kept


class _ReachableBlocks(ast.NodeTransformer):
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


class _Prune(_ReachableBlocks):
    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        kept: list[ast.stmt] = []
        for statement in super().block(body):
            kept.append(statement)
            if _leaves(statement):
                break
        return kept

    def visit_If(self, node: ast.If) -> Any:
        true = truth(node.test)
        if true is None:
            return self.generic_visit(node)
        return self.block(node.body if true else node.orelse)

    def visit_While(self, node: ast.While) -> Any:
        true = truth(node.test)
        if true is False:
            return self.block(node.orelse)
        if true:
            node.orelse = []
        return self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> Any:
        self.generic_visit(node)
        if node.handlers and all(map(_never_raises, node.body)):
            node.body, node.handlers, node.orelse = self.block([*node.body, *node.orelse]), [], []
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        return None if truth(node.test) else self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> Any:
        node.cases = [case for case in node.cases if case.guard is None or truth(case.guard) is not False]
        return self.generic_visit(node) if node.cases else self.visit(ast.Expr(node.subject))

    def visit_For(self, node: ast.For) -> Any:
        return self.block(node.orelse) if empty(node.iter) else self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        true = truth(node.test)
        if true is None:
            return self.generic_visit(node)
        return self.visit(node.body if true else node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        ends = isinstance(node.op, ast.Or)
        at = next((at for at, value in enumerate(node.values) if truth(value) is ends), len(node.values))
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
            if empty(loop.iter) or any(truth(test) is False for test in loop.ifs):
                return ast.copy_location(nothing, node)
        return self.generic_visit(node)


class _Drop(_ReachableBlocks):
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
    if isinstance(statement, ast.Assert):
        return truth(statement.test) is False
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return _ends(statement.body) and all(_lets_pass(item.context_expr) for item in statement.items)
    if isinstance(statement, ast.If):
        return _ends(statement.body) and _ends(statement.orelse)
    if isinstance(statement, ast.While):
        return truth(statement.test) is True and not any(map(_breaks, statement.body))
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


def _never_raises(statement: ast.stmt) -> bool:
    """Whether a statement is `pass`, or returns or names a constant."""
    if isinstance(statement, (ast.Assign, ast.Return)):
        named = all(isinstance(target, ast.Name) for target in getattr(statement, "targets", ()))
        return named and isinstance(statement.value, (ast.Constant, type(None)))
    return isinstance(statement, (ast.Pass, ast.Break, ast.Continue))


def _lets_pass(manager: ast.expr) -> bool:
    """Whether a context manager of the standard library is known to swallow no exception."""
    named = manager.func if isinstance(manager, ast.Call) else manager
    return getattr(named, "attr", getattr(named, "id", "")) in _LET_PASS


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
