"""Rewriting of a source so that every `assert` is a recorded test. Sent into the sandbox: stdlib only."""

from __future__ import annotations

import ast
from types import CodeType
from typing import NamedTuple

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
    tree = ast.fix_missing_locations(rewriter.visit(tree))
    return compile(tree, "tests.py", "exec", dont_inherit=True), rewriter.tests


class _Rewriter(ast.NodeTransformer):
    def __init__(self, source: str) -> None:
        self._lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._forbidden: list[list[int]] = []  # indices by enclosing function
        self.tests: list[Test] = []

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        forbidden = isinstance(node.test, ast.Constant) and not node.test.value
        index = len(self.tests)
        self.tests.append(Test(node.lineno, self._text(node), forbidden, bool(self._forbidden)))
        if forbidden and self._forbidden:
            self._forbidden[-1].append(index)
        message = [node.msg] if node.msg is not None else []
        question = ast.If(node.test, [_call("held", index)], [_call("failed", index, *message)])
        handler = ast.ExceptHandler(None, None, [_call("raised", index)])
        return ast.copy_location(ast.Try([question], [handler], [], []), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._forbidden.append([])
        self.generic_visit(node)
        start = 1 if ast.get_docstring(node, clean=False) is not None else 0
        node.body[start:start] = [_call("entered", index) for index in self._forbidden.pop()]
        return node

    def _text(self, node: ast.Assert) -> str:
        """The statement; columns count UTF-8 bytes. `ast.get_source_segment` splits the source each time."""
        last = node.end_lineno or node.lineno
        lines = [line.encode("utf-8", "surrogatepass") for line in self._lines[node.lineno - 1 : last]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode("utf-8", "replace")


def _call(method: str, index: int, *args: ast.expr) -> ast.stmt:
    function = ast.Attribute(ast.Name(NAME, ast.Load()), method, ast.Load())
    return ast.Expr(ast.Call(function, [ast.Constant(index), *args], []))
