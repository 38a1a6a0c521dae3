"""Rewriting of a source so that every `assert` is a recorded test. Sent into the sandbox: stdlib only."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any, NamedTuple

NAME = "__judge__"
"""The name that the rewritten source calls; classes don't mangle it, since it also ends in underscores."""


class Test(NamedTuple):
    """One assert statement."""

    line: int
    source: str
    forbidden: bool
    """`assert False`: it marks a place that must not be reached, and holds if the place was not reached."""
    inside: bool
    """Whether it is in a function, so that it holds only if the function was entered."""


def rewrite(source: str) -> tuple[CodeType, list[Test]]:
    """Code in which `assert test, message` at index i does

        try:
            if test: __judge__.held(i)
            else: __judge__.failed(i, message)
        except: __judge__.raised(i)

    so that the code after it always runs. Functions that contain an `assert False` record that they are
    entered: `__judge__.entered(i)`.

    Raises SyntaxError, ValueError (a NUL), RecursionError, MemoryError, as the compiler does.
    """
    tree = ast.parse(source, "tests.py")
    rewriter = _Rewriter(source)
    rewriter.block(tree.body)
    return compile(tree, "tests.py", "exec", dont_inherit=True), rewriter.tests


class _Rewriter:
    """Visits statements alone: an `assert` is in no expression, and most nodes of a tree are expressions."""

    def __init__(self, source: str) -> None:
        self._lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._forbidden: list[list[int]] = []  # indices by enclosing function
        self.tests: list[Test] = []

    def block(self, statements: list[Any]) -> None:
        """Rewrite statements in place, in their order in the source."""
        for at, node in enumerate(statements):
            kind = type(node)
            if kind is ast.Assert:
                statements[at] = self._assert(node)
            elif kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
                self._function(node)
            else:
                self._inside(node)

    def _inside(self, node: Any) -> None:
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner = getattr(node, name, None)
            if not inner:
                continue
            if name in ("handlers", "cases"):
                for part in inner:
                    self.block(part.body)
            else:
                self.block(inner)

    def _assert(self, node: ast.Assert) -> ast.stmt:
        forbidden = isinstance(node.test, ast.Constant) and not node.test.value
        index = len(self.tests)
        self.tests.append(Test(node.lineno, self._text(node), forbidden, bool(self._forbidden)))
        if forbidden and self._forbidden:
            self._forbidden[-1].append(index)
        where = _where(node)
        message = [node.msg] if node.msg is not None else []
        held, failed = _call(where, "held", index), _call(where, "failed", index, *message)
        question = ast.If(node.test, [held], [failed], **where)
        handler = ast.ExceptHandler(None, None, [_call(where, "raised", index)], **where)
        return ast.Try([question], [handler], [], [], **where)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._forbidden.append([])
        self.block(node.body)
        start = 1 if ast.get_docstring(node, clean=False) is not None else 0
        where = _where(node)
        node.body[start:start] = [_call(where, "entered", index) for index in self._forbidden.pop()]

    def _text(self, node: ast.Assert) -> str:
        """The statement; columns count UTF-8 bytes. `ast.get_source_segment` splits the source each time."""
        last = node.end_lineno or node.lineno
        lines = [line.encode("utf-8", "surrogatepass") for line in self._lines[node.lineno - 1 : last]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode("utf-8", "replace")


def _where(node: Any) -> dict[str, Any]:
    """The place of a node, for those that are made of it."""
    return {
        "lineno": node.lineno,
        "col_offset": node.col_offset,
        "end_lineno": node.end_lineno,
        "end_col_offset": node.end_col_offset,
    }


def _call(where: dict[str, Any], method: str, index: int, *args: ast.expr) -> ast.stmt:
    judge = ast.Name(NAME, ast.Load(), **where)
    function = ast.Attribute(judge, method, ast.Load(), **where)
    return ast.Expr(ast.Call(function, [ast.Constant(index, **where), *args], [], **where), **where)
