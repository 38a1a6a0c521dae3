"""The tool `python`: what is run, and what of it comes back."""

from __future__ import annotations

import asyncio

import pytest

from coterie.backends.tools.python import described
from coterie.core.errors import ConfigError, PolicyFault, SystemFault
from coterie.core.protocols import Limits, Ran
from coterie.testing import build, coterie_run, play_episode
from tests.backends.tools.support import SANDBOX, native, opened, python_tool, used


def block(code: str) -> str:
    return f"I compute.\n```python\n{code}\n```"


def test_what_a_program_prints_comes_back():
    assert used(python_tool(), block("print(6 * 7)")) == ["exit code 0\nstdout:\n42"]
    assert used(python_tool(), block("x = 1")) == ["exit code 0"]


def test_a_crash_is_a_crash():
    (crashed, left) = used(
        python_tool(), block("print('half')\nraise ValueError('no')"), block("import sys; sys.exit(3)")
    )
    assert crashed.startswith("the program failed: exit code 1\nstdout:\nhalf\nstderr:\n")
    assert crashed.endswith("ValueError: no")
    assert left == "the program failed: exit code 3"


def test_a_traceback_keeps_its_end():
    (result,) = used(
        python_tool(result_chars=100),
        block("import sys; sys.stderr.write('x' * 9999); raise KeyError('last')"),
    )
    assert result.endswith("KeyError: 'last'") and len(result) < 250
    assert "characters left out]" in result


@pytest.mark.parametrize(("ran", "text"), [
    (Ran(status="timeout", exit_code=None, reason="5 s of CPU"), "the program timed out: 5 s of CPU"),
    (Ran(status="killed", exit_code=None, stdout="a\n", dropped=7),
     "the program was killed (7 bytes of earlier output were not kept)\nstdout:\na"),
    (Ran(status="failed", exit_code=2, reason="why"), "the program failed: exit code 2, why"),
    (Ran(status="failed", exit_code=2, reason="exit code 2"), "the program failed: exit code 2"),
])  # fmt: skip
def test_how_it_ended_comes_first(ran, text):
    assert described(ran, 100) == text


def test_nothing_is_kept_between_calls():
    assert "NameError" in used(python_tool(), block("x = 1"), block("print(x)"))[1]


def test_native_calls():
    tool = python_tool(calls="native")
    assert tool.find(block("print(1)")) is None
    both = native("python", code="print(1)") + native("python", code="print(2)")
    assert used(tool, native("python", code="print('a')"), both) == [
        "exit code 0\nstdout:\na",
        "result 1 of 2:\nexit code 0\nstdout:\n1\n\nresult 2 of 2:\nexit code 0\nstdout:\n2",
    ]
    wrong = [native("python"), native("python", code=1), '<tool_call>{"name": "python", </tool_call>']
    assert all(result.startswith("not run: ") for result in used(tool, *wrong))


def test_the_template_gets_the_schemas_of_native_calls_only():
    assert python_tool().schemas == python_tool(calls="native", announce=False).schemas == ()
    (schema,) = python_tool(calls="native").schemas
    assert schema["function"]["name"] == "python"
    assert schema["function"]["parameters"]["required"] == ["code"]


@pytest.mark.parametrize(("mark", "fault"), [("# lost worker", SystemFault), ("# killer", PolicyFault)])
def test_faults_of_the_sandbox_go_on(mark, fault):
    for tool, text in [
        (python_tool(), block(mark)),
        (python_tool(calls="native"), native("python", code=mark)),
    ]:
        with pytest.raises(fault):
            used(tool, text)


def test_its_limits_reach_the_sandbox():
    tool = python_tool(limits={"cpu_seconds": 2})

    async def go():
        await opened(tool)
        await tool.run(tool.find(block("pass")))
        return tool.config.sandbox.ran[0].limits

    assert asyncio.run(go()) == Limits(cpu_seconds=2)


def test_it_needs_a_sandbox():
    with pytest.raises(ConfigError, match="sandbox"):
        build("tool", "python")
    assert SANDBOX.endswith(type(python_tool().config.sandbox).__name__)


def computes(request, text):
    return "```python\nprint(6 * 7)\n```" if request.key.call == 0 else "done"


def test_it_runs_in_the_runs_sandbox():
    run = coterie_run(
        answers=computes,
        sandbox={"type": SANDBOX},
        tools={"python": {}},
        roles={"one": {"tools": ["python"]}},
    )
    trees, _ = play_episode(run)
    for action in trees[0].root.decisions["one"].branches:
        assert action.tool_results == ("exit code 0\nstdout:\n42",) and action.text == "done"
    sandbox, tool = run.rollout_side.resources
    assert tool.config.sandbox is sandbox and len(sandbox.ran) == 3
