"""Reading a configuration of the original: its YAML file, and what its command line sets over it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie import ConfigError, read_yaml

FLAGS = {
    "model_name": "model_name",
    "output_base_dir": "output.base_dir",
    "num_epochs": "{program}.num_train_epochs",
    "num_turns": "{program}.num_turns",
    "turn_gradient_weights": "{program}.turn_gradient_weights",
}
"""Key of the original that each of its flags sets; {program} is the section that the file has."""
PROGRAMS = ("grpo", "magrpo")
OTHERS = ("ac", "iac", "maac", "madpo", "marlhf", "ippo")
"""Sections of the original's other programs, which `coterie run` has no recipes of."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What the original's command line sets, over its file."""

    override: Sequence[str] = ()
    """Texts `a.b=value`."""
    values: Mapping[str, Any] | None = None
    """By name of a flag in FLAGS; None is a flag that is not given."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value of the original, and where it was set."""

    value: Any
    on_command_line: bool = False


@dataclass(frozen=True, slots=True)
class Original:
    """A configuration of the original."""

    file: Path
    program: str
    """`grpo` (a single agent) or `magrpo` (a team)."""
    values: Mapping[str, Given]
    """By dotted key: leaves, and lists as they are."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key, or the default where it is not set, or null."""
        given = self.values.get(key)
        return default if given is None or given.value is None else given.value


def read(file: Path, flags: Flags | None = None) -> Original:
    """Read a file of the original with what its command line sets.

    Raises:
        ConfigError: the file can't be read, it is of none of the two programs or of both, or an override is
            not of the form key=value.
    """
    flags = flags or Flags()
    values = {key: Given(value) for key, value in _leaves(read_yaml(file))}
    program = _program(file, values)
    changes = [_override(entry) for entry in flags.override]
    for flag, value in (flags.values or {}).items():
        if value is not None:
            changes.append((FLAGS[flag].format(program=program), value))
    for key, value in changes:
        if not isinstance(value, Mapping):  # a table is merged into the file's
            _drop(values, key)
        values |= {leaf: Given(item, on_command_line=True) for leaf, item in _leaves(value, key)}
    _program(file, values)
    return Original(file, program, values)


def literal(word: str) -> Any:
    """An override's value as the original reads it: a Python literal, true, false, null, or else the text."""
    word = word.strip()
    constants = {"true": True, "false": False, "none": None, "null": None}
    if word.lower() in constants:
        return constants[word.lower()]
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return word
    return list(value) if isinstance(value, tuple) else value


def _override(entry: str) -> tuple[str, Any]:
    key, equals, value = entry.partition("=")
    if not equals or not key or any(not part for part in key.split(".")):
        fix = "e.g. --override magrpo.num_turns=2"
        raise ConfigError(f"'{entry}' is not of the form key=value", path="--override", fix=fix)
    return key, literal(value)


def _leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a nested table; an empty table is a leaf without a value."""
    if isinstance(value, Mapping) and (value or not at):
        for key, inner in value.items():
            yield from _leaves(inner, f"{at}.{key}" if at else str(key))
    else:
        yield at, (None if value == {} else value)


def _drop(values: dict[str, Given], key: str) -> None:
    """Remove a key, what is below it, and a leaf that it now lies in."""
    around = [key.rsplit(".", depth)[0] for depth in range(1, key.count(".") + 1)]
    for old in list(values):
        if old == key or old.startswith(key + ".") or old in around:
            del values[old]


def _program(file: Path, values: Mapping[str, Given]) -> str:
    sections = {key.partition(".")[0] for key in values}
    present = [name for name in PROGRAMS if name in sections]
    if len(present) == 1:
        return present[0]
    others = [name for name in OTHERS if name in sections]
    why = f"its sections are {', '.join(sorted(sections)) or 'none'}"
    if present:
        fix = "keep one of them; a single agent is `grpo`, a team is `magrpo`"
        raise ConfigError(f"{file} has the sections grpo and magrpo", path="magrpo", why=why, fix=fix)
    if others:
        fix = "coterie recipes  (lists the algorithms that there are)"
        raise ConfigError(f"{file} is of the program '{others[0]}'", path=others[0], why=why, fix=fix)
    fix = "add the section of the program that reads it, e.g. magrpo: {num_turns: 1}"
    raise ConfigError(f"{file} has no section grpo or magrpo", path="magrpo", why=why, fix=fix)
