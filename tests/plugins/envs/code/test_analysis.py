"""How a function uses `aux`, by its syntax tree."""

from __future__ import annotations

import pytest

from coterie.plugins.envs.code.analysis import usage

USED = [
    "def f(x):\n    return aux(x) + 1",
    "def f(x):\n    y = aux(x)\n    return y * 2",
    "def f(x):\n    y = aux(x)\n    z = y\n    return z",
    "def f(x):\n    return [aux(v) for v in x]",
    "def f(x):\n    return list(map(aux, x))",
    "def f(x):\n    g = aux\n    return g(x)",
    "def f(x):\n    if aux(x):\n        return 1\n    return 2",
    "def f(x):\n    a, b = aux(x)\n    return b",
    "def f(x):\n    d = {}\n    d['k'] = aux(x)\n    return d",
    "def f(x):\n    total = 0\n    total += aux(x)\n    return total",
    "def f(x):\n    while (y := aux(x)) > 0:\n        x = y\n    return x",
    "def f(x):\n    def inner(v):\n        return aux(v)\n    return inner(x) + 1",
    "def f(x):\n    y = aux(x)\n    print(len(y))\n    return x",
    "def f(x):\n    for v in aux(x):\n        x += v\n    return x",
    "def f(x):\n    y = aux(x)\n    z = sorted(y)\n    return x",
]
IGNORED = [
    ("def f(x):\n    aux(x)\n    return x", "the result is dropped"),
    ("def f(x):\n    y = aux(x)\n    return x", "y is never used"),
    ("def f(x):\n    _ = aux(x)\n    return x", "_ is never used"),
    ("def f(x):\n    y = aux(x)\n    z = y\n    return x", "y is never used"),
    ("def f(x):\n    a, b = aux(x)\n    return x", "is never used"),
    ("def f(x):\n    y: int = aux(x)\n    return x", "y is never used"),
    ("def f(x):\n    y = aux(x)\n    y = y\n    return x", "y is never used"),
]
THIN = [
    "def f(x):\n    return aux(x)",
    'def f(x):\n    """Doc."""\n    return aux(x)',
    "def f(x, y):\n    return aux(y, x)",
    "def f(*values):\n    return aux(*values)",
    "def f(x):\n    result = aux(x)\n    return result",
    "def f(x):\n    return aux(x, 3, key=True)",
]
NOT_THIN = [
    "def f(x):\n    return aux(x) + 1",
    "def f(x):\n    return aux(x + 1)",
    "def f(x):\n    return sorted(aux(x))",
    "def f(x):\n    if not x:\n        return 0\n    return aux(x)",
    "def f(x):\n    y = aux(x)\n    return y[0]",
]


@pytest.mark.parametrize("code", USED)
def test_a_result_that_reaches_anything_is_used(code):
    used = usage(code, "f")
    assert used.called and not used.ignored


@pytest.mark.parametrize(("code", "reason"), IGNORED)
def test_a_result_that_reaches_nothing_is_ignored_with_its_line(code, reason):
    used = usage(code, "f")
    assert used.called and len(used.ignored) == 1
    assert used.ignored[0].startswith("line 2: ") and reason in used.ignored[0]


def test_one_used_result_is_enough_and_every_ignored_call_has_its_reason():
    both = "def f(x):\n    aux(x)\n    y = aux(x)\n    return y\n"
    assert usage(both, "f").ignored == ()
    neither = "def f(x):\n    aux(x)\n    y = aux(x)\n    return x\n"
    assert [reason.partition(":")[0] for reason in sorted(usage(neither, "f").ignored)] == [
        "line 2",
        "line 3",
    ]


@pytest.mark.parametrize("code", THIN)
def test_handing_the_arguments_on_is_thin(code):
    assert usage(code, "f").thin


@pytest.mark.parametrize("code", NOT_THIN)
def test_any_further_work_is_not_thin(code):
    assert usage(code, "f").called and not usage(code, "f").thin


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    return x",
        "def f(x):\n    return 'aux(x)'",
        "def f(x):\n    # aux(x)\n    return x",
        "def f(aux):\n    return aux(1)",
        "def f(x):\n    aux = abs\n    return aux(x)",
        "def f(x):\n    return (aux(x",
        "def g(x):\n    return aux(x)",
        "",
    ],
)
def test_no_call_in_the_entry_point_is_no_use(code):
    assert not usage(code, "f").called


def test_a_name_of_another_scope_is_read():
    code = "def f(x):\n    global kept\n    kept = aux(x)\n    return x\n"
    assert usage(code, "f").ignored == ()
