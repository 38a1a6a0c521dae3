"""The protocol of kind `engine`: token generation."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable

from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.config import PolicyConfig
from coterie.core.protocols.chat_format import ChatFormat, Codec
from coterie.core.types import Call, Request, Weights

T = TypeVar("T")


@runtime_checkable
class Engine(Protocol):
    """Generates tokens for all policies."""

    async def open(self, ctx: EngineContext) -> None: ...

    async def generate(self, request: Request) -> Call:
        """Generate one call.

        Raises:
            SystemFault: the engine failed, e.g. its server is unreachable.
        """

    async def load_weights(self, weights: Weights) -> None:
        """Use these weights for all later requests of their policy."""

    def codec(self, policy: str) -> Codec: ...

    async def close(self) -> None: ...


@runtime_checkable
class LeasesVersions(Protocol):
    """An engine that keeps older versions of weights beside the newest: `schedule.max_staleness`, pinned.

    A resume loads older versions again, oldest first, before the newest. `close` may come with open leases.
    """

    async def lease(self, policy: str, version: int) -> None:
        """Keep a version, the newest, until as many calls of `release`. `Request.version` names it."""

    async def release(self, policy: str, version: int) -> None:
        """End one lease. A version without one may go when a newer one is loaded."""


class EngineClient(Protocol):
    """The engine as the rollout side sees it. Batches form beside the engine, across all of its clients."""

    def codec(self, policy: str) -> Codec:
        """The codec of a policy."""

    async def generate(self, request: Request) -> Call:
        """Generate one call, from an active rollout.

        Raises:
            SystemFault: the engine failed, e.g. its server is unreachable.
        """

    async def active(self, work: Awaitable[T]) -> T:
        """Run an awaitable as one active rollout; within one that waits for it, as a part of that one."""

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        """Run awaitables of an active rollout as active rollouts of their own; it waits for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """Input of `Engine.open`."""

    policies: Mapping[str, PolicyConfig]
    chat: ChatFormat
    active_rollouts: ActiveRollouts
    """Count of the active rollouts. An in-process engine starts a batch when all of them wait."""
    deterministic: Literal["auto"] | bool  # `auto`: true on a CPU and false on a GPU
    vocabulary: tuple[str, ...]
    """Words that the environment and the roles use, for `tokenizer: words`."""
    ahead: int = 0
    """Steps that are played beside the one that is due (`schedule.max_staleness`): with more than 0, the
    trainer updates while the engine generates."""
    pinned: bool = True
    """Whether up to `ahead` + 1 versions of a policy are leased at once, and requests name theirs."""
