"""The data source `parquet`: the rows of a Parquet file."""

from __future__ import annotations

from coterie.backends.data.records import FileShares, LocatedRecords, unreadable
from coterie.core.errors import MissingExtra
from coterie.core.plugins import Plugin
from coterie.core.types.splits import Split


class ParquetData(Plugin):
    """Records of a Parquet file; each row counts as a line."""

    class Config(FileShares):
        pass

    config: Config

    def records(self, split: Split) -> LocatedRecords:
        """The records of a split.

        Raises:
            MissingExtra: pyarrow is not installed.
            ConfigError: the split has no file.
            UserError: the file is not a Parquet file, or is damaged.
        """
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtra("pyarrow", "data", needed_by="data source 'parquet'") from None
        file, path = self.config.file(split, self.build.path)
        try:
            rows = pyarrow.parquet.read_table(file).to_pylist()
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise unreadable(file, path, " as Parquet", error) from error
        return self.config.select(
            LocatedRecords((row, str(file), line) for line, row in enumerate(rows, 1)), split
        )
