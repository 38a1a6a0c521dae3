"""Tests that a role writes, read from its answer: asserts about a function, or pairs of input and output.

A test is data and never a program: an assert holds calls of the entry point, literals and a few builtins, so
no test can end the process of the tests, or make itself pass.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import pairwise

from coterie.plugins.envs.code.problem import Tests
from coterie.plugins.envs.code.sources import answered_code, blocks, parsed

BUILTINS = frozenset(
    {"abs", "all", "any", "bool", "bytes", "complex", "dict", "divmod", "enumerate", "float", "frozenset"}
    | {"int", "isclose", "isinstance", "len", "list", "map", "max", "min", "pow", "range", "reversed"}
    | {"round", "set", "sorted", "str", "sum", "tuple", "type", "zip"}
)
"""What an assert may call, or name, beside the entry point; `math.isclose` and `math.inf` too."""
_NODES = (
    *(ast.Call, ast.keyword, ast.Compare, ast.UnaryOp, ast.BinOp, ast.Constant, ast.Name, ast.Load),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Starred, ast.Subscript, ast.Slice),
    *(ast.unaryop, ast.operator, ast.cmpop),
)
_COMPARISONS = (ast.Eq, ast.Is, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In)
"""`!=` and `not in` are left out: nearly every wrong answer passes them."""
_MATH = "import math\nfrom math import isclose\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTests:
    """What came of an answer that holds tests."""

    tests: Tests
    """Those that can be read, each once, up to a limit."""
    written: int = 0
    """Tests in the answer, readable or not."""


def written_tests(text: str, entry_point: str, most: int) -> WrittenTests:
    """The tests of an answer.

    Args:
        text: of a function: its last block marked `tests`, else its code, with asserts; of a program: blocks
            marked `input`, each followed by one marked `output`.
        entry_point: the function; empty: a program.
        most: tests that are kept, the first.
    """
    if not entry_point:
        return _cases(text, most)
    marked = [code for language, code in blocks(text) if language in ("tests", "test")]
    tree = parsed(marked[-1] if marked else answered_code(text))
    if tree is None:
        return WrittenTests(tests=Tests())
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    top = [node for node in tree.body if isinstance(node, ast.Assert)]
    lines = (_line(node.test) for node in top if _is_test(node.test, entry_point))
    kept = list(dict.fromkeys(filter(None, lines)))
    source = "\n".join(kept[:most])
    tests = Tests(source=_MATH * ("math." in source or "isclose" in source) + source + "\n" if kept else "")
    return WrittenTests(tests=tests, written=len(asserts))


def answer_of(tests: Tests) -> str:
    """An answer that holds these tests."""
    if not tests.cases:
        return f"```tests\n{tests.source.rstrip()}\n```"
    streams = (named for case in tests.cases for named in zip(_MARKS, case, strict=True))
    return "\n".join(f"```{name}\n{text.rstrip()}\n```" for name, text in streams)


_MARKS = ("input", "output")


def _cases(text: str, most: int) -> WrittenTests:
    streams = [(mark, content) for mark, content in blocks(text) if mark in _MARKS]
    pairs = [
        (given, wanted) for (mark, given), (after, wanted) in pairwise(streams) if (mark, after) == _MARKS
    ]
    first = dict(reversed(pairs))  # of two outputs for one input the first counts
    cases = tuple((given, first[given]) for given in dict.fromkeys(given for given, _ in pairs))
    unpaired = len(streams) - 2 * len(pairs)
    return WrittenTests(tests=Tests(cases=cases[:most]), written=len(pairs) + unpaired)


def _line(test: ast.expr) -> str:
    """The test as a statement; empty: it is nested too deep to be written."""
    try:
        return f"assert {ast.unparse(test)}"
    except RecursionError:
        return ""


def _is_test(test: ast.expr, entry_point: str) -> bool:
    """Whether an assert compares what the entry point returns with something that it did not make."""
    if not all(_is_plain(node, entry_point) for node in ast.walk(test)):
        return False
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Compare):
        sides = [_calls(side, entry_point) for side in (test.left, *test.comparators)]
        return any(sides) and not all(sides) and all(isinstance(op, _COMPARISONS) for op in test.ops)
    return _calls(test, entry_point)


def _calls(node: ast.AST, entry_point: str) -> bool:
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == entry_point
        for part in ast.walk(node)
    )


def _is_plain(node: ast.AST, entry_point: str) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "math" and not node.attr.startswith("_")
    if isinstance(node, ast.Name):
        return node.id in BUILTINS or node.id in (entry_point, "math")
    return isinstance(node, _NODES)
