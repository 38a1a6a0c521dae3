"""The environment `code_game`: `code_collab` in a few words, with generated problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.protocols import TaskSource
from coterie.core.types import Finding, Task
from coterie.core.types.seeding import generator
from coterie.core.types.splits import Split
from coterie.plugins.envs.code import game_words
from coterie.plugins.envs.code.base import ProblemSource
from coterie.plugins.envs.code.bindings import AUX
from coterie.plugins.envs.code.collab import CodeCollab, CodeCollabConfig
from coterie.plugins.envs.code.problem import CodeProblem, Tests
from coterie.plugins.envs.code.state import CodeObservation, CodeState
from coterie.plugins.envs.common.generated import split_of


class CodeGameConfig(CodeCollabConfig):
    largest: int = Field(29, ge=3, le=99, description="Numbers of a problem are 2 to this.")


class GeneratedFormulas:
    """The generated problems by split, each once, in an order by the seed."""

    def __init__(self, largest: int) -> None:
        self._by_split: dict[Split, list[str]] = {"train": [], "val": [], "test": []}
        self._made: dict[tuple[Split, int], tuple[Task, ...]] = {}
        for formula in game_words.formulas(largest):
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

    def problems(self) -> ProblemSource:
        """Generated problems, or those of a data source that `coterie data make` wrote."""
        return GeneratedFormulas(self.config.largest) if self.config.data is None else super().problems()

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
        return game_words.code(role, text)

    def vocabulary(self) -> Iterable[str]:
        """Every word of prompts, answers and findings."""
        return game_words.vocabulary(self.config.largest)

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
        problem = game_words.formula(state.problem.prompt)
        return game_words.demonstration(role, problem, noise, rng, self.config.largest)


def _task(text: str, id: str) -> Task:
    formula = game_words.formula(text)
    problem = CodeProblem(prompt=text, entry_point="f", tests=Tests(source=formula.tests()))
    return Task(id=id, payload=problem)


def _defined(name: str, defined: bool) -> Finding:
    return Finding(name=name, passed=defined, summary=f"{name} {'found' if defined else 'missing'}")
