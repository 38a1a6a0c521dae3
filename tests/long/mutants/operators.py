"""Mutation operators: what one small fault in an expression or a statement looks like.

An operator gets a node and where it stands, and yields the fault's name with the node's new text. Faults that
no test could see, or that every test sees at import, aren't made.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
NEGATION: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
LISTED = ("sorted", "reversed")

Mutations = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Place:
    """Where a node stands in its tree."""

    parent: ast.AST
    field: str
    """The parent's field that holds the node."""
    runs: bool
    """The node is run when a function is called, not when its module is imported."""


def mutations(node: ast.AST, place: Place) -> Mutations:
    """The operator's name and the node's new text, for every operator that fits the node."""
    for kind, operator in OPERATORS.items():
        if isinstance(node, kind):
            yield from operator(node, place)
    if isinstance(node, ast.expr):
        yield from _condition(node, place)


def _text(node: ast.expr) -> str:
    """The expression's text, in brackets unless nothing could come between its parts."""
    text = ast.unparse(node)
    return text if isinstance(node, ast.Name | ast.Constant | ast.Call) else f"({text})"


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _compare(node: ast.Compare, place: Place) -> Mutations:
    for name, table in (("boundary", BOUNDARY), ("negation", NEGATION)):
        for index, operator in enumerate(node.ops):
            if type(operator) in table:
                ops = [*node.ops]
                ops[index] = table[type(operator)]()
                yield f"{name} of {type(operator).__name__}", _text(_changed(node, ops=ops))


def _arithmetic(node: ast.BinOp, place: Place) -> Mutations:
    # `"%d" % n`, `"a" + b`, `int | None`: text and types, not numbers.
    if any(_is_text(side) or _is_type(side) for side in (node.left, node.right)):
        return
    other = ARITHMETIC.get(type(node.op))
    if other is not None:
        yield f"{type(node.op).__name__} to {other.__name__}", _text(_changed(node, op=other()))


def _is_text(node: ast.expr) -> bool:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return constant or isinstance(node, ast.JoinedStr)


def _is_type(node: ast.expr) -> bool:
    nothing = isinstance(node, ast.Constant) and node.value is None
    return nothing or (isinstance(node, ast.Name) and node.id in ("int", "float", "str", "bool", "bytes"))


def _boolean(node: ast.BoolOp, place: Place) -> Mutations:
    other = ast.Or if isinstance(node.op, ast.And) else ast.And
    yield f"{type(node.op).__name__} to {other.__name__}", _text(_changed(node, op=other()))


def _unary(node: ast.UnaryOp, place: Place) -> Mutations:
    if isinstance(node.op, ast.Not | ast.USub):
        yield f"no {type(node.op).__name__}", _text(node.operand)


def _constant(node: ast.Constant, place: Place) -> Mutations:
    value = node.value
    if isinstance(value, bool):
        yield f"{value} to {not value}", str(not value)
    elif isinstance(value, int | float):
        yield "number plus 1", repr(value + 1)
    elif value is None and _is_default(place):
        yield "default None to 0", "0"


def _is_default(place: Place) -> bool:
    """Of an argument or a field."""
    field = place.field == "value" and isinstance(place.parent, ast.AnnAssign)
    return field or place.field in ("defaults", "kw_defaults")


def _call(node: ast.Call, place: Place) -> Mutations:
    if not isinstance(node.func, ast.Name) or not node.args:
        return
    name = node.func.id
    if name in CALLS:
        yield f"{name} to {CALLS[name]}", _text(_changed(node, func=ast.Name(CALLS[name], ast.Load())))
    elif name in LISTED:
        yield f"no {name}", f"list({ast.unparse(node.args[0])})"


def _condition(node: ast.expr, place: Place) -> Mutations:
    """Conditions that always hold, or never; an endless loop shows nothing that a dead one doesn't."""
    held = isinstance(node, ast.Constant) or any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))
    if place.field == "test" and isinstance(place.parent, ast.If | ast.IfExp) and not held:
        yield "condition to True", "True"
        yield "condition to False", "False"
    elif place.field == "test" and isinstance(place.parent, ast.While):
        yield "condition to False", "False"
    elif place.field == "ifs" and not held:
        yield "condition to True", "True"


def _return(node: ast.Return, place: Place) -> Mutations:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield "return None", "return None"


def _removed(node: ast.stmt, place: Place) -> Mutations:
    yield f"no {type(node).__name__}", "pass"


def _expression(node: ast.Expr, place: Place) -> Mutations:
    if isinstance(node.value, ast.Call | ast.Await):
        yield "no call", "pass"


def _assignment(node: ast.Assign, place: Place) -> Mutations:
    """Without `self.x = ...` the object keeps what it had; without a local, there is a NameError."""
    if place.runs and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        yield "no assignment", "pass"


def _augmented(node: ast.AugAssign, place: Place) -> Mutations:
    yield "no update", "pass"
    other = ARITHMETIC.get(type(node.op))
    if other is not None and not _is_text(node.value):
        text = ast.unparse(_changed(node, op=other()))
        yield f"{type(node.op).__name__} to {other.__name__}", text


def _jump(node: ast.Continue | ast.Break, place: Place) -> Mutations:
    other = "break" if isinstance(node, ast.Continue) else "continue"
    yield f"{type(node).__name__} to {other}", other


OPERATORS: dict[type[ast.AST], Callable[..., Mutations]] = {
    ast.Compare: _compare,
    ast.BinOp: _arithmetic,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.Constant: _constant,
    ast.Call: _call,
    ast.Return: _return,
    ast.Expr: _expression,
    ast.Assign: _assignment,
    ast.AugAssign: _augmented,
    ast.Raise: _removed,
    ast.Delete: _removed,
    ast.Continue: _jump,
    ast.Break: _jump,
}
