"""Roles of environment `code_tests`: coder and tester; solver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.errors import PolicyFault
from coterie.plugins.agents.code import FORM, CodeRole, signature
from coterie.plugins.envs.code.tests_state import CodeTestsObservation
from coterie.plugins.envs.code.written_tests import written_tests

_ASSERTS = (
    "Each is one line, `assert {call} == result`, with literal values; the result may also be compared by "
    "`abs(... - result) < 1e-6`, `in`, or `is`. Write them in a block that starts with ```tests and ends "
    "with ```."
)
_STREAMS = (
    "Each is a block that starts with ```input, holds what the program reads and ends with ```, and after "
    "it a block "
    "that starts with ```output and holds what it prints."
)


class CodeTestsRole(CodeRole):
    """A role of environment `code_tests`. Later prompts show its last answer and where program and tests
    disagree."""

    environment = "code_tests"

    def shown(self, seen: CodeTestsObservation) -> Sequence[str]:
        """The program and the tests that the role may see, and what came of them."""
        parts: list[str] = []
        if seen.code.strip():
            parts += ["The program so far:", f"```python\n{seen.code.rstrip()}\n```", ""]
        if seen.tests:
            parts += ["The tests so far:", seen.tests, ""]
        if seen.compared:
            parts += ["The tests that were written, run on the program:", *seen.compared]
            parts += ["Where they disagree, the program is wrong, or the test is.", ""]
        return parts


class CodeTestsCoder(CodeTestsRole):
    """Writes the program."""

    role = "coder"
    task = (
        "You write the program in a team of two that solves a programming problem. The tester writes tests "
        "for it. "
        "The program is judged by hidden tests."
    )

    def asked(self, seen: CodeTestsObservation) -> str:
        return f"{_program(seen)} {FORM}"


class CodeTestsTester(CodeTestsRole):
    """Writes tests for the program."""

    role = "tester"
    task = (
        "You write tests in a team of two that solves a programming problem. The coder writes the program. "
        "A test is "
        "right if a program that solves the problem passes it."
    )

    def asked(self, seen: CodeTestsObservation) -> str:
        return _tests(seen)

    def parse(self, text: str, observation: Any) -> str:
        """The answer.

        Raises:
            PolicyFault: it holds no test that can be read.
        """
        if not written_tests(text, observation.entry_point, 1).tests:
            raise PolicyFault("there is no test in the answer that can be read")
        return text


class CodeTestsSolver(CodeTestsRole):
    """Writes the program and tests for it alone, with the same turns and feedback as a team."""

    role = "solver"
    task = (
        "You solve a programming problem: you write a program, and tests that find its faults. The program "
        "is judged by "
        "hidden tests."
    )

    def asked(self, seen: CodeTestsObservation) -> str:
        block = "Write the code in a block that starts with ```python and ends with ```."
        return f"{_program(seen)} {block} {_tests(seen)}"


def _program(seen: CodeTestsObservation) -> str:
    if seen.form == "program":
        return "Write a Python program that reads the input from stdin and prints the output to stdout."
    return f"Write the function {signature(seen)}."


def _tests(seen: CodeTestsObservation) -> str:
    count = "one test" if seen.asked == 1 else f"{seen.asked} different tests"
    if seen.form == "program":
        return f"Write {count} of the program. {_STREAMS}"
    return f"Write {count} of {seen.entry_point}. {_ASSERTS.format(call=f'{seen.entry_point}(...)')}"
