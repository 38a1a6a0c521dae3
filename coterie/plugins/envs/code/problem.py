"""A programming problem, read from a record of a data source."""

from __future__ import annotations

import ast
import functools
import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.core.types import Task
from coterie.plugins.envs.code.sources import given_code

_TEXTS = (
    "id",
    "prompt",
    "entry_point",
    "tests",
    "visible_tests",
    "solution",
    "aux_solution",
    "main_solution",
    "difficulty",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tests:
    """Tests of a program: Python asserts, or pairs of stdin and expected stdout."""

    __test__ = False  # or pytest collects it, as every class named Test*

    source: str = ""
    """Python with asserts, which call the entry point; or which define `check(candidate)`."""
    cases: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        """The number of assert statements, or of cases."""
        return len(self.cases) or len(_asserts(self.source))

    def sliced(self, number: int) -> Tests:
        """The first `number` tests; the last `-number` where it is negative; all where it is 0."""
        if number == 0 or abs(number) >= len(self):
            return self
        return self._only(slice(None, number) if number > 0 else slice(number, None))

    def apart(self) -> tuple[Tests, ...]:
        """Each test by itself."""
        return tuple(self._only(slice(at, at + 1)) for at in range(len(self)))

    def compared(self, entry_point: str) -> frozenset[str]:
        """Each assert as `compared_assert` has it."""
        asserts = (node for node in ast.walk(ast.parse(self.source)) if isinstance(node, ast.Assert))
        return frozenset(compared_assert(ast.unparse(node), entry_point) for node in asserts)

    def _only(self, kept: slice) -> Tests:
        if self.cases:
            return Tests(cases=self.cases[kept])
        return Tests(source=_with_asserts(self.source, kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeProblem:
    """A function to write, or a program that reads stdin and writes stdout."""

    prompt: str
    entry_point: str = ""
    """The function's name; empty: a program."""
    tests: Tests = Tests()
    """Hidden tests: they decide success."""
    visible: Tests = Tests()
    """Tests that come with the problem."""
    solution: str = ""
    """A whole reference program; empty: there is none."""
    aux_solution: str = ""
    main_solution: str = ""
    size_limit: int | None = None
    """Most characters of the main role's code, as `main_size` counts them."""
    given: str = field(default="", compare=False)
    """Imports and helpers of the prompt: every program begins with them."""


def problem_of(record: Mapping[str, Any]) -> CodeProblem:
    """The problem of a record.

    Raises:
        ValueError: a field is of another type, there is no prompt, no test or tests of two forms, or the
            tests are no Python with an assert, or no function can have the name of the entry point.
    """
    texts = {name: record.get(name) or "" for name in _TEXTS}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ValueError(f"the field '{name}' is no text: {text!r:.60}")
    name = texts["entry_point"]
    if name and (not name.isidentifier() or keyword.iskeyword(name)):
        raise ValueError(f"'entry_point' is no name of a function: {name!r:.60}")
    if not texts["prompt"].strip():
        raise ValueError("the field 'prompt' is empty or missing")
    tests = _tests(record, "tests", "cases", texts["tests"])
    if not len(tests):
        raise ValueError("there are neither 'tests' with an assert nor 'cases'")
    if bool(texts["entry_point"]) == bool(tests.cases):
        raise ValueError("a function has an 'entry_point' and 'tests', a program 'cases'")
    limit = record.get("size_limit")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"the field 'size_limit' is no positive whole number: {limit!r:.60}")
    return CodeProblem(
        prompt=texts["prompt"],
        entry_point=texts["entry_point"],
        tests=tests,
        visible=_tests(record, "visible_tests", "visible_cases", texts["visible_tests"]),
        solution=texts["solution"],
        aux_solution=texts["aux_solution"],
        main_solution=texts["main_solution"],
        size_limit=limit,
        given=given_code(texts["prompt"], texts["entry_point"]) if texts["entry_point"] else "",
    )


def record_of(problem: CodeProblem) -> dict[str, Any]:
    """The record of a problem, without its empty fields."""
    fields = {
        "prompt": problem.prompt,
        "entry_point": problem.entry_point,
        "tests": problem.tests.source,
        "cases": [list(case) for case in problem.tests.cases],
        "visible_tests": problem.visible.source,
        "visible_cases": [list(case) for case in problem.visible.cases],
        "solution": problem.solution,
        "aux_solution": problem.aux_solution,
        "main_solution": problem.main_solution,
        "size_limit": problem.size_limit,
    }
    return {name: value for name, value in fields.items() if value}


def tests_of(source: str, name: str = "tests") -> Tests:
    """Tests from Python.

    Args:
        name: of them in an error.

    Raises:
        ValueError: it doesn't parse, or has no assert.
    """
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"'{name}' is no Python: {error}") from None
    if not _asserts(source):
        raise ValueError(f"'{name}' has no assert")
    return Tests(source=source)


def _tests(record: Mapping[str, Any], name: str, case_name: str, source: str) -> Tests:
    pairs = record.get(case_name) or ()
    if not isinstance(pairs, Sequence) or isinstance(pairs, str):
        raise ValueError(f"the field '{case_name}' is no list of pairs: {pairs!r:.60}")
    cases = []
    for number, pair in enumerate(pairs, 1):
        sound = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        if not sound or not all(isinstance(text, str) for text in pair):
            raise ValueError(f"case {number} of '{case_name}' is no pair of texts: {pair!r:.60}")
        cases.append((pair[0], pair[1]))
    if cases and source.strip():
        raise ValueError(f"give '{name}' or '{case_name}', not both")
    if source.strip():
        return tests_of(source, name)
    return Tests(cases=tuple(cases))


@functools.lru_cache(maxsize=4096)
def compared_assert(source: str, entry_point: str) -> str:
    """An assert without its message, white space and the other name of the entry point (`candidate`), so that
    those that test the same are equal; empty: it is no assert."""
    try:
        [node] = ast.parse(source.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    if not isinstance(node, ast.Assert):
        return ""
    for part in ast.walk(node.test):
        if isinstance(part, ast.Name) and part.id == "candidate":
            part.id = entry_point
    return ast.dump(node.test)


@functools.lru_cache(maxsize=4096)
def _asserts(source: str) -> tuple[tuple[int, int], ...]:
    """(line, column) of every assert statement, in order."""
    if not source.strip():
        return ()
    asserts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    return tuple(sorted((node.lineno, node.col_offset) for node in asserts))


def _with_asserts(source: str, kept: slice) -> str:
    """The source with only these of its asserts; all other statements stay."""
    places = set(_asserts(source)[kept])

    class Drop(ast.NodeTransformer):
        def visit_Assert(self, node: ast.Assert) -> ast.stmt:
            dropped = (node.lineno, node.col_offset) not in places
            return ast.copy_location(ast.Pass(), node) if dropped else node

    return ast.unparse(Drop().visit(ast.parse(source)))


def task_of(record: Mapping[str, Any], id: str, *, functions: bool | None = None) -> Task:
    """The task of a record.

    Raises:
        ValueError: the record is no problem, or one of another form than asked for.
    """
    problem = problem_of(record)
    if functions is not None and bool(problem.entry_point) != functions:
        wanted = (
            "functions: a problem with an 'entry_point'" if functions else "programs: a problem with 'cases'"
        )
        raise ValueError(f"this environment is for {wanted}")
    return Task(
        id=id, payload=problem, answer=problem.solution or None, stratum=str(record.get("difficulty") or "")
    )


def content(problem: CodeProblem) -> str:
    """A problem's statement without white space: what no two splits may share."""
    return "".join(problem.prompt.split())
