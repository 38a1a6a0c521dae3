"""The environment `code_game`: `code_collab` in a few words, with generated problems, for small models.

A problem is two operations: `+ 3 then * 4` asks for f(x) = (x + 3) * 4. The helper writes one operation, `+
3`: its function is aux(x) = x + 3. The main role writes one too, and where aux stands: `aux * 4` is f(x) =
aux(x) * 4, and `+ 3 aux` is f(x) = aux(x + 3). So either may do either operation, and only answers that
complement each other are right: the two have to agree without seeing each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.protocols import TaskSource
from coterie.core.types import Finding, Task
from coterie.core.types.seeding import generator
from coterie.core.types.splits import Split
from coterie.plugins.envs.code.collab import CodeCollab, CodeCollabConfig
from coterie.plugins.envs.code.entry import AUX
from coterie.plugins.envs.code.problem import CodeProblem, Tests
from coterie.plugins.envs.code.state import CodeObservation, CodeState
from coterie.plugins.envs.common.generated import split_of
from coterie.plugins.envs.common.record_tasks import RecordTasks

OPERATIONS = "+-*"
INPUTS = (0, 1, 2, 5, 11)
"""What the tests call f with."""
_PART = re.compile(r"([-+*]) (\d{1,3})")
_MAIN = re.compile(rf"(?:{AUX} {_PART.pattern}|{_PART.pattern} {AUX})")
_WHOLE = re.compile(rf"{_PART.pattern} {_PART.pattern}")
FEEDBACK = ("tests", "of", "passed", "aux", "main", "missing", "found")
"""Words of findings, beside numbers."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`+ 3`."""

    sign: str
    number: int

    def __str__(self) -> str:
        return f"{self.sign} {self.number}"


@dataclass(frozen=True, slots=True)
class Formula:
    """Two operations, one after the other."""

    first: Operation
    second: Operation

    def __str__(self) -> str:
        return f"{self.first} then {self.second}"

    def tests(self) -> str:
        """Asserts on f."""
        code = f"({{x}} {self.first}) {self.second}"
        return "".join(f"assert f({x}) == {code.format(x=x)}\n" for x in INPUTS)


def formulas(largest: int) -> Iterable[Formula]:
    """All problems with numbers from 2 to `largest`; none with two equal operations."""
    parts = [Operation(sign, number) for sign in OPERATIONS for number in range(2, largest + 1)]
    return (Formula(first, second) for first in parts for second in parts if first != second)


def read_formula(text: str) -> Formula:
    """The problem of a text; ValueError: it is none."""
    match = re.fullmatch(rf"{_PART.pattern} then {_PART.pattern}", text)
    if match is None:
        raise ValueError(f"'{text[:40]}' is no problem such as '+ 3 then * 4'")
    return Formula(Operation(match[1], int(match[2])), Operation(match[3], int(match[4])))


def answer_code(role: str, text: str) -> str:
    """The Python of an answer; empty: it can't be read."""
    line = " ".join(text.split())
    if role == AUX:
        match = _PART.fullmatch(line)
        return f"def aux(x):\n    return x {line}\n" if match else ""
    if role == "main":
        match = _MAIN.fullmatch(line)
        if match is None:
            return ""
        after, before = line.removeprefix(AUX).strip(), line.removesuffix(AUX).strip()
        body = f"aux(x) {after}" if line.startswith(AUX) else f"aux(x {before})"
        return f"def f(x):\n    return {body}\n"
    match = _WHOLE.fullmatch(line)
    return f"def f(x):\n    return (x {match[1]} {match[2]}) {match[3]} {match[4]}\n" if match else ""


def vocabulary(largest: int) -> Iterable[str]:
    """Every word of prompts, answers and findings."""
    return (*OPERATIONS, *map(str, range(largest + 1)), "then", ":", AUX, "main", "solver", *FEEDBACK)


def demonstration(role: str, problem: Formula, noise: float, rng: np.random.Generator, largest: int) -> str:
    """A right answer: of the two that a role of the pair may give, either, with equal probability.

    Each operation becomes another one with probability `noise`.
    """
    first, second = (_noisy(part, noise, rng, largest) for part in (problem.first, problem.second))
    takes_first = bool(rng.integers(2))
    if role == AUX:
        return str(first if takes_first else second)
    if role == "main":
        return f"{first} {AUX}" if takes_first else f"{AUX} {second}"
    return f"{first} {second}"


def _noisy(part: Operation, noise: float, rng: np.random.Generator, largest: int) -> Operation:
    if rng.random() >= noise:
        return part
    return Operation(OPERATIONS[int(rng.integers(3))], int(rng.integers(2, largest + 1)))


class CodeGameConfig(CodeCollabConfig):
    largest: int = Field(29, ge=3, le=99, description="Numbers of a problem are 2 to this.")


class GeneratedFormulas:
    """The generated problems by split, each once, in an order by the seed."""

    def __init__(self, largest: int) -> None:
        self._by_split: dict[Split, list[str]] = {"train": [], "val": [], "test": []}
        self._made: dict[tuple[Split, int], tuple[Task, ...]] = {}
        for formula in formulas(largest):
            self._by_split[split_of(str(formula))].append(str(formula))

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """The problems of a split."""
        if (split, seed) not in self._made:
            texts = self._by_split[split]
            order = generator(seed, split, "code_game").permutation(len(texts))
            tasks = (_task(texts[place], f"{split}-{number}") for number, place in enumerate(order))
            self._made[split, seed] = tuple(tasks)
        return self._made[split, seed]


class CodeGame(CodeCollab):
    """Write a function of two operations in two parts, in a few words; success is that every test passes.

    Either role may do either operation, and neither sees the other, so they have to agree. Answers become
    Python, which is judged as in `code_collab`, with its rewards. For the smallest models.
    """

    Config = CodeGameConfig
    config: CodeGameConfig
    name: ClassVar[str] = "code_game"

    def __init__(self, config: CodeGameConfig, build: Any) -> None:
        super().__init__(config, build)
        if self._tasks is None:
            self._formulas = GeneratedFormulas(config.largest)
        if "feedback_tests" in config.model_fields_set:
            raise ConfigError(
                "nothing reads this",
                path=f"{build.path}.feedback_tests",
                why="the feedback of the game is of its tests",
                fix="remove it",
            )

    def feedback_tests(self, problem: CodeProblem) -> Tests:
        """The game's tests, of which it tells how many passed."""
        return problem.tests

    def problems(self) -> RecordTasks | None:
        """Those of a data source that `coterie data make` wrote; without one they are generated."""
        return None if self.config.data is None else super().problems()

    def tasks(self, split: Split, seed: int) -> TaskSource:
        generated = self._tasks is None
        return self._formulas.tasks(split, seed) if generated else super().tasks(split, seed)

    def record(self, task: Task) -> dict[str, Any]:
        """The task as JSON: the problem in words, as `prompt`."""
        return {"prompt": task.payload.prompt}

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record; ValueError: its `prompt` is no problem."""
        return _task(str(record.get("prompt")), id)

    def observe(self, state: CodeState, role: str) -> CodeObservation:
        return replace(super().observe(state, role), rendering="compact")

    def code_of(self, role: str, text: str) -> str:
        """The Python of an answer in words; empty: it can't be read."""
        return answer_code(role, text)

    def vocabulary(self) -> Iterable[str]:
        """Every word of prompts, answers and findings."""
        return vocabulary(self.config.largest)

    async def findings(self, state: CodeState, role: str, tests: int) -> tuple[Finding, ...]:
        """Of the last turn's program in words: the roles' parts, and the tests; none before it."""
        work = state.work
        if work is None:
            return ()
        verdict = await self._verdict(state.problem, work, state.problem.tests.sliced(tests))
        parts = [_defined("main", work.main)]
        if AUX in self._team:
            parts.insert(0, _defined(AUX, work.aux))
        text = f"tests {verdict.passed} of {verdict.total} passed"
        return (*parts, Finding(name="tests", passed=verdict.ok, summary=text))

    def demonstrate(self, state: CodeState, role: str, noise: float, rng: Any) -> str:
        """A right answer, either of the two that a role of the pair may give; each operation is wrong with
        probability `noise`."""
        problem = read_formula(state.problem.prompt)
        return demonstration(role, problem, noise, rng, self.config.largest)


def _task(text: str, id: str) -> Task:
    tests = Tests(source=read_formula(text).tests())
    problem = CodeProblem(prompt=text, entry_point="f", tests=tests)
    return Task(id=id, payload=problem)


def _defined(name: str, defined: bool) -> Finding:
    return Finding(name=name, passed=defined, summary=f"{name} {'found' if defined else 'missing'}")
