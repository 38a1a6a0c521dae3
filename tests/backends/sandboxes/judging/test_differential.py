"""The judge agrees with plain execution of honest candidates and tests in one process."""

from __future__ import annotations

import ast
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.sandboxes.judging.solutions import TASKS
from tests.backends.sandboxes.judging.support import by_pair, judged

CASES = [
    pytest.param(solution, task.tests, good, id=f"{task.name}, {'right' if good else 'wrong'} {index}")
    for task in TASKS
    for good, solutions in ((True, task.right), (False, task.wrong))
    for index, solution in enumerate(solutions.split("===\n"))
]


@pytest.mark.parametrize(("solution", "tests", "good"), CASES)
def test_the_judge_says_what_plain_execution_says(solution, tests, good):
    together = f"{solution}\n{tests}\nprint('all held')"
    done = subprocess.run([sys.executable, "-I", "-c", together], capture_output=True, text=True, timeout=30)
    assert (done.stdout == "all held\n") is good
    assert by_pair(judged(solution, tests)).ok is good


def human_eval():
    folder = os.environ.get("COTERIE_TEST_DATA")
    if not folder:
        return []
    with gzip.open(Path(folder) / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def case_of(problem, solution):
    """A HumanEval problem: what its prompt defines is in the candidate and may be called by its tests."""
    defined = ast.parse(problem["prompt"] + "    pass\n").body
    calls = [node.name for node in defined if isinstance(node, ast.FunctionDef)]
    tests = f"{problem['test']}\ncheck({problem['entry_point']})\n"
    return judged(problem["prompt"] + solution, tests, *calls)


BOUNDED = [problem for problem in human_eval() if int(problem["task_id"].split("/")[1]) in range(0, 164, 12)]
HELPED = [problem for problem in human_eval() if problem["task_id"] in ("HumanEval/38", "HumanEval/50")]


@pytest.mark.parametrize("problem", BOUNDED + HELPED, ids=lambda problem: problem["task_id"])
def test_canonical_solutions_of_human_eval_pass_and_empty_ones_do_not(problem):
    assert by_pair(case_of(problem, problem["canonical_solution"])).ok
    assert not by_pair(case_of(problem, "    return None\n")).ok


@pytest.mark.long
@pytest.mark.parametrize("problem", human_eval(), ids=lambda problem: problem["task_id"])
def test_all_canonical_solutions_of_human_eval_pass(problem):
    outcome = by_pair(case_of(problem, problem["canonical_solution"]))
    assert outcome.ok, outcome
