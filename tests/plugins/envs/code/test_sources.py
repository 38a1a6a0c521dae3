"""Code in answers, what prompts give, and programs put together."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coterie.plugins.envs.code import sources

F = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    "text",
    [
        F,
        f"```python\n{F}```",
        f"```\n{F}```",
        f"Here is the code:\n\n```python\n{F}```\nIt adds one.",
        f"```text\nno\n```\n```py\n{F}```",
        f"```python\ndef g():\n    pass\n```\nBetter:\n```python\n{F}```",
        f"```python\n{F}",
        f"~~~python\n{F}~~~",
        f"   ```python\n{F}   ```",
        f"Sure, here is a function.\n{F}\nThis function adds one.",
        f"{F}\n- it adds one\n- it returns",
    ],
)
def test_the_code_of_an_answer(text):
    assert sources.answered_code(text).strip() == F.strip()


def test_imports_and_decorators_before_the_function_belong_to_it():
    code = "import functools\n\n@functools.cache\ndef f(x):\n    return x\n"
    assert sources.answered_code(f"Well.\n{code}").strip() == code.strip()


def test_a_longer_fence_may_hold_a_shorter_one():
    code = 'def f():\n    return """\n```\n"""\n'
    assert sources.answered_code(f"````python\n{code}````") == code


@pytest.mark.parametrize(
    "text",
    ["", "No idea.", "nothing", "42", "yes, sure", "I can't, sorry. Ask again later.", "```json\n{}\n```"],
)
def test_an_answer_without_code_has_none(text):
    assert not sources.answered_code(text).strip()


@pytest.mark.parametrize("text", ["print(int(input()) * 2)", "x = 1", "nothing()\n42"])
def test_a_program_without_definitions_is_code(text):
    assert sources.answered_code(text) == text


def test_a_syntax_error_stays_in_the_code_with_its_place():
    code = "def f(x):\n    return (x\n"
    assert sources.answered_code(f"```python\n{code}```") == code
    assert sources.syntax_error(code).startswith("line 2, column 12:")
    assert sources.kept_code(code) == code, "so that the program has the error"


@given(st.text(max_size=300))
def test_any_text_is_read(text):
    code = sources.answered_code(text)
    sources.kept_code(code)
    sources.main_size(code)
    sources.defines(code, "f")
    sources.given_code(text, "f")
    sources.syntax_error(code)


def test_deep_nesting_is_an_error_and_no_crash():
    code = "x = " + "(" * 5000 + ")" * 5000
    assert sources.syntax_error(code) and sources.parsed(code) is None


def test_what_a_prompt_gives_is_all_but_the_entry_point():
    prompt = (
        "from typing import List\nimport math\n\nLIMIT = 3\n\n"
        'def helper(x):\n    """Doc."""\n    return x\n\n'
        'def f(xs: List[int]) -> int:\n    """Add.\n    >>> f([1])\n    1\n    """\n'
    )
    given_part = sources.given_code(prompt, "f")
    assert "import math" in given_part and "LIMIT = 3" in given_part and "def helper" in given_part
    assert "def f" not in given_part


def test_a_prompt_in_prose_gives_the_code_at_its_end():
    prompt = "Write a function.\nIt adds one.\n\nimport math\ndef f(x):\n    pass\n"
    assert sources.given_code(prompt, "f") == "import math\n"
    assert sources.given_code("Only prose, nothing else.", "f") == ""


def test_statements_that_run_when_a_program_is_loaded_are_left_out():
    run = "assert f(1) == 2\nexit()\nLIMIT = 2\nif __name__ == '__main__':\n    f(1)\n"
    code = f"import sys\nprint('hi')\n{F}{run}"
    kept = sources.kept_code(code)
    assert kept == "import sys\ndef f(x):\n    return x + 1\nLIMIT = 2\n"


@pytest.mark.parametrize(
    ("code", "there"),
    [
        (F, True),
        ("def f(x):\n    pass\n", False),
        ("def f(x):\n    return\n", False),
        ("def f(x):\n    yield x\n", True),
        ("def f(x):\n    def g():\n        return 1\n", False),
        ("def f(x):\n    g = lambda: 1\n", False),
        ("async def f(x):\n    return 1\n", True),
        ("f = lambda x: x\n", False),
        ("class f:\n    pass\n", False),
        ("def f(x):\n    return (x\n", True),
        ("def g(x):\n    return (x\n", False),
        ("def f(x):\n    if x:\n        return 1\n", True),
    ],
)
def test_a_definition_returns_something(code, there):
    assert sources.defines(code, "f") is there


def test_the_size_of_code_is_without_imports_comments_and_docstrings():
    short = "def f(x):\n    return x + 1"
    long = 'import math\n\n# a comment\ndef f( x ):\n    """A docstring."""\n    return   x+1\n'
    assert sources.main_size(short) == sources.main_size(long) == len(short)


def test_a_method_of_solution_gets_a_function():
    code = "class Solution:\n    def f(self, x):\n        return x + 1\n"
    names: dict = {}
    exec(code + sources.method_wrapper(code, "f"), names)
    assert names["f"](2) == 3
    assert sources.method_wrapper(code, "g") == "" == sources.method_wrapper(F, "f")


def test_the_parameters_of_the_signature():
    prompt = "def f(a: int,\n      b: str = 'x') -> int:\n    pass\n"
    assert sources.parameters(prompt, "f") == "a: int, b: str = 'x'"
    assert sources.parameters("Write f.", "f") == ""
