"""HumanEval: every reference passes, and what fails outside the sandbox fails in it.

Each test has a twin on our own problems, which needs no data.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from pathlib import Path

import pytest

from coterie.core.protocols import Limits
from coterie.plugins.envs.code.judging import CodeJudge, whole_program
from coterie.plugins.envs.code.problem import problem_of
from coterie.plugins.envs.code.sources import kept_code
from tests.plugins.envs.code.mutants import KINDS, SECONDS, mutants, passes_outside
from tests.plugins.envs.code.problems import ADD, ROOT, SHIFT
from tests.plugins.envs.code.warm import Warm

needs_data = pytest.mark.skipif("COTERIE_TEST_DATA" not in os.environ, reason="needs COTERIE_TEST_DATA")
OURS = {record["id"]: problem_of(record) for record in (ADD, SHIFT, ROOT)}


def humaneval():
    """The problems by id."""
    file = Path(os.environ["COTERIE_TEST_DATA"]) / "HumanEval.jsonl.gz"
    records = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    return {
        record["task_id"]: problem_of(
            {
                "prompt": record["prompt"],
                "entry_point": record["entry_point"],
                "tests": record["test"],
                "solution": record["prompt"] + record["canonical_solution"],
            }
        )
        for record in records
    }


def judged(asked, limits=None):
    """The verdicts on (problem, program) pairs."""

    async def go():
        judge = CodeJudge(Warm(), limits)
        waiting = [judge.judge(p, whole_program(p, code), p.tests) for p, code in asked]
        return await asyncio.gather(*waiting)

    return asyncio.run(go())


def every_reference_passes(problems):
    verdicts = judged([(problem, kept_code(problem.solution)) for problem in problems.values()])
    failed = {
        name: verdict.failures for name, verdict in zip(problems, verdicts, strict=True) if not verdict.ok
    }
    assert failed == {}


def test_every_reference_of_ours_passes():
    every_reference_passes(OURS)


@needs_data
def test_every_reference_of_humaneval_passes():
    problems = humaneval()
    assert len(problems) == 164 and all(len(problem.tests) for problem in problems.values())
    every_reference_passes(problems)


@needs_data
@pytest.mark.parametrize(("name", "helper"), [("HumanEval/32", "poly"), ("HumanEval/38", "encode_cyclic")])
def test_helpers_that_the_prompt_gives_are_there_for_program_and_tests(name, helper):
    problem = humaneval()[name]
    assert f"def {helper}" in problem.given and helper in problem.tests.source
    (verdict,) = judged([(problem, kept_code(problem.solution))])
    assert verdict.ok


def what_fails_outside_fails_inside(problems, folder):
    """Each mutant that a plain CPython fails fails in the sandbox, at a second of CPU time."""
    named = [
        (name, kind, problem, program)
        for name, problem in problems.items()
        for kind, program in mutants(problem).items()
    ]
    slots = asyncio.Semaphore(2)

    async def outside():
        async def one(number, problem, program):
            async with slots:
                return await passes_outside(problem, program, folder, number)

        return await asyncio.gather(*(one(n, p, code) for n, (_, _, p, code) in enumerate(named)))

    passed = asyncio.run(outside())
    failing = [item for item, good in zip(named, passed, strict=True) if not good]
    assert {kind for _, kind, _, _ in failing} == set(KINDS), "each kind fails somewhere"
    assert len(failing) > 0.9 * len(named), "nearly all mutants are faults"
    verdicts = judged([(problem, program) for *_, problem, program in failing], Limits(cpu_seconds=SECONDS))
    forgiven = [item[:2] for item, verdict in zip(failing, verdicts, strict=True) if verdict.ok]
    assert forgiven == []


@pytest.mark.sandbox
def test_mutants_of_ours_fail(tmp_path):
    what_fails_outside_fails_inside(OURS, tmp_path)


@pytest.mark.sandbox
@needs_data
def test_mutants_of_twenty_problems_fail(tmp_path):
    problems = humaneval()
    what_fails_outside_fails_inside({name: problems[name] for name in list(problems)[::8][:20]}, tmp_path)


@pytest.mark.long
@needs_data
def test_mutants_of_all_problems_fail(tmp_path):
    what_fails_outside_fails_inside(humaneval(), tmp_path)
