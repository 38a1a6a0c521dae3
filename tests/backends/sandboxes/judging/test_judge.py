"""The judge's verdicts on candidates and tests."""

from __future__ import annotations

import pytest

from coterie.backends.sandboxes.judging.host import REPORT_BYTES, programs, verdict
from coterie.core.errors import SystemFault
from coterie.core.protocols import Ran
from tests.backends.sandboxes.judging.support import LIMITS, by_pair, judged

ADD = "def f(x, y=1):\n    return x + y\n"
SAME = "def f(x):\n    return x\n"


def judge(candidate, tests, *calls, **fields):
    return by_pair(judged(candidate, tests, *calls, **fields))


def errors(verdict):
    return [(failure.line, failure.error) for failure in verdict.failures]


def test_every_assert_is_a_test_and_a_failure_does_not_end_the_others():
    outcome = judge(
        ADD, "for i in range(3):\n    assert f(i) == i + 1\nassert f(1) == 3, 'no'\nassert f('a')"
    )
    assert (outcome.passed, outcome.total, outcome.ok) == (1, 3, False)
    assert errors(outcome) == [(3, "AssertionError"), (4, "TypeError")]
    assert outcome.failures[0].source == "assert f(1) == 3, 'no'" and outcome.failures[0].message == "no"
    assert outcome.candidate == ""


def test_a_test_must_hold_every_time():
    assert judge(SAME, "for i in (1, 2, 0):\n    assert f(i)").passed == 0


def test_an_assert_that_nothing_executes_has_not_passed():
    outcome = judge(SAME, "for i in f([]):\n    assert i\nassert True")
    assert errors(outcome) == [(2, "NotReached")] and outcome.passed == 1


def test_an_exception_outside_asserts_fails_what_was_not_reached():
    outcome = judge(SAME, "assert f(1)\nx = f([])[0]\nassert f(x)")
    assert outcome.passed == 1
    assert errors(outcome) == [(3, "NotReached")] and "IndexError" in outcome.failures[0].message


@pytest.mark.parametrize("end", ["exit(0)", "sys.exit(0)", "os._exit(0)", "quit()"])
def test_a_test_that_exits_fails_and_the_others_count(end):
    outcome = judge(SAME, f"import os, sys\nassert f(1)\nassert {end}\nassert f(2)")
    assert (outcome.passed, outcome.total) == (2, 3)
    assert errors(outcome) == [(3, "SystemExit")]


def test_exceptions_arrive_as_the_builtin_type_that_they_are():
    candidate = """
class Own(KeyError): pass
class Odd(Exception): pass
def f(kind):
    if kind == 1: raise Own("key")
    if kind == 2: raise Odd(object())
    if kind == 3: raise UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")
    if kind == 4: open("/nowhere")
    raise ValueError("negative", 3)
"""
    tests = """
import unittest
def check(kind, expected, args=None):
    try:
        f(kind)
        assert False
    except expected as error:
        assert type(error) is expected
        assert args is None or error.args == args
check(1, KeyError, ("key",))
check(2, Exception)
check(3, UnicodeDecodeError)
check(4, FileNotFoundError)
check(5, ValueError, ("negative", 3))
unittest.TestCase().assertRaises(ValueError, f, 5)
"""
    assert judge(candidate, tests).ok


def test_a_place_that_must_not_be_reached_fails_where_it_is():
    tests = (
        "def check():\n    try:\n        f(1)\n        assert False\n    except ValueError:\n        pass\n"
    )
    assert errors(judge(SAME, tests + "check()")) == [(4, "AssertionError")]
    assert errors(judge(SAME, tests)) == [(4, "NotReached")]
    assert judge("def f(x): raise ValueError", tests + "check()").ok


def test_results_are_copies_and_arguments_are_changed_in_place():
    candidate = "kept = []\ndef f(x):\n    x.append(1)\n    kept.append(0)\n    return kept\n"
    tests = "x = []\ny = f(x)\nassert x == [1]\nassert y == [0]\ny.append(2)\nassert f(x) == [0, 0]"
    assert judge(candidate, tests).ok


IN_PLACE = {
    "a list is sorted": ("x.sort()", "x = [3, 1, 2]\ny = x\nassert f(x) is None\nassert y == [1, 2, 3]"),
    "it is returned": ("x.reverse()\n    return x", "x = [1, 2]\nassert f(x) is x\nassert x == [2, 1]"),
    "an inner list": ("x[1].append(4)", "a = [2]\nx = [[1], a]\nf(x)\nassert a == [2, 4] and x[1] is a"),
    "inner lists change places": (
        "x.reverse()",
        "a, b = [1], [2]\nx = [a, b]\nf(x)\nassert x[0] is b and x[1] is a\nassert (a, b) == ([1], [2])",
    ),
    "a list in a tuple": ("x[0].clear()", "a = [1]\nf((a, 2))\nassert a == []"),
    "a dict": ("x['b'] = x.pop('a') + 1", "x = {'a': 1}\nf(x)\nassert x == {'b': 2}"),
    "a dict's values": ("x['a'][0] = 5", "a = [1]\nf({'a': a})\nassert a == [5]"),
    "a dict's order": ("x['a'] = x.pop('a')", "x = {'a': 1, 'b': 2}\nf(x)\nassert [*x] == ['b', 'a']"),
    "a set": ("x.add(3); x.discard(1)", "x = {1, 2}\nf(x)\nassert x == {2, 3}"),
    "a bytearray": ("x[0] = 66; x += b'!'", "x = bytearray(b'A')\nf(x)\nassert x == b'B!'"),
    "a deque": (
        "x.rotate(1); x.append(9)",
        "from collections import deque\nx = deque([1, 2, 3], 3)\nf(x)\nassert x == deque([1, 2, 9], 3)",
    ),
    "a Counter": (
        "x.update('ab')",
        "from collections import Counter\nx = Counter('a')\nf(x)\nassert x == Counter('aab')",
    ),
    "an OrderedDict": (
        "x.move_to_end('a')",
        "from collections import OrderedDict\nx = OrderedDict(a=1, b=2)\nf(x)\nassert [*x] == ['b', 'a']",
    ),
    "a defaultdict": (
        "x['k'].append(1)",
        "import collections as c\nx = c.defaultdict(list)\nf(x)\nassert x == {'k': [1]} and x['l'] == []",
    ),
    "by keyword": ("x.append(1)", "a = []\nf(x=a)\nassert a == [1]"),
    "before an exception": (
        "x.append(1); raise ValueError",
        "a = []\ntry:\n    f(a)\nexcept ValueError: pass\nassert a == [1]",
    ),
    "it holds itself": ("x.append(x)", "a = []\nf(a)\nassert a[0] is a"),
    "new lists in it": ("x[:] = [[1], {2: [3]}]", "a = [0]\nf(a)\nassert a == [[1], {2: [3]}]"),
    "nothing": ("x.append(1); x.pop()", "a = [[]]\nb = a[0]\nf(a)\nassert a == [[]] and a[0] is b"),
}  # fmt: skip


def test_what_a_call_changes_is_changed_for_the_tests():
    bad = {}
    for name, (body, tests) in IN_PLACE.items():
        outcome = judge(f"def f(x):\n    {body}\n", tests)
        if not outcome.ok:
            bad[name] = outcome
    assert bad == {}


def test_a_change_that_can_not_cross_fails_its_own_test_only():
    candidate = "def f(x):\n    x.append(f if x else 1)\n    return 1"
    outcome = judge(candidate, "a = []\nassert f(a) == 1\nassert f(a) == 1\nassert a == [1]")
    assert (outcome.passed, errors(outcome)) == (2, [(3, "NotPlainData")])
    assert "function" in outcome.failures[0].message


def test_a_factory_that_can_not_cross_is_refused_in_an_argument_and_lost_in_a_result():
    candidate = "from collections import defaultdict\ndef f(d): return d['k']\n"
    candidate += "def g(): return defaultdict(lambda: 1, a=2)\n"
    tests = "from collections import defaultdict\nassert f(defaultdict(int)) == 0\nassert g() == {'a': 2}\n"
    outcome = judge(candidate, tests + "assert f(defaultdict(lambda: 5)) == 5\n", "f", "g")
    assert errors(outcome) == [(4, "NotPlainData")] and "factory" in outcome.failures[0].message


def test_named_tuples_with_renamed_fields_cross_both_ways():
    candidate = "from collections import namedtuple\nN = namedtuple('N', 'a class a', rename=True)\n"
    candidate += "N.__name__ = 'class'\ndef f(x=None): return N(1, 2, x)\n"
    tests = "from collections import namedtuple\nN = namedtuple('N', 'a class a', rename=True)\n"
    assert judge(candidate, tests + "assert f(3)._2 == 3\nassert f(N(1, 2, 3)) == (1, 2, (1, 2, 3))\n").ok


ALARM = """
import signal, time
def late(*_): raise TimeoutError("slow")
signal.signal(signal.SIGALRM, late)
def stopped(seconds, x):
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return f(x)
    except TimeoutError:
        return "late"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
"""
SLEEP = "import time\ndef f(x):\n    time.sleep(x)\n    return x\n"


def test_a_test_may_stop_a_call_by_an_alarm_of_its_own():
    tests = "assert stopped(.1, .3) == 'late'\nassert f(0) == 0\nassert stopped(.05, .1) == 'late'\n"
    assert judge(SLEEP, ALARM + tests + "assert stopped(1, .01) == .01\n").ok


def test_time_is_up_though_the_tests_use_the_timer():
    tests = ALARM + "assert stopped(.1, 0) == 0\nassert f(60) == 60\nassert f(0) == 0\n"
    outcome = judge(SLEEP, tests, limits=LIMITS.model_copy(update={"wall_seconds": 1.5}))
    assert (outcome.passed, outcome.total, outcome.candidate) == (1, 3, "timeout")


def test_calls_of_several_threads_are_answered_one_after_the_other():
    candidate = "import time\nrunning = 0\ndef f(x):\n    global running\n    running += 1\n"
    candidate += "    time.sleep(.002)\n    running -= 1\n    if x == 99: raise KeyError(x)\n"
    candidate += "    return [x * x, running]\n"
    tests = """
from concurrent.futures import ThreadPoolExecutor
import threading
with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(f, range(30))) == [[n * n, 0] for n in range(30)]
    assert isinstance(pool.submit(f, 99).exception(), KeyError)
seen = []
thread = threading.Thread(target=lambda: seen.append(f(5)))
thread.start()
thread.join(2)
assert seen == [[25, 0]]
"""
    assert judge(candidate, tests).ok


def test_a_candidate_that_ends_in_a_thread_s_call_passes_nothing_more():
    tests = "import threading\nassert f(0) == 0\n"
    tests += "threads = [threading.Thread(target=f, args=(n,)) for n in (1, 2)]\n"
    tests += "[t.start() for t in threads]\n[t.join() for t in threads]\nassert True\nassert f(0) == 0\n"
    outcome = judge("import os\ndef f(x):\n    if x: os._exit(3)\n    return x\n", tests)
    assert (outcome.passed, outcome.candidate) == (1, "exit code 3")


FORGED = [
    "[(0, [9], {})]",  # a change of what isn't a container
    "[(3, [9], {})]",
    "[(-1, [9], {})]",
    "[(True, [9], {})]",
    "[(1, b'x', {})]",
    "[(1, [9], {0: 7})]",
    "[(1, [9], {7: 1})]",
    "[(1, [9], {-1: 1})]",
    "[(2, [1], {})]",
    "[(2, [1, 2, 1, 3], {})]",
    "[(2, [[], 2], {})]",
    "[(1, [9], [])]",
    "[(1, [9])]",
    "[1]",
    "{1: 2}",
    "[(1, [9], {}), (0, [9], {})]",
]


def test_forged_changes_touch_nothing_and_end_the_candidate():
    """Containers 0, 1 and 2 are a tuple, a list in it, and a dict."""
    for forged in FORGED:
        candidate = (
            "import sys\nplain = sys.modules['judging.plain']\ndef f(*args):\n"
            f"    plain.send(3, (sys._getframe(2).f_locals['nonce'], 'value', 1, {forged}))\n"
            "    import os; os._exit(0)\n"
        )
        tests = "x, y = ([5],), {1: 2}\ntry:\n    f(x, y)\nexcept BaseException: pass\n"
        outcome = judge(candidate, tests + "assert (x, y) != (([5],), {1: 2})\nassert f(x, y)")
        assert outcome.passed == 0 and outcome.candidate.startswith("it broke the protocol"), forged
        assert outcome.failures[0].error == "AssertionError", forged


def test_the_new_types_cross_both_ways():
    candidate = """
from collections import *
from datetime import *
from decimal import Decimal
from fractions import Fraction
import typing
class Point(typing.NamedTuple):
    x: int
    y: list = []
def f(kind):
    if type(kind) is type:
        return kind(3)
    return {
        1: range(3), 2: {1: 2}.keys(), 3: {1: 2}.values(), 4: {1: 2}.items(), 5: Point(1), 6: bytearray(b"x"),
        7: Decimal("1.50"), 8: Fraction(2, 4), 9: datetime(2020, 1, 2, tzinfo=timezone.utc), 10: int, 11: ...,
        12: defaultdict(list, a=[1]), 13: [date(2020, 1, 2), timedelta(1), time(5)], 14: slice(1, 2),
    }.get(kind, kind)
"""
    tests = """
from collections import *
from datetime import *
from decimal import Decimal
from fractions import Fraction
assert f(1) == range(3) and type(f(1)) is range
assert f(2) == {1} and list(f(3)) == [2] and (1, 2) in f(4)
assert f(5) == (1, []) and f(5).x == 1 and f(5)._fields == ("x", "y")
assert f(6) == b"x"
assert str(f(7)) == "1.50" and f(8) == Fraction(1, 2)
assert f(9) == datetime(2020, 1, 2, tzinfo=timezone.utc)
assert f(10) is int and f(11) is ...
assert f(12)["b"] == []
assert f(13) == [date(2020, 1, 2), timedelta(1), time(5)]
assert f(14) == slice(1, 2)
assert f(float) == 3.0 and f(str) == "3" and list(f(range)) == [0, 1, 2]
assert all(f(x) == x for x in (Decimal("3.5"), Fraction(1, 3), range(4), date(2020, 1, 2)))
"""
    outcome = judge(candidate, tests)
    assert outcome.ok, outcome


def test_iterators_arrive_as_iterators():
    candidate = "def f(n):\n    yield from range(n)\n"
    assert judge(candidate, "assert list(f(3)) == [0, 1, 2]\nassert not isinstance(f(3), list)").ok


def test_containers_of_the_standard_library_arrive_as_what_they_are():
    candidate = "from collections import *\ndef f(x):\n    return Counter(x), OrderedDict(a=1), deque(x)\n"
    assert judge(
        candidate, "c, o, d = f('aab')\nassert c.most_common(1) == [('a', 2)]\nassert list(d) == [*'aab']"
    ).ok


def test_what_can_not_cross_fails_its_own_test_only():
    tests = "assert f(lambda: 1)\nassert f({1: object()})\nassert f(1) == 1"
    outcome = judge(SAME, tests)
    assert (outcome.passed, errors(outcome)) == (1, [(1, "NotPlainData"), (2, "NotPlainData")])
    assert "function" in outcome.failures[0].message and "an argument of f" in outcome.failures[0].message
    outcome = judge("def f(x):\n    return [f] if x else 0", "assert f(1)\nassert f(0) == 0")
    assert (outcome.passed, errors(outcome)) == (1, [(1, "NotPlainData")])


def test_a_refusal_is_no_exception_of_the_candidate():
    outcome = judge(
        "def f(x):\n    return f", "try:\n    f(1)\n    assert False\nexcept Exception:\n    assert True"
    )
    assert outcome.passed == 0


def test_several_functions_state_between_calls_and_keywords():
    candidate = (
        "kept = []\ndef put(x, *, times=1):\n    kept.extend([x] * times)\ndef get():\n    return kept\n"
    )
    tests = "from solution import put as p\np(1)\nput(2, times=2)\nassert get() == [1, 2, 2]\n"
    assert judge(candidate, tests + "assert get.__name__ == 'get'", "put", "get").ok


def test_a_function_that_is_missing_is_a_name_error():
    outcome = judge("def g(): pass", "assert f(1)\nassert True")
    assert (outcome.passed, errors(outcome)) == (1, [(1, "NameError")])


def test_helpers_that_the_prompt_gave_are_in_the_candidate():
    candidate = "def encode(s):\n    return s[::-1]\ndef f(s):\n    return encode(s)\n"
    assert judge(
        candidate, "for s in ('ab', ''):\n    coded = encode(s)\n    assert f(coded) == s", "f", "encode"
    ).ok


def test_files_are_the_candidates_and_its_output_is_in_the_verdict():
    candidate = """
import sys
print('loaded')
def f(name):
    print('asked', file=sys.stderr)
    return open(name, 'rb').read()
"""
    outcome = judge(candidate, "assert f('in/a.bin') == b'\\x00\\xff'", files={"in/a.bin": b"\0\xff"})
    assert outcome.ok
    assert (outcome.stdout, outcome.stderr) == ("loaded\n", "asked\n")


@pytest.mark.parametrize(
    ("candidate", "end"),
    [
        ("import os\nos._exit(0)", "exit code 0"),
        ("import sys\nsys.exit(3)", "exit code 3"),
        ("def f(x:", "exit code 1"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "killed (signal SIGKILL)"),
        ("while True: pass", "timeout"),
        ("import time\ntime.sleep(60)", "timeout"),
        ("def f(x):\n    while True: pass", "timeout"),
        (
            "import os\ndef f(x):\n    os.write(3, bytes(8))",
            "it broke the protocol: it ends in the middle of a value",
        ),
    ],
)
def test_a_candidate_that_ends_early_passes_nothing(candidate, end):
    limits = LIMITS.model_copy(update={"wall_seconds": 5.0})  # a busy machine starts the tests' side late
    tests = "try:\n    f(1)\nexcept BaseException:\n    assert True\nassert True"
    outcome = judge(candidate, tests, limits=limits)
    assert (outcome.passed, outcome.total, outcome.candidate) == (0, 2, end)


def test_what_held_before_the_candidate_ended_has_passed():
    outcome = judge(
        "import os\ndef f(x):\n    return x or os._exit(0)",
        "assert f(1)\nassert f(0)\nassert f(2)\nassert True",
    )
    assert (outcome.passed, outcome.candidate) == (1, "exit code 0")
    assert errors(outcome) == [(2, "CandidateEnded"), (3, "CandidateEnded"), (4, "CandidateEnded")]


def test_the_traceback_of_a_broken_candidate_is_its_own():
    outcome = judge("x = 1\nraise RuntimeError('at import')", "assert True")
    assert 'File "solution.py", line 2' in outcome.stderr and "raise RuntimeError" in outcome.stderr
    assert "judging" not in outcome.stderr


@pytest.mark.parametrize(
    ("tests", "error", "line"),
    [
        ("assert 1\nassert (", "SyntaxError", 2),
        ("x = 1", "NoTests", 1),
        ("", "NoTests", 1),
    ],
)
def test_tests_that_are_none_have_the_total_0(tests, error, line):
    outcome = judge(SAME, tests)
    assert (outcome.passed, outcome.total, outcome.ok) == (0, 0, False)
    assert errors(outcome) == [(line, error)]


@pytest.mark.parametrize(
    "loop", ["while True: pass", "while True:\n    try:\n        while True: pass\n    except: pass"]
)
def test_tests_that_do_not_end_are_stopped_and_say_so(loop):
    outcome = judge(SAME, f"assert f(1)\n{loop}\nassert True")
    assert (outcome.passed, outcome.total, outcome.candidate) == (1, 2, "")


def test_a_tests_side_that_dies_passes_nothing():
    outcome = judge(SAME, "import os, signal\nassert f(1)\nos.kill(os.getpid(), signal.SIGKILL)\nassert f(2)")
    assert (outcome.passed, outcome.total, errors(outcome)) == (0, 2, [(1, "TestsEnded")])
    assert "killed (signal SIGKILL)" in outcome.failures[0].message


def test_a_verdict_has_few_and_short_failures():
    outcome = judge(SAME, "\n".join(f"assert f({i}) < 0, '\\x01' * 10000" for i in range(50)))
    assert outcome.total == 50 and len(outcome.failures) == 10
    assert all(len(failure.message) == 300 for failure in outcome.failures)


ENDED = Ran(status="killed", exit_code=None, reason="SIGKILL")


@pytest.mark.parametrize(
    "report",
    [
        b'{"started": true}\n',
        b'{"started": true}\n{"total": 2}\n{"passed": 2, "failures": [], "lost": ""}',
        b'{"started": true}\n{"total": 2}\n{"passed": "2"',
        b'{"started": true}\n{"total": 2}\n{"passed": [2]}\n',
        b'{"started": true}\n{"total": 2}\n{"passed": 2, "failures": [[1]]}\n',
        b'{"started": true}\n{"total": -2}\n{"passed": -2}\n',
        b'{"started": true}\n\xff\n',
        b"[" * 5000 + b"\n",
        b"3\n",
        b"x" * REPORT_BYTES + b"\n",
    ],
)
def test_half_a_report_is_no_pass(report):
    assert verdict(report, ENDED, ENDED).passed == 0
    assert not verdict(report, ENDED, ENDED).ok


def test_a_judge_that_did_not_start_is_our_fault():
    with pytest.raises(SystemFault, match=r"before it started: killed \(SIGKILL\)"):
        verdict(b"", ENDED, ENDED)


def test_no_more_passes_than_there_are_tests():
    report = b'{"started": true}\n{"total": 2}\n{"passed": 7, "failures": [], "lost": ""}\n'
    assert verdict(report, ENDED, ENDED).passed == 2


def test_the_candidate_is_given_no_line_of_the_tests():
    case = judged(SAME, "assert f('expected') == 'expected'", files={"a": b"1"})
    tests, candidate = programs(case, LIMITS)
    assert "expected" in tests.code and "expected" not in candidate.code
    assert (tests.files, candidate.files, candidate.limits) == ({}, {"a": b"1"}, case.limits)
