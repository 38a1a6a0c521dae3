"""The mutator changes what it says, skips what no test could see, and recognises code that has moved."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tests.long.mutants import covering
from tests.long.mutants.comparing import WANTED, Comparison, Entry, Pair, matched
from tests.long.mutants.covering import Reach
from tests.long.mutants.judging import Verdict
from tests.long.mutants.matching import Finder, Renames, in_seeded_order, known
from tests.long.mutants.sites import Site, mutated, sites


def read(code: str, path: str = "coterie/core/a.py") -> tuple[bytes, list[Site]]:
    source = textwrap.dedent(code).encode()
    return source, sites(source, path)


def mutants(code: str) -> set[str]:
    """The texts of all mutants of a function with this body."""
    body = "def f(a, b):\n" + textwrap.indent(textwrap.dedent(code), "    ")
    source, places = read(body)
    texts = {mutated(source, site).decode() for site in places}
    assert all(ast.dump(ast.parse(text)) != ast.dump(ast.parse(body)) for text in texts)
    return {textwrap.dedent(text.split("\n", 1)[1]).strip() for text in texts}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(a < b)", {"print((a <= b))", "print((a >= b))", "pass"}),
        ("print(a == b)", {"print((a != b))", "pass"}),
        ("print(a is not b)", {"print((a is b))", "pass"}),
        ("print(a in b)", {"print((a not in b))", "pass"}),
        ("print(a + b)", {"print((a - b))", "pass"}),
        ("print(a // b)", {"print((a * b))", "pass"}),
        ("print(a and b)", {"print((a or b))", "pass"}),
        ("print(not a)", {"print(a)", "pass"}),
        ("print(-a)", {"print(a)", "pass"}),
        ("print(a[0])", {"print(a[1])", "pass"}),
        ("print(True)", {"print(False)", "pass"}),
        ("print(min(a, b))", {"print(max(a, b))", "pass"}),
        ("print(any(a))", {"print(all(a))", "pass"}),
        ("print(sorted(a, key=b))", {"print(list(a))", "pass"}),
        ("return a", {"return None"}),
        ("a += b", {"a -= b", "pass"}),
        ("a.b = b", {"pass"}),
        ("raise KeyError(a + b)", {"pass"}),
        ("if a: return", {"if True: return", "if False: return"}),
        ("while a: a.pop()", {"while False: a.pop()", "while a: pass"}),
        ("b = [c for c in a if c]", {"b = [c for c in a if True]"}),
        ("b = a if b else c", {"b = a if True else c", "b = a if False else c"}),
        ("for c in a: continue", {"for c in a: break"}),
    ],
)
def test_an_operator_gives_the_expected_text(code, expected):
    assert mutants(code) == expected


def test_the_rest_of_the_file_stays_byte_for_byte():
    source, places = read("# é, ü\ndef f(a):  # ß\n    return {'ä': a <\n        1}  # end\n")
    boundary = next(site for site in places if site.operator.startswith("boundary"))
    assert mutated(source, boundary).decode() == "# é, ü\ndef f(a):  # ß\n    return {'ä': (a <= 1)}  # end\n"


def test_a_changed_part_keeps_its_brackets():
    assert "return a / (b ** 2)" not in mutants("return a / b ** 2")
    assert "return a / (b * 2)" in mutants("return a / b ** 2")


@pytest.mark.parametrize(
    "code",
    [
        '"""About 1 + 1."""',
        "b: int | None",
        "log.warning('%d', a + 1)",
        "assert a < b",
        "import c",
        "b = f'{a + 1}'",
        "b = a + 'text'",
        "b = UserError('no', why=str(a + 1))",
        "if TYPE_CHECKING:\n    b = 1",
        "b = zip(a, b, strict=True)",
    ],
)
def test_what_no_test_could_see_is_left_alone(code):
    assert not mutants(code)


def test_types_decorators_and_protocols_are_left_alone():
    code = """
        __all__ = ["a"][:1]

        @dataclass(frozen=True)
        class A(Protocol):
            def f(self, a: int = 1) -> None:
                \"\"\"Does it.\"\"\"
    """
    assert not read(code)[1]


def test_what_is_made_at_import_is_looked_for_by_its_name():
    places = read("class A:\n    size: int = 1\n\ndef f(a, flag=False):\n    return lambda: a[0]\n")[1]
    names = {site.text: site.names for site in places}
    assert names == {"size = 1": ("size", "A"), "flag=False": ("f",), "return lambda: a[0]": (), "a[0]": ()}


# ------------------------------------------------------------------------------------------------ recognising


CODE = """
    class Old:
        def method(self, first, second):
            if first < 1 and second < 1:
                return self.taken + first
            return second
"""


def finder(code: str, table: dict[str, str] | None = None) -> Finder:
    return Finder(read(code, "coterie/elsewhere/b.py")[1], Renames(table or {}))


def recognised(code: str, table: dict[str, str] | None = None) -> list[bool]:
    places = read(CODE)[1]
    other = finder(code, table)
    pairs = [(site, other.site(what)) for what, site in known(places, places)]
    assert all(new is None or new.operator == old.operator for old, new in pairs)
    return [new is not None for _, new in pairs]


def test_a_function_is_recognised_in_another_file():
    assert all(recognised("import os\n\n\nclass Other:\n    size = 3\n\n" + textwrap.dedent(CODE)))


def test_equal_texts_are_told_apart_by_their_order():
    code = "def f(a, b):\n    if a < 1:\n        b()\n    if a < 1:\n        b()\n"
    places = read(code)[1]
    other = finder("import os\n\n" + code)
    for what, site in known(places, places):
        assert other.site(what).lines[0] == site.lines[0] + 2


def test_local_names_may_change():
    assert all(recognised(CODE.replace("first", "left").replace("second", "right")))


def test_other_names_need_the_table():
    code = CODE.replace("Old", "New").replace("method", "work").replace("taken", "branches")
    assert not all(recognised(code))
    assert all(recognised(code, {"Old": "New", "method": "work", "taken": "branches"}))


def test_a_name_may_change_in_some_places_only():
    assert all(recognised(CODE.replace("Old", "New"), {"Old": "New", "taken": "branches"}))


def test_a_key_with_a_dot_is_a_whole_qualname():
    code = textwrap.dedent(CODE).replace("class Old:\n", "").replace("self, ", "").replace("self.", "plan.")
    code = textwrap.dedent(code)
    assert sum(recognised(code, {"Old.method": "method", "self": "plan"})) == len(recognised(code))


def test_code_that_is_gone_is_not_recognised():
    assert not any(recognised("def f(x):\n    return x * 2\n"))


def test_doubles_are_not_recognised_by_anything():
    here, there = read(CODE)[1], read(CODE, "coterie/core/c.py")[1]
    assert not known(here, here + there)


def test_the_order_depends_on_the_seed_alone():
    pairs = known(read(CODE)[1], read(CODE)[1])
    assert in_seeded_order(pairs, 1) == in_seeded_order(pairs[::-1], 1)
    assert in_seeded_order(pairs, 1) != in_seeded_order(pairs, 2)


# -------------------------------------------------------------------------------------------------- comparing


def entries(places: list[Site], outcome: str = "killed") -> list[Entry]:
    return [Entry(what, Verdict(outcome, "test_it", 3), site.path) for what, site in known(places, places)]


def test_an_entry_is_written_and_read_back():
    for entry in entries(read(CODE)[1]):
        assert Entry.read(entry.row()) == entry


def test_lost_sites_are_listed_and_the_next_ones_take_their_place():
    base = entries(read("def gone(x):\n    return x * 2\n")[1] + read(CODE)[1])
    pairs, lost = matched(base, finder(CODE))
    assert [entry.known.qualname for entry in lost] == ["gone"] * len(lost) and lost
    assert len(pairs) == len(base) - len(lost) <= WANTED


def test_the_comparison_counts_pairs_and_names_new_survivors():
    places = read(CODE)[1][:2]
    kept = [
        Pair(entry, site, Verdict("timeout")) for entry, site in zip(entries(places), places, strict=True)
    ]
    comparison = Comparison("abc", [*kept, Pair(kept[0].entry, places[0], Verdict("survived"))], [])
    assert (comparison.before, comparison.now) == (3, 2)
    assert "survive now, killed before (1)" in str(comparison) and "by test_it" in str(comparison)


@pytest.fixture
def reach(tmp_path):
    (tmp_path / "m.py").write_text("SIZE = 1\n\ndef f(a):\n    return a < SIZE\n")
    parts = [
        {"tests": ["a.py::slow", "a.py::fast"], "seconds": [9.0, 0.01], "counts": [1, 9], "shared": {},
         "lines": {"m.py": {"4": "3"}}},
        {"tests": ["b.py::focused", "b.py::other"], "seconds": [0.01, 0.01], "counts": [5, 1], "shared": {},
         "lines": {"m.py": {"1": "2", "4": "1"}}},
    ]  # fmt: skip
    return Reach(parts, tmp_path), sites((tmp_path / "m.py").read_bytes(), "m.py")


def test_fast_and_focused_tests_judge_first(reach):
    tests, places = reach
    compared = next(site for site in places if site.qualname == "f")
    assert tests.judges(compared) == ["b.py::focused", "a.py::fast", "a.py::slow"]


def test_what_is_slow_goes_last_and_what_is_too_slow_does_not_go_at_all(reach):
    tests, places = reach
    compared = next(site for site in places if site.qualname == "f")
    assert tests.slow() == ["slow"]
    tests.skip = {"slow"}
    assert tests.judges(compared) == ["b.py::focused", "a.py::fast"]


def test_the_known_killer_is_chosen_whatever_it_costs(reach, monkeypatch):
    tests, places = reach
    compared = next(site for site in places if site.qualname == "f")
    monkeypatch.setattr(covering, "MOST", 1)
    assert tests.judges(compared) == ["b.py::focused"]
    assert tests.judges(compared, first="slow") == ["a.py::slow"]


def test_a_constant_is_judged_by_the_tests_that_run_lines_which_name_it(reach):
    tests, places = reach
    constant = next(site for site in places if not site.qualname)
    assert "b.py::focused" in tests.judges(constant) and "a.py::slow" in tests.judges(constant)
