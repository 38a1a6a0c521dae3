"""What the decoders of the `hf` engine are asked and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from coterie.backends.models.dense import MergedWeights


@dataclass(frozen=True, slots=True)
class Row:
    """One request, checked: everything that bears on its tokens."""

    prompt_ids: tuple[int, ...]
    seed: int
    """64-bit."""
    limit: int
    """Most tokens it may draw, at least 1; prompt and limit fit the context."""
    stops: tuple[int, ...]
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    adapter: str | None = None
    """Which of the decoder's adapters computes it; None: its weights as they are."""


class Drawn(NamedTuple):
    """What a row drew: its tokens (the stop token included), their log-probs, and why it ended."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length"]


@dataclass(slots=True)
class Counts:
    """What a decoder has computed so far."""

    prompts: int = 0
    """Distinct prompts that were prefilled."""
    prompt_tokens: int = 0
    """Their tokens, without padding."""
    steps: int = 0
    """Decode steps of whole batches."""
    slots: int = 0
    """Rows computed in these steps, idle ones included."""


class Decoder(Protocol):
    """Weights that can be sampled from."""

    counts: Counts

    def generate(self, rows: Sequence[Row]) -> list[Drawn]:
        """Draw for all rows together; rows with one prompt and one adapter share its prefill."""

    def refresh(self, weights: MergedWeights) -> None:
        """Take the present values of the weights."""

    def adapt(self, adapter: str, weights: MergedWeights) -> None:
        """Take the present values of an adapter's low-rank parts, for rows that name it."""


def siblings(rows: Sequence[Row]) -> list[np.ndarray]:
    """Indices of the rows with the same prompt and adapter, in the order in which those first occur."""
    groups: dict[tuple[str | None, tuple[int, ...]], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.adapter, row.prompt_ids), []).append(index)
    return [np.array(members) for members in groups.values()]
