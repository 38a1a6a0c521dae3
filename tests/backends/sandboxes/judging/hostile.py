"""Programs that want the judge to say that they pass. None of them computes what the tests ask for.

Each has the protection that stops it, in the words of the table in docs/sandbox.md.
"""

from __future__ import annotations

from typing import NamedTuple

TESTS = """
def check(candidate):
    for n in range(3):
        assert candidate(n) == n * n + 1
    assert candidate(3) in {10}
    assert {candidate(4): 1} == {17: 1}
    assert not candidate(5) != 26
    assert all(map(lambda n: candidate(n) > n, range(6, 8)))
    assert len(str(candidate(10))) == 3 and bool(candidate(10))
    try:
        candidate(-1)
        assert False, "a negative number is refused"
    except ValueError:
        assert True

check(f)
"""

TOTAL = 8

HONEST = """
def f(n):
    if n < 0:
        raise ValueError(n)
    return n * n + 1
"""

PROCESS = "another process"
REBUILT = "rebuilt data"
PROTOCOL = "one answer a question"
LOST = "an end is final"
BOUNDS = "bounds of the codec"
REPORT = "a report of its own"
LIMITS = "limits of the run"


class Hostile(NamedTuple):
    name: str
    protection: str
    code: str


_RETURNS = """
def f(n):
    return Lie()
"""

PROGRAMS = [
    Hostile("patches the builtins", PROCESS, """
import builtins
builtins.all = builtins.any = builtins.isinstance = lambda *a: True
builtins.len = lambda x: 3
builtins.AssertionError = ValueError
def f(n):
    return 0
"""),
    Hostile("patches unittest and operator", PROCESS, """
import unittest, operator
unittest.TestCase.assertEqual = unittest.TestCase.fail = lambda *a, **k: None
operator.eq = lambda a, b: True
def f(n):
    return 0
"""),
    Hostile("replaces the judge in sys.modules", PROCESS, """
import sys, types
class Judge(types.ModuleType):
    def __getattr__(self, name):
        return lambda *a, **k: True
for name in [*sys.modules]:
    if "judg" in name:
        sys.modules[name] = Judge(name)
sys.modules["judging.test_side"] = sys.modules["tests"] = Judge("judging.test_side")
def f(n):
    return 0
"""),
    Hostile("searches the garbage collector for the tests", PROCESS, """
import gc, types
def f(n):
    for found in gc.get_objects():
        code = getattr(found, "__code__", None) if type(found) is types.FunctionType else None
        if code is not None and (code.co_name == "check" or code.co_filename == "tests.py"):
            return n * n + 1
    return 0
"""),
    Hostile("walks the frames for the tests", PROCESS, """
import sys
def f(n):
    frame, word = sys._getframe(), "".join(["as", "sert", " "])
    while frame is not None:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            if type(value) is str and word in value and value != word:
                return n * n + 1
        frame = frame.f_back
    return 0
"""),
    Hostile("reads files for the tests", PROCESS, """
import os, sys
def f(n):
    places = [os.getcwd(), os.path.dirname(sys.argv[0]), "/proc/self/fd"]
    for folder in filter(os.path.isdir, places):
        for name in os.listdir(folder):
            try:
                fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK)
                text = os.pread(fd, 1 << 20, 0)
            except OSError:
                continue
            if b"".join([b"def check", b"(candidate)"]) in text:
                return n * n + 1
    return 0
"""),
    Hostile("an object that equals everything", REBUILT, """
class Lie:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __gt__(self, other): return True
    def __lt__(self, other): return False
    def __hash__(self): return hash(10)
    def __str__(self): return "101"
""" + _RETURNS),
    Hostile("an object with the hash of what is expected", REBUILT, """
import sys
class Lie:
    def __hash__(self): return 17
    def __eq__(self, other): return isinstance(other, int)
""" + _RETURNS),
    Hostile("an object that is true and has any length", REBUILT, """
class Lie:
    def __bool__(self): return True
    def __len__(self): return 3
    def __getattr__(self, name): return Lie()
    def __call__(self, *a): return True
""" + _RETURNS),
    Hostile("a subclass of int", REBUILT, """
class Lie(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __gt__(self, other): return True
    __hash__ = int.__hash__
""" + _RETURNS),
    Hostile("a subclass of str", REBUILT, """
class Lie(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __gt__(self, other): return True
    def __hash__(self): return 17
""" + _RETURNS),
    Hostile("a list whose items lie", REBUILT, """
class Lie(list):
    def __eq__(self, other): return True
    def __gt__(self, other): return True
def f(n):
    return [Lie([Lie()])]
"""),
    Hostile("a dict whose keys lie", REBUILT, """
class Key(str):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def f(n):
    return {Key(): 1}
"""),
    Hostile("says that its class is int", REBUILT, """
class Lie:
    __class__ = int
    def __eq__(self, other): return True
    def __hash__(self): return 10
""" + _RETURNS),
    Hostile("a metaclass that equals every type", REBUILT, """
class Meta(type):
    def __eq__(self, other): return True
    def __hash__(self): return hash(int)
    def __instancecheck__(self, other): return True
class Lie(metaclass=Meta):
    def __eq__(self, other): return True
    def __hash__(self): return 10
""" + _RETURNS),
    Hostile("an object that pickle would execute", REBUILT, """
class Lie:
    def __reduce__(self):
        return exec, ("import os; os._exit(0)",)
""" + _RETURNS),
    Hostile("a subclass of Decimal", REBUILT, """
import decimal
class Lie(decimal.Decimal):
    def __eq__(self, other): return True
    def __gt__(self, other): return True
    def __hash__(self): return 10
""" + _RETURNS),
    Hostile("a named tuple that equals everything", REBUILT, """
import collections
class Lie(collections.namedtuple("Lie", "x", defaults=[0])):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __gt__(self, other): return True
    def __hash__(self): return 17
    def __str__(self): return "101"
""" + _RETURNS),
    Hostile("a date that equals everything", REBUILT, """
import datetime
class Lie(datetime.date):
    def __new__(cls): return super().__new__(cls, 2020, 1, 1)
    def __eq__(self, other): return True
    def __gt__(self, other): return True
    def __hash__(self): return 10
""" + _RETURNS),
    Hostile("an exception that lies about itself", REBUILT, """
class Lie(AssertionError):
    def __str__(self): raise SystemExit(0)
    def __eq__(self, other): return True
    args = property(lambda self: (object(),))
def f(n):
    raise Lie
"""),
    Hostile("ends every loop with StopIteration", REBUILT, """
def f(n):
    raise StopIteration
"""),
    Hostile("sends an iterator that lies", REBUILT, """
class Lie:
    def __iter__(self): return self
    def __next__(self): raise StopIteration
    def __eq__(self, other): return True
    def __hash__(self): return 10
""" + _RETURNS),
    Hostile("patches the codec to send a set with every answer twice", BOUNDS, """
import struct, sys
plain = sys.modules["judging.plain"]
def pack(value):
    return b"S" + struct.pack(">I", 2) + b"TT"
def f(n):
    plain.pack = pack
    return 0
"""),
    Hostile("patches the codec to send code", BOUNDS, """
import marshal, sys
plain = sys.modules["judging.plain"]
def f(n):
    plain.pack = lambda value: marshal.dumps(compile("print(1)", "x", "exec"))
    return 0
"""),
    Hostile("nests deeper than the stack", BOUNDS, """
def f(n):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    return deep
"""),
    Hostile("a list that contains itself", BOUNDS, """
def f(n):
    endless = []
    endless.append(endless)
    return endless
"""),
    Hostile("an endless generator", BOUNDS, """
def f(n):
    while True:
        yield n * n + 1
"""),
    Hostile("a huge answer", BOUNDS, """
def f(n):
    return "x" * (1 << 26)
"""),
    Hostile("announces a frame of 4 GB", BOUNDS, """
import os
def f(n):
    os.write(3, b"\\xff" * 4)
    return 0
"""),
    Hostile("announces 2^32 items", BOUNDS, """
import os
def f(n):
    os.write(3, b"\\0\\0\\0\\5l\\xff\\xff\\xff\\xff")
    return 0
"""),
    Hostile("a number with a huge exponent", BOUNDS, """
import decimal
def f(n):
    return decimal.Decimal("1E+999999999")
"""),
    Hostile("named tuples of a hundred classes", BOUNDS, """
import collections
def f(n):
    return [collections.namedtuple(f"P{k}", "x")(0) for k in range(100)] * 100
"""),
    Hostile("forges changes of what it wasn't given", BOUNDS, """
import sys
changes = sys.modules["judging.changes"]
changes.Received.changes = lambda self: [(n, [n], {0: 0}) for n in range(3)]
def f(n):
    return 0
"""),
    Hostile("an int that fills the memory", LIMITS, """
def f(n):
    return 10 ** 10 ** 8
"""),
    Hostile("writes garbage into the channel", PROTOCOL, """
import os
def f(n):
    os.write(3, b"\\0\\0\\0\\4true")
    return 0
"""),
    Hostile("answers before it is asked", PROTOCOL, """
import sys
plain = sys.modules["judging.plain"]
plain.send(3, "ready")
for n in range(20):
    plain.send(3, (b"", "value", n * n + 1, []))
def f(n):
    return 0
"""),
    Hostile("answers twice", PROTOCOL, """
import sys
plain = sys.modules["judging.plain"]
def f(n):
    nonce = sys._getframe(2).f_locals["nonce"]
    plain.send(3, (nonce, "value", 0, []))
    plain.send(3, (nonce, "value", (n + 1) * (n + 1) + 1, []))
    return 0
"""),
    Hostile("answers later, from a thread", PROTOCOL, """
import sys, threading, time
plain = sys.modules["judging.plain"]
def late(nonce, n):
    time.sleep(0.01)
    plain.send(3, (nonce, "value", n * n + 1, []))
def f(n):
    threading.Thread(target=late, args=(sys._getframe(2).f_locals["nonce"], n)).start()
    time.sleep(0.03)
    return 0
"""),
    Hostile("forks, and both answer", PROTOCOL, """
import os
def f(n):
    os.fork()
    return 0
"""),
    Hostile("calls back into the judge", PROTOCOL, """
import sys
plain = sys.modules["judging.plain"]
def f(n):
    nonce = sys._getframe(2).f_locals["nonce"]
    plain.send(3, (nonce, "held", n, []))
    return 0
"""),
    Hostile("os._exit(0) before the asserts", LOST, """
import os
os._exit(0)
"""),
    Hostile("sys.exit(0) before the asserts", LOST, """
import sys
sys.exit(0)
"""),
    Hostile("os._exit(0) in a call", LOST, """
import os
def f(n):
    os._exit(0)
"""),
    Hostile("SystemExit in a call", PROCESS, """
def f(n):
    raise SystemExit(0)
"""),
    Hostile("closes the channel and stays", LOST, """
import os, time
def f(n):
    os.close(3)
    time.sleep(60)
"""),
    Hostile("closes every file", LOST, """
import os
def f(n):
    os.closerange(0, 64)
    return 0
"""),
    Hostile("answers one question and ends well", LOST, """
import atexit, os
atexit.register(print, "OK")
def f(n):
    if n:
        os.abort()
    return 1
"""),
    Hostile("kills itself", LOST, """
import os, signal
def f(n):
    os.kill(os.getpid(), signal.SIGKILL)
"""),
    Hostile("prints a report", REPORT, """
import sys
LINE = '{"total": 8, "passed": 8, "failures": [], "lost": ""}'
def f(n):
    for stream in (sys.stdout, sys.stderr):
        print(LINE, file=stream, flush=True)
    return 0
"""),
    Hostile("writes a report into every file", REPORT, """
import os
LINE = b'{"started": true}\\n{"total": 8}\\n{"passed": 8, "failures": [], "lost": ""}\\n'
def f(n):
    for fd in [1, 2, *range(4, 64)]:
        try:
            os.write(fd, LINE)
        except OSError:
            pass
    return 0
"""),
    Hostile("loops in a call, deaf to signals", LIMITS, """
import signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
def f(n):
    while True:
        pass
"""),
    Hostile("sleeps for ever", LIMITS, """
import time
def f(n):
    time.sleep(1e6)
"""),
    Hostile("lets a file of the tests wait in a regular expression", LIMITS, """
import re
def f(n):
    return len(re.match("(a+)+$", "a" * 40 + "b") or "x") + n * n
"""),
]  # fmt: skip
