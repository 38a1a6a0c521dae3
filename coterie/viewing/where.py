"""Conditions on episodes, as `--where` and `--sort` have them: `success == 0 and turns > 2`.

A condition is a small part of Python: comparisons (`==`, `<`, `in`, `is None`), `and`, `or`, `not`,
`+ - * /`, numbers, texts in quotes, and names of fields, with dots as in `reward.planner`. It is parsed and
evaluated here; nothing of it is ever run as Python.

A field that is missing makes a comparison false, whatever it is compared with; so does a division by zero.
`success is None` asks whether it is missing.
"""

from __future__ import annotations

import ast
import difflib
import io
import keyword
import math
import operator
import tokenize
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import UserError
from coterie.viewing.text import cut

Value = float | int | str | None
"""None: missing."""
Fields = Mapping[str, Value]

LONGEST = 1000
"""Characters of an expression."""
DEEPEST = 40
"""Levels of an expression."""
WORDS = frozenset(
    ("and", "or", "not", "in", "is", "None", "True", "False", "if", "else", "for", "lambda", "await", "yield")
)
"""Words of Python that a condition has, or that it is told of; `return` and others are names of fields."""
_MARK = "_is_a_field"

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
REFUSED: dict[type[ast.AST], str] = {
    ast.Call: "it calls something",
    ast.Pow: "it has a power",
    ast.Lambda: "it defines a function",
    ast.IfExp: "it has an if",
    ast.NamedExpr: "it assigns a name",
    ast.JoinedStr: "it has a text with braces (an f-string)",
    ast.Starred: "it has a star",
    ast.ListComp: "it has a loop",
    ast.SetComp: "it has a loop",
    ast.DictComp: "it has a loop",
    ast.GeneratorExp: "it has a loop",
    ast.Await: "it has an await",
}
PARTS = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Load, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not),
    *(ast.USub, ast.UAdd, ast.BinOp, ast.Compare, ast.In, ast.NotIn, ast.Is, ast.IsNot),
    *(ast.Tuple, ast.List, ast.Set, *ARITHMETIC, *COMPARISONS),
)
"""What a condition may consist of."""
ALLOWED = "a condition has fields, numbers, texts in quotes, comparisons, and, or, not, + - * /"


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression."""

    text: str
    names: tuple[str, ...]
    """The fields that it reads."""
    _tree: ast.expr

    def holds(self, fields: Fields) -> bool:
        """Whether it is true of fields; a field that is not among them is missing.

        Raises:
            UserError: it compares a text with a number by size, or computes with a text.
        """
        return _true(self._value(self._tree, fields))

    def value(self, fields: Fields) -> Value:
        """The value; None: a field that it needs is missing.

        Raises:
            UserError: as `holds`.
        """
        result = self._value(self._tree, fields)
        return None if isinstance(result, float) and math.isnan(result) else result

    def _value(self, node: ast.expr, fields: Fields) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        name = _name(node)
        if name is not None:
            value = fields.get(name)
            return None if isinstance(value, float) and math.isnan(value) else value
        if isinstance(node, ast.BoolOp):
            every = (_true(self._value(part, fields)) for part in node.values)
            return all(every) if isinstance(node.op, ast.And) else any(every)
        if isinstance(node, ast.UnaryOp):
            operand = self._value(node.operand, fields)
            if isinstance(node.op, ast.Not):
                return not _true(operand)
            return self._computed(operator.neg if isinstance(node.op, ast.USub) else operator.pos, operand)
        if isinstance(node, ast.BinOp):
            sides = (self._value(side, fields) for side in (node.left, node.right))
            return self._computed(ARITHMETIC[type(node.op)], *sides)
        assert isinstance(node, ast.Compare)
        return self._compared(node, fields)

    def _computed(self, operation: Callable[..., Any], *values: Value) -> Value:
        texts = [value for value in values if isinstance(value, str)]
        if texts:
            what = f"'{self.text}' computes with the text '{_short(texts[0])}'"
            raise UserError(what, why="texts can be compared, and looked into by `in`")
        if None in values:
            return None
        try:
            result: Value = operation(*values)
        except (ZeroDivisionError, OverflowError):
            return None
        return None if isinstance(result, float) and math.isnan(result) else result

    def _compared(self, node: ast.Compare, fields: Fields) -> bool:
        left = self._value(node.left, fields)
        for operation, side in zip(node.ops, node.comparators, strict=True):
            if isinstance(operation, (ast.Is, ast.IsNot)):
                if (left is None) is not isinstance(operation, ast.Is):
                    return False
                continue
            if isinstance(operation, (ast.In, ast.NotIn)):
                if not self._within(left, side, fields, isinstance(operation, ast.In)):
                    return False
                left = None  # a chain doesn't go on
                continue
            right = self._value(side, fields)
            if left is None or right is None:
                return False
            try:
                if not COMPARISONS[type(operation)](left, right):
                    return False
            except TypeError:
                what = f"'{self.text}' compares '{_short(left)}' with '{_short(right)}' by size"
                fix = "compare texts with texts, and numbers with numbers"
                raise UserError(what, why="one is a text and the other a number", fix=fix) from None
            left = right
        return True

    def _within(self, left: Value, side: ast.expr, fields: Fields, wanted: bool) -> bool:
        if isinstance(side, (ast.Tuple, ast.List, ast.Set)):
            several = [self._value(part, fields) for part in side.elts]
            return left is not None and (left in [value for value in several if value is not None]) is wanted
        right = self._value(side, fields)
        if left is None or right is None:
            return False
        if not (isinstance(left, str) and isinstance(right, str)):
            what = f"'{self.text}' looks for '{_short(left)}' in '{_short(right)}'"
            raise UserError(what, fix="look for a text in a text, or in a list such as ('a', 'b')")
        return (left in right) is wanted


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of an order."""

    expression: Expression
    descending: bool


def parse(text: str) -> Expression:
    """Parse a condition.

    Raises:
        UserError: it is no condition, or more than one of these may be.
    """
    body = _parsed(text)
    if isinstance(body, (ast.Tuple, ast.List)):  # `turns > 2,`: the comma makes it several
        raise UserError(f"'{_short(text)}' is no condition", why="it is a list of several", fix=ALLOWED)
    return _expression(text, body)


def parse_sort(text: str) -> tuple[SortKey, ...]:
    """Parse an order, such as `-advantage` (the largest first) or `-reward.planner, turns`.

    Raises:
        UserError: as `parse`.
    """
    try:
        body = _parsed(text)
    except UserError as error:
        fix = "name fields, such as -advantage (the largest first) or -reward.planner, turns"
        raise UserError(f"'{_short(text)}' is no order", why=error.why or error.what, fix=fix) from None
    keys = []
    for part in body.elts if isinstance(body, ast.Tuple) else (body,):
        descending = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub)
        inner = part.operand if isinstance(part, ast.UnaryOp) and descending else part
        keys.append(SortKey(_expression(text, inner), descending))
    if not keys:
        raise UserError(f"'{_short(text)}' is no order", fix="name a field, such as -advantage")
    return tuple(keys)


def place(keys: Sequence[SortKey], fields: Fields) -> tuple[tuple[int, float, tuple[int, ...]], ...]:
    """Where an episode comes in an order: sort by it. What is missing comes last, numbers before texts."""
    return tuple(_place(key.expression.value(fields), key.descending) for key in keys)


def _place(value: Value, descending: bool) -> tuple[int, float, tuple[int, ...]]:
    sign = -1 if descending else 1
    if value is None:
        return 2, 0.0, ()
    if isinstance(value, str):  # the end of a text comes before what goes on, or after it
        return 1, 0.0, (*(sign * ord(letter) for letter in value), -sign)
    try:
        return 0, sign * float(value), ()
    except OverflowError:  # an integer that no float is
        return 0, sign * (math.inf if value > 0 else -math.inf), ()


def check_names(names: Iterable[str], known: Iterable[str], more: str = "") -> None:
    """Refuse a field that no episode has.

    Args:
        more: what else to say of the fields that there are.

    Raises:
        UserError: with the nearest names and the list.
    """
    known = sorted(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.6)
            fix = f"did you mean {' or '.join(near)}?" if near else ""
            raise UserError(
                f"no episode has the field '{_short(name)}'",
                why=f"fields are {', '.join(known)}{more}",
                fix=fix,
            )


def _parsed(text: str) -> ast.expr:
    """The tree of an expression that has nothing but what a condition may have."""
    if len(text) > LONGEST:
        raise UserError(
            "the condition is too long", why=f"it has {len(text):,} characters, and {LONGEST:,} are the most"
        )
    if not text.strip():
        raise UserError("the condition is empty", fix="write one such as 'success == 0 and turns > 2'")
    try:
        body = ast.parse(_with_fields(text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        where = f" at character {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        fix = "quote texts, write == for equal, and 'success == 0 and turns > 2' for both"
        raise UserError(f"'{_short(text)}' is no condition", why=f"{message}{where}", fix=fix) from None
    _check(text, body)
    return body


def _with_fields(text: str) -> str:
    """The text with words of Python that a field is called like, such as `return`, made names."""
    parts = []
    at = 0
    lines = text.split("\n")
    if len(lines) > 1:
        raise ValueError("it has several lines")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and keyword.iskeyword(token.string) and token.string not in WORDS:
            parts += [text[at : token.end[1]], _MARK]
            at = token.end[1]
    return "".join([*parts, text[at:]])


def _check(text: str, body: ast.expr) -> None:
    """Walk the tree without recursion, and refuse what no condition has."""
    waiting: list[tuple[ast.AST, int]] = [(body, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > DEEPEST:
            raise UserError(
                f"'{_short(text)}' is nested too deeply", why=f"it has more than {DEEPEST} levels"
            )
        if why := _refusal(node):
            raise UserError(f"'{_short(text)}' is no condition", why=why, fix=ALLOWED)
        if isinstance(node, ast.expr) and _name(node) is not None:
            continue
        waiting += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
    _check_lists(text, body)


def _check_lists(text: str, body: ast.expr) -> None:
    """A list of values stands to the right of `in` alone, and `is` before None; `in` ends a chain."""
    lists = (ast.Tuple, ast.List, ast.Set)
    right: set[int] = {id(body)} if isinstance(body, ast.Tuple) else set()  # the keys of an order
    for node in ast.walk(body):
        if isinstance(node, ast.Compare):
            for number, (operation, side) in enumerate(zip(node.ops, node.comparators, strict=True)):
                if isinstance(operation, (ast.In, ast.NotIn)):
                    right.add(id(side))
                if isinstance(operation, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) and len(node.ops) > 1:
                    fix = "write two conditions with `and` between them"
                    raise UserError(
                        f"'{_short(text)}' has a chain with `in` or `is`, number {number + 1}", fix=fix
                    )
                if isinstance(operation, (ast.Is, ast.IsNot)) and not _is_none(side):
                    raise UserError(
                        f"'{_short(text)}' has `is` before something else than None", fix="write =="
                    )
                if not isinstance(operation, (ast.Is, ast.IsNot)) and _is_none(side):
                    raise UserError(f"'{_short(text)}' compares with None", fix="write `is None`")
        elif isinstance(node, lists) and id(node) not in right:
            raise UserError(
                f"'{_short(text)}' has a list of values", fix="a list stands after `in`: task in ('a', 'b')"
            )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _refusal(node: ast.AST) -> str:
    """Why a node is no part of a condition; empty: it is one."""
    for kind, why in REFUSED.items():
        if isinstance(node, kind):
            return why
    if isinstance(node, ast.Constant):
        known = node.value is None or isinstance(node.value, (bool, int, float, str))
        return "" if known else f"it has {node.value!r:.40}"
    if isinstance(node, ast.Attribute) and _name(node) is None:
        return f"it asks for .{_short(node.attr)} of something that is no field"
    if isinstance(node, ast.Subscript) and _name(node) is None:
        return "it looks into something by brackets; reward['my role'] is the field reward.my role"
    return "" if isinstance(node, PARTS) else f"it has {type(node).__name__.lower()}"


def _name(node: ast.AST) -> str | None:
    """The field that a node names: `turns`, `reward.planner`, `reward['my role']`; None: it names none."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Name):
            parts.append(node.id)
            return ".".join(part.removesuffix(_MARK) for part in reversed(parts))
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        ):
            parts.append(node.slice.value)
            node = node.value
        else:
            return None


def _expression(text: str, tree: ast.expr) -> Expression:
    names: dict[str, None] = {}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        name = _name(node)
        if name is not None:
            names[name] = None
        else:
            waiting += ast.iter_child_nodes(node)
    return Expression(text, tuple(names), tree)


def _true(value: Any) -> bool:
    """Whether a value counts as true: a number that is not 0, a text that is not empty."""
    return value is not None and value == value and bool(value)


def _short(value: object) -> str:
    """A value in a message: short, and harmless to a terminal."""
    return cut(ascii(value)[1:-1] if isinstance(value, str) else repr(value), 60)
