"""The codec restores plain data exactly, refuses everything else, and is safe for any bytes."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import struct

import pytest
from hypothesis import given, settings, strategies as st

from coterie.backends.sandboxes.judging import plain
from coterie.backends.sandboxes.judging.plain import NotPlain, pack, receive, send, unpack

keys = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    keys | st.characters(categories=["Cs"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=4).map(collections.deque)
        | st.sets(keys, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict)
        | st.dictionaries(keys, inner, max_size=4).map(collections.Counter)
        | st.dictionaries(keys, inner, max_size=4).map(lambda d: collections.defaultdict(None, d))
    ),
    max_leaves=12,
)


def same(value, copy):
    """Equal in type and value at all depths; floats bit for bit."""
    if type(value) is not type(copy):
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


@given(values)
def test_plain_data_comes_back_exactly(value):
    assert same(unpack(pack(value)), value)


class Int(int):
    pass


class Text(str):
    pass


class List(list):
    pass


Point = collections.namedtuple("Point", "x y")

ODD = [object(), Int(1), Text("x"), List(), Point(1, 2), len, int, range(3), iter([]), bytearray(), {}.keys()]
PLACES = [lambda x, v: x, lambda x, v: [v, x], lambda x, v: {1: (v, x)}, lambda x, v: (v, [[x]])]


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


@settings(max_examples=200)
@given(values, st.data())
def test_a_changed_byte_is_plain_data_or_refused(value, draw):
    data = bytearray(pack(value))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(NotPlain):
        back = unpack(bytes(data))
        assert same(unpack(pack(back)), back)


@given(values, st.binary(min_size=1, max_size=4))
def test_a_value_ends_where_it_ends(value, more):
    data = pack(value)
    for other in (data[:-1], data + more):
        with pytest.raises(NotPlain):
            unpack(other)


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


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"d\0\0\0\1l\0\0\0\0N", id="a list as a key"),
        pytest.param(b"S\0\0\0\2TT", id="an item twice in a set"),
        pytest.param(b"d\0\0\0\2TNTN", id="a key twice"),
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
