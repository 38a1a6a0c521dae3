"""A data source that makes the tasks it reads: for smoke runs and tests, never for results."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pydantic import Field

from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types.splits import SPLITS, Split
from coterie.data.ds_pack import write_pack


class SyntheticPack(Plugin):
    """A task pack as `coterie data make ds-pack` writes it, in a folder that goes with the data source."""

    class Config(PluginConfig):
        tasks: int = Field(9, ge=1, description="Of each split; nine in a row are one of each family.")
        seed: int = Field(0, ge=0, description="Same seed, same bytes.")

    config: Config

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._folder = tempfile.TemporaryDirectory(prefix="coterie-pack-")
        place = Path(self._folder.name) / "pack"
        write_pack(place, SPLITS, self.config.tasks, self.config.seed, force=False, facts={})
        self._source = build.make("data_source", {"type": "ds_pack", "path": str(place)}, build.path)

    def records(self, split: Split) -> Any:
        """The records of a split."""
        return self._source.records(split)
