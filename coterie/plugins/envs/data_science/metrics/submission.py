"""Read a CSV file as columns of text. Nothing is unpickled or unpacked, and what is read has a bound."""

from __future__ import annotations

import csv
import os
import stat
from collections.abc import Callable, Collection
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from coterie.plugins.envs.data_science.metrics.column import Invalid, pandas

MOST_BYTES = 256 << 20
"""Of a submission. The largest of DSBench, malware with 1.8 million rows, is a third of that."""
_BYTES, _BYTES_A_VALUE = 1 << 20, 1 << 10
"""Of a submission to a small test set."""
_HEADER_BYTES = 64 << 10

Cells = dict[str, NDArray[np.object_]]
"""Column name -> its values as text without surrounding white space, one a row."""


def read_table(
    source: Path | bytes,
    *,
    check: Callable[[list[str]], None] = lambda names: None,
    most_rows: int | None = None,
    most_bytes: int | None = None,
    only: Collection[str] | None = None,
    follow: bool = False,
) -> Cells:
    """The columns of a CSV file with a header.

    Args:
        source: the file's path, or its content.
        check: is called with the column names before any row is read, and may raise Invalid.
        most_rows: rows that are read at most; None: all.
        most_bytes: size that is read at most; None: any.
        only: columns that are read, of those that are there; None: all.
        follow: whether the path may be a link.

    Raises:
        Invalid: there is no such file, it is too large, or it is no table in CSV.
    """
    with _opened(source, most_bytes, follow) as file:
        names = _header(file)
        check(names)
        numbers = [number for number, name in enumerate(names) if only is None or name in only]
        table = _rows(file, most_rows, None if only is None else numbers)
    if table is None:
        return {names[number]: np.empty(0, dtype=object) for number in numbers}
    if len(table.columns) != len(numbers):
        raise Invalid(f"the header has {len(names)} columns and the first row {len(table.columns)}")
    # A row that ends early has the text "" there.
    columns = ((number, [cell.strip() for cell in table[number]]) for number in numbers)
    return {names[number]: np.array(cells, dtype=object) for number, cells in columns}


def size_limit(values: int) -> int:
    """The bytes of a submission with so many values, ids included, that are read at most."""
    return min(MOST_BYTES, _BYTES + values * _BYTES_A_VALUE)


def _opened(source: Path | bytes, most_bytes: int | None, follow: bool) -> BinaryIO:
    """The open file, once its kind and size are known. Opening waits for nothing, not even for a pipe."""
    if isinstance(source, bytes):
        _check_size(len(source), most_bytes)
        return BytesIO(source)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(source, flags if follow else flags | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise Invalid(f"there is no file {source.name}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise Invalid(f"{source.name} is no plain file that can be read ({reason})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Invalid(f"{source.name} is no plain file")
        _check_size(status.st_size, most_bytes)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_size(size: int, most_bytes: int | None) -> None:
    if not size:
        raise Invalid("the file is empty; write a header and a row for each id")
    if most_bytes is not None and size > most_bytes:
        raise Invalid(
            f"the file has {size:,} bytes, and at most {most_bytes:,} are read; write a row for each id of "
            "the test set, and no other"
        )


def _header(file: BinaryIO) -> list[str]:
    line = file.readline(_HEADER_BYTES)
    if len(line) == _HEADER_BYTES and not line.endswith(b"\n"):
        raise Invalid(
            f"the first line has more than {_HEADER_BYTES:,} bytes; write a header with column names"
        )
    try:
        [fields] = csv.reader([line.decode("utf-8-sig")], skipinitialspace=True, strict=True)
    except (UnicodeDecodeError, csv.Error, ValueError):
        raise Invalid("the file is no CSV text (UTF-8); write it with `to_csv(..., index=False)`") from None
    names = [name.strip() for name in fields]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise Invalid(f"the column '{repeated[0]}' is there more than once; name each column once")
    return names


def _rows(file: BinaryIO, most_rows: int | None, numbers: list[int] | None) -> Any:
    """A frame of the rows below the header, columns 0, 1, ...; None: there are none."""
    frames = pandas()
    file.seek(0)
    try:
        return frames.read_csv(
            file,
            header=None,
            skiprows=1,
            nrows=most_rows,
            usecols=numbers,
            dtype=object,
            na_filter=False,
            skipinitialspace=True,
            encoding="utf-8",
            engine="c",
        )
    except frames.errors.EmptyDataError:
        return None
    except (ValueError, OverflowError) as error:  # ParserError and UnicodeDecodeError are ValueErrors
        text = " ".join(str(error).removeprefix("Error tokenizing data. C error: ").split())
        raise Invalid(f"the file is no table in CSV: {text}") from None
