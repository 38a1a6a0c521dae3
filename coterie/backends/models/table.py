"""A softmax policy as a table: one row of logits per context. A context is all token ids so far."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from coterie.backends.models.policy import TABLE_FILE
from coterie.backends.models.wordcodec import EOS_ID, word_id
from coterie.core.errors import ConfigError
from coterie.core.types import Weights

Context = tuple[int, ...]


def table_words(vocabulary: Iterable[str]) -> tuple[str, ...]:
    """The words that a table chooses from, sorted; `<eos>`, which is column 0 of a table, is left out."""
    return tuple(sorted({word for entry in vocabulary for word in entry.split()} - {"<eos>"}))


class LogitTable:
    """Logits by context; a new context has zeros (uniform). Rows are replaced, never written into.

    Args:
        words: the words that can be drawn, besides `<eos>`; column i + 1 is word i.
        rows: context -> logits, float64, shape (V,).
    """

    def __init__(self, words: tuple[str, ...], rows: Mapping[Context, np.ndarray] | None = None) -> None:
        self.words = words
        self.ids = np.array([EOS_ID, *(word_id(word) for word in words)], dtype=np.int64)
        self.columns = {int(index): column for column, index in enumerate(self.ids)}
        self.rows: dict[Context, np.ndarray] = dict(rows or {})
        self._unseen = np.zeros(len(self.ids))

    def logits(self, context: Context) -> np.ndarray:
        """The logits of a context, shape (V,); read-only."""
        return self.rows.get(context, self._unseen)

    def snapshot(self) -> LogitTable:
        """The table as it is now; a cheap copy, since rows are never written into."""
        return LogitTable(self.words, self.rows)

    def digest(self) -> str:
        return rows_digest(self.words, logits=self.rows)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-softmax along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def rows_digest(words: tuple[str, ...], **tables: Mapping[Context, np.ndarray]) -> str:
    """sha256 of tables over one vocabulary; a row of zeros counts as missing."""
    hasher = hashlib.sha256(repr(words).encode())
    for name, rows in tables.items():
        for context in sorted(rows):
            if rows[context].any():
                hasher.update(name.encode())
                hasher.update(np.array([len(context), *context], dtype="<i8").tobytes())
                hasher.update(rows[context].astype("<f8").tobytes())
    return hasher.hexdigest()


def write_rows(path: Path, words: tuple[str, ...], **tables: Mapping[Context, np.ndarray]) -> None:
    """Write tables over one vocabulary to an .npz file, exactly."""
    arrays: dict[str, np.ndarray] = {"words": np.array(words, dtype=str)}
    for name, rows in tables.items():
        arrays[f"{name}.lengths"] = np.array([len(context) for context in rows], dtype=np.int64)
        arrays[f"{name}.contexts"] = np.array(
            [index for context in rows for index in context], dtype=np.int64
        )
        arrays[f"{name}.rows"] = np.stack(list(rows.values())) if rows else np.zeros((0, len(words) + 1))
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_rows(path: Path) -> tuple[tuple[str, ...], dict[str, dict[Context, np.ndarray]]]:
    """Read a file that `write_rows` wrote: the words, and the tables by name."""
    tables: dict[str, dict[Context, np.ndarray]] = {}
    with np.load(path) as file:
        words = tuple(str(word) for word in file["words"])
        for name in sorted({entry.rpartition(".")[0] for entry in file.files} - {""}):
            ends = np.cumsum(file[f"{name}.lengths"])
            flat, rows = file[f"{name}.contexts"], file[f"{name}.rows"]
            contexts = [tuple(part.tolist()) for part in np.split(flat, ends[:-1])] if len(ends) else []
            tables[name] = {context: row.copy() for context, row in zip(contexts, rows, strict=True)}
    return words, tables


def source_table(policy: str, source: Weights) -> LogitTable:
    """The table with which a policy begins, from a trainer or from a folder.

    Raises:
        ConfigError: it is no table, or can't be read.
    """
    at = f"policies.{policy}.from"
    if source.folder is not None:
        file = Path(source.folder) / TABLE_FILE
        try:
            words, tables = read_rows(file)
            return LogitTable(words, tables["logits"])
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{file} can't be read", path=at, why=f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(source.module, LogitTable):
        raise ConfigError("the policy that it names has no table", path=at)
    return LogitTable(source.module.words, source.module.rows)


def words_differ(theirs: Iterable[str], ours: Iterable[str]) -> str:
    """A sentence on how two vocabularies differ."""
    differing = set(theirs) ^ set(ours)
    return f"{len(differing)} words differ, such as {min(differing)!r}"


_MASK = (1 << 64) - 1


def uniforms(seeds: np.ndarray, position: int) -> np.ndarray:
    """One uniform number in [0, 1) per request, for the token at `position`: splitmix64 of a counter.

    Args:
        seeds: uint64, shape (B,): the seeds of the requests.
        position: index of the token in its call.

    Returns:
        float64, shape (B,). Row b depends on (seeds[b], position) alone, whatever the batch.
    """
    with np.errstate(over="ignore"):
        z = seeds + np.uint64(((position + 1) * 0x9E3779B97F4A7C15) & _MASK)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
