"""A data source: the records that an environment makes its tasks from.

Mazes of Plan-Path, one JSON record a line, in a file beside this module. The field `split` says where a
record belongs, so that no record is in two splits.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from coterie import DataError, Plugin, PluginConfig, Register, Split, hookimpl

FILE = Path(__file__).with_name("example_name.jsonl")


class ExampleNameDataSource(Plugin):
    """Reads the lines of a file whose field `split` is the split that is asked for."""

    class Config(PluginConfig):
        # `file-path`: a run notes what is in the file, and a resumed run refuses another content.
        path: str | None = Field(
            None,
            description="A JSONL file; null: the one that comes with the package.",
            json_schema_extra={"format": "file-path"},
        )

    config: Config

    # Called once a split, and again whenever a run is composed: the same records in the same order.
    def records(self, split: Split) -> Sequence[Mapping[str, Any]]:
        path = Path(self.config.path or FILE)
        records = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = json.loads(line)
                belongs = record.pop("split")
            except (ValueError, AttributeError, KeyError, TypeError):
                what, fix = "no JSON object with a split", 'write {"split": "train", "grid": [...]}'
                raise DataError(path.name, number, "split", what, fix=fix) from None
            if belongs == split:
                records.append(record)
        return records


@hookimpl
def register_data_sources(register: Register) -> None:
    register("example_name", ExampleNameDataSource)
