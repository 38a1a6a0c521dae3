"""Data source `cooperative`: every problem is sound, falls into two parts, and needs both."""

from __future__ import annotations

import doctest
import random
from collections import Counter

import pytest

from coterie.backends.data.shipped import Cooperative
from coterie.core.types import Request
from coterie.core.types.splits import SPLITS
from coterie.plugins.envs.code import sources
from coterie.plugins.envs.code.analysis import usage
from coterie.plugins.envs.code.entry import AUX
from coterie.plugins.envs.code.problem import problem_of
from coterie.plugins.envs.code.written_tests import written_tests
from coterie.testing.support import oracle_texts
from tests.plugins.envs.code.test_humaneval import judged, what_fails_outside_fails_inside

SOURCE = Cooperative(Cooperative.Config(), None)
BY_SPLIT = {split: list(SOURCE.records(split)) for split in SPLITS}
RECORDS = {record["id"]: record for records in BY_SPLIT.values() for record in records}
PROBLEMS = {name: problem_of(record) for name, record in RECORDS.items()}


def fail(programs):
    """The names of problems whose program fails a test."""
    asked = [(PROBLEMS[name], code) for name, code in programs.items()]
    return {name for name, verdict in zip(programs, judged(asked), strict=True) if not verdict.ok}


def test_there_are_at_least_thirty_and_each_is_in_one_split():
    assert len(RECORDS) == sum(map(len, BY_SPLIT.values())) >= 30
    assert all(len(records) >= 5 for records in BY_SPLIT.values())
    assert len({record["entry_point"] for record in RECORDS.values()}) == len(RECORDS)
    for records in BY_SPLIT.values():
        assert {record["difficulty"] for record in records} == {"easy", "medium", "hard"}
    assert SOURCE.records("val").where(0) == ("cooperative.jsonl", 6)


def test_both_references_pass_every_test():
    """In two parts and whole; the visible tests too."""
    both = {name: p.aux_solution + p.main_solution for name, p in PROBLEMS.items()}
    assert fail(both) == set()
    assert fail({name: p.solution for name, p in PROBLEMS.items()}) == set()
    assert fail({name: record["solo_solution"] for name, record in RECORDS.items()}) == set()
    shown = [
        (problem_of({**RECORDS[name], "tests": RECORDS[name]["visible_tests"]}), both[name]) for name in both
    ]
    assert all(verdict.ok for verdict in judged(shown))


def test_neither_part_is_enough_and_main_alone_is_too_long():
    assert fail({name: p.main_solution for name, p in PROBLEMS.items()}) == set(PROBLEMS)
    for name, problem in PROBLEMS.items():
        small, whole = map(sources.main_size, (problem.main_solution, RECORDS[name]["solo_solution"]))
        assert problem.size_limit is not None and small <= problem.size_limit < whole, name


@pytest.mark.parametrize("name", PROBLEMS)
def test_main_uses_what_aux_returns(name):
    problem = PROBLEMS[name]
    used = usage(problem.main_solution, problem.entry_point)
    assert used.called and not used.thin and not used.ignored
    assert sources.defines(problem.aux_solution, AUX) and not sources.defines(problem.main_solution, AUX)
    assert len(problem.tests) >= 4 and len(problem.visible) == 2


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_example_of_the_statement_is_right(name):
    problem = PROBLEMS[name]
    scope: dict[str, object] = {}
    exec(problem.given + problem.solution, scope)
    example = sources.function_of(problem.prompt, problem.entry_point)
    text = doctest.DocTestParser().get_doctest(example.body[0].value.value, scope, name, None, 0)
    assert text.examples and doctest.DocTestRunner(verbose=False).run(text).failed == 0


def test_visible_tests_are_such_as_testers_write():
    for problem in PROBLEMS.values():
        assert len(written_tests(f"```tests\n{problem.visible.source}```", problem.entry_point, 5).tests) >= 1


def test_there_are_all_kinds_of_tests():
    texts = [record["tests"] for record in RECORDS.values()]
    assert any("def check(candidate)" in text for text in texts) and any("\nfor " in text for text in texts)
    assert any("1e-9" in text for text in texts)
    prompts = [record["prompt"] for record in RECORDS.values()]
    assert any(p.startswith("import ") for p in prompts) and any(p.count("def ") > 1 for p in prompts)


@pytest.mark.sandbox
def test_mutants_of_some_fail(tmp_path):
    what_fails_outside_fails_inside({name: PROBLEMS[name] for name in list(PROBLEMS)[::9]}, tmp_path)


@pytest.mark.parametrize("role", ["aux", "main", "solver", "coder", "tester"])
def test_the_script_of_smoke_runs_answers_for_every_problem(role):
    answers = Counter[bool]()
    for record in RECORDS.values():
        asked = Request.__new__(Request)
        object.__setattr__(asked, "key", type("Key", (), {"task": f"train-{record['id']}", "role": role}))
        for seed in range(8):
            text = oracle_texts.code(asked, "", random.Random(seed))
            read = written_tests(text, record["entry_point"], 9).tests if role == "tester" else None
            answers[bool(len(read) if read is not None else sources.answered_code(text).strip())] += 1
    assert answers[True] > answers[False] > 0
