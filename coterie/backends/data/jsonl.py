"""The data source `jsonl`: one JSON object per line, or a JSON list of objects; plain or gzipped."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from coterie.backends.data.records import FileShares, LocatedRecords, unreadable
from coterie.core.errors import DataError, UserError
from coterie.core.plugins import Plugin
from coterie.core.types.splits import Split

Located = tuple[Mapping[str, Any], str, int]
"""A record, its file and its line."""
_BETWEEN = re.compile(r"[\s,]*")
"""White space and commas between the items of a list."""
_HALF = re.compile("[\ud800-\udfff]")
_LIST_FIX = "one JSON object a line; a file with one list of objects has a name that ends in .json"
_CSV_FIX = (
    "write one JSON object a line, by pandas for one: "
    "read_csv(FILE).to_json('records.jsonl', orient='records', lines=True)"
)
_BEGINS = (
    (b"PAR1", "a Parquet file", "set type: parquet, or name the file in a data source of this type"),
    (b"\x1f\x8b", "gzipped", "give it a name that ends in .gz"),
    (b"PK\x03\x04", "a ZIP archive or an Excel workbook", "unpack it, or save the sheet as JSONL"),
    (codecs.BOM_UTF32_LE, "written in UTF-32, as its byte order mark (BOM) says", "save it as UTF-8"),
    (codecs.BOM_UTF16_LE, "written in UTF-16, as its byte order mark (BOM) says", "save it as UTF-8"),
    (codecs.BOM_UTF16_BE, "written in UTF-16, as its byte order mark (BOM) says", "save it as UTF-8"),
)
_TABLES = {
    ".csv": "a CSV file",
    ".tsv": "a TSV file",
    ".xlsx": "an Excel workbook",
    ".xls": "an Excel workbook",
}


class JsonlData(Plugin):
    """Records of a JSONL file, or of a `.json` file that holds one list (`.gz`: gzipped).

    Blank lines are skipped. A record of a list has the line in which it begins.
    """

    class Config(FileShares):
        pass

    config: Config

    def records(self, split: Split) -> LocatedRecords:
        """The records of a split.

        Raises:
            DataError: a line or an item of the list is no JSON object, or no UTF-8; names file and line.
            ConfigError: the split has no file.
            UserError: the file holds no record, is of another form such as CSV, or can't be read, such as
                one that ends in `.gz` and is not gzipped.
        """
        file, path = self.config.file(split, self.build.path)
        _check_form(file, path)
        listed = file.name.removesuffix(".gz").endswith(".json")
        try:
            records = LocatedRecords(_items(file) if listed else _lines(file))
        except (OSError, EOFError, zlib.error) as error:
            raise unreadable(file, path, "", error) from error
        if not records:
            why = "its list is empty" if listed else "all its lines are blank"
            raise UserError(
                f"{file} holds no record", path=path, why=why, fix="name the file with the records"
            )
        return self.config.select(records, split)


def _open(file: Path) -> IO[bytes]:
    return cast("IO[bytes]", (gzip.open if file.suffix == ".gz" else open)(file, "rb"))


def _lines(file: Path) -> Iterator[Located]:
    with _open(file) as lines:
        yield from read_objects(lines, str(file))


def read_objects(lines: Iterable[bytes], file: str) -> Iterator[Located]:
    """The objects of lines of JSON; blank lines are skipped.

    Raises:
        DataError: a line is no JSON object, or no UTF-8; names the file and the line.
    """
    for number, line in enumerate(lines, 1):
        if line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip():
            yield _object(line, file, number), file, number


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
    except ValueError as error:  # a JSONDecodeError, or a number of too many digits
        line = getattr(error, "lineno", 1)
        raise DataError(str(file), line, "-", f"not JSON: {error}", fix="one list of objects") from None
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
        fix = _LIST_FIX if line.lstrip().startswith(b"[") else "one JSON object a line"
        form, helps = _form_of_line(line) if number == 1 else ("", "")
        if line.startswith(codecs.BOM_UTF8) and number > 1:
            form, helps = (
                "a byte order mark (BOM) stands inside the file",
                "remove it: joined files keep theirs",
            )
        raise DataError(file, number, "-", f"not JSON: {form or error}", fix=helps or fix) from None
    return _checked(record, file, number)


def _checked(record: Any, file: str, number: int) -> Mapping[str, Any]:
    if not isinstance(record, dict):
        raise DataError(
            file,
            number,
            "-",
            f"a JSON {'null' if record is None else type(record).__name__}, not an object",
            fix=_LIST_FIX if isinstance(record, list) else 'write each record as {"field": value, ...}',
        )
    for name, value in record.items():
        if not _is_text(name) or not _is_text(value):
            raise DataError(
                *(file, number, name if _is_text(name) else ascii(name)),
                "holds half a surrogate pair, which is no character",
                fix="write the character itself, or both halves of its escape",
            )
    return record


def _is_text(value: Any) -> bool:
    """Whether all texts of a JSON value can be written as UTF-8: they are printed, tokenised and sent."""
    if isinstance(value, str):
        return not _HALF.search(value)
    if isinstance(value, dict):
        return all(map(_is_text, value)) and all(map(_is_text, value.values()))
    return all(map(_is_text, value)) if isinstance(value, list) else True


def _check_form(file: Path, path: str) -> None:
    """Refuse a file of another form, which is named.

    Args:
        path: of the file's setting.

    Raises:
        UserError: the file is empty, or a CSV, Parquet, gzipped, ZIP, UTF-16 or UTF-32 file.
    """
    with file.open("rb") as opened:
        begin = opened.read(4)
    if not begin:
        raise UserError(
            f"{file} is empty", path=path, why="it has 0 bytes", fix="name the file with the records"
        )
    kinds = [Path(name).suffix.lower() for name in (file.name, file.name.removesuffix(".gz"))]
    for kind in kinds:
        if kind in _TABLES:
            raise UserError(f"{file} is {_TABLES[kind]}, not JSONL", path=path, fix=_CSV_FIX)
    for signature, what, fix in _BEGINS:
        if begin.startswith(signature) and not (what == "gzipped" and file.suffix == ".gz"):
            raise UserError(f"{file} is {what}, not JSONL in UTF-8", path=path, fix=fix)


def _form_of_line(line: bytes) -> tuple[str, str]:
    """What the first line of a file may be that is no JSON, and what helps; empty: that isn't known."""
    separated = max((b",", b";", b"\t"), key=line.count)
    if line.count(separated) and not line.lstrip().startswith((b"{", b"[")):
        return "it looks like the header of a CSV file", _CSV_FIX
    return "", ""
