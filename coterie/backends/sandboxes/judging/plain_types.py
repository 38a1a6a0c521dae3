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
from typing import Any

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


def _ordered(parts: Sequence[Any]) -> collections.OrderedDict[Any, Any]:
    return collections.OrderedDict(_table(parts))


def _numbers(parts: Sequence[Any], count: int) -> Sequence[int]:
    if len(parts) != count or any(type(part) is not int for part in parts):
        raise NotPlain(f"other parts than {count} ints")
    return parts


def _range(parts: Sequence[Any]) -> range:
    start, stop, step = _numbers(parts, 3)
    return range(start, stop, step)


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


def _halves(value: Fraction) -> Sequence[Any]:
    return _lowest((value.numerator, value.denominator))


def _lowest(parts: Sequence[Any]) -> Sequence[int]:
    above, below = _numbers(parts, 2)
    if max(above.bit_length(), below.bit_length()) > MAX_BITS:
        raise NotPlain(f"a Fraction of more than {MAX_BITS} bits")
    if below < 1 or math.gcd(above, below) != 1:
        raise NotPlain("a Fraction that isn't in lowest terms")
    return parts


def _date(parts: Sequence[Any]) -> datetime.date:
    year, month, day = _numbers(parts, 3)
    return datetime.date(year, month, day)


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


def _span(parts: Sequence[Any]) -> datetime.timedelta:
    days, seconds, micros = _numbers(parts, 3)
    return datetime.timedelta(days, seconds, micros)


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


_Empty = collections.OrderedDict[Any, Any]
PARTS: dict[type, tuple[bytes, Callable[[Any], Iterable[Any]]]] = {
    list: (b"l", iter),
    tuple: (b"t", iter),
    set: (b"S", iter),
    frozenset: (b"Z", iter),
    collections.deque: (b"Q", lambda value: (value.maxlen, *value)),
    dict: (b"d", _pairs),
    collections.Counter: (b"C", _pairs),
    collections.OrderedDict: (b"O", _pairs),
    collections.defaultdict: (b"D", lambda value: (_factory(value), *_pairs(value))),
    type({}.keys()): (b"k", iter),
    type({}.values()): (b"v", iter),
    type({}.items()): (b"m", lambda value: (part for pair in value for part in pair)),
    type(_Empty().keys()): (b"K", iter),
    type(_Empty().values()): (b"V", iter),
    type(_Empty().items()): (b"M", lambda value: (part for pair in value for part in pair)),
    range: (b"r", lambda value: (value.start, value.stop, value.step)),
    slice: (b"j", lambda value: (value.start, value.stop, value.step)),
    Fraction: (b"q", _halves),
    datetime.date: (b"y", lambda value: (value.year, value.month, value.day)),
    datetime.time: (
        b"h",
        lambda value: (
            *(value.hour, value.minute, value.second, value.microsecond, value.fold),
            _zone(value.tzinfo),
        ),
    ),
    datetime.datetime: (
        b"w",
        lambda value: (
            *(value.year, value.month, value.day, value.hour, value.minute, value.second),
            *(value.microsecond, value.fold, _zone(value.tzinfo)),
        ),
    ),
    datetime.timedelta: (b"u", lambda value: (value.days, value.seconds, value.microseconds)),
    datetime.timezone: (b"z", lambda value: value.__getinitargs__()),
}
_ALL, _HALF = slice(None), slice(None, None, 2)
KEYS = {b"S": _ALL, b"Z": _ALL, b"k": _ALL, b"K": _ALL, b"D": slice(1, None, 2)}
KEYS |= dict.fromkeys((b"d", b"C", b"O", b"m", b"M"), _HALF)
"""The parts that are hashed, by tag."""
BUILD: dict[bytes, Callable[[list[Any]], Any]] = {
    b"l": list,
    b"t": tuple,
    b"S": _distinct,
    b"Z": lambda parts: frozenset(_distinct(parts)),
    b"Q": _deque,
    b"d": _table,
    b"C": lambda parts: collections.Counter(_table(parts)),
    b"O": _ordered,
    b"D": _defaults,
    b"k": lambda parts: dict.fromkeys(_distinct(parts) and parts).keys(),
    b"v": lambda parts: dict(enumerate(parts)).values(),
    b"m": lambda parts: _table(parts).items(),
    b"K": lambda parts: _Empty.fromkeys(_distinct(parts) and parts).keys(),
    b"V": lambda parts: _Empty(enumerate(parts)).values(),
    b"M": lambda parts: _ordered(parts).items(),
    b"r": _range,
    b"j": _slice,
    b"q": lambda parts: Fraction(*_lowest(parts)),
    b"y": _date,
    b"h": _clock,
    b"w": _moment,
    b"u": _span,
    b"z": _offset,
    b"n": _named,
}
_MADE = [kind for kind in (Decimal, *PARTS) if not kind.__name__.startswith(("dict_", "odict_"))]
CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (type(None), *_MADE, *vars(builtins).values())
    if isinstance(kind, type) and kind.__module__ != "_frozen_importlib"
}
"""By name, the classes that are plain data themselves."""
NAMES = {kind: name for name, kind in CLASSES.items()}
METACLASSES = frozenset(map(type, NAMES))
