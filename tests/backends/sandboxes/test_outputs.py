"""Verdicts on stdin and stdout."""

from __future__ import annotations

import asyncio
import math
import re
import time
from pathlib import Path

import pytest

from coterie import ConfigError, Limits, PolicyFault, Program, Ran, SystemFault, Verdict, judge_outputs
from tests.backends.sandboxes.fusion_server import FusionServer
from tests.backends.sandboxes.support import inside
from tests.backends.sandboxes.test_fusion import using

SUM = "import sys\nprint(sum(map(int, sys.stdin.read().split())))"


class Scripted:
    """A sandbox whose runs print, or raise, what is scripted for their stdin."""

    def __init__(self, script):
        self.script, self.given, self.cancelled = script, [], 0

    async def run(self, program):
        self.given.append(program)
        try:
            await asyncio.sleep(0 if program.stdin in self.script else 60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        outcome = self.script[program.stdin]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome if isinstance(outcome, Ran) else Ran(status="finished", exit_code=0, stdout=outcome)


def verdict(script, cases, **settings):
    return asyncio.run(judge_outputs(Scripted(script), "", cases, **settings))


def test_a_program_is_judged_in_both_sandboxes_alike():
    code = (
        "n = int(input())\nif n == 1: print('one  \\n')\nif n == 2: raise KeyError('two')\n"
        "while n == 3: pass\nif n == 4:\n    import os; os.kill(os.getpid(), 9)\nif n == 5: print(5)"
    )
    program = Program(code=code, limits=Limits(cpu_seconds=0.5, wall_seconds=5))
    cases = [(f"{n}\n", "one" if n == 1 else "fifth") for n in range(1, 6)]
    local = inside(lambda sandbox: judge_outputs(sandbox, program, cases), workers=2)
    with FusionServer() as server:
        remote = using(
            server,
            lambda sandbox: judge_outputs(sandbox, program, cases),
            grace_seconds=20,
            margin_seconds=20,
        )
    for outcome in (local, remote):
        assert isinstance(outcome, Verdict) and (outcome.passed, outcome.total, outcome.ok) == (1, 5, False)
        assert [(failure.line, failure.error, failure.source) for failure in outcome.failures] == [
            (2, "RuntimeError", "2\n"),
            (3, "TimeLimitExceeded", "3\n"),
            (4, "Killed", "4\n"),
            (5, "WrongAnswer", "5\n"),
        ]
        messages = [failure.message for failure in outcome.failures]
        assert messages[0] == "exit code 1: KeyError: 'two'" and messages[3] == "line 1: '5', not 'fifth'"
        assert all(messages) and "KeyError" in outcome.stderr


def test_the_source_alone_is_enough():
    outcome = inside(
        lambda sandbox: judge_outputs(sandbox, SUM, [("1 2", "3\n"), ("", "0")], stop_at_first=True)
    )
    assert outcome.ok and outcome.total == 2 and outcome.failures == ()


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("a\nb\n", "a\nb", True),
        ("a \t\nb\r\n\n\n", "a\nb", True),
        ("", "\n \n", True),
        ("a\n\nb", "a\nb", False),
        (" a", "a", False),
        ("a  b", "a b", False),
        ("A", "a", False),
        ("a\nb\nc", "a\nb", False),
        ("a", "a\nb", False),
        ("1.0", "1", False),
        ("a\u00a0", "a", False),
    ],
)
def test_white_space_at_the_ends_alone_does_not_count(printed, expected, same):
    assert verdict({"": printed}, [("", expected)]).ok is same


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("x 1.0000001 2", "x  1 2.0", True),
        ("1000001", "1000000", True),
        ("1.1", "1", False),
        ("x", "y", False),
        ("1 2", "1", False),
        ("inf", "inf", True),
        ("inf", "1", False),
        ("nan", "1", False),
        ("nan", "0", False),
        ("NaN", "nan", True),
        ("1_0", "10", False),
        ("10", "1_0", False),
        ("1e400", "inf", False),
        ("1e400", "1e500", False),
        ("1e400", "1e400", True),
        ("-inf", "inf", False),
        ("٣", "3", False),
        ("+.5e0 1.", "0.5 1", True),
    ],
)
def test_numbers_may_differ_by_the_tolerance(printed, expected, same):
    assert verdict({"": printed}, [("", expected)], tolerance=1e-5).ok is same


LONG = {  # program, expected, error
    "trailing blanks": ("for i in range(25000): print('1 ')", "1\n" * 25000, None),
    "64 KB and a line end": ("print('x' * 65536)", "x" * 65536, None),
    "long errors": ("import sys\nprint('e' * 300000, file=sys.stderr)\nprint(1)", "1", None),
    "wrong, and the end is right": (
        "print('all of this is wrong\\n' * 10000 + '42' + '\\n' * 250000)", "42\n", "OutputLimit"
    ),
    "wrong, then 64 KB": (
        "import sys\nsys.stdout.write('q' * 1000000 + 'x' * 65536)", "x" * 65536, "OutputLimit"
    ),
    "wrong by one letter": ("import sys\nsys.stdout.write('q' + 'x' * 65536)", "x" * 65536, "WrongAnswer"),
    "errors and output are cut": (
        "import sys\nprint('e' * 300000, file=sys.stderr)\nprint('y' * 300000 + '\\n' * 300000 + '1')",
        "1",
        "OutputLimit",
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", ["local", "fusion"])
def test_the_whole_output_is_compared_and_never_its_end_alone(where):
    limits = Limits(cpu_seconds=5, wall_seconds=20, output_kb=4)

    async def all_of(sandbox):
        return [
            await judge_outputs(sandbox, Program(code=code, limits=limits), [("", expected)])
            for code, expected, _ in LONG.values()
        ]

    if where == "local":
        done = inside(all_of)
    else:
        with FusionServer() as server:
            done = using(server, all_of, grace_seconds=20, margin_seconds=20)
    errors = [outcome.failures[0].error if outcome.failures else None for outcome in done]
    assert dict(zip(LONG, errors, strict=True)) == {name: error for name, (_, _, error) in LONG.items()}
    assert all(len(outcome.stdout) <= 4 << 10 for outcome in done)


def test_output_that_was_dropped_is_no_pass_in_a_sandbox_of_unknown_limits():
    ran = Ran(status="finished", exit_code=0, stdout="42\n", dropped=1)
    assert verdict({"": ran}, [("", "42")]).failures[0].error == "OutputLimit"


def test_one_after_the_other_stops_at_the_first_that_failed():
    sandbox = Scripted({"a": "1", "b": "2", "c": "3"})
    cases = [("a", "1"), ("b", "x"), ("c", "3")]
    outcome = asyncio.run(judge_outputs(sandbox, "", cases, stop_at_first=True))
    assert [program.stdin for program in sandbox.given] == ["a", "b"]
    assert (outcome.passed, outcome.total) == (1, 3) and [f.line for f in outcome.failures] == [2]
    assert outcome.stdout == "2"


def test_a_fault_of_the_sandbox_is_raised_and_ends_the_other_runs():
    for fault in (SystemFault("lost"), PolicyFault("killed twice")):
        sandbox = Scripted({"a": fault})
        began = time.monotonic()
        with pytest.raises(type(fault)):
            asyncio.run(judge_outputs(sandbox, "", [("waits", ""), ("a", ""), ("waits", "")]))
        assert sandbox.cancelled == 2 and time.monotonic() - began < 10


def test_what_can_not_be_compared_is_refused():
    for cases in ([("a",)], [("a", 3)], ["ab"], [(None, "")]):
        with pytest.raises(ConfigError, match="case 1"):
            verdict({}, cases)
    with pytest.raises(ConfigError, match="of stdout"):
        verdict({}, [("", "x" * (17 << 20))])
    for cases in (3, "ab", None):
        with pytest.raises(ConfigError, match="cases that are"):
            verdict({}, cases)
    for program in (None, b"print(1)"):
        with pytest.raises(ConfigError, match="a program that is"):
            asyncio.run(judge_outputs(Scripted({}), program, [("", "")]))
    for tolerance in (math.nan, math.inf, -1.0, "x", None):
        with pytest.raises(ConfigError, match="tolerance"):
            verdict({}, [], tolerance=tolerance)


def test_no_cases_are_no_pass():
    outcome = verdict({}, [])
    assert not outcome.ok and outcome.total == 0 and outcome.failures[0].error == "NoTests"


def test_the_page_shows_what_its_program_prints(capsys):
    page = (Path(__file__).parents[3] / "docs" / "sandbox.md").read_text(encoding="utf-8")
    program, printed = re.search(
        r'```python title="outputs.py"\n(.*?)```.*?```text\n(.*?)```', page, re.DOTALL
    ).groups()
    exec(compile(program, "outputs.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == printed


def test_messages_are_short():
    outcome = verdict({"s" * 999: "x" * 9999}, [("s" * 999, "y" * 9999)])
    assert len(outcome.failures[0].message) < 160 and len(outcome.failures[0].source) <= 60
