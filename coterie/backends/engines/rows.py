"""The requests and results of the `hf` engine's decoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
