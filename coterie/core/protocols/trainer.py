"""The protocol of kind `trainer`: what owns and updates weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from coterie.core.config import PolicyConfig
from coterie.core.protocols.chat_format import ChatFormat
from coterie.core.protocols.loss import Loss
from coterie.core.types import Key, Message, Metrics, Sample, Weights


@runtime_checkable
class Trainer(Protocol):
    """Owns the weights of all policies, and updates them."""

    async def open(self, ctx: TrainerContext) -> None: ...

    async def annotate(self, samples: Sequence[Sample], what: str) -> dict[Key, np.ndarray]:
        """Per sample key, shape (sampled tokens,): `ref_logprobs` (of the weights at the start),
        `old_logprobs` (of the present ones) or `values` (of the value head)."""

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """One training step of each policy on its samples; metrics per policy."""

    def weights(self, policy: str) -> Weights: ...

    def save(self, folder: Path) -> None:
        """All state, for an exact resume."""

    def load(self, folder: Path) -> None: ...

    def digest(self) -> dict[str, str]:
        """policy -> sha256 of its weights."""

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        """A Hugging Face folder or a PEFT adapter."""

    async def close(self) -> None: ...

    # Optional: set_progress(share), told before each update of a run with `schedule.tokens` which share of
    # them is spent; `optimizer.horizon: budget` requires it.
    # Optional, together: bases() -> {name: policies that start from the same weights}, and
    # async warm_start(policy, demonstrations, config) -> Metrics, which trains the start of all of those.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerContext:
    """What a trainer is opened with."""

    policies: Mapping[str, PolicyConfig]
    loss: Loss
    chat: ChatFormat
    seed: int
    deterministic: bool
    vocabulary: tuple[str, ...]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One supervised pair for a warm start."""

    policy: str
    messages: tuple[Message, ...]
    completion: str
