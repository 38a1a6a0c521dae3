"""The judge in sandbox `local`: the same programs, isolated for real and judged beside each other."""

from __future__ import annotations

import asyncio

import pytest

from coterie.backends.sandboxes.local import LocalSandbox
from tests.backends.sandboxes.judging.hostile import HONEST, PROGRAMS, TESTS, TOTAL
from tests.backends.sandboxes.judging.support import judged

ENDS = {
    "import os\nos._exit(0)": "exit code 0",
    "import sys\nsys.exit(3)": "exit code 3",
    "def f(x:": "exit code 1",
    "def f(x):\n    while True: pass": "timeout",
    "import time\ntime.sleep(60)": "timeout",
}


def judge_all(cases):
    async def run():
        sandbox = LocalSandbox(LocalSandbox.Config(workers=2))
        await sandbox.open()
        try:
            return await asyncio.gather(*map(sandbox.judge, cases))
        finally:
            await sandbox.close()

    return asyncio.run(run())


def test_hostile_programs_pass_nothing_and_the_honest_one_beside_them_all():
    codes = [program.code for program in PROGRAMS]
    verdicts = judge_all([judged(code, TESTS) for code in [HONEST, *codes, HONEST]])
    assert [verdict.total for verdict in verdicts] == [TOTAL] * len(verdicts)
    assert verdicts[0].ok and verdicts[-1].ok
    passed = [
        (program.name, verdict.passed) for program, verdict in zip(PROGRAMS, verdicts[1:-1], strict=True)
    ]
    assert passed == [(program.name, 0) for program in PROGRAMS]


def test_a_verdict_says_how_the_candidate_ended():
    verdicts = judge_all([judged(code, "assert f(1)\nassert True") for code in ENDS])
    assert [(verdict.passed, verdict.candidate) for verdict in verdicts] == [
        (0, end) for end in ENDS.values()
    ]


@pytest.mark.parametrize("mark", ["print('the end')", "raise SystemExit(0)"])
def test_the_tests_side_may_end_as_it_likes(mark):
    (verdict,) = judge_all([judged("def f(x): return x", f"assert f(1)\n{mark}")])
    assert verdict.ok


MINE = b"mine = 7\nclass Queue: pass\nclass Empty(Exception): pass\nLifoQueue = SimpleQueue = Queue\n"


def test_files_of_the_candidate_that_are_named_as_modules_are_its_modules():
    names = ("queue", "judging", "plain", "changes", "json", "random", "linecache", "struct", "re")
    candidate = (
        f"import {', '.join(names)}\nimport sys\ndef f(n):\n    return getattr(sys.modules[n], 'mine', 0)\n"
    )
    tests = "".join(f"assert f({name!r}) == 7\n" for name in names)
    files = {f"{name}.py": MINE for name in names[:-2]} | {"struct/__init__.py": MINE, "re/__init__.py": MINE}
    tests += (
        "import re, json, random\nassert re.match('a', 'ab') and json.loads('1') == 1\nassert f('nowhere')"
    )
    (verdict,) = judge_all([judged(candidate, tests, files=files)])
    assert verdict.passed == verdict.total - 1 == len(names) + 1, verdict
    assert verdict.failures[0].error == "KeyError"
