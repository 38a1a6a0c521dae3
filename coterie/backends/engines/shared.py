"""Policies whose LoRA adapters stand on one frozen base: their requests are computed in one batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.backends.engines.rows import Counts, Decoder, Drawn, Row

if TYPE_CHECKING:
    from coterie.backends.models.dense import MergedWeights

MIXED_ROWS = 64
"""Rows an adapter up to which a batch is mixed on a CPU, where every row takes its time.

Measured on one thread at widths 64, 128 and 256 (`benchmarks/mixed_adapters.py`): two adapters with 8 rows
each generate 1.4 to 1.5 times as fast mixed as merged one after the other, four 1.6 to 2.2 times; with 64
rows each both ways are even (0.93 to 1.05), with 128 rows each mixing is slower (0.81 to 0.97), and so it is
for an adapter that has a batch to itself (0.80 to 0.99). On a GPU there is no such limit: nothing was
measured there.
"""


class SharedBase:
    """Answers the policies of one base, each by an adapter's name (None: the base alone).

    A batch is computed *mixed*, the base's products once for all rows and each adapter's low-rank part for
    its own rows (y = x W^T + scale * (x A^T) B^T), or *merged*, one adapter after the other, each added into
    a spare copy of the weights. Both copies are made when a batch first asks for them. Which way it is
    depends on the batch alone, never on what was computed before, so that a resumed run repeats.

    Args:
        name: tells it from other bases.
        base: the weights without any adapter; they are read again after each `load`.
        make: a decoder for weights.
        mixed_rows: mixed for several adapters with at most so many rows each on average; None: always mixed.
    """

    def __init__(
        self,
        name: str,
        base: MergedWeights,
        make: Callable[[MergedWeights], Decoder],
        mixed_rows: float | None,
    ) -> None:
        self.name = name
        self.counts = Counts()
        self._base, self._make, self._mixed_rows = base, make, mixed_rows
        self._loaded: dict[str, MergedWeights] = {}
        self._mixed: Decoder | None = None
        self._outdated: set[str] = set()
        """Adapters that the mixed decoder has not taken yet."""
        self._base_read = False
        self._spare: Decoder | None = None
        self._inside: str | None = None
        """The adapter that is merged into the spare copy."""

    def load(self, weights: MergedWeights) -> None:
        """Copy the values of the weights' adapter. Nothing is computed with them before `generate`."""
        self._base_read = False
        self._inside = None
        if weights.adapter is not None:
            self._loaded[weights.adapter] = weights.held()
            self._outdated.add(weights.adapter)

    def generate(self, rows: Sequence[Row]) -> list[Drawn]:
        """Draw for all rows; each names its adapter."""
        if not rows:
            return []
        counts = Counter(row.adapter for row in rows)
        if self._mixes(counts):
            return self._beside().generate(rows)
        drawn: dict[int, Drawn] = {}
        for adapter in counts:
            own = [index for index, row in enumerate(rows) if row.adapter == adapter]
            plain = [replace(rows[index], adapter=None) for index in own]
            drawn.update(zip(own, self._alone(adapter).generate(plain), strict=True))
        return [drawn[index] for index in range(len(rows))]

    def prepare(self, counts: Mapping[str | None, int]) -> None:
        """Make the copies that a batch with so many rows of each adapter is computed with."""
        if not counts:
            return
        if self._mixes(counts):
            self._beside()
        else:
            for adapter in counts:
                self._alone(adapter)

    def _mixes(self, counts: Mapping[str | None, int]) -> bool:
        if self._mixed_rows is None:
            return True
        return len(counts) > 1 and sum(counts.values()) <= self._mixed_rows * len(counts)

    def _beside(self) -> Decoder:
        """The base with the adapters beside it, as they were loaded last."""
        if self._mixed is None:
            self._mixed = self._make(self._base)
            self._mixed.counts = self.counts
        elif not self._base_read:
            self._mixed.refresh(self._base)
        self._base_read = True
        for adapter in sorted(self._outdated):
            self._mixed.adapt(adapter, self._loaded[adapter])
        self._outdated.clear()
        return self._mixed

    def _alone(self, adapter: str | None) -> Decoder:
        """The base, or the spare copy with this adapter in it."""
        if adapter is None:
            return self._beside()
        weights = self._loaded[adapter]
        if self._spare is None:
            self._spare = self._make(weights)
            self._spare.counts = self.counts
        elif self._inside != adapter:
            self._spare.refresh(weights)
        self._inside = adapter
        return self._spare
