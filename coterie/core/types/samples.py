"""What the estimator returns and the trainer sees: credit, samples, weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from coterie.core.types.keys import Key

Annotations = dict[str, dict[Key, np.ndarray]]
"""{"ref_logprobs" | "old_logprobs" | "values" | "teacher_logprobs": {branch key: per-token, shape
(tokens,)}}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What the estimator returns. An absent key is not trained: no loss, no KL, in no denominator."""

    advantage: dict[Key, float | np.ndarray]
    """By branch: one number, or one per sampled token."""
    weight: dict[Key, float] = field(default_factory=dict)
    """By branch; 1 where absent."""
    target: dict[Key, np.ndarray] = field(default_factory=dict)
    """Value targets, per token."""
    returns: dict[Key, float] = field(default_factory=dict)
    """By branch; what the advantage was made from, for the record."""
    metrics: dict[str, float] = field(default_factory=dict)


class Span(NamedTuple):
    """One sequence of a sequence-level loss inside a sample: tokens [start, stop) belong to `branch`."""

    start: int
    stop: int
    branch: Key
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """All that a trainer ever sees. Arrays have shape (T,), T = len(token_ids)."""

    key: Key
    """Of the branch, and of the first call where a broken prefix made several samples of it."""
    policy: str
    token_ids: np.ndarray
    """int64: prompt, then what was sampled (and tool results between calls)."""
    loss_mask: np.ndarray
    """bool: True exactly on sampled tokens."""
    logprobs: np.ndarray
    """float32: behaviour log-probs at `temperature`; 0 where the mask is False."""
    advantages: np.ndarray
    """float32; 0 where the mask is False."""
    spans: tuple[Span, ...]
    version: int
    temperature: float = 1.0
    prompt_tokens: int = 0
    """Length of the prefix shared with the samples of the same decision."""
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Notes aligned to token_ids: `ref_logprobs`, `old_logprobs`, `values`, and the `targets` of values."""

    @property
    def group(self) -> Key:
        """Samples of one group share their first `prompt_tokens` ids."""
        return self.key.decision


Metrics = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A handle to a policy's weights, as a trainer gives it and an engine takes it."""

    policy: str
    version: int
    module: Any = None
    """The live object, where engine and trainer share a process."""
    folder: str | None = None
    """Or a folder in Hugging Face / PEFT format."""
    adapter: str | None = None
    """Name of the policy's adapter inside `module`, where the module is a PEFT model."""
    tokenizer: Any = None
