"""Problems of the tests: functions in two parts, and programs."""

from __future__ import annotations

from typing import Any

ADD: dict[str, Any] = {
    "id": "add",
    "prompt": 'def f(x, y):\n    """The sum of the squares of x and y."""\n',
    "entry_point": "f",
    "tests": "def check(candidate):\n    assert candidate(1, 2) == 5\n    for v in range(3):\n"
    "        assert candidate(v, 0) == v * v\n",
    "solution": "def f(x, y):\n    return x * x + y * y\n",
    "aux_solution": "def aux(x):\n    return x * x\n",
    "main_solution": "def f(x, y):\n    return aux(x) + aux(y)\n",
}
SQUARES: dict[str, Any] = {**ADD, "tests": "".join(f"assert f({n}, 0) == {n * n}\n" for n in range(1, 7))}
SHIFT: dict[str, Any] = {
    "id": "shift",
    "prompt": "import math\n\ndef encode(s):\n    return s[1:] + s[:1]\n\n"
    'def decode(s):\n    """The text whose code by encode is s."""\n',
    "entry_point": "decode",
    "tests": "import random\nfor size in range(1, 6):\n    text = 'abcdefgh'[:size]\n"
    "    assert decode(encode(text)) == text\n",
    "solution": "def decode(s):\n    return s[-1:] + s[:-1]\n",
    "aux_solution": "def aux(s):\n    return s[-1:]\n",
    "main_solution": "def decode(s):\n    return aux(s) + s[:-1]\n",
}
"""Its tests call a helper that the prompt gives, as HumanEval/38 does."""
ROOT: dict[str, Any] = {
    "id": "root",
    "prompt": "import math\n\ndef value(c, x):\n"
    "    return sum(a * math.pow(x, i) for i, a in enumerate(c))\n\n"
    'def root(c):\n    """A root of a line c[0] + c[1] x."""\n',
    "entry_point": "root",
    "tests": "def check(candidate):\n    for a in range(-3, 4):\n        for b in (1, 2):\n"
    "            assert abs(value([a, b], candidate([a, b]))) < 1e-4\n",
    "solution": "def root(c):\n    return -c[0] / c[1]\n",
}
"""Floats, a tolerance and a helper of the prompt, as in HumanEval/32."""
HALF: dict[str, Any] = {
    "id": "half",
    "prompt": 'def half(x):\n    """Half of x."""\n',
    "entry_point": "half",
    "tests": "assert half(3) == 1.5\nassert half(0) == 0\n",
    "solution": "def half(x):\n    return x / 2\n",
}
SUM_LINES: dict[str, Any] = {
    "id": "sum",
    "prompt": "Read numbers, one a line. Print their sum.",
    "cases": [["1\n2\n", "3\n"], ["", "0\n"], ["-1\n1\n", "0\n"]],
    "solution": "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n",
}
