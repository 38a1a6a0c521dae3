"""Credit (output of an estimator), samples (input of a trainer), weights (output of a trainer)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from coterie.core.types.keys import Key

Annotations = dict[str, dict[Key, np.ndarray]]
"""Per-token arrays beside the trees: {name: {branch key: array of shape (sampled tokens,)}}. The names are
`ref_logprobs`, `old_logprobs`, `values` and `teacher_logprobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Output of an estimator, by branch key. A branch without an advantage is not trained: it adds neither
    loss nor KL, and no denominator counts it."""

    advantage: dict[Key, float | np.ndarray]
    """One number, or one per sampled token: shape (sampled tokens,)."""
    weight: dict[Key, float] = field(default_factory=dict)
    """Weight of the branch in the loss; 1 where absent."""
    target: dict[Key, np.ndarray] = field(default_factory=dict)
    """Targets of the value head, shape (sampled tokens,)."""
    returns: dict[Key, float] = field(default_factory=dict)
    """Returns behind the advantages. Rollout files show them; training does not use them."""
    metrics: dict[str, float] = field(default_factory=dict)


class Span(NamedTuple):
    """One sequence of a loss: the tokens [start, stop) of a sample, which belong to `branch`."""

    start: int
    stop: int
    branch: Key
    weight: float
    """The branch's weight in the loss."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One training sequence, the only input of a trainer. Arrays have shape (T,), T = len(token_ids)."""

    key: Key
    """Key of the branch. A branch gives several samples where a later prompt does not extend its earlier
    tokens; from the second on, the key is that of the sample's first call."""
    policy: str
    token_ids: np.ndarray
    """int64: the prompt, then the sampled tokens, with tool results between calls."""
    loss_mask: np.ndarray
    """bool: True exactly on sampled tokens."""
    logprobs: np.ndarray
    """float32: behaviour log-probs at `temperature`; 0 where the mask is False."""
    advantages: np.ndarray
    """float32; 0 where the mask is False."""
    spans: tuple[Span, ...]
    version: int
    """Version of the weights that sampled the tokens; of several, the oldest."""
    version_runs: tuple[tuple[int, int], ...] = ()
    """(version, sampled tokens) in their order; empty: all are of `version`."""
    temperature: float = 1.0
    prompt_tokens: int = 0
    """Length of the prompt, which the samples of a `group` share."""
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Annotations aligned to `token_ids`, and the value head's `targets`; 0 where the mask is False."""

    @property
    def group(self) -> Key:
        """Key of the decision. Samples of one group share their first `prompt_tokens` ids."""
        return self.key.decision


Metrics = dict[str, float]
"""Numbers of a step by name, e.g. `policy/shared/loss`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A version of a policy's weights, which a trainer passes to an engine.

    The trainer owns all that it refers to. An engine reads it while `load_weights` runs, when no update does,
    and copies what it needs afterwards; tensors of a frozen base never change and may be shared.
    """

    policy: str
    version: int
    module: Any = None
    """The model object, where engine and trainer share a process."""
    folder: str | None = None
    """A folder in Hugging Face or PEFT format, where they do not."""
    adapter: str | None = None
    """Name of the policy's adapter in `module`, where that is a PEFT model."""
    tokenizer: Any = None
    tensors: Callable[[], Iterator[tuple[str, Any]]] | None = None
    """Names and whole tensors of a plain model, or of `adapter`, where ranks divide the module."""
