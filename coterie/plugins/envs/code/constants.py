"""Expressions of constants and operators alone: what they are, where that costs nothing."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable
from typing import Any

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
