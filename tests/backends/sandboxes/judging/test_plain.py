"""The codec restores plain data exactly, refuses everything else, and is safe for any bytes."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import datetime
import decimal
import math
import os
import struct
import sys
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from coterie.backends.sandboxes.judging import plain
from coterie.backends.sandboxes.judging.plain import NotPlain, pack, receive, send, unpack

zones = (
    st.none()
    | st.builds(
        datetime.timezone,
        st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)),
        st.text(max_size=4),
    )
    | st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)).map(datetime.timezone)
)
decimals = st.decimals(allow_nan=False) | st.builds(
    lambda sign, digits, exponent: Decimal((sign, digits, exponent)),
    st.integers(0, 1),
    st.lists(st.integers(0, 9), max_size=30).map(tuple),
    st.integers(-9000, 9000) | st.sampled_from("FnN"),
).filter(lambda value: not value.is_snan())
fields = st.sampled_from(["x", "y", "count", "name", "é", "a_1"])
renamed = st.sampled_from(["class", "_x", "a b", "x", "_0", ""])
"""Names that `rename` replaces."""
ranges = st.builds(range, st.integers(), st.integers(), st.integers().filter(bool))


@st.composite
def named_tuples(draw, inner):
    drawn = draw(st.lists(fields | renamed, max_size=3))
    kind = collections.namedtuple(draw(fields).title(), drawn, rename=True)
    return kind._make([draw(inner) for _ in kind._fields])


keys = st.recursive(
    st.none()
    | st.just(...)
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=8)
    | decimals
    | st.fractions()
    | ranges
    | st.dates()
    | st.times(timezones=zones)
    | st.datetimes(timezones=zones)
    | st.timedeltas()
    | zones
    | st.sampled_from([int, str, type, dict, ValueError, Decimal, collections.Counter, type(None)]),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3) | named_tuples(inner)
    ),
    max_leaves=4,
)
values = st.recursive(
    keys | st.characters(categories=["Cs"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | named_tuples(inner)
        | st.builds(collections.deque, st.lists(inner, max_size=4), st.none() | st.integers(0, 5))
        | st.binary(max_size=8).map(bytearray)
        | st.builds(slice, inner, inner, inner)
        | st.dictionaries(keys, inner, max_size=4).map(lambda d: d.keys())
        | st.dictionaries(keys, inner, max_size=4).map(lambda d: d.values())
        | st.dictionaries(keys, inner, max_size=4).map(lambda d: d.items())
        | st.dictionaries(keys, inner, max_size=4).map(lambda d: collections.OrderedDict(d).items())
        | st.sets(keys, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict)
        | st.dictionaries(keys, inner, max_size=4).map(collections.Counter)
        | st.dictionaries(keys, inner, max_size=4).map(lambda d: collections.defaultdict(None, d))
        | st.dictionaries(keys, inner, max_size=4).map(lambda d: collections.defaultdict(list, d))
    ),
    max_leaves=12,
)


def same(value, copy):
    """Equal in type and value at all depths; floats bit for bit."""
    if hasattr(value, "_fields") and hasattr(copy, "_fields"):
        alike = value._fields == copy._fields and type(value).__name__ == type(copy).__name__
        return alike and same(tuple(value), tuple(copy))
    if type(value) is not type(copy):
        return False
    if isinstance(value, (datetime.time, datetime.datetime)) and value.fold != copy.fold:
        return False
    if isinstance(value, (datetime.time, datetime.datetime, Decimal, datetime.timezone)):
        return repr(value) == repr(copy)
    if isinstance(value, slice):
        return all(map(same, (value.start, value.stop, value.step), (copy.start, copy.stop, copy.step)))
    if isinstance(value, range):
        return (value.start, value.stop, value.step) == (copy.start, copy.stop, copy.step)
    if isinstance(value, (collections.abc.KeysView, collections.abc.ValuesView, collections.abc.ItemsView)):
        return same(list(value), list(copy))
    if isinstance(value, collections.defaultdict) and value.default_factory is not copy.default_factory:
        return False
    if isinstance(value, collections.deque) and value.maxlen != copy.maxlen:
        return False
    if type(value) is float:
        return struct.pack("d", value) == struct.pack("d", copy)
    if type(value) is complex:
        return same(value.real, copy.real) and same(value.imag, copy.imag)
    if isinstance(value, dict):
        return same(list(value.items()), list(copy.items()))
    if isinstance(value, (set, frozenset)):
        return len(value) == len(copy) and all(any(same(x, y) for y in copy) for x in value)
    if isinstance(value, (list, tuple, collections.deque)):
        return len(value) == len(copy) and all(map(same, value, copy))
    return value == copy


@settings(max_examples=60)
@given(values)
def test_plain_data_comes_back_exactly(value):
    assert same(unpack(pack(value)), value)


class Int(int):
    pass


class Text(str):
    pass


class List(list):
    pass


class Number(Decimal):
    pass


class Half(Fraction):
    pass


class Day(datetime.date):
    pass


class Span(datetime.timedelta):
    pass


class Bytes(bytearray):
    pass


class Zone(datetime.tzinfo):
    def utcoffset(self, when):
        return datetime.timedelta(0)


ODD = [
    *(object(), Int(1), Text("x"), List(), len, iter([]), os.stat("/"), memoryview(b""), NotImplemented),
    *(Number(1), Half(1, 2), Day(2020, 1, 2), Span(1), Bytes(), Zone(), Int, contextlib, zip()),
]
PLACES = [lambda x, v: x, lambda x, v: [v, x], lambda x, v: {1: (v, x)}, lambda x, v: (v, [[x]])]


@settings(max_examples=50)
@given(st.sampled_from(ODD), values, st.sampled_from(PLACES))
def test_all_else_is_refused_at_any_depth(odd, value, place):
    with pytest.raises(NotPlain, match=type(odd).__name__):
        pack(place(odd, value))


@given(st.binary(max_size=64))
def test_any_bytes_are_plain_data_or_refused(data):
    try:
        value = unpack(data)
    except NotPlain:
        return
    assert same(unpack(pack(value)), value)


@settings(max_examples=100)
@given(values, st.data())
def test_a_changed_byte_is_plain_data_or_refused(value, draw):
    data = bytearray(pack(value))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(NotPlain):
        back = unpack(bytes(data))
        assert same(unpack(pack(back)), back)


@settings(max_examples=40)
@given(values, st.binary(min_size=1, max_size=4))
def test_a_value_ends_where_it_ends(value, more):
    data = pack(value)
    for other in (data[:-1], data + more):
        with pytest.raises(NotPlain):
            unpack(other)


class Unkind(type):
    def __getattribute__(cls, name):
        raise KeyError(name)


@st.composite
def odd_named_tuples(draw, inner=values):
    """Of classes whose names and fields may be any text, and that may raise."""
    meta = draw(st.sampled_from([type, type, Unkind]))
    kind = meta("P", (tuple,), {"_fields": tuple(draw(st.lists(st.text(max_size=3) | fields, max_size=3)))})
    name = draw(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=70))
    type.__dict__["__name__"].__set__(kind, draw(st.sampled_from(["class", "None", "", "a b"])) or name)
    return kind(draw(st.lists(inner, max_size=3)))


@settings(max_examples=60)
@given(odd_named_tuples(), st.sampled_from(PLACES), values)
def test_no_other_exception_than_not_plain_leaves_the_codec(odd, place, value):
    with contextlib.suppress(NotPlain):
        unpack(pack(place(odd, value)))


def test_a_named_tuple_crosses_whatever_its_names():
    row = collections.namedtuple("Row", "id class id", rename=True)(1, 2, 3)
    assert unpack(pack(row))._fields == ("id", "_1", "_2") and unpack(pack(row)) == row
    for name in ("class", "a b", "", "P" * 99):
        kind = collections.namedtuple("P", "x")
        kind.__name__ = name
        assert unpack(pack(kind(1))).x == 1 and type(unpack(pack(kind(1)))).__name__ == "named"


def test_tuples_of_the_c_library_cross_as_named_tuples():
    for value, name in (
        (time.gmtime(0), "tm_year"),
        (datetime.date(2020, 1, 1).isocalendar(), "week"),
        (sys.version_info, "minor"),
    ):
        back = unpack(pack(value))
        assert back == value and getattr(back, name) == getattr(value, name)


def test_depth_is_bounded_both_ways():
    deep = []
    for _ in range(plain.MAX_DEPTH):
        deep = [deep]
    assert unpack(pack(deep)) == deep
    with pytest.raises(NotPlain, match="deeper"):
        pack([deep])
    with pytest.raises(NotPlain, match="deep"):
        unpack(b"l\0\0\0\1" + pack(deep))
    endless = []
    endless.append(endless)
    with pytest.raises(NotPlain, match="deeper"):
        pack(endless)


def test_items_and_bytes_are_bounded_both_ways():
    many = [None] * (plain.MAX_ITEMS - 1)
    packed = pack(many)
    assert unpack(packed) == many
    with pytest.raises(NotPlain, match="values"):
        pack([*many, None])
    with pytest.raises(NotPlain, match="values"):
        unpack(b"l" + struct.pack(">I", plain.MAX_ITEMS) + packed[5:] + b"N")
    with pytest.raises(NotPlain, match="bytes"):
        pack(["x" * plain.MAX_BYTES])
    with pytest.raises(NotPlain, match="large"):
        pack(1 << (8 * plain.MAX_BYTES))
    assert unpack(pack("x" * (plain.MAX_BYTES - 5))) == "x" * (plain.MAX_BYTES - 5)


def parts(tag, *values):
    return tag + struct.pack(">I", len(values)) + b"".join(map(pack, values))


def sized(tag, text):
    data = text.encode("utf-8", "surrogatepass")
    return tag + struct.pack(">I", len(data)) + data


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"d\0\0\0\2l\0\0\0\0N", id="a list as a key"),
        pytest.param(b"S\0\0\0\2TT", id="an item twice in a set"),
        pytest.param(b"d\0\0\0\4TNTN", id="a key twice"),
        pytest.param(b"d\0\0\0\3TNF", id="a key without a value"),
        pytest.param(b"k\0\0\0\2TT", id="a key twice in a view"),
        pytest.param(b"K\0\0\0\2TT", id="a key twice in a view of an OrderedDict"),
        pytest.param(b"m\0\0\0\4TNTN", id="a key twice in a view of items"),
        pytest.param(parts(b"r", 0, 1, 0), id="a range without a step"),
        pytest.param(parts(b"r", 0, 1, True), id="a range with a bool"),
        pytest.param(parts(b"r", 0, 1), id="a range of two parts"),
        pytest.param(parts(b"j", 0, 1), id="a slice of two parts"),
        pytest.param(parts(b"q", 1, 0), id="a Fraction with the denominator 0"),
        pytest.param(parts(b"q", 2, 4), id="a Fraction not in lowest terms"),
        pytest.param(parts(b"q", 1, -2), id="a Fraction with a negative denominator"),
        pytest.param(parts(b"q", 1, 1 << 20_000), id="a Fraction that is too long"),
        pytest.param(parts(b"q", 0.5, 1), id="a Fraction of a float"),
        pytest.param(sized(b"x", "1E+99999999"), id="a huge Decimal"),
        pytest.param(sized(b"x", "0E-999999"), id="a zero with a huge exponent"),
        pytest.param(sized(b"x", "1" * 30_000), id="a Decimal that is too long"),
        pytest.param(sized(b"x", "NaN" + "1" * 30_000), id="a NaN that is too long"),
        pytest.param(sized(b"x", "1_000"), id="a Decimal with an underscore"),
        pytest.param(sized(b"x", " 1"), id="a Decimal with a blank"),
        pytest.param(sized(b"x", "١"), id="a Decimal with another script's digit"),
        pytest.param(sized(b"x", ""), id="an empty Decimal"),
        pytest.param(parts(b"y", 2023, 2, 29), id="a day that isn't"),
        pytest.param(parts(b"y", 0, 1, 1), id="the year 0"),
        pytest.param(parts(b"y", 1 << 80, 1, 1), id="a year beyond C"),
        pytest.param(parts(b"h", 25, 0, 0, 0, 0, None), id="an hour that isn't"),
        pytest.param(parts(b"h", 5, 0, 0, 0, 2, None), id="a fold of 2"),
        pytest.param(parts(b"h", 5, 0, 0, 0, 0, 3), id="a tzinfo that is a number"),
        pytest.param(parts(b"w", 2020, 1, 1, 0, 0, 0, 0, 0, b"x"), id="a tzinfo of bytes"),
        pytest.param(parts(b"w", 2020, 1, 1), id="a datetime of three parts"),
        pytest.param(parts(b"u", 1 << 70, 0, 0), id="a timedelta beyond C"),
        pytest.param(parts(b"z", datetime.timedelta(days=2)), id="an offset of two days"),
        pytest.param(parts(b"z", 3), id="an offset that is a number"),
        pytest.param(parts(b"z", datetime.timedelta(0), 3), id="a zone's name that is a number"),
        pytest.param(parts(b"z"), id="a zone of nothing"),
        pytest.param(parts(b"Q", 1, 0, 0), id="more items than a deque can have"),
        pytest.param(parts(b"Q", -1), id="a deque of negative length"),
        pytest.param(parts(b"Q", 1 << 70), id="a deque beyond C"),
        pytest.param(parts(b"D", 3), id="a factory that is a number"),
        pytest.param(parts(b"n", "P", ("class",), 1), id="a field that is a keyword"),
        pytest.param(parts(b"n", "P", ("__eq__",), 1), id="a field with underscores"),
        pytest.param(parts(b"n", "P", ("_a",), 1), id="a private field"),
        pytest.param(parts(b"n", "P", ("a", "_0"), 1, 2), id="another field's new name"),
        pytest.param(parts(b"n", "P", ("a", "a"), 1, 2), id="a field twice"),
        pytest.param(parts(b"n", "P", ("ﬁ", "fi"), 1, 2), id="a field twice to the compiler"),
        pytest.param(parts(b"n", "P", ("a b",), 1), id="a field that is no name"),
        pytest.param(parts(b"n", "P", ("a=print()",), 1), id="a field that is code"),
        pytest.param(parts(b"n", "def", ("a",), 1), id="a class that is a keyword"),
        pytest.param(parts(b"n", "P" * 99, ("a",), 1), id="a long name"),
        pytest.param(parts(b"n", "P", ("a",)), id="a field without a value"),
        pytest.param(parts(b"n", "P", "a", 1), id="fields that are a text"),
        pytest.param(parts(b"n", 1, ("a",), 1), id="a class's name that is a number"),
        pytest.param(parts(b"n"), id="a named tuple of nothing"),
        pytest.param(parts(b"n", "P", tuple(f"a{n}" for n in range(65)), *range(65)), id="many fields"),
        pytest.param(sized(b"B", "eval"), id="a function"),
        pytest.param(sized(b"B", "LocalSandbox"), id="an unknown class"),
        pytest.param(sized(b"B", "\ud800"), id="a class that is no text"),
        pytest.param(b"s\0\0\0\1\xff", id="no UTF-8"),
        pytest.param(b"l\xff\xff\xff\xff", id="more items than bytes"),
        pytest.param(b"x\0\0\0\0", id="an unknown type"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_no_writer_of_ours_sends_is_refused(data):
    with pytest.raises(NotPlain):
        unpack(data)


def test_special_floats_and_surrogates_survive():
    back = unpack(pack([math.nan, -0.0, math.inf, "\ud800é", True, 1, 1.0]))
    assert math.isnan(back[0]) and math.copysign(1, back[1]) == -1 and back[2:4] == [math.inf, "\ud800é"]
    assert [type(x) for x in back[4:]] == [bool, int, float]


def test_a_named_tuple_of_any_class_arrives_as_its_names_and_values():
    class Liar(collections.namedtuple("Liar", "x y")):
        __slots__ = ()
        __hash__ = None

        def __eq__(self, other):
            return True

        def __len__(self):
            return 9

        def __iter__(self):
            return iter(())

        def __getitem__(self, index):
            return 4

    back = unpack(pack([Liar(1, [2])]))[0]
    assert (back.x, back.y, back[0], len(back)) == (1, [2], 1, 2) and back != (1, 3)
    assert type(back).__mro__[1:] == (tuple, object) and type(back).__name__ == "Liar"
    assert not {name for name in vars(type(back)) if name.startswith("__")} & {
        "__eq__",
        "__hash__",
        "__len__",
    }
    assert type(unpack(pack(Liar(3, 4)))) is type(back)

    class Bent(collections.namedtuple("Bent", "x y")):
        def __new__(cls):
            return tuple.__new__(cls, (1,))

    with pytest.raises(NotPlain, match="names"):
        pack(Bent())


def test_the_classes_of_named_tuples_are_bounded_both_ways():
    values = [collections.namedtuple(f"P{n}", "x")(n) for n in range(plain.MAX_CLASSES + 1)]
    assert len(unpack(pack(values[1:] * 2))) == 2 * plain.MAX_CLASSES
    with pytest.raises(NotPlain, match="classes"):
        pack(values)
    with pytest.raises(NotPlain, match="classes"):
        unpack(b"l" + struct.pack(">I", len(values)) + b"".join(map(pack, values)))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Decimal("1E+20001"), "digits"),
        (Decimal("0E-20001"), "digits"),
        (Decimal("1" * 20_001), "digits"),
        (Fraction(1 << 20_000), "bits"),
        (datetime.datetime(2020, 1, 1, tzinfo=Zone()), "tzinfo of type Zone"),
    ],
)
def test_numbers_that_are_expensive_and_zones_with_code_are_refused(value, why):
    with pytest.raises(NotPlain, match=why):
        pack(value)


def test_a_decimal_crosses_whatever_the_context_says():
    with decimal.localcontext() as context:
        context.prec, context.capitals, context.Emax = 2, 0, 10
        context.clear_traps()
        values = [Decimal("1.23456E+400"), Decimal("-0.00"), Decimal("-Infinity"), Decimal("sNaN12")]
        back = unpack(pack(values))
        with pytest.raises(NotPlain):
            unpack(b"x\0\0\0\3abc")
    assert [*map(repr, back)] == [*map(repr, values)]


def test_a_factory_that_is_no_class_of_ours_stays_behind():
    class Own(dict):
        pass

    with pytest.raises(NotPlain, match="factory"):
        pack([collections.defaultdict(lambda: 1)], factories=True)
    assert unpack(pack(collections.defaultdict(list), factories=True))[0] == []
    for factory, arrives in (
        (list, list),
        (collections.Counter, collections.Counter),
        (Own, None),
        (len, None),
    ):
        assert unpack(pack(collections.defaultdict(factory, a=1))).default_factory is arrives


def test_frames_arrive_one_by_one_and_the_end_is_an_eof_error():
    start, end = os.pipe()
    send(end, [1, "two"])
    send(end, None)
    os.write(end, b"\0\0\0\5N")
    os.close(end)
    assert receive(start) == [1, "two"]
    assert receive(start) is None
    with pytest.raises(EOFError):
        receive(start)
    os.close(start)


def test_a_frame_that_is_too_long_is_not_read():
    start, end = os.pipe()
    os.write(end, struct.pack(">I", 1 << 31))
    with pytest.raises(NotPlain, match="frame"):
        receive(start)
    os.close(start)
    os.close(end)


SAME = [k * (2**61 - 1) for k in range(1, 60_000)]  # the modulus of hashes: each has hash 0


@pytest.mark.parametrize("tag", [b"S", b"Z", b"k", b"K", b"d", b"C", b"O", b"D", b"m", b"M"])
def test_keys_of_one_hash_are_refused_at_once(tag):
    """A table of them takes minutes, in one call that no signal ends."""
    began = time.process_time()
    keys = [pack(key) for key in SAME]
    parts = keys if tag in b"SZkK" else [part for key in keys for part in (key, pack(1))]
    if tag == b"D":
        parts.insert(0, pack(None))
    with pytest.raises(NotPlain, match="one hash"):
        unpack(tag + struct.pack(">I", len(parts)) + b"".join(parts))
    assert time.process_time() - began < 3


def test_what_is_refused_for_its_hashes_is_refused_before_it_is_sent():
    with pytest.raises(NotPlain, match="one hash"):
        pack({1: [dict.fromkeys(SAME[:100])]})
    fine = [{-1, -2, *SAME[:9]}, dict.fromkeys(range(-9, 1000)), {k / 7 for k in range(9999)}]
    fine.append({(a, -b, str(a)) for a in range(99) for b in range(99)})
    fine.append({Fraction(a, b) for a in range(-99, 99) for b in range(1, 99)})
    fine.append({complex(a, b) for a in range(-99, 99) for b in range(-99, 99)})
    assert unpack(pack(fine)) == fine
