"""The sandboxes `local` and `sandbox_fusion` judge code alike.

benchmarks/code_verdicts.py does this on all of HumanEval.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from coterie.backends.sandboxes.fusion import SandboxFusion
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Limits
from coterie.plugins.envs.code.judging import CodeJudge, whole_program
from coterie.plugins.envs.code.problem import problem_of
from tests.backends.sandboxes.fusion_server import FusionServer
from tests.plugins.envs.code.mutants import mutants
from tests.plugins.envs.code.problems import ADD, ROOT, SHIFT, SQUARES, SUM_LINES

RESULTS = Path(__file__).resolve().parents[4] / "benchmarks" / "results" / "code_verdicts.json"


def verdicts(sandbox, programs, limits):
    async def go():
        await sandbox.open()
        try:
            judge = CodeJudge(sandbox, limits)
            return await asyncio.gather(*(judge.judge(p, code, p.tests) for p, code in programs))
        finally:
            await sandbox.close()

    return [(verdict.passed, verdict.total) for verdict in asyncio.run(go())]


@pytest.mark.sandbox
def test_references_and_mutants_have_equal_verdicts():
    problems = [problem_of(record) for record in (ADD, SHIFT, ROOT, SUM_LINES)]
    programs = [(p, whole_program(p, p.solution)) for p in problems]
    programs += [(p, whole_program(p, code)) for p in problems[:3] for code in mutants(p).values()]
    limits = Limits(cpu_seconds=1)
    with FusionServer() as server:
        fusion = SandboxFusion(SandboxFusion.Config(url=server.url, concurrency=2), None)
        theirs = verdicts(fusion, programs, limits)
    ours = verdicts(LocalSandbox(LocalSandbox.Config(workers=2), None), programs, limits)
    assert ours == theirs and all(passed == total for passed, total in ours[: len(problems)])


@pytest.mark.sandbox
def test_a_loop_costs_one_test_in_both_sandboxes():
    problem = problem_of(SQUARES)
    program = "def f(x, y):\n    while x == {}:\n        pass\n    return x * x\n"
    programs = [(problem, program.format(number)) for number in (1, 6)]
    limits = Limits(cpu_seconds=0.5)
    with FusionServer() as server:
        fusion = SandboxFusion(SandboxFusion.Config(url=server.url, concurrency=2), None)
        theirs = verdicts(fusion, programs, limits)
    ours = verdicts(LocalSandbox(LocalSandbox.Config(workers=2), None), programs, limits)
    assert ours == theirs == [(5, 6)] * 2


def test_the_committed_comparison_found_no_difference():
    sets = json.loads(RESULTS.read_text())["sets"]
    assert sets["HumanEval, references"]["passed"] == sets["HumanEval, references"]["programs"] == 164
    assert sets["HumanEval, mutants"]["programs"] == 20 * 6
    assert all(row["different"] == [] for row in sets.values())
