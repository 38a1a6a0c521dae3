"""The requests and results of the `hf` engine's decoders, and one batch for several policies.

Policies whose LoRA adapters share a frozen base generate together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from coterie.backends.models.merged_weights import MergedWeights


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One checked request: every input that determines its tokens."""

    prompt_ids: tuple[int, ...]
    seed: int
    """64-bit."""
    limit: int
    """Most tokens to draw, at least 1; prompt and limit together fit the context."""
    stops: tuple[int, ...]
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    adapter: str | None = None
    """The name of the decoder's adapter that computes the row; None: the weights without an adapter."""


class Drawn(NamedTuple):
    """The result of a row: its tokens (the stop token included), their log-probs, and why it ended."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length"]


@dataclass(slots=True)
class DecoderCounts:
    """Counters of a decoder's work so far."""

    prompts: int = 0
    """Distinct prompts that were prefilled."""
    prompt_tokens: int = 0
    """Their tokens, without padding."""
    steps: int = 0
    """Decode steps of whole batches."""
    slots: int = 0
    """Rows computed in these steps, idle rows included."""
    halved: int = 0
    """Batches that ran out of memory and were halved."""


class Decoder(Protocol):
    """Weights that tokens can be drawn from."""

    counts: DecoderCounts

    def generate(self, rows: Sequence[BatchRow]) -> list[Drawn]:
        """Draw for all rows together; rows with the same prompt and adapter share a prefill."""

    def refresh(self, weights: MergedWeights) -> None:
        """Copy the present values of the weights."""

    def adapt(self, adapter: str, weights: MergedWeights) -> None:
        """Copy the present values of an adapter's low-rank parts, for the rows that name it."""


def siblings(rows: Sequence[BatchRow]) -> list[np.ndarray]:
    """Indices of rows grouped by prompt and adapter; groups are in the order of their first row."""
    groups: dict[tuple[str | None, tuple[int, ...]], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.adapter, row.prompt_ids), []).append(index)
    return [np.array(members) for members in groups.values()]


if TYPE_CHECKING:
    from coterie.backends.models.merged_weights import MergedWeights

MIXED_ROWS = 64
"""Most rows per adapter of a mixed batch on a CPU, where the time grows with every row.

Measured on one thread at widths 64, 128 and 256 (`benchmarks/mixed_adapters.py`). With 8 rows per adapter, a
mixed batch is 1.4 to 1.5 times as fast as merged batches for two adapters and 1.6 to 2.2 times as fast for
four. With 64 rows per adapter both are equal (0.93 to 1.05). With 128 rows per adapter mixing is slower (0.81
to 0.97), as it is for a single adapter (0.80 to 0.99). GPUs have no such limit; they were not measured.
"""

MERGED_NUMBERS = 20_000_000
"""Most weights of a base that `adapters: auto` may merge adapters into: the copy is as large as the base.

Measured on one thread in float32 at SmolLM2's width, 6 layers (50 million weights), 16 rows of 32 tokens,
each batch after a load: for one adapter (rank 16, all linear layers) both take the same time, and for two a
mixed batch is 1.45 times as fast. So a merged copy of a large base gains nothing.
"""


class SharedBase:
    """Generates for the policies of one base, each identified by an adapter's name (None: the base alone).

    A *mixed* batch computes the base's products once for all rows, and each adapter's low-rank part for the
    adapter's rows only: y = x W^T + scale * (x A^T) B^T. A *merged* batch computes one adapter after the
    other, each added into a spare copy of the weights. Each copy of the weights is made for the first batch
    that needs it. The choice between mixed and merged depends only on the batch, never on earlier batches, so
    a resumed run repeats the choice.

    Args:
        name: identifies the base.
        base: the weights without any adapter; they are read again after each `load`.
        make: makes a decoder from weights.
        mixed_rows: most rows per adapter, on average, of a mixed batch of several adapters; None: every batch
            is mixed.
    """

    def __init__(
        self,
        name: str,
        base: MergedWeights,
        make: Callable[[MergedWeights], Decoder],
        mixed_rows: float | None,
    ) -> None:
        self.name = name
        self.counts = DecoderCounts()
        self._base, self._make, self._mixed_rows = base, make, mixed_rows
        self._loaded: dict[str, MergedWeights] = {}
        self.mixed: Decoder | None = None
        """Computes the base's rows and those of adapters in one batch; None: no batch was mixed yet."""
        self._outdated: set[str] = set()
        """Adapters that were loaded and not yet copied into the mixed decoder."""
        self._base_is_current = False
        self.spare: Decoder | None = None
        self.merged_adapter: str | None = None
        """The adapter in the spare copy."""

    def load(self, weights: MergedWeights, name: str | None = None) -> None:
        """Copy the values of the weights' adapter; `generate` computes rows that name it with them then.

        Args:
            name: of the adapter in rows; default: the one it has in its module.
        """
        self._base_is_current = False
        self.merged_adapter = None
        if weights.adapter is not None:
            name = name or weights.adapter
            self._loaded[name] = weights.snapshot()
            self._outdated.add(name)

    def generate(self, rows: Sequence[BatchRow]) -> list[Drawn]:
        """Draw for all rows, each with the adapter that it names."""
        if not rows:
            return []
        counts = Counter(row.adapter for row in rows)
        if self._is_mixed(counts):
            return self._mixed_decoder().generate(rows)
        drawn: dict[int, Drawn] = {}
        for adapter in counts:
            indices = [index for index, row in enumerate(rows) if row.adapter == adapter]
            plain = [replace(rows[index], adapter=None) for index in indices]
            drawn.update(zip(indices, self._merged_decoder(adapter).generate(plain), strict=True))
        return [drawn[index] for index in range(len(rows))]

    def prepare(self, counts: Mapping[str | None, int]) -> None:
        """Make the copies of weights that a batch with these row counts per adapter needs."""
        if not counts:
            return
        if self._is_mixed(counts):
            self._mixed_decoder()
        else:
            for adapter in counts:
                self._merged_decoder(adapter)

    def _is_mixed(self, counts: Mapping[str | None, int]) -> bool:
        if self._mixed_rows is None:
            return True
        return len(counts) > 1 and sum(counts.values()) <= self._mixed_rows * len(counts)

    def _mixed_decoder(self) -> Decoder:
        """The decoder of the base and of all adapters, with the values that were loaded last."""
        if self.mixed is None:
            self.mixed = self._make(self._base)
            self.mixed.counts = self.counts
        elif not self._base_is_current:
            self.mixed.refresh(self._base)
        self._base_is_current = True
        for adapter in sorted(self._outdated):
            self._outdated.discard(adapter)  # first: the thread of the trainer may load it again
            self.mixed.adapt(adapter, self._loaded[adapter])
        return self.mixed

    def _merged_decoder(self, adapter: str | None) -> Decoder:
        """The decoder of the base (None), or of the spare copy with this adapter merged in."""
        if adapter is None:
            return self._mixed_decoder()
        weights = self._loaded[adapter]
        if self.spare is None:
            self.spare = self._make(weights)
            self.spare.counts = self.counts
        elif self.merged_adapter != adapter:
            self.merged_adapter = None  # until the copy is complete: it may run out of memory
            self.spare.refresh(weights)
        self.merged_adapter = adapter
        return self.spare
