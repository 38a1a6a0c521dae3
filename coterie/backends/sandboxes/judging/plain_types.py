"""The types of plain data that have parts, and how they are rebuilt. Sent into the sandbox: stdlib only.

Every builder refuses parts that its type doesn't have, in a time that the size of the parts bounds.
"""

from __future__ import annotations

import builtins
import collections
import datetime
import functools
import keyword
import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

MAX_DIGITS = 20_000
"""Most digits of a Decimal, and its largest exponent: more would make `int` and `format` of it expensive."""
MAX_BITS = 1 << 14
"""Most bits of a Fraction's numerator and of its denominator, whose common divisor is checked."""
MAX_FIELDS = 64
"""Most fields of a named tuple, and most characters of its names."""


MANY = 64
"""Fewer keys or items than this may have one hash, as -1 and -2 do."""


class NotPlain(ValueError):
    """The value is not plain data, or is larger or deeper than allowed."""


def _pairs(table: Any) -> list[Any]:
    return [part for pair in table.items() for part in pair]


def spread(keys: Sequence[Any]) -> Sequence[Any]:
    """These keys. Raises NotPlain if so many have one hash that a table of them takes quadratic time."""
    count = len(keys)
    if count > MANY and count - len(set(map(hash, keys))) > 4 * math.isqrt(count):
        raise NotPlain("too many keys or items of one hash")
    return keys


def _table(parts: Sequence[Any]) -> dict[Any, Any]:
    spread(parts[::2])
    built = dict(zip(parts[::2], parts[1::2]))  # noqa: B905 (Python 3.9)
    if 2 * len(built) != len(parts):
        raise NotPlain("a key that comes twice")
    return built


def _distinct(parts: Sequence[Any]) -> set[Any]:
    built = set(spread(parts))
    if len(built) != len(parts):
        raise NotPlain("an item that comes twice")
    return built


def _keys(parts: Sequence[Any]) -> Sequence[Any]:
    _distinct(parts)
    return parts


def _bounds(value: Any) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


def _ordered(parts: Sequence[Any]) -> collections.OrderedDict[Any, Any]:
    return collections.OrderedDict(_table(parts))


def _numbers(parts: Sequence[Any], count: int) -> Sequence[int]:
    if len(parts) != count or any(type(part) is not int for part in parts):
        raise NotPlain(f"other parts than {count} ints")
    return parts


def _slice(parts: Sequence[Any]) -> slice:
    start, stop, step = parts
    return slice(start, stop, step)


def _deque(parts: Sequence[Any]) -> collections.deque[Any]:
    """The first part is `maxlen`."""
    if parts[0] is not None and _numbers(parts[:1], 1)[0] < len(parts) - 1:
        raise NotPlain("more items than the deque can have")
    return collections.deque(parts[1:], parts[0])


def _defaults(parts: Sequence[Any]) -> collections.defaultdict[Any, Any]:
    """The first part is the factory."""
    if parts[0] is not None and type(parts[0]) not in METACLASSES:
        raise NotPlain("a factory that is no class")
    return collections.defaultdict(parts[0], _table(parts[1:]))


def _factory(table: collections.defaultdict[Any, Any]) -> Any:
    made_by = table.default_factory
    return made_by if type(made_by) in METACLASSES and made_by in NAMES else None


def lost_factory(table: collections.defaultdict[Any, Any]) -> bool:
    """Whether the factory can't cross."""
    return table.default_factory is not None and _factory(table) is None


def _lowest(parts: Sequence[Any]) -> Sequence[int]:
    above, below = _numbers(parts, 2)
    if max(above.bit_length(), below.bit_length()) > MAX_BITS:
        raise NotPlain(f"a Fraction of more than {MAX_BITS} bits")
    if below < 1 or math.gcd(above, below) != 1:
        raise NotPlain("a Fraction that isn't in lowest terms")
    return parts


def _clock(parts: Sequence[Any]) -> datetime.time:
    *numbers, zone = parts
    hour, minute, second, micro, fold = _numbers(numbers, 5)
    return datetime.time(hour, minute, second, micro, _zone(zone), fold=fold)


def _moment(parts: Sequence[Any]) -> datetime.datetime:
    *numbers, zone = parts
    *numbers, fold = _numbers(numbers, 8)
    year, month, day, hour, minute, second, micro = numbers
    return datetime.datetime(year, month, day, hour, minute, second, micro, _zone(zone), fold=fold)


def _zone(value: Any) -> Any:
    if value is not None and type(value) is not datetime.timezone:
        raise NotPlain(f"a tzinfo of type {type(value).__name__} is not plain data")
    return value


def _offset(parts: Sequence[Any]) -> datetime.timezone:
    if type(parts[0]) is not datetime.timedelta or not all(type(name) is str for name in parts[1:]):
        raise NotPlain("a timezone of other parts")
    return datetime.timezone(*parts)


_NUMBER = re.compile(r"-?(\d+(\.\d+)?(E[+-]\d{1,7})?|Infinity|s?NaN\d*)", re.ASCII)


def decimal_of(data: bytes) -> Decimal:
    text = data.decode("ascii")
    if len(text) > 2 * MAX_DIGITS or not _NUMBER.fullmatch(text):
        raise NotPlain("no Decimal")
    value = Decimal(text)
    decimal_text(value)
    return value


def decimal_text(value: Decimal) -> bytes:
    if abs(value.adjusted()) > MAX_DIGITS or len(value.as_tuple().digits) > MAX_DIGITS:
        raise NotPlain(f"a Decimal of more than {MAX_DIGITS} digits")
    return str(value).replace("e", "E").encode("ascii")  # the context may ask for a small e


def _named(parts: Sequence[Any]) -> tuple[Any, ...]:
    """The first two parts are the name of the class and the names of the fields."""
    name, fields, *values = parts
    if type(name) is not str or type(fields) is not tuple or not all(type(field) is str for field in fields):
        raise NotPlain("a named tuple without names")
    if len(fields) != len(values) or len(fields) > MAX_FIELDS or max(map(len, (name, *fields))) > MAX_FIELDS:
        raise NotPlain("a named tuple with other names than values, or too many")
    return _class_of(name, fields)._make(values)  # type: ignore[no-any-return]


@functools.lru_cache(256)
def _class_of(name: str, fields: tuple[str, ...]) -> Any:
    """`namedtuple` refuses names that are no identifiers, keywords, private or given twice; as fields,
    `rename` would give them the names `_0`, `_1`, ... of their places, which are therefore allowed there."""
    try:
        kind = collections.namedtuple(name, fields, rename=True, module="solution")  # type: ignore[misc]
    except (ValueError, SyntaxError) as error:  # SyntaxError: two names that the compiler takes for one
        raise NotPlain(f"a named tuple: {error}") from None
    if kind._fields != fields:
        raise NotPlain("a named tuple whose fields have names that no field can have")
    return kind


_ISO_FIELDS = ("year", "week", "weekday")
_ISO = type(datetime.date(1, 1, 1).isocalendar())


def named_parts(value: Any) -> list[Any] | None:
    """The parts of a named tuple, of a class that may override anything; None for what is none.

    The C library's kinds (`time.struct_time`, `sys.version_info`) become named tuples of the fields that they
    have as tuples.
    """
    kind = type(value)
    if not issubclass(kind, tuple):
        return None
    if kind is _ISO or "n_sequence_fields" in vars(kind):
        fields = _ISO_FIELDS if kind is _ISO else vars(kind)["__match_args__"]
        if len(fields) != tuple.__len__(value):
            return None
    else:
        fields = getattr(kind, "_fields", None)
    if type(fields) is not tuple:
        return None
    name = kind.__name__
    fits = type(name) is str and name.isidentifier() and not keyword.iskeyword(name)
    parts = [name if fits and len(name) <= MAX_FIELDS else "named", fields, *tuple.__iter__(value)]
    _named(parts)  # refuses what the other side would
    return parts


class PlainForm(NamedTuple):
    """How values of one type cross."""

    tag: bytes
    parts: Callable[[Any], Iterable[Any]]
    build: Callable[[list[Any]], Any]
    keys: Any = None
    """A slice: the parts that are hashed; None: none."""


_Empty = collections.OrderedDict[Any, Any]
_ALL, _HALF = slice(None), slice(None, None, 2)
FORMS: dict[type, PlainForm] = {
    list: PlainForm(b"l", iter, list),
    tuple: PlainForm(b"t", iter, tuple),
    set: PlainForm(b"S", iter, _distinct, _ALL),
    frozenset: PlainForm(b"Z", iter, lambda parts: frozenset(_distinct(parts)), _ALL),
    collections.deque: PlainForm(b"Q", lambda value: (value.maxlen, *value), _deque),
    dict: PlainForm(b"d", _pairs, _table, _HALF),
    collections.Counter: PlainForm(b"C", _pairs, lambda parts: collections.Counter(_table(parts)), _HALF),
    collections.OrderedDict: PlainForm(b"O", _pairs, _ordered, _HALF),
    collections.defaultdict: PlainForm(
        b"D", lambda value: (_factory(value), *_pairs(value)), _defaults, slice(1, None, 2)
    ),
    type({}.keys()): PlainForm(b"k", iter, lambda parts: dict.fromkeys(_keys(parts)).keys(), _ALL),
    type({}.values()): PlainForm(b"v", iter, lambda parts: dict(enumerate(parts)).values()),
    type({}.items()): PlainForm(b"m", chain.from_iterable, lambda parts: _table(parts).items(), _HALF),
    type(_Empty().keys()): PlainForm(b"K", iter, lambda parts: _Empty.fromkeys(_keys(parts)).keys(), _ALL),
    type(_Empty().values()): PlainForm(b"V", iter, lambda parts: _Empty(enumerate(parts)).values()),
    type(_Empty().items()): PlainForm(
        b"M", chain.from_iterable, lambda parts: _ordered(parts).items(), _HALF
    ),
    range: PlainForm(b"r", _bounds, lambda parts: range(*_numbers(parts, 3))),
    slice: PlainForm(b"j", _bounds, _slice),
    Fraction: PlainForm(
        b"q",
        lambda value: _lowest((value.numerator, value.denominator)),
        lambda parts: Fraction(*_lowest(parts)),
    ),
    datetime.date: PlainForm(
        b"y",
        lambda value: (value.year, value.month, value.day),
        lambda parts: datetime.date(*_numbers(parts, 3)),
    ),
    datetime.time: PlainForm(
        b"h",
        lambda value: (
            *(value.hour, value.minute, value.second, value.microsecond, value.fold),
            _zone(value.tzinfo),
        ),
        _clock,
    ),
    datetime.datetime: PlainForm(
        b"w",
        lambda value: (
            *(value.year, value.month, value.day, value.hour, value.minute, value.second),
            *(value.microsecond, value.fold, _zone(value.tzinfo)),
        ),
        _moment,
    ),
    datetime.timedelta: PlainForm(
        b"u",
        lambda value: (value.days, value.seconds, value.microseconds),
        lambda parts: datetime.timedelta(*_numbers(parts, 3)),
    ),
    datetime.timezone: PlainForm(b"z", lambda value: value.__getinitargs__(), _offset),
}
BUILD = {form.tag: form.build for form in FORMS.values()}
BUILD[b"n"] = _named
_MADE = [kind for kind in (Decimal, *FORMS) if not kind.__name__.startswith(("dict_", "odict_"))]
CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (type(None), *_MADE, *vars(builtins).values())
    if isinstance(kind, type) and kind.__module__ != "_frozen_importlib"
}
"""By name, the classes that are plain data themselves."""
NAMES = {kind: name for name, kind in CLASSES.items()}
METACLASSES = frozenset(map(type, NAMES))
