"""Programs do in the sandboxes what they do under plain CPython: streams, names, and modules of their own."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import pytest

from coterie.backends.sandboxes.inside.program import STARTUP
from coterie.core.protocols import Limits, Program, Ran, Sandbox
from tests.backends.sandboxes.fusion_server import FusionServer
from tests.backends.sandboxes.plainly import Plain, bare_python, run_plainly
from tests.backends.sandboxes.support import inside
from tests.backends.sandboxes.test_fusion import using

LIMITS = Limits(cpu_seconds=4, wall_seconds=15, memory_mb=512, output_kb=64)
STREAMS = "import sys\nprint([repr(line) for line in sys.stdin], sys.stdin, sys.stdout, sys.stderr)"
OTHER = "import threading, random, json\nprint(getattr(random, 'mine', 0), getattr(json, 'mine', 0))\n"
QUEUE = (
    b"mine = 1\nclass Queue:\n    pass\nclass Empty(Exception):\n    pass\nLifoQueue = SimpleQueue = Queue\n"
)
PURE = b"from math import *\nmine = 7\ndef random():\n    return .5\n"

CASES = {
    "lines of stdin": Program(code=STREAMS, stdin="a\r\nb\rc\n\r\n\nd"),
    "input() keeps the \\r": Program(code="print([input(), input(), input()])", stdin="a\r\nb\r\rc\nd\r"),
    "line ends that are printed": Program(code="print('a\\r\\nb', end='\\r\\n')\nopen('x', 'w')"),
    "exit and quit": Program(code="print('so')\n(exit if len('ab') == 2 else quit)(4)"),
    "the names at the start": Program(code="print(sorted(dir()), sorted(dir(__builtins__)))"),
    "names that aren't imported": Program(code="import sys\nprint({'queue', 'json'} & {*sys.modules})"),
    "a submodule of typing": Program(code="import typing, sys\nprint('typing.io' in sys.modules)"),
    "C code that looks for its module": Program(
        code="import json\ntry: json.loads('{')\nexcept json.JSONDecodeError as error: print(error)"
    ),
    "reloaded": Program(code="import importlib, random\nprint(importlib.reload(random) is random)"),
    "imported anew": Program(
        code="import sys, bisect\na = bisect\ndel sys.modules['bisect']\nimport bisect\nprint(a is bisect)"
    ),
    "a spec": Program(
        code="import importlib.util as u, collections.abc, json, random\n"
        "print(u.find_spec('queue').name, json.__spec__.name, random.__spec__.loader.name)\n"
        "import inspect, textwrap\nprint(len(inspect.getsource(textwrap.dedent)) > 50)"
    ),
    "numbers and decimal": Program(
        code="import numbers, decimal\nprint(isinstance(decimal.Decimal(1), numbers.Number))",
        files={"queue.py": QUEUE},
    ),
    "threads are waited for": Program(
        code="import threading, time\ndef f():\n    time.sleep(.05)\n    print('late')\n"
        "threading.Thread(target=f).start()",
        files={"queue.py": QUEUE},
    ),
    "the file of stdin": Program(
        code="for line in open('/dev/stdin'): print(sum(map(int, line.split())))", stdin="1 2\n3\n"
    ),
    "queue.py": Program(code=f"import queue\nprint(queue.mine)\n{OTHER}", files={"queue.py": QUEUE}),
    "queue.py behind the library": Program(
        code="import concurrent.futures.thread as t\nprint(t.queue.mine)", files={"queue.py": QUEUE}
    ),
    "random.py": Program(
        code=f"import random\nprint(random.random(), random.mine)\n{OTHER}", files={"random.py": PURE}
    ),
    "random.py behind the library": Program(
        code="import tempfile, statistics", files={"random.py": b"mine = 1\n"}
    ),
    "math.py": Program(code="import math\nprint(math.mine)\nimport random", files={"math.py": b"mine = 2\n"}),
    "os.py": Program(code="import os\nprint(hasattr(os, 'mine'))", files={"os.py": b"mine = 1"}),
    "sys.py, time.py": Program(
        code="import sys, time\nprint(hasattr(sys, 'mine'), hasattr(time, 'mine'))",
        files={"sys.py": b"mine = 1", "time.py": b"mine = 1"},
    ),
    "json/__init__.py": Program(
        code="import json, random\nprint(json.mine, json.loads('1'))",
        files={"json/__init__.py": b"mine = 1\nfrom .d import loads", "json/d.py": b"loads = float"},
    ),
    "a folder json of data": Program(
        code="import json\nprint(json.load(open('json/a.json')))", files={"json/a.json": b"[1]"}
    ),
    "files of data with a module's name": Program(
        code="import random\nprint(open('random.txt').read())\nrandom.seed(1)\nprint(random.random())",
        files={"random.txt": b"x", "queue": b"y"},
    ),
    "judging.py, inside.py": Program(
        code="import judging, inside\nprint(judging.x + inside.x)",
        files={"judging.py": b"x = 1", "inside/__init__.py": b"x = 2"},
    ),
    "no judging": Program(code="try:\n    import judging\nexcept ImportError as e:\n    print(e)"),
    "written at run time": Program(
        code="import threading, re, enum\nopen('queue.py', 'w').write('mine = 3')\n"
        "import importlib; importlib.invalidate_caches()\nimport queue, functools\n"
        "print(queue.mine, isinstance(re.I, enum.Flag))\n"
        "import enum as e, re as r\nprint(e is enum, r is re, isinstance(re.I, e.Flag))"
    ),
    "written at run time, behind the library": Program(
        code="open('bisect.py', 'w').write('bisect = 5\\ninsort = bisect_left = bisect_right = 1')\n"
        "import importlib; importlib.invalidate_caches()\nimport random\nprint(random._bisect)"
    ),
    "in a folder put before the library": Program(
        code="import sys\nsys.path.insert(0, 'lib')\nimport queue\nprint(queue.mine)",
        files={"lib/queue.py": QUEUE},
    ),
    "in a folder behind it": Program(
        code="import sys\nsys.path.append('lib')\nimport queue\nprint(hasattr(queue, 'mine'))",
        files={"lib/queue.py": QUEUE},
    ),
}  # fmt: skip


NEEDS_THE_LIBRARY = {name for name, program in CASES.items() if "import" in program.code} - {"lines of stdin"}


def last_line(stderr: str) -> str:
    """Of a traceback, the exception, without the folder of the run."""
    return re.sub(r"/\S*/(?=work/)", "", stderr.splitlines()[-1]) if stderr else ""


@pytest.mark.parametrize("where", ["auto", "off", "fusion"])
def test_programs_do_what_they_do_under_plain_cpython(where: str) -> None:
    cases = dict(CASES)
    if where == "fusion":  # a plain interpreter runs them there
        cases = {name: program for name, program in CASES.items() if program.stdin or "queue" in name}
    if where == "off" and not others_may_read(os.__file__):
        # The programs' user, nobody, can't read the library that this interpreter has.
        cases = {name: program for name, program in CASES.items() if name not in NEEDS_THE_LIBRARY}

    async def all_of(sandbox: Sandbox) -> list[Ran]:
        return [await sandbox.run(program) for program in cases.values()]

    if where == "fusion":
        with FusionServer(python=bare_python()) as server:
            done = using(server, all_of, limits=LIMITS, grace_seconds=20, margin_seconds=20)
    else:
        done = inside(all_of, namespaces=where, limits=LIMITS)
    differs = {}
    for name, ran in zip(cases, done, strict=True):
        plain = plainly(name)
        outcome = (ran.exit_code, ran.stdout, last_line(ran.stderr))
        expected = (plain.exit_code, plain.stdout, last_line(plain.stderr))
        if outcome != expected:
            differs[name] = (outcome, expected)
    assert differs == {}


@functools.cache
def plainly(name: str) -> Plain:
    return run_plainly(CASES[name])


def others_may_read(path: str) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in Path(path).resolve().parents)


def test_the_modules_of_a_new_interpreter_are_what_it_says() -> None:
    modules = run_plainly(Program(code="import sys; print(*sys.modules)")).stdout.split()
    assert set(modules) == STARTUP
