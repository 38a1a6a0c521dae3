"""How programs are found in answers, and what the two roles of the paper's form render and refuse."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.common.code import read_program
from tests.plugins.envs.players import PLAN_PATH
from tests.plugins.support import role_input

TOOL, PLAN = PLAN_PATH.role("tool"), PLAN_PATH.role("plan")


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("So:\n```Python3\nx = 1\n\nprint(x)\n```\nThat is it.", "x = 1\n\nprint(x)\n"),
        ("```py\na\n```\n```python\nb\n```", "b\n"),
        ("```python\na\n```\nwhich prints\n```\n[U]\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```text\nno\n```\n```\na\n```", "a\n"),
        ("  ```python\n  a\n  ```", "  a\n"),
        ("```python\r\na\r\n```", "a\r\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("", ""),
        (" \n", ""),
        ("print(1)", None),
        ("[U, R]", None),
        ("```python\nprint(1)", None),
        ("```python\n\n```", None),
        ("```js\na\n```", None),
        ("a\n```python", None),
    ],
)
def test_the_program_of_an_answer(text, program):
    if program is None:
        with pytest.raises(PolicyFault, match="no closed block"):
            TOOL.parse(text, PLAN_PATH.seen_with_tools("tool"))
    else:
        assert TOOL.parse(text, PLAN_PATH.seen_with_tools("tool")) == program == read_program(text)


@given(st.text(alphabet="`py\n ax", max_size=80))
def test_any_text_holds_a_program_or_is_the_policys_fault(text):
    with suppress(PolicyFault):
        code = read_program(text)
        assert code == "" if not text.strip() else code.strip() and code.rstrip("\n") in text


def test_reading_takes_time_linear_in_the_length():
    for text in ("`" * 200_000 + "!", "```" + " " * 200_000 + "!", "```\n" * 50_000, "```python\n" * 50_000):
        with suppress(PolicyFault):
            read_program(text)


def test_the_plan_role_reads_moves_as_the_executor_does():
    assert PLAN.parse("I overrule it: [U, right]", PLAN_PATH.seen_with_tools("plan")) == ("U", "R")
    with pytest.raises(PolicyFault):
        PLAN.parse("as proposed", PLAN_PATH.seen_with_tools("plan"))


def test_what_the_tool_is_asked_for():
    system, user = TOOL.render(
        role_input(PLAN_PATH.seen_with_tools("tool"), "tool", feedback=("Last turn it crashed.",))
    )
    assert "```python block" in system["content"] and "print the moves" in system["content"]
    assert (
        user["content"]
        == """\
Turn 1. The grid has 4 rows (r0 at the top) and 4 columns (c0 at the left).
'#' is a wall, '.' is free, '@' is where you are now, 'G' is the goal.

. . . .
. @ # .
. # . .
. . . G

You are at r1c1. The goal is r3c3.
Last turn it crashed.
Your program, in one ```python block; the last list that it prints, such as [U, R, R], is your proposal of \
moves (U, D, L, R) from where you are now:"""
    )
