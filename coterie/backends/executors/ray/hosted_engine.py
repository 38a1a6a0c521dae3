"""The engine as the run sees it: its methods call the engine host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coterie.backends.cluster.code import own_code
from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.wire import unwrapped
from coterie.backends.executors.ray.engine_host import EngineHost
from coterie.backends.executors.ray.shipping import Sender
from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.errors import UserError
from coterie.core.protocols import Codec, Engine, EngineContext
from coterie.core.rollout.engine_client import IdleTime
from coterie.core.types import Call, Request, Weights


class HostedEngine:
    """An `Engine` whose work is done by an engine host.

    Args:
        make: makes the engine, in any process. Picklable.
    """

    def __init__(self, make: Callable[[], Engine], connection: Connection) -> None:
        self._make, self._connection = make, connection
        self._sender = Sender()
        self._codecs: dict[str, Codec] = {}
        self.policies: tuple[str, ...] = ()
        self.actor: Any = None
        self.pid = 0

    async def open(self, ctx: EngineContext) -> None:
        """Connect to the cluster, and open the engine there.

        Raises:
            UserError: the cluster can't be reached, or has too little room.
        """
        self._connection.open()
        settings, pickled = self._connection.settings, self._connection.ray.cloudpickle.dumps
        self.actor = self._connection.actor(
            EngineHost, cpus=settings.engine_cpus, gpus=settings.engine_gpus, name="engine"
        )
        self.policies = tuple(ctx.policies)
        payload = pickled((self._make, replace(ctx, active_rollouts=ActiveRollouts())))
        self.pid = await self.call("open", own_code(), payload)

    async def generate(self, request: Request) -> Call:
        """Refuse.

        Raises:
            RuntimeError: rollout hosts ask the engine host themselves.
        """
        raise RuntimeError("the run's process asks for no tokens with executor 'ray'")

    async def load_weights(self, weights: Weights) -> None:
        sent = await asyncio.to_thread(self._sender.send, weights)
        await self.call("load_weights", sent)
        self._codecs.pop(weights.policy, None)  # its context may be known only now

    async def lease(self, policy: str, version: int) -> None:
        await self.call("call", "lease", policy, version)

    async def release(self, policy: str, version: int) -> None:
        await self.call("call", "release", policy, version)

    def codec(self, policy: str) -> Codec:
        if policy not in self._codecs:
            self._codecs[policy] = self.call_now("codec", policy)
        return self._codecs[policy]

    async def close(self) -> None:
        """Close the engine, end its process, and disconnect."""
        try:
            async with asyncio.timeout(self._connection.settings.timeout):
                if self.pid:
                    await self.call("close")
        except (UserError, TimeoutError):
            pass  # its process is gone or hangs, and is killed
        finally:
            self._connection.close()

    # ------------------------------------------------------------------------------------- the engine host

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the engine host.

        Raises:
            UserError: its process is gone.
            Exception: what the method raised.
        """
        try:
            answer = await getattr(self.actor, method).remote(*arguments)
        except self._connection.ray.exceptions.RayError as error:
            raise self._lost(error) from error
        return unwrapped(answer)

    def call_now(self, method: str, *arguments: Any) -> Any:
        """Call a method of the engine host, and wait for its answer on the event loop."""
        ray = self._connection.ray
        try:
            return unwrapped(ray.get(getattr(self.actor, method).remote(*arguments)))
        except ray.exceptions.RayError as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> UserError:
        why = str(error).strip().partition("\n")[0]
        fix = "`coterie run RUN --resume` goes on from the last checkpoint"
        return UserError("the engine's process is gone", path="engine", why=why, fix=fix)


class HostedIdleTime(IdleTime):
    """How long the engine of an engine host has had no request."""

    def __init__(self, engine: HostedEngine) -> None:
        super().__init__()
        self._hosted = engine

    def take(self) -> float:
        return float(self._hosted.call_now("idle_seconds"))
