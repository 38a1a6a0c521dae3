"""The data source `jsonl`: one JSON object per line, or a JSON list of objects; plain or gzipped."""

from __future__ import annotations

import codecs
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from coterie.backends.data.records import FileShares, Records
from coterie.core.errors import DataError
from coterie.core.plugins import Plugin
from coterie.core.types.splits import Split

Located = tuple[Mapping[str, Any], str, int]
"""A record, its file and its line."""
_BETWEEN = re.compile(r"[\s,]*")
"""White space and commas between the items of a list."""


class JsonlData(Plugin):
    """Records of a JSONL file, or of a `.json` file that holds one list (`.gz`: gzipped).

    Blank lines are skipped. A record of a list has the line in which it begins.
    """

    class Config(FileShares):
        pass

    config: Config

    def records(self, split: Split) -> Records:
        """The records of a split.

        Raises:
            DataError: a line, or an item of the list, is not a JSON object; names file and line.
            ConfigError: the split has no file.
        """
        file = self.config.file(split, self.build.path)
        listed = file.name.removesuffix(".gz").endswith(".json")
        return self.config.select(Records(_items(file) if listed else _lines(file)), split)


def _open(file: Path) -> IO[bytes]:
    return cast("IO[bytes]", (gzip.open if file.suffix == ".gz" else open)(file, "rb"))


def _lines(file: Path) -> Iterator[Located]:
    with _open(file) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _object(line, str(file), number), str(file), number


def _items(file: Path) -> Iterator[Located]:
    """The items of a list; the lines of a file that begins with an object."""
    with _open(file) as opened:
        data = opened.read()
    if not data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        yield from _lines(file)
        return
    try:
        text = data.decode("utf-8-sig")
        json.loads(text)  # so that what follows meets no wrong JSON
    except UnicodeDecodeError as error:
        raise DataError(str(file), 1, "-", f"not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise DataError(
            str(file), error.lineno, "-", f"not JSON: {error}", fix="one list of objects"
        ) from None
    except RecursionError:
        raise DataError(
            str(file), 1, "-", "not readable: nested too deeply", fix="one list of objects"
        ) from None
    decoder, line, counted = json.JSONDecoder(), 1, 0
    at = _BETWEEN.match(text, text.index("[") + 1).end()  # type: ignore[union-attr]
    while text[at] != "]":
        line, counted = line + text.count("\n", counted, at), at
        record, at = decoder.raw_decode(text, at)
        yield _checked(record, str(file), line), str(file), line
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]


def _object(line: bytes, file: str, number: int) -> Mapping[str, Any]:
    try:
        record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(file, number, "-", f"not UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(file, number, "-", f"not JSON: {error}", fix="one JSON object a line") from None
    return _checked(record, file, number)


def _checked(record: Any, file: str, number: int) -> Mapping[str, Any]:
    if not isinstance(record, dict):
        raise DataError(
            file,
            number,
            "-",
            f"a JSON {type(record).__name__}, not an object",
            fix='write each record as {"field": value, ...}',
        )
    return record
