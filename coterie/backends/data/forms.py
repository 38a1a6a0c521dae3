"""What a file of records is that is no JSON, by its first bytes and its name."""

from __future__ import annotations

import codecs
from pathlib import Path

from coterie.core.errors import UserError

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


def check_form(file: Path, path: str) -> None:
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


def form_of_line(line: bytes) -> tuple[str, str]:
    """What the first line of a file may be that is no JSON, and what helps; empty: that isn't known."""
    separated = max((b",", b";", b"\t"), key=line.count)
    if line.count(separated) and not line.lstrip().startswith((b"{", b"[")):
        return "it looks like the header of a CSV file", _CSV_FIX
    return "", ""
