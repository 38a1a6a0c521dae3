"""Small tasks with right and wrong solutions, `===` between them."""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    name: str
    tests: str
    right: str
    wrong: str


TASKS = [
    Task(
        "sum of squares",
        """
assert f([1, 2, 3]) == 14
assert f([]) == 0
for n in range(4):
    assert f([n]) == n * n
""",
        """
def f(xs):
    return sum(x * x for x in xs)
===
import functools
f = lambda xs: functools.reduce(lambda a, x: a + x * x, xs, 0)
""",
        """
def f(xs):
    return sum(xs)
===
def f(xs):
    return sum(x * x for x in xs) or None
===
def f(xs):
    return xs[0]
""",
    ),
    Task(
        "close to a root",
        """
def check(candidate):
    for n in (0, 2, 2.25, 1e6):
        assert abs(candidate(n) ** 2 - n) < 1e-6 * (1 + n)
check(f)
""",
        """
def f(x):
    return x ** .5
===
from math import sqrt as f
""",
        """
def f(x):
    return x / 2
===
def f(x):
    return float("nan")
===
def f(x):
    return round(x ** .5, 1)
""",
    ),
    Task(
        "words by length",
        """
assert f("a bb cc") == {1: ["a"], 2: ["bb", "cc"]}
assert f("") == {}
assert sorted(f("x yy")) == [1, 2]
""",
        """
from collections import defaultdict
def f(s):
    d = defaultdict(list)
    for w in s.split():
        d[len(w)].append(w)
    return d
===
def f(s):
    return {len(w): [v for v in s.split() if len(v) == len(w)] for w in s.split()}
""",
        """
def f(s):
    return {len(w): [w] for w in s.split()}
===
def f(s):
    return {str(len(w)): w for w in s.split()}
""",
    ),
    Task(
        "a positive number only",
        """
def check():
    assert f(1) == 1
    try:
        f(0)
        assert False, "zero"
    except ValueError as error:
        assert "positive" in str(error)
check()
assert isinstance(f(2), int)
""",
        """
def f(n):
    if n < 1:
        raise ValueError("not positive")
    return n
===
class Bad(ValueError):
    pass
def f(n):
    if n <= 0:
        raise Bad(f"{n} is not positive")
    return n
""",
        """
def f(n):
    return n
===
def f(n):
    raise ValueError("positive")
===
def f(n):
    assert n > 0, "positive"
    return n
===
def f(n):
    if n < 1:
        raise ValueError
    return float(n)
""",
    ),
    Task(
        "pairs",
        """
assert list(f([1, 2, 3])) == [(1, 2), (2, 3)]
assert set(f("ab")) == {("a", "b")}
assert len(list(f([]))) == 0
""",
        """
def f(xs):
    return zip(xs, xs[1:])
===
def f(xs):
    for i in range(len(xs) - 1):
        yield xs[i], xs[i + 1]
===
def f(xs):
    return [(a, b) for a, b in zip(xs, xs[1:])]
""",
        """
def f(xs):
    return [[a, b] for a, b in zip(xs, xs[1:])]
===
def f(xs):
    return None
===
def f(xs):
    return map(str, xs)
""",
    ),
    Task(
        "nothing at all",
        """
assert f() is None
assert not f()
""",
        """
def f():
    pass
""",
        """
def f():
    return 0
===
def g():
    pass
===
def f(:
===
raise SystemExit
===
def f():
    exit()
""",
    ),
]
