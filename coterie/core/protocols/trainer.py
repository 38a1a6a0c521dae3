"""The protocol of kind `trainer`: the owner of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from coterie.core.config import PolicyConfig
from coterie.core.protocols.chat_format import ChatFormat
from coterie.core.protocols.loss import Loss
from coterie.core.types import Key, Message, Metrics, Sample, Weights


@runtime_checkable
class Trainer(Protocol):
    """Owns the weights of all policies, and updates them."""

    async def open(self, ctx: TrainerContext) -> None: ...

    async def annotate(self, samples: Sequence[Sample], name: str) -> dict[Key, np.ndarray]:
        """One array of shape (sampled tokens,) per sample key.

        `name` is `ref_logprobs` (under the initial weights), `old_logprobs` (under the present weights) or
        `values` (of the value head).
        """

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """Train each policy on its samples for one step; returns metrics by policy."""

    def weights(self, policy: str) -> Weights:
        """The present weights of a policy. An update that changes them raises their version by 1.

        The trainer owns them: they may be read until the next update.
        """

    def save(self, folder: Path) -> None:
        """Write the whole state, for an exact resume."""

    def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote."""

    def digest(self) -> dict[str, str]:
        """sha256 of each policy's weights, by policy."""

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        """Write a Hugging Face folder or a PEFT adapter; `merge` merges the adapter into its base."""

    async def close(self) -> None: ...


@runtime_checkable
class KeepsVersions(Protocol):
    """A trainer that keeps copies of earlier weights, for steps that were pinned to them."""

    def keep(self, policy: str) -> None:
        """Copy the policy's present trained weights, without optimiser state; `save` and `load` include it.

        It may be called again for a version that is kept.
        """

    def drop(self, policy: str, version: int) -> None:
        """Forget a kept version; one that is not kept is ignored."""

    def weights_at(self, policy: str, version: int) -> AbstractContextManager[Weights]:
        """The weights of a kept version, which may be read within the context; no update runs meanwhile."""


@runtime_checkable
class FollowsBudget(Protocol):
    def set_progress(self, share: float) -> None:
        """Note the share of `schedule.tokens` that is spent, before an update (`horizon: budget`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerContext:
    """Input of `Trainer.open`."""

    policies: Mapping[str, PolicyConfig]
    loss: Loss
    chat: ChatFormat
    seed: int
    deterministic: Literal["auto"] | bool  # `auto`: true on a CPU and false on a GPU
    vocabulary: tuple[str, ...]
    """Words that the environment and the roles use, for `tokenizer: words`."""
    needs: tuple[str, ...] = ()
    """Names of the annotations that the estimator or the loss reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A prompt and its completion, for a warm start."""

    policy: str
    messages: tuple[Message, ...]
    completion: str
    prompt_ids: tuple[int, ...] | None = None
    """Token ids of the prompt; None: those of `messages`."""
