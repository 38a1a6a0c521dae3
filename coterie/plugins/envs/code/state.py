"""The values of environments `code_collab` and `code_tests`: what roles wrote, states and observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.core.protocols import Verdict
from coterie.plugins.envs.code.problem import CodeProblem
from coterie.plugins.envs.code.written_tests import WrittenTests
from coterie.plugins.envs.common.teams import Rendering


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCode:
    """A role's latest answer."""

    recorded_name: ClassVar[str] = "Written"
    text: str
    code: str
    """The code in it; empty where there is none."""
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedWork:
    """What the team made in a turn, and what came of it."""

    recorded_name: ClassVar[str] = "Work"
    program: str
    """Imports, given helpers, `aux` and the entry point."""
    written: bool
    """A role wrote code."""
    aux: bool
    """`aux` is defined and returns something."""
    main: bool
    """The entry point is."""
    excess: int
    """Characters of the main role's code beyond the problem's limit; 0: none."""
    error: str
    """Why the program doesn't parse; empty: it does."""
    verdict: Verdict
    """Of the hidden tests."""
    visible: Verdict
    """Of the tests that the team may see."""
    called: bool
    thin: bool
    ignored: tuple[str, ...]

    @property
    def builds(self) -> bool:
        """There is code, and it parses."""
        return self.written and not self.error

    @property
    def solved(self) -> bool:
        return self.main and not self.excess and not self.error and self.verdict.ok


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeState:
    """A value: copied by `dataclasses.replace`, never mutated."""

    recorded_name: ClassVar[str] = "State"
    problem: CodeProblem
    latest: tuple[tuple[str, WrittenCode], ...] = ()
    """(role, its latest answer), in the order of the roles' first answers."""
    work: JudgedWork | None = None
    """Of the last complete turn."""
    turns: int = 0
    over: bool = False
    evaluation: bool = False
    """Whether the episode is of an evaluation."""

    def of(self, role: str) -> WrittenCode | None:
        return dict(self.latest).get(role)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeObservation:
    """The observation of a role of `code_collab`."""

    role: str
    prompt: str
    """The problem."""
    entry_point: str
    parameters: str
    """Of the entry point, as the prompt writes them; empty where it has no signature."""
    helped: bool
    """Whether the team has a role that writes `aux`."""
    size_limit: int | None
    """Most characters of the main role's code."""
    code: str
    """The role's latest code; empty before its first answer."""
    rendering: Rendering


Form = Literal["function", "program"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A program that a role wrote, and what came of it."""

    code: str
    """The code in the answer; empty where there is none."""
    written: bool
    """There is code, apart from calls and prints of a function's file."""
    whole: str
    """With the imports and helpers that the prompt gives."""
    turn: int
    defined: bool
    """It defines the entry point; a program: there is code."""
    error: str
    """Why it doesn't parse; empty: it does."""
    verdict: Verdict
    """Of the hidden tests."""
    visible: Verdict
    """Of the tests that come with the problem."""

    @property
    def builds(self) -> bool:
        """There is code, and it parses."""
        return self.written and not self.error

    @property
    def solved(self) -> bool:
        return self.defined and not self.error and self.verdict.ok

    @property
    def share(self) -> float:
        """Of the hidden tests that pass."""
        return self.verdict.passed / self.verdict.total if self.verdict.total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests that a role wrote."""

    read: WrittenTests
    turn: int
    valid: float
    """Share of the tests that were written, or asked for where those are more, that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTestsState:
    """A value: copied by `dataclasses.replace`, never mutated."""

    recorded_name: ClassVar[str] = "State"
    problem: CodeProblem
    attempt: Attempt | None = None
    """The latest program."""
    suite: Suite | None = None
    """The latest tests."""
    compared: Verdict | None = None
    """Of the latest written tests, on the latest program, once both were written in a turn."""
    answers: tuple[tuple[str, str], ...] = ()
    """(role, the text of its latest answer)."""
    turns: int = 0
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTestsObservation:
    """The observation of a role of `code_tests`."""

    role: str
    prompt: str
    """The problem."""
    form: Form
    entry_point: str
    parameters: str
    """Of the entry point, as the prompt writes them; empty where it has no signature."""
    asked: int
    """Tests to write."""
    code: str
    """The program that the role sees: its last one, or one that another role wrote in this turn."""
    tests: str
    """The tests that the role sees, in the form of an answer: as `code`."""
    compared: tuple[str, ...]
    """What the written tests of the last turn said of its program, in lines; empty: nothing."""
    rendering: Rendering
