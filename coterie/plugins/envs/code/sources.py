"""Python in texts: code in an answer, what a prompt gives, and programs put together from parts.

Everything is read by `ast`. What can't be parsed is kept as it is, so that its error is the program's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from coterie.plugins.envs.common.code import PYTHON, blocks as fenced_blocks

_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*$")
_BEGINS = re.compile(r"(?:def|class|async def|import|from|@|if __name__)\b|@")
_PROSE = re.compile(r"[A-Z][a-z]+(?:'[a-z]+)?,? [a-zA-Z]|[-*] |#{2,} |\d+\. ")
"""The start of a line that is a sentence, an item or a heading, and no statement."""
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What Python raises for a text that is no program."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def parsed(code: str) -> ast.Module | None:
    """The syntax tree; None where the code doesn't parse."""
    try:
        return ast.parse(code)
    except UNPARSABLE:
        return None


def syntax_error(code: str) -> str:
    """Why code doesn't parse, with line and column counted from 1; empty: it parses."""
    try:
        compile(code, "program.py", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno or 1}, column {error.offset or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"line 1, column 1: {error or type(error).__name__}"
    return ""


def answered_code(text: str) -> str:
    """The code of an answer.

    With fences: the last block marked as Python, else the last one without a language; one that isn't closed
    counts up to the end. Without: the text from its first definition or import on, up to a line of prose;
    else the whole text where it is a program. A word or a number is none.
    """
    fenced = list(blocks(text))
    if fenced:
        named = [code for language, code in fenced if language in PYTHON]
        plain = [code for language, code in fenced if not language]
        return (named or plain or [""])[-1]
    lines = text.split("\n")
    start = next((number for number, line in enumerate(lines) if _BEGINS.match(line)), None)
    if start is None:
        tree = parsed(text)
        return text if tree is not None and any(map(_acts, tree.body)) else ""
    kept: list[str] = []
    for line in lines[start:]:
        if kept and _PROSE.match(line):
            break
        kept.append(line)
    return "\n".join(kept).rstrip() + "\n"


def _acts(node: ast.stmt) -> bool:
    """Whether a statement does something: an expression without a call has no effect."""
    return not isinstance(node, ast.Expr) or any(isinstance(part, ast.Call) for part in ast.walk(node))


def given_code(prompt: str, entry_point: str) -> str:
    """What a prompt gives in Python: imports, helpers, classes and constants, without the entry point.

    Args:
        prompt: Python with signature and docstring, or prose that ends in such code.
    """
    lines = prompt.split("\n")
    starts = [0, *(number for number, line in enumerate(lines) if number and _BEGINS.match(line))]
    for start in starts[:50]:
        tree = parsed("\n".join(lines[start:]))
        if tree is not None:
            kept = [node for node in tree.body if _gives(node) and getattr(node, "name", "") != entry_point]
            return "".join(ast.unparse(node) + "\n" for node in kept)
    return ""


def parameters(prompt: str, entry_point: str) -> str:
    """The parameters of the entry point as the prompt's signature has them; empty: there is none."""
    match = re.search(rf"^\s*(?:async )?def {re.escape(entry_point)}\s*\(([^)]*)\)", prompt, re.MULTILINE)
    return " ".join(match[1].split()) if match is not None else ""


def kept_code(code: str) -> str:
    """Imports, definitions and constants of a role's code.

    Calls, prints and tests at the top level are left out: the program is loaded, not run. Code that doesn't
    parse is kept whole.
    """
    tree = parsed(code)
    if tree is None:
        return code
    return "".join(ast.unparse(node) + "\n" for node in tree.body if _gives(node))


def function_of(code: str, name: str) -> Function | None:
    """The last function of that name at the top level; None: there is none, or the code doesn't parse."""
    tree = parsed(code)
    functions = [node for node in tree.body if isinstance(node, _FUNCTIONS)] if tree is not None else []
    return next((node for node in reversed(functions) if node.name == name), None)


def defines(code: str, name: str) -> bool:
    """Whether code has a function of that name that returns something.

    Code that doesn't parse is searched as text: the definition counts, and the syntax is another check.
    """
    if parsed(code) is None:
        begin = re.search(rf"^(?:async )?def {re.escape(name)}\s*\(", code, re.MULTILINE)
        return begin is not None and re.search(r"\breturn\b", code[begin.end() :]) is not None
    function = function_of(code, name)
    return function is not None and any(
        isinstance(node, (ast.Yield, ast.YieldFrom))
        or (isinstance(node, ast.Return) and node.value is not None)
        for node in inside(function)
    )


def inside(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions and classes defined in it."""
    stack: list[ast.AST] = list(reversed(function.body))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def defines_entry(code: str, name: str) -> bool:
    """Whether code has what tests call: a function of that name, or a method of class `Solution`."""
    return defines(code, name) or bool(method_wrapper(code, name))


def method_wrapper(code: str, name: str) -> str:
    """A function that calls the method of class `Solution` with that name; empty where there is no need.

    Some sets ask for a method of a class; tests call a function.
    """
    tree = parsed(code)
    if tree is None or function_of(code, name) is not None:
        return ""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Solution"]
    methods = {part.name for node in classes for part in node.body if isinstance(part, _FUNCTIONS)}
    if name not in methods:
        return ""
    return f"def {name}(*args, **kwargs):\n    return Solution().{name}(*args, **kwargs)\n"


def main_size(code: str) -> int:
    """The characters of code as `ast.unparse` writes it, without imports, docstrings and comments.

    Code that doesn't parse counts as it is.
    """
    tree = parsed(code)
    if tree is None:
        return len(code)
    for node in ast.walk(tree):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    kept = [node for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    return len("\n".join(ast.unparse(node) for node in kept))


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, code) of every fenced block, in backticks or tildes; the last may be open."""
    return ((language, code) for language, code, _ in fenced_blocks(text, _FENCE))


def _gives(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom, *_FUNCTIONS, ast.ClassDef)):
        return True
    return isinstance(node, (ast.Assign, ast.AnnAssign)) and getattr(node, "value", None) is not None
