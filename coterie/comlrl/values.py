"""Readers of the original's values: each checks one value's type, and its errors name the original's key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie import ConfigError, did_you_mean

Reader = Callable[[Any, str], Any]
"""(value, dotted key of theirs) -> our value, or `Dropped`."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a reader returns for a value that nothing of ours stands for, with the reason."""

    why: str


def wrong(value: Any, key: str, wanted: str) -> ConfigError:
    """The error of a value of another type than the key's."""
    return ConfigError(f"{wanted} is needed", path=key, why=f"it is {value!r}", fix=f"set {key} to {wanted}")


def whole(least: int) -> Reader:
    """A reader of whole numbers from `least` on; 2.0 is one, true and "2" are none."""
    wanted = f"a whole number of {least} or more"

    def read(value: Any, key: str) -> int:
        number = _number(value, key, wanted)
        if number != int(number) or number < least:
            raise wrong(value, key, wanted)
        return int(number)

    return read


def number(value: Any, key: str) -> float:
    """A finite number, as a float."""
    return _number(value, key, "a number")


def text(value: Any, key: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise wrong(value, key, "a text")
    return value.strip()


def truth(value: Any, key: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise wrong(value, key, "true or false")
    return value


def numbers(value: Any, key: str) -> list[float]:
    """A list of numbers."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise wrong(value, key, "a list of numbers")
    return [_number(item, key, "a list of numbers") for item in value]


def names(value: Any, key: str) -> str | list[str]:
    """A name, or a list of names."""
    if isinstance(value, str):
        return text(value, key)
    if not isinstance(value, Sequence) or not value:
        raise wrong(value, key, "a name, or a list of names")
    return [text(item, key) for item in value]


def choice(words: Mapping[str, Any]) -> Reader:
    """A reader of words, in upper or lower case, each with our value.

    Raises:
        ConfigError: another word; it names the nearest one.
    """

    def read(value: Any, key: str) -> Any:
        word = text(value, key).lower()
        if word not in words:
            raise ConfigError(f"unknown value {value!r}", path=key, fix=did_you_mean(word, words))
        return words[word]

    return read


def slice_of_tests(value: Any, key: str) -> int:
    """`sandbox_slice`: a whole number, as a text too; null, 0 and `all` are 0, all tests."""
    if value is None:
        return 0
    if isinstance(value, str):
        word = value.strip().lower()
        if word in ("all", "none", "null", ""):
            return 0
        if not word.removeprefix("-").isdigit():
            raise wrong(value, key, "a whole number, or all")
        return int(word)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(value, key, "a whole number, or all")
    return value


def dtype(value: Any, key: str) -> str | Dropped:
    """The type of a model's weights."""
    word = text(value, key).lower().removeprefix("torch.")
    if word in ("float16", "fp16", "half"):
        return Dropped("weights are trained in bfloat16 or float32; the recipe's dtype stays")
    if word == "auto":
        return Dropped("the recipe's dtype stays")
    names = {"bf16": "bfloat16", "fp32": "float32", "float": "float32"}
    word = names.get(word, word)
    if word not in names.values():
        raise ConfigError(f"unknown value {value!r}", path=key, fix=did_you_mean(word, names.values()))
    return word


def turned_off(value: Any, key: str) -> Any:
    """`top_k`: null and 0 are 0, which turns it off."""
    return whole(0)(0 if value is None else value, key)


def _number(value: Any, key: str, wanted: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise wrong(value, key, wanted)
    return float(value)
