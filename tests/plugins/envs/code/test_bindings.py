"""Which statements bind a name: every form that Python has, at the top level and inside a function."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, strategies as st

from coterie.plugins.envs.code.entry import bound, without

F = "def f(x):\n    return aux(x)\n"
TOP = {
    "assignment": "aux = lambda v: v",
    "annotated": "aux: object = list",
    "annotation": "aux: object",
    "augmented": "aux += 1",
    "tuple": "aux, z = list, 1",
    "star": "z, *aux = 1, 2",
    "list": "[z, [aux]] = 1, [2]",
    "chain": "z = aux = list",
    "walrus": "z = (aux := list)",
    "walrus of a comprehension": "z = [aux := v for v in (list,)]",
    "walrus of a default": "def g(z=(aux := list)):\n    return z",
    "attribute": "aux.__code__ = (lambda v: v).__code__",
    "attribute, deeper": "aux.__globals__['aux'] = list",
    "del of an attribute": "del aux.__defaults__",
    "item": "aux[0] = 1",
    "import": "import aux",
    "import of a part": "import aux.part",
    "import as": "import math as aux",
    "from import": "from m import aux",
    "from import as": "from builtins import list as aux",
    "star import": "from somewhere import *",
    "relative star import": "from .math import *",
    "def": "def aux(x):\n    return x",
    "async def": "async def aux(x):\n    return x",
    "class": "class aux:\n    pass",
    "for": "for aux in (list,):\n    pass",
    "with": "with open(f) as aux:\n    pass",
    "except": "try:\n    pass\nexcept E as aux:\n    pass",
    "match": "match z:\n    case [aux]:\n        pass",
    "match star": "match z:\n    case [1, *aux]:\n        pass",
    "match rest": "match z:\n    case {1: 2, **aux}:\n        pass",
    "match as": "match z:\n    case int() as aux:\n        pass",
    "del": "del aux",
    "global": "def g():\n    global aux\n    aux = list",
    "global of a class": "class C:\n    global aux\n    aux = list",
    "global, deeper": "def g():\n    def h():\n        global aux\n        import math as aux",
}
"""Statements that bind the name at the top level, by form."""
INSIDE = {
    form: code
    for form, code in TOP.items()
    if form not in ("star import", "relative star import", "global of a class")
    and not form.startswith("walrus of a d")
} | {
    "parameter": "def g(aux):\n    return aux",
    "keyword parameter": "def g(*, aux=1):\n    return aux",
    "parameters": "def g(*aux):\n    return aux",
    "keyword parameters": "def g(**aux):\n    return aux",
    "lambda": "g = lambda aux: aux",
    "comprehension": "z = [aux for aux in x]",
    "dict comprehension": "z = {aux: 1 for aux in x}",
    "generator": "z = any(aux for aux in x)",
    "attribute of a class": "class C:\n    aux = list",
    "nonlocal": "aux = 1\ndef g():\n    nonlocal aux\n    aux = list",
}
"""Statements that bind it inside a function that holds them."""
FREE = {
    "call": "z = aux(1)",
    "attribute": "z = x.aux\nx.aux = 1",
    "keyword": "z = g(aux=1)",
    "text": "z = 'aux = 1'",
    "key": "z = {'aux': 1}",
    "part of a module": "import x.aux",
    "module of a from": "from aux import z",
    "renamed": "from m import aux as z",
    "global alone": "def g():\n    global aux\n    return aux(1)",
    "star import of the standard library": "from math import *",
    "part of it": "from os.path import *",
}


def indented(code):
    return "def f(x):\n" + "".join(f"    {line}\n" for line in code.split("\n")) + "    return aux(x)\n"


@pytest.mark.parametrize("form", TOP)
def test_every_form_that_binds_at_the_top_level_is_found_and_left_out(form):
    assert bound(TOP[form], "aux").globally
    ast.parse(TOP[form])
    assert without(f"{TOP[form]}\n{F}", "aux", "f") == F


@pytest.mark.parametrize("form", INSIDE)
def test_every_form_that_binds_inside_a_function_is_found(form):
    compile(indented(INSIDE[form]), "f.py", "exec")
    assert any(bound(indented(INSIDE[form]), "aux"))


@pytest.mark.parametrize("form", FREE)
def test_what_only_has_the_letters_binds_nothing(form):
    assert not any(bound(FREE[form], "aux"))
    assert without(f"{FREE[form]}\n{F}", "aux", "f").count("\n") > F.count("\n"), "it stays"


def test_a_name_of_a_scope_of_its_own_is_no_name_of_the_top_level():
    for code in ("def g(aux):\n    return aux\n", "class C:\n    aux = 1\n", "z = [aux for aux in 'ab']\n"):
        assert bound(code, "aux") == (False, True)
        assert without(code + F, "aux", "f") == ast.unparse(ast.parse(code)) + "\n" + F


NAMED_ALIKE = [
    "class f:\n    global aux\n    aux = list",
    "def f(x, z=(aux := list)):\n    return 1",
    "@(aux := list)\ndef f(x):\n    return 1",
    "def f():\n    global aux\n    aux = list",
    "def f():\n    aux.__code__ = list",
]


@pytest.mark.parametrize("code", NAMED_ALIKE)
def test_only_the_last_function_of_the_entry_point_s_name_stays(code):
    assert without(f"{code}\nz = f()\n{F}", "aux", "f") == f"z = f()\n{F}"


def test_the_entry_point_stays_whatever_it_binds():
    code = "def f(x):\n    global aux\n    aux = list\n    return aux(x)\n"
    assert without(code, "aux", "f") == code and without(code, "aux", "g") == ""


def test_code_that_is_no_program_binds_nothing_and_is_kept():
    assert not any(bound("aux = (", "aux")) and without("aux = (", "aux", "f") == "aux = ("
    assert not any(bound("def f():\n    nonlocal aux\n    aux = 1\n", "aux")), "it doesn't compile"


@given(st.text(max_size=200))
def test_any_text_can_be_asked(text):
    bound(text, "aux")
    without(text, "aux", "f")
