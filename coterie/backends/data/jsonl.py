"""The data source `jsonl`: one JSON object per line, plain or gzipped."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from coterie.backends.data.records import FileShares, Records
from coterie.core.errors import DataError
from coterie.core.plugins import Plugin
from coterie.core.types.splits import Split


class JsonlData(Plugin):
    """Records of a JSONL file (`.gz`: gzipped). Blank lines are skipped."""

    class Config(FileShares):
        pass

    config: Config

    def records(self, split: Split) -> Records:
        """The records of a split.

        Raises:
            DataError: a line is not a JSON object; the error names file and line.
            ConfigError: the split has no file.
        """
        file = self.config.file(split, self.build.path)
        return self.config.select(Records(_lines(file)), split)


def _lines(file: Path) -> Iterator[tuple[Mapping[str, Any], str, int]]:
    opener = gzip.open if file.suffix == ".gz" else open
    with cast("IO[bytes]", opener(file, "rb")) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _object(line, str(file), number), str(file), number


def _object(line: bytes, file: str, number: int) -> Mapping[str, Any]:
    try:
        record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(file, number, "-", f"not UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(file, number, "-", f"not JSON: {error}", fix="one JSON object a line") from None
    if not isinstance(record, dict):
        raise DataError(
            file,
            number,
            "-",
            f"a JSON {type(record).__name__}, not an object",
            fix='write each record as {"field": value, ...}',
        )
    return record
