"""Roles of the code environments: aux, main and solver of `code_collab` and `code_game`; coder, tester and
solver of `code_tests`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.errors import PolicyFault
from coterie.core.plugins import PluginConfig
from coterie.core.types import Message, RoleInput
from coterie.plugins.agents.roles import NamedRole, ProseRole
from coterie.plugins.envs.code.game import answer_code
from coterie.plugins.envs.code.sources import answered_code
from coterie.plugins.envs.code.state import CodeObservation, CodeTestsObservation
from coterie.plugins.envs.code.written_tests import written_tests

_FORM = "Answer with the code alone, in a block that starts with ```python and ends with ```."
_ASSERTS = (
    "Each is one line, `assert {call} == result`, with literal values; the result may also be compared by "
    "`abs(... - result) < 1e-6`, `in`, or `is`. Write them in a block that starts with ```tests and ends "
    "with ```."
)
_STREAMS = (
    "Each is a block that starts with ```input, holds what the program reads and ends with ```, and after "
    "it a block that starts with ```output and holds what it prints."
)


class CodeRole(ProseRole):
    """A role that writes code. Its prompt: the problem, what it made, the feedback, what to write."""

    omits_task = True
    game = "code_collab"

    def sections(self, seen: Any, shows_task: bool) -> Sequence[Sequence[str]]:
        return [("Problem:", seen.prompt.strip("\n"))] if shows_task else []

    def parse(self, text: str, observation: Any) -> str:
        """The code of an answer.

        Raises:
            PolicyFault: there is none.
        """
        code = answered_code(text)
        if not code.strip():
            raise PolicyFault("there is no code in the answer")
        return code


class CodeAux(CodeRole):
    """Writes the function `aux`, which helps the main role."""

    role = "aux"
    task = (
        "You write one helper function for a team of two that solves a programming problem. At the same time "
        "the main role writes the function that the problem asks for. It can call your function and does not "
        "see it."
    )

    def asked(self, seen: CodeObservation) -> str:
        return (
            f"Write only the function aux(...), which returns data that is of use to {seen.entry_point}: the "
            f"main role guesses its arguments and result from the problem, so choose the plainest. {_FORM}"
        )


class CodeMain(CodeRole):
    """Writes the entry point, which may call `aux`."""

    role = "main"
    task = (
        "You write the main function for a team of two that solves a programming problem. At the same time "
        "the helper role writes a function aux(...), which you can call and do not see."
    )

    def asked(self, seen: CodeObservation) -> str:
        return (
            f"Write only the function {_signature(seen)}. Call aux(...), use what it returns, and do the "
            f"rest of the work yourself. Don't define aux.{_limit(seen)} {_FORM}"
        )


class CodeSolver(CodeRole):
    """Writes the entry point alone, with the same turns as a team."""

    role = "solver"
    task = "You solve a programming problem by writing one function."

    def asked(self, seen: CodeObservation) -> str:
        return f"Write the function {_signature(seen)}.{_limit(seen)} {_FORM}"


class CodeTestsRole(CodeRole):
    """A role of environment `code_tests`. Later prompts show its last answer and where program and tests
    disagree."""

    game = "code_tests"

    def sections(self, seen: CodeTestsObservation, shows_task: bool) -> Sequence[Sequence[str]]:
        """The problem, the program and the tests that the role may see, and what came of them."""
        sections = [*super().sections(seen, shows_task)]
        if seen.code.strip():
            sections.append(("The program so far:", f"```python\n{seen.code.rstrip()}\n```"))
        if seen.tests:
            sections.append(("The tests so far:", seen.tests))
        if seen.compared:
            end = "Where they disagree, the program is wrong, or the test is."
            sections.append(("The tests that were written, run on the program:", *seen.compared, end))
        return sections


class CodeTestsCoder(CodeTestsRole):
    """Writes the program."""

    role = "coder"
    task = (
        "You write the program in a team of two that solves a programming problem. The tester writes tests "
        "for it. The program is judged by hidden tests."
    )

    def asked(self, seen: CodeTestsObservation) -> str:
        return f"{_program(seen)} {_FORM}"


class CodeTestsTester(CodeTestsRole):
    """Writes tests for the program."""

    role = "tester"
    task = (
        "You write tests in a team of two that solves a programming problem. The coder writes the program. "
        "A test is right if a program that solves the problem passes it."
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
        "is judged by hidden tests."
    )

    def asked(self, seen: CodeTestsObservation) -> str:
        block = "Write the code in a block that starts with ```python and ends with ```."
        return f"{_program(seen)} {block} {_tests(seen)}"


class CodeGameRole(NamedRole):
    """A role of environment `code_game`. Its prompt: its name, the problem, the feedback."""

    class Config(PluginConfig):
        pass

    omits_task = True
    game = "code_game"

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """One user message, such as `aux + 3 then * 4 :`."""
        problem = [role_input.observation.prompt] if role_input.shows_task else []
        words = " ".join([self.role, *problem, *role_input.feedback, ":"]).split()
        return [{"role": "user", "content": " ".join(words)}]

    def parse(self, text: str, observation: Any) -> str:
        """The answer.

        Raises:
            PolicyFault: it can't be read.
        """
        if not answer_code(self.role, text):
            raise PolicyFault(f"'{text[:40]}' is no answer of {self.role}")
        return " ".join(text.split())


class CodeGameAux(CodeGameRole):
    """Writes one operation: `+ 3`."""

    role = "aux"


class CodeGameMain(CodeGameRole):
    """Writes one operation, before or after aux: `aux * 4`."""

    role = "main"


class CodeGameSolver(CodeGameRole):
    """Writes both operations: `+ 3 * 4`."""

    role = "solver"


def _signature(seen: Any) -> str:
    """The entry point with its parameters, as the prompt has them."""
    return f"{seen.entry_point}({seen.parameters})"


def _limit(seen: CodeObservation) -> str:
    if seen.size_limit is None:
        return ""
    return f" Without comments and docstring your code may have at most {seen.size_limit} characters."


def _program(seen: CodeTestsObservation) -> str:
    if seen.form == "program":
        return "Write a Python program that reads the input from stdin and prints the output to stdout."
    return f"Write the function {_signature(seen)}."


def _tests(seen: CodeTestsObservation) -> str:
    count = "one test" if seen.asked == 1 else f"{seen.asked} different tests"
    if seen.form == "program":
        return f"Write {count} of the program. {_STREAMS}"
    return f"Write {count} of {seen.entry_point}. {_ASSERTS.format(call=f'{seen.entry_point}(...)')}"
