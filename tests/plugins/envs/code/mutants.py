"""Faulty versions of a reference solution, and what CPython makes of them outside of any sandbox."""

from __future__ import annotations

import ast
import asyncio
import resource
import sys
from pathlib import Path
from typing import Any

from coterie.plugins.envs.code.judging import test_program, whole_program
from coterie.plugins.envs.code.problem import CodeProblem
from coterie.plugins.envs.code.sources import kept_code

KINDS = ("none", "off by one", "syntax error", "endless loop", "exit", "recursion bomb")
SECONDS = 1
"""CPU time of a mutant, here and in the sandbox."""


def mutants(problem: CodeProblem) -> dict[str, str]:
    """By kind, a program."""
    name = problem.entry_point
    return {
        "none": _with_body(problem, "return None"),
        "off by one": _off_by_one(problem),
        "syntax error": kept_code(problem.solution) + "def broken(:\n    return\n",
        "endless loop": _with_body(problem, "while True:\n    pass"),
        "exit": _with_body(problem, "exit()"),
        "recursion bomb": _with_body(problem, f"return {name}(*{_arguments(problem)})"),
    }


def _function(problem: CodeProblem) -> tuple[ast.Module, Any]:
    tree = ast.parse(kept_code(problem.solution))
    named = [node for node in tree.body if getattr(node, "name", "") == problem.entry_point]
    return tree, named[-1]


def _arguments(problem: CodeProblem) -> str:
    _, function = _function(problem)
    return "[" + ", ".join(argument.arg for argument in function.args.args) + "]"


def _with_body(problem: CodeProblem, body: str) -> str:
    tree, function = _function(problem)
    function.body = ast.parse(f"def f():\n    {body.replace(chr(10), chr(10) + '    ')}").body[0].body  # type: ignore[attr-defined]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _off_by_one(problem: CodeProblem) -> str:
    """The first number of the function, plus one; without a number, what it returns comes in a list."""
    tree, function = _function(problem)
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            node.value += 1
            return ast.unparse(tree) + "\n"
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            node.value = ast.List([node.value], ast.Load())
            break
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


async def passes_outside(problem: CodeProblem, program: str, folder: Path, number: int) -> bool:
    """Whether a plain interpreter runs a program and all its tests to the end."""
    file = folder / f"mutant{number}.py"
    tests = test_program(problem, problem.tests)
    file.write_text(whole_program(problem, program) + tests + "\nprint('the end')\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", str(file)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS)),
    )
    output, _ = await process.communicate()
    return process.returncode == 0 and output.endswith(b"the end\n")
