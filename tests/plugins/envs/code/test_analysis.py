"""How a function uses `aux`, by its syntax tree."""

from __future__ import annotations

import ast

import pytest

from coterie.plugins.envs.code.analysis import AuxUsage, usage
from coterie.plugins.envs.code.reachable import truth
from tests.plugins.envs.code.test_bindings import INSIDE, indented

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
    "def f(x):\n    return sorted(x, key=aux)",
    "def f(x):\n    x.sort(key=aux)\n    return x",
    "def f(x):\n    return reduce(aux, x)",
    "def f(x):\n    helpers = [aux, abs]\n    return helpers[0](x)",
    "def f(x):\n    return (aux if x else abs)(x)",
    "def f(x):\n    while True:\n        if x > 9:\n            break\n        x += 1\n    return aux(x)",
    "def f(x):\n    try:\n        return x[0]\n    except IndexError:\n        pass\n    return aux(x)",
    "def f(x):\n    match x:\n        case 1:\n            return 1\n    return aux(x)",
    "def f(x):\n    for v in range(1):\n        return aux(v)",
    "def f(x):\n    return True and aux(x) or 0",
    "def f(x):\n    def inner(v):\n        return outer(v - 1)\n    def outer(v):\n"
    "        return aux(v) if v < 1 else inner(v)\n    return outer(x) + 1",
    "def f(x):\n    def inner(v):\n        return aux(v)\n    def outer(v):\n        return inner(v)\n"
    "    return outer(x) + 1",
    "def f(x):\n    try:\n        x += 1\n    except E:\n        return 2\n    return aux(x)",
    "def f(x):\n    with suppress(ValueError):\n        raise ValueError\n    return aux(x)",
    "def f(x):\n    with suppress(E):\n        return x[0]\n    return aux(x)",
    "def f(x):\n    try:\n        y = x[0]\n    except E:\n        y = aux(x)\n    return y",
    "def f(x):\n    try:\n        pass\n    except E:\n        pass\n    else:\n        return aux(x)",
    "def f(x):\n    try:\n        pass\n    finally:\n        x = aux(x)\n    return x",
    "def f(x):\n    assert x > 1, aux(x)\n    return x",
    "def f(x):\n    match x:\n        case _ if True:\n            return aux(x)",
    "def f(x):\n    if 1 / 0:\n        return aux(x)",
    "def f(x):\n    if f'{x}':\n        return aux(x)",
    "def f(x):\n    if 2 ** 9 == 1 or 1 << 9 == 1:\n        return aux(x)",
    "def f(x):\n    while 1:\n        break\n    else:\n        x += 1\n    return aux(x)",
    "def f(x):\n    return (y := aux(x)) + 1",
    "def f(x):\n    return [y := aux(x)][0] + 1",
    "def f(x):\n    if (y := aux(x)) >= 0:\n        return x\n    return 1",
    "def f(x):\n    class K:\n        def go(self):\n            return aux(x)\n    return K().go() + 1",
    "def g(x):\n    return aux(x)\ndef f(x):\n    return g(x) + 1",
    "def f(x):\n    return g(x) + 1\ndef h(x):\n    return aux(x)\ndef g(x):\n    return h(x)",
    "class Solution:\n    def f(self, x):\n        return aux(x) + 1",
    "class Solution:\n    def __init__(self):\n        pass\n    def f(self, x):\n        return aux(x)",
    "@cache\ndef f(x):\n    return aux(x) + 1",
    "import functools as ft\n@ft.lru_cache(maxsize=None)\ndef f(x):\n    return aux(x) + 1",
    "import math, functools\n@functools.cache\ndef f(x):\n    return aux(x) + 1",
    "from functools import wraps as like\n@like(abs)\ndef f(x):\n    return aux(x) + 1",
    "f = None\ndef f(x):\n    return 1\ndef f(x):\n    return aux(x) + 1\nf.calls = 0",
]
DEAD = [
    "if False:\n    aux(x)",
    "if x and 0:\n    aux(x)",
    "if not 1:\n    aux(x)",
    "if 1 > 2:\n    aux(x)",
    "if True:\n    x += 1\nelse:\n    x = aux(x)",
    "if []:\n    x = aux(x)",
    "while 0:\n    x = aux(x)",
    "while None:\n    x = aux(x)",
    "for v in ():\n    x = aux(v)",
    "for v in range(0):\n    x = aux(v)",
    "y = 0 and aux(x)\nx += y",
    "y = 1 or aux(x)\nx += y",
    "y = x or True or aux(x)\nx += y",
    "x = aux(x) if False else x",
    "x = [x, *[aux(v) for v in []]][0]",
    "x = [x, *(aux(v) for v in [x] if 0)][0]",
    "x = {aux(v): v for v in ()} or x",
    "return x\nx = aux(x)",
    "raise ValueError\nx = aux(x)",
    "if 1 > 2 > 3:\n    x = aux(x)",
    "if 1 + 1 == 3:\n    x = aux(x)",
    "if 1 in []:\n    x = aux(x)",
    "if 'a' not in 'ab':\n    x = aux(x)",
    "if 3 & 4:\n    x = aux(x)",
    "if -1 > 0:\n    x = aux(x)",
    "if not (0,):\n    x = aux(x)",
    "if 0 if 1 else 1:\n    x = aux(x)",
    "if f'':\n    x = aux(x)",
    "if not f'a':\n    x = aux(x)",
    "if not __debug__:\n    x = aux(x)",
    "if __debug__ is False:\n    x = aux(x)",
    "if (1 or 0) == 2 or {1: 2} == {}:\n    x = aux(x)",
    "for v in range(1, 2 - 1):\n    x = aux(v)",
    "assert True, aux(x)",
    "assert 1 < 2, aux(x)",
    "assert False\nx = aux(x)",
    "match x:\n    case _ if False:\n        x = aux(x)",
    "match x:\n    case 1 if 0:\n        x = aux(x)\n    case 2:\n        x = 1",
    "while 1:\n    x += 1\n    if x > 9:\n        break\nelse:\n    x = aux(x)",
    "with open(x) as file:\n    return x\nx = aux(x)",
    "try:\n    return x\nfinally:\n    x = 1\nx = aux(x)",
    "try:\n    pass\nexcept E:\n    x = aux(x)",
    "try:\n    x = 1\nexcept E:\n    x = aux(x)\nelse:\n    x += 1",
    "try:\n    return 1\nexcept E:\n    x = aux(x)",
    "for v in x:\n    continue\n    aux(v)",
    "while x:\n    break\n    aux(x)",
    "if x:\n    return 1\nelse:\n    return 2\nx = aux(x)",
    "while True:\n    if x:\n        return 1\nx = aux(x)",
    "while 1:\n    for v in x:\n        break\nx = aux(x)",
    "try:\n    return 1\nexcept E:\n    return 2\nx = aux(x)",
    "try:\n    x = 1\nfinally:\n    return 2\nx = aux(x)",
    "match x:\n    case 1:\n        return 1\n    case _:\n        return 2\nx = aux(x)",
    "def inner(v):\n    return aux(v)",
    "inner = lambda v: aux(v)",
    "def inner(v):\n    return other(v)\ndef other(v):\n    return inner(aux(v))",
    "lambda: aux(x)",
    "y: aux(x) = x\nx = y",
    "y: aux(x)",
    "aux",
    "helper = aux",
    "helpers = [aux, abs]",
    "print(aux)",
    "if callable(aux):\n    x += 1",
    "if aux:\n    x += 1",
    "map(aux, x)",
    "lazy = map(aux, x)",
    "x = (aux, x)[1]",
]
"""Statements that mention `aux`, of which syntax shows that none calls it."""
OTHER = [
    "{f}f = lambda x: x * x + 1",
    "{f}f: object = lambda x: x * x + 1",
    "{f}f2, f = 1, lambda x: x * x + 1",
    "{f}z = (f := lambda x: x * x + 1)",
    "{f}z = [f := g for g in [abs]]",
    "{f}f = g",
    "{f}class f:\n    def __new__(cls, x):\n        return x * x + 1",
    "{f}class Solution:\n    def f(self, x):\n        return x\nf = Solution().f",
    "{f}from m import f",
    "{f}from m import *",
    "{f}f.__code__ = (lambda x: x).__code__",
    "def h():\n    global f\n    f = abs\n{f}z = h()",
    "def f(x):\n    global f\n    f = abs\n    return aux(x) + 1",
    "@h\n{f}",
    "def cache(g):\n    return abs\n@cache\n{f}",
    "from functools import lru_cache\n@lru_cache(h)\n{f}",
    "from functools import wraps\n@wraps(h, ['__code__'])\n{f}",
    "from functools import reduce\n@reduce\n{f}",
    "import functools, m as functools\n@functools.cache\n{f}",
    "def g(x):\n    return aux(x)\ng = abs\ndef f(x):\n    return g(x) + 1",
    "def g(x):\n    return aux(x)\ndef f(x, g=abs):\n    return g(x) + 1",
    "def g(x):\n    return aux(x)\ndef f(x):\n    if 0:\n        g(x)\n    return x + 1",
    "def g(x, y=aux(1)):\n    return x\ndef f(x):\n    return g(x) + 1",
    "def g(aux):\n    return aux(1)\ndef f(x):\n    return g(abs) + 1",
    "def f(x):\n    class K:\n        def go(self):\n            return aux(x)\n    return x + 1",
    "class Solution:\n    def f(self, x):\n        return aux(x)\n    f = abs",
    "class Solution:\n    def f(self, x):\n        return aux(x)\nSolution.f = abs",
    "class Solution:\n    def f(self, x):\n        return aux(x)\n    def g(self):\n        self.f = abs",
    "class Solution:\n    def f(self, x):\n        return aux(x)\n    def __new__(self):\n        return h",
]
"""Programs whose function `f` may be another one than the `def` that calls `aux`, or calls it nowhere."""
IGNORED = [
    ("def f(x):\n    (y := aux(x))\n    return x", "y is never used"),
    ("def f(x):\n    aux(x)\n    return x", "the result is dropped"),
    ("def f(x):\n    y = aux(x)\n    return x", "y is never used"),
    ("def f(x):\n    _ = aux(x)\n    return x", "_ is never used"),
    ("def f(x):\n    y = aux(x)\n    z = y\n    return x", "y is never used"),
    ("def f(x):\n    a, b = aux(x)\n    return x", "is never used"),
    ("def f(x):\n    y: int = aux(x)\n    return x", "y is never used"),
    ("def f(x):\n    y = aux(x)\n    y = y\n    return x", "y is never used"),
    ("def f(x):\n    y = aux(x) + 1\n    return x", "y is never used"),
    ("def f(x):\n    -aux(x), 2\n    return x", "the result is dropped"),
    ("def f(x):\n    sorted(x, key=aux)\n    return x", "the result is dropped"),
]
THIN = [
    "def f(x):\n    return aux(x)",
    'def f(x):\n    """Doc."""\n    return aux(x)',
    "def f(x, y):\n    return aux(y, x)",
    "def f(*values):\n    return aux(*values)",
    "def f(x):\n    result = aux(x)\n    return result",
    "def f(x):\n    return aux(x, 3, key=True)",
    "def f(x):\n    if False:\n        x += 1\n    pass\n    return aux(x)",
    "def f(x):\n    return aux(x)\n    return x + 1",
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
        "def f(x, y=aux(1)):\n    return x",
        "def f(x):\n    return (aux(x",
        "def g(x):\n    return aux(x)",
        "",
    ],
)
def test_no_call_in_the_entry_point_is_no_use(code):
    assert not usage(code, "f").called


@pytest.mark.parametrize("statements", DEAD)
def test_a_call_that_syntax_shows_to_be_never_made_is_no_use(statements):
    code = "def f(x):\n" + "".join(f"    {line}\n" for line in [*statements.split("\n"), "return x"])
    compile(code, "f.py", "exec")
    assert usage(code, "f") == AuxUsage()


@pytest.mark.parametrize("code", OTHER)
def test_a_function_that_something_else_may_replace_calls_nothing(code):
    code = code.replace("{f}", "def f(x):\n    return aux(x) + 1\n")
    compile(code, "f.py", "exec")
    assert usage(code, "f") == AuxUsage()


DROPPED = [
    "def g(x):\n    return aux(x)\ndef f(x):\n    g(x)\n    return x",
    "def g(x):\n    return -aux(x)\ndef h(x):\n    return g(x)\ndef f(x):\n    y = h(x)\n    return x",
    "def f(x):\n    def g():\n        return aux(x)\n    g()\n    return x",
    "def g(n):\n    if n:\n        return g(n - 1)\n    return aux(n)\ndef f(x):\n    g(x)\n    return x",
]
KEPT = [
    "def g(x):\n    return aux(x)\ndef f(x):\n    g(x)\n    return g(x)",
    "def f(x):\n    def g():\n        return aux(x)\n    return [*map(g, x)]",
    "def f(x):\n    def g(n):\n        return g(n - 1) + aux(n)\n    g(x)\n    return g(2)",
]


@pytest.mark.parametrize("code", DROPPED)
def test_a_result_that_is_returned_to_calls_that_drop_it_is_ignored(code):
    assert usage(code, "f").called and usage(code, "f").ignored


def test_a_chain_of_functions_is_read_once():
    chain = "".join(f"def g{n}(x):\n    return g{n - 1}(x) + g{n - 1}(x)\n" for n in range(1, 40))
    code = f"def g0(x):\n    return aux(x)\n{chain}def f(x):\n    g39(x)\n    return x\n"
    assert usage(code, "f").ignored


@pytest.mark.parametrize("code", KEPT)
def test_a_result_that_one_call_of_a_function_uses_is_used(code):
    assert usage(code, "f").called and not usage(code, "f").ignored


def test_an_ignored_call_of_a_called_function_names_it():
    code = "def g(x):\n    aux(x)\n    return x\n\ndef f(x):\n    return g(x) + 1\n"
    assert usage(code, "f").ignored == ("line 2 of g: the result is dropped",)


@pytest.mark.parametrize(
    "condition",
    [
        "'a' * 10**9",
        "'a' * 9 * 9 * 9 * 9 * 9 * 9 * 9 * 9 * 9 * 9",
        "'%1000000000d' % 1",
        "*".join(["9" * 300] * 90),
        "+".join(["1"] * 900),
        "1 << 10**9",
        "[0] * 10**9",
    ],
)
def test_a_condition_whose_value_may_be_large_is_not_evaluated(condition):
    assert truth(ast.parse(f"not ({condition})", mode="eval").body) is None


@pytest.mark.parametrize("form", INSIDE)
def test_an_aux_of_the_function_s_own_is_not_the_helper_s(form):
    assert usage(indented("pass"), "f").called and usage(indented(INSIDE[form]), "f") == AuxUsage()


@pytest.mark.parametrize("parameters", ["aux", "x, aux=abs", "*aux", "x, *, aux", "**aux"])
def test_a_parameter_of_that_name_is_not_the_helper_s(parameters):
    assert usage(f"def f({parameters}):\n    return aux(1) + 1\n", "f") == AuxUsage()


def test_a_name_of_another_scope_is_read():
    code = "def f(x):\n    global kept\n    kept = aux(x)\n    return x\n"
    assert usage(code, "f").ignored == ()
