"""Errors of YAML in the words of this package: the file and the line, what is wrong, and how to write it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from coterie.core.errors import ConfigError

MEANINGS = {
    "{": "a brace begins a YAML mapping",
    "[": "a bracket begins a YAML list",
    "%": "YAML reserves % at the beginning of a value",
    "@": "YAML reserves @ at the beginning of a value",
    "`": "YAML reserves ` at the beginning of a value",
    "*": "an asterisk names a YAML alias",
    "&": "an ampersand names a YAML anchor",
    "!": "an exclamation mark begins a YAML tag",
    '"': "a quotation mark is not closed",
    "'": "a quotation mark is not closed",
    "}": "a brace ends a YAML mapping",
    "]": "a bracket ends a YAML list",
}
"""By first character: why YAML reads a text as something else."""
_COMMENT = re.compile(r"(^|\s)#")


def override_error(key: str, value: str) -> ConfigError:
    """The error of an override whose value is no YAML, or that YAML doesn't read as the text that it is."""
    text = value.strip()
    if "\t" in text:
        why = "a tab has a meaning of its own in YAML"
    elif text[:1] in MEANINGS:
        why = MEANINGS[text[:1]]
    elif _COMMENT.search(text):
        why = "`#` begins a YAML comment: what follows would be dropped"
    else:
        why = "a colon and a space make a YAML mapping"
    quoted = shlex.quote(f"{key}={json.dumps(text, ensure_ascii=False)}")
    fix = f"as a text, in a shell: {quoted}"
    if text.startswith("{{") or text[:1] not in "{[":
        return ConfigError(f"the value {value!r} is not YAML of one text", path=key, why=why, fix=fix)
    return ConfigError(f"the value {value!r} is not YAML", path=key, why=why, fix=f"close it; or {fix}")


def is_misread(value: str, parsed: Any) -> bool:
    """Whether YAML drops a part of an unquoted text as a comment, or makes a mapping of `a: b`."""
    text = value.strip()
    if text[:1] in ('"', "'", "{", "[", "|", ">"):
        return False
    return bool(_COMMENT.search(text)) or isinstance(parsed, dict)


def file_error(path: Path, text: str, error: YAMLError) -> ConfigError:
    """The error of a file that is not YAML."""
    if isinstance(error, DuplicateKeyError):
        for key, first, second in _duplicates(text):
            return ConfigError(
                f"{path}:{second} repeats the key '{key}'",
                why=f"line {first} has it already, and one of the two values would be lost",
                fix="merge the two, or remove one",
            )
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    if mark is None:
        return ConfigError(f"{path} is not valid YAML", why=" ".join(str(error).split()))
    line = text.split("\n")[mark.line] if mark.line < text.count("\n") + 1 else ""
    why, fix = _explained(line, mark.column, str(getattr(error, "problem", "") or error))
    return ConfigError(f"{path}:{mark.line + 1} is not valid YAML: {line.strip()!r}", why=why, fix=fix)


def _explained(line: str, column: int, problem: str) -> tuple[str, str]:
    """(why, fix) of a line that YAML can't read, with the place and the words of the parser."""
    if "\t" in line[: column + 1]:
        return "YAML allows no tab in an indentation", "indent with spaces"
    value = line.partition(": ")[2].strip()
    if "mapping values are not allowed" in problem and ": " not in value:
        fix = "give it as many spaces as the other keys of its table, or end the line above with a colon"
        return "its indentation fits no line above", fix
    if "mapping values are not allowed" in problem:
        return "a colon and a space make a mapping of the value", f"quote it: {json.dumps(value)}"
    if value.startswith("{{") or (value[:1] in MEANINGS and value[:1] not in "{[]}\"'"):
        return MEANINGS[value[:1]], f"quote it: {json.dumps(value, ensure_ascii=False)}"
    if "another document" in problem or "single document" in problem:
        return "`---` begins a second document", "remove it: a file holds one table"
    return f"the parser says: {problem}", "check brackets, quotation marks and indentation near this line"


def _duplicates(text: str) -> Iterator[tuple[str, int, int]]:
    """(key, its first line, the line that repeats it) of the keys that a mapping has twice; lines from 1."""
    yield from _walk(YAML(typ="safe", pure=True).compose(text))


def _walk(node: Node | None) -> Iterator[tuple[str, int, int]]:
    if isinstance(node, MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                yield name, lines[name], line
            lines.setdefault(name, line)
            yield from _walk(value)
    elif isinstance(node, SequenceNode):
        for item in node.value:
            yield from _walk(item)
