"""Honest candidates with tests, by family: functions, which plain execution in one process judges.

`{n}` and `{m}` are drawn from a seed. A mutated candidate has another number or comparison in one place.
"""
# ruff: noqa: E501

from __future__ import annotations

import ast
import gzip
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

from coterie.core.protocols import Judged, Limits

LIMITS = Limits(cpu_seconds=2, wall_seconds=20, memory_mb=1024)

FAMILIES: dict[str, tuple[str, str]] = {
    "int": ("def f(x): return x * {n} + {m}", "assert f(2) == 2 * {n} + {m}\nassert isinstance(f(1), int)"),
    "str": ("def f(x): return x[::-1] * {m}", "assert f('ab') == 'ba' * {m}\nassert f('é').isalpha()"),
    "bool and None": ("def f(x): return None if x > {n} else x == {m}", "assert f({m}) is True or {m} > {n}\nassert f({n} + 1) is None"),
    "float": ("def f(x): return x / {n}", "assert abs(f(1) - 1 / {n}) < 1e-9\nassert f(0) == 0.0"),
    "bytes": ("def f(x): return bytes([{m}]) + x", "assert f(b'a')[0] == {m}\nassert f(b'') == bytes([{m}])"),
    "bytearray": ("def f(x): return bytearray(x) + bytes([{m}])", "assert f(b'a') == b'a' + bytes([{m}])\nassert isinstance(f(b''), bytearray)"),
    "list": ("def f(x): return [v % {m} for v in x if v > 1]", "assert f([1, 2, 3]) == [2 % {m}, 3 % {m}]\nassert f([]) == []"),
    "tuple": ("def f(a, b={n}): return a, b", "assert f(1) == (1, {n})\nassert type(f(1, b=2)) is tuple"),
    "dict": ("def f(x): return {v: len(v) + {m} for v in x}", "assert f(['a', 'bc']) == {'a': 1 + {m}, 'bc': 2 + {m}}"),
    "set": ("def f(x): return {v % {m} for v in x}", "assert f([{m}, 0]) == {0}\nassert f([]) == set()"),
    "frozenset": ("def f(x): return frozenset(x)", "assert f([1, 1]) == {1}\nassert hash(f([{n}])) == hash(frozenset([{n}]))"),
    "range": ("def f(x): return range(x, {n} + x)", "assert f(0) == range({n})\nassert len(f(3)) == {n}"),
    "keys": ("def f(x): return dict.fromkeys(x, {m}).keys()", "assert f('ab') == {'a', 'b'}\nassert list(f('ba')) == ['b', 'a']"),
    "values": ("def f(x): return {k: k + {m} for k in x}.values()", "assert list(f([1, 2])) == [1 + {m}, 2 + {m}]\nassert sum(f([1])) == 1 + {m}"),
    "items": ("def f(x): return {k: {m} for k in x}.items()", "assert dict(f('a')) == {'a': {m}}\nassert ('a', {m}) in f('ab')"),
    "named tuple": ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(x): return P(x, {m})", "assert f(1) == (1, {m})\nassert f(1).y == {m}\nassert f(2)._replace(x=3)[0] == 3"),
    "typing.NamedTuple": ("from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = {m}\ndef f(x): return [P(x)]", "assert f(1)[0].y == {m}\nassert f(1) == [(1, {m})]"),
    "Counter": ("from collections import Counter\ndef f(x): return Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}\nassert f('aab').most_common(1) == [('a', 2)]\nassert f('')['x'] == 0"),
    "defaultdict": ("from collections import defaultdict\ndef f(x):\n    d = defaultdict(list)\n    for v in x: d[v % {m}].append(v)\n    return d", "assert f([{m}]) == {0: [{m}]}\nassert f([])[5] == []"),
    "deque": ("from collections import deque\ndef f(x): return deque(x, {m} + 1)", "assert list(f([1])) == [1]\nassert f([]).maxlen == {m} + 1"),
    "OrderedDict": ("from collections import OrderedDict\ndef f(x): return OrderedDict((k, {n}) for k in x)", "assert list(f('ba')) == ['b', 'a']\nassert f('a') == {'a': {n}}"),
    "Decimal": ("from decimal import Decimal\ndef f(x): return Decimal(x) / {n}", "from decimal import Decimal\nassert f('1') == Decimal(1) / {n}\nassert str(f('0')) == '0'"),
    "Fraction": ("from fractions import Fraction\ndef f(x): return Fraction(x, {n})", "from fractions import Fraction\nassert f(1) == Fraction(1, {n})\nassert f({n}) == 1"),
    "date": ("from datetime import date, timedelta\ndef f(x): return date(2020, 1, 1) + timedelta(x + {m})", "from datetime import date, timedelta\nassert f(0) - date(2020, 1, 1) == timedelta({m})\nassert f(1) > f(0)"),
    "datetime": ("from datetime import *\ndef f(x): return datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours={m} % 12))) + x", "from datetime import *\nassert f(timedelta(1)).day == 2\nassert f(timedelta(0)).utcoffset() == timedelta(hours={m} % 12)"),
    "complex": ("def f(x): return complex(x, {m})", "assert f(1) == 1 + {m}j\nassert f(0).imag == {m}"),
    "a class": ("def f(x): return type(x)", "assert f(1) is int\nassert f('') == str and f([]) is list\nassert f({n}) != float"),
    "a class as an argument": ("def f(x, kind): return kind(x)", "assert f('{n}', int) == {n}\nassert f({n}, str) == '{n}'"),
    "slice": ("def f(x): return slice(x, {n})", "assert f(1) == slice(1, {n})\nassert f(0).stop == {n}"),
    "big int": ("def f(x): return x ** {n}", "assert f(3) == 3 ** {n}\nassert f(2).bit_length() == {n} + 1"),
    "nested": ("def f(x): return {'a': [(x, {1: {x}})], 'b': None}", "assert f({n}) == {'a': [({n}, {1: {{n}}})], 'b': None}"),
    "generator": ("def f(x):\n    for k in range(x): yield k * {m}", "assert list(f(3)) == [0, {m}, 2 * {m}]\nassert next(iter(f(1))) == 0"),
    "map and zip": ("def f(x): return zip(x, map(lambda v: v + {m}, x))", "assert list(f([1])) == [(1, 1 + {m})]\nassert dict(f([2])) == {2: 2 + {m}}"),
    "exception": ("def f(x):\n    if x < {n}: raise ValueError('small', x)\n    return x", "try:\n    f({n} - 1)\n    assert False\nexcept ValueError as e:\n    assert e.args == ('small', {n} - 1)\nassert f({n}) == {n}"),
    "own exception": ("class E(KeyError): pass\ndef f(x):\n    if x == {m}: raise E(x)\n    return x", "try: f({m})\nexcept KeyError as e: assert e.args[0] == {m}\nelse: assert False\nassert f({m} + 1) == {m} + 1"),
    "state": ("seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)", "assert f(1) == 1\nassert f(1) == 2\nassert [f(0) for _ in range({m})][-1] == {m} + 2"),
    "memo": ("from functools import lru_cache\n@lru_cache(None)\ndef f(n): return n if n < 2 else f(n - 1) + f(n - 2)", "assert f(10) == 55\nassert f({n} % 50 + 2) == f({n} % 50 + 1) + f({n} % 50)"),
    "sorts in place": ("def f(x): x.sort(key=lambda v: v % {m})", "x = [5, 3, 9, {n}]\ny = x\nassert f(x) is None\nassert y == sorted([5, 3, 9, {n}], key=lambda v: v % {m})"),
    "rotates in place": ("def f(x): x[:] = [list(r) for r in zip(*x[::-1])]", "x = [[1, 2], [3, {n}]]\nf(x)\nassert x == [[3, 1], [{n}, 2]]"),
    "fills a dict": ("def f(d, k): d[k] = d.get(k, 0) + {m}", "d = {}\nf(d, 'a')\nf(d, 'a')\nassert d == {'a': 2 * {m}}"),
    "moves zeros": ("def f(x):\n    k = 0\n    for i, v in enumerate(x):\n        if v:\n            x[k], x[i] = x[i], x[k]\n            k += 1", "x = [0, 1, 0, {n}]\nf(x)\nassert x == [1, {n}, 0, 0]"),
    "returns its argument": ("def f(x):\n    x.append({m})\n    return x", "x = []\nassert f(x) is x\nassert x == [{m}]"),
    "sqrt by hand": ("def f(x):\n    g = x\n    for _ in range({m} + 60): g = (g + x / g) / 2\n    return g", "import math\nassert math.isclose(f({n} + 1.0), math.sqrt({n} + 1))"),
    "files of its own": ("def f(x):\n    open('t.txt', 'w').write(str(x + {m}))\n    return open('t.txt').read()", "assert f(1) == str(1 + {m})"),
    "threads": ("import threading\ndef f(x):\n    out = []\n    t = [threading.Thread(target=out.append, args=(k,)) for k in range(x)]\n    [k.start() for k in t]; [k.join() for k in t]\n    return sorted(out)", "assert f({m} % 5) == list(range({m} % 5))"),
    "unittest": ("def f(x): return x + {n}", "import unittest\nT = unittest.TestCase()\nT.assertEqual(f(1), {n} + 1)\nT.assertRaises(TypeError, f, 'a')\nassert f(0) == {n}"),
}  # fmt: skip

LIMITED: dict[str, tuple[str, str]] = {
    "an object is returned": ("class A:\n    x = {n}\ndef f(): return A()", "assert f().x == {n}"),
    "a function is returned": ("def f(k): return lambda x: x + k", "assert f({n})(1) == {n} + 1"),
    "a callback is passed": ("def f(g, x): return [g(v) for v in x]", "assert f(lambda v: v + {n}, [1]) == [{n} + 1]"),
    "a class is called by the tests": ("class f:\n    def __init__(self, x): self.x = x", "assert f({n}).x == {n}"),
    "an object of the tests is passed": ("def f(a): return a.x", "class A: x = {n}\nassert f(A()) == {n}"),
    "an iterator is passed": ("def f(x): return sum(x)", "assert f(v for v in range({m})) == sum(range({m}))"),
    "an iterator in a result": ("def f(x): return [iter(x)]", "assert list(f([{n}])[0]) == [{n}]"),
    "an enum is returned": ("import enum\nclass C(enum.Enum): A = {n}\ndef f(): return C.A", "assert f().value == {n}"),
    "a zone is returned": ("from datetime import *\nclass Z(tzinfo):\n    def utcoffset(self, d): return timedelta({m} % 3 * 0)\ndef f(): return datetime(2020, 1, 1, tzinfo=Z())", "assert f().utcoffset().days == 0"),
    "a result is kept": ("kept = [{n}]\ndef f(): return kept", "a = f()\na.append(1)\nassert f() == [{n}, 1]"),
    "an argument is kept": ("kept = []\ndef f(x=None):\n    if x is not None: kept.append(x)\n    return kept[0]", "a = [{n}]\nf(a)\na.append(1)\nassert f() == [{n}, 1]"),
    "one list is passed twice": ("def f(x, y):\n    x.append({n})\n    return len(y)", "a = []\nassert f(a, a) == 1"),
    "a shared result": ("def f(x): return [x, x]", "a = f([{n}])\na[0].append(1)\nassert a[1] == [{n}, 1]"),
    "an endless iterator": ("import itertools\ndef f(): return itertools.count({n})", "assert next(f()) == {n}"),
    "stop iteration": ("def f(): raise StopIteration({n})", "try: f()\nexcept StopIteration as e: assert e.value == {n}"),
    "an exception's own class": ("class E(Exception): pass\ndef f(): raise E({n})", "try: f()\nexcept Exception as e: assert type(e).__name__ == 'E'"),
    "the tests' recursion": ("def f(x): return x", "a = []\na.append(a)\nassert f(a) is a"),
    "a subclass": ("class I(int): pass\ndef f(): return I({n})", "assert f() == {n}"),
    "an array": ("import array\ndef f(): return array.array('l', [{n}])", "assert f()[0] == {n}"),
}  # fmt: skip
"""Families that docs/sandbox.md names as limits of the judge: they pass in one process, and not in two."""


def case(family: str, seed: int, *, mutated: bool = False) -> Judged:
    """A candidate and its tests."""
    draw = random.Random(f"{family} {seed}")
    candidate, tests = (FAMILIES | LIMITED)[family]
    for name, value in (("{n}", draw.randint(2, 90)), ("{m}", draw.randint(1, 12))):
        candidate, tests = candidate.replace(name, str(value)), tests.replace(name, str(value))
    candidate = mutant(candidate, draw) if mutated else candidate
    return Judged(candidate=candidate + "\n", tests=tests + "\n", calls=("f",), limits=LIMITS)


def human_eval() -> list[dict[str, str]]:
    folder = os.environ.get("COTERIE_TEST_DATA")
    if not folder:
        return []
    with gzip.open(Path(folder) / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def human_eval_case(problem: dict[str, str], *, seed: int | None = None) -> Judged:
    """The canonical solution, or with a seed a mutated one. The prompt's helpers may be called by the tests."""
    source = problem["prompt"] + problem["canonical_solution"]
    if seed is not None:
        source = mutant(source, random.Random(seed))
    defined = ast.parse(problem["prompt"] + "    pass\n").body
    calls = tuple(node.name for node in defined if isinstance(node, ast.FunctionDef))
    tests = f"{problem['test']}\ncheck({problem['entry_point']})\n"
    return Judged(candidate=source, tests=tests, calls=calls, limits=LIMITS)


def mutant(source: str, draw: random.Random) -> str:
    """The source with another number or comparison in one place; unchanged if it has neither."""
    tree = ast.parse(source)
    places = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        or (isinstance(node, ast.Constant) and type(node.value) is int and node.value < 1000)
    ]
    if places:
        place = draw.choice(places)
        if isinstance(place, ast.Compare):
            place.ops[0] = draw.choice([ast.Lt(), ast.GtE(), ast.Eq(), ast.NotEq()])
        else:
            place.value += draw.choice([-1, 1])
    return ast.unparse(tree) + "\n"


PLAIN = """\
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (2, 3))
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
sys.modules["solution"] = sys.modules["__main__"]
"""


def in_one_process(judged: Judged) -> str:
    """A program whose exit code is 0 if all tests hold."""
    return f"{PLAIN}\n{judged.candidate}\n{judged.tests}\n"


def families(names: Sequence[str], count: int) -> list[tuple[str, Judged]]:
    """`count` cases of the families in turn; every third is mutated."""
    out = []
    for index in range(count):
        name, seed = names[index % len(names)], index // len(names)
        out.append((name, case(name, seed, mutated=seed % 3 == 2)))
    return out
