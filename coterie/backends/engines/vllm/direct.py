"""Weights from the process that has them to a replica on any node: by NCCL, CUDA IPC, or Ray's object store.

`send` runs in the process with the trainer. It makes vLLM's four calls (`calls.py`) through the replica's
actor, while vLLM's own classes move the tensors from GPU to GPU. Each replica has a group of its own: vLLM's
groups can't lose or gain a member, so that one replica's death would cost all others theirs, and one on the
trainer's GPU takes `ipc` while others take `nccl`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.backends.cluster.actors import import_ray
from coterie.backends.cluster.transfer import IPC, PATH, WORDS, Links, NoGroup
from coterie.backends.cluster.wire import unwrapped
from coterie.backends.engines.vllm.calls import WeightClient
from coterie.backends.engines.vllm.published import packed
from coterie.backends.engines.vllm.replica_actor import IN_HAND
from coterie.backends.engines.vllm.server import ServerLost
from coterie.backends.models.compute_threads import compute
from coterie.core.errors import UserError
from coterie.core.types import Weights

if TYPE_CHECKING:
    from coterie.backends.engines.vllm.sender import WeightSender
    from coterie.backends.engines.vllm.sync import CheckpointLayout

LOOK_SECONDS = 1.0
"""How often a thread that waits for an actor looks whether anybody waits for it."""


@dataclass(frozen=True, slots=True)
class WeightReceiver:
    """A replica that gets weights. Picklable."""

    who: str
    """In words."""
    name: str
    """In the placement of the run."""
    handle: Any
    """Of its actor."""
    way: str
    """`nccl`, `ipc`; empty: the object store."""
    width: int
    """GPUs of its vLLM."""
    seconds: float
    """In which a group must form."""


class Link:
    """The way to one replica's actor, kept between two sends."""

    def __init__(self, receiver: WeightReceiver) -> None:
        self.handle, self._receiver = receiver.handle, receiver
        self._sender: WeightSender | None = None
        self._ray, self._closed = import_ray(), False
        self._failed: Future[None] = Future()
        """Has the first exception of a call: the thread that sends meanwhile may wait for ever."""

    async def send(self, named_tensors: Iterable[tuple[str, Any]]) -> None:
        """Send all tensors; the first time, the two sides meet before.

        Raises:
            NoGroup: they don't.
        """
        if self._sender is None:
            await self._connect()
        assert self._sender is not None
        await self._unless_failed(self._sender.send(named_tensors))

    def close(self) -> None:
        """Disconnect. Threads that wait for the other side end, or are left behind."""
        self._closed = True
        if self._sender is not None:
            self._sender.close()

    async def _connect(self) -> None:
        to, address = self._receiver, import_ray().util.get_node_ip_address()
        what = f"no connection by {WORDS[to.way]} from {address} to {to.who}"
        try:
            # It may import vLLM, which can take longer than two processes need to meet.
            self._sender = await asyncio.to_thread(
                make_sender, to.way, WeightClient(self._make), address, to.width
            )
            async with asyncio.timeout(to.seconds):
                await self._unless_failed(self._sender.connect())
        except TimeoutError as error:
            raise NoGroup(f"{what} after {to.seconds:g} s") from error
        except (ServerLost, import_ray().exceptions.RayError):
            raise  # the replica is gone
        except Exception as error:
            raise NoGroup(f"{what}: {type(error).__name__}: {error}") from error

    def _make(self, call: str, argument: Any) -> None:
        """Let the actor make one of vLLM's calls. It ends with an exception once the link is closed."""
        try:
            reference = self.handle.weight_call.remote(call, argument)
            while not self._ray.wait([reference], timeout=LOOK_SECONDS)[0]:
                if self._closed:
                    raise ServerLost("nobody waits for these weights any more")
            unwrapped(self._ray.get(reference))
        except BaseException as error:
            if not self._failed.done():
                self._failed.set_exception(error)
            raise

    async def _unless_failed(self, work: Awaitable[None]) -> None:
        """Await work; a call of vLLM's that fails meanwhile ends it."""
        task, loop, failed = asyncio.ensure_future(work), asyncio.get_running_loop(), asyncio.Event()
        self._failed.add_done_callback(lambda _: loop.call_soon_threadsafe(failed.set))
        failing = asyncio.ensure_future(failed.wait())
        try:
            await asyncio.wait({task, failing}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                self._failed.result()
            task.result()
        finally:
            failing.cancel()
            task.cancel()
            if task.done() and not task.cancelled():
                task.exception()


def make_sender(way: str, client: WeightClient, address: str, width: int) -> WeightSender:
    """vLLM's classes for a way.

    Args:
        address: of this node.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # as where it is launched
    import torch

    from coterie.backends.engines.vllm.sender import WeightSender, info_of

    group = torch.distributed
    if way == IPC and group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        # vLLM's class would wait for all ranks of that group, and only this one sends.
        raise RuntimeError("the trainer's ranks have torch's default process group, which vLLM would use")
    return WeightSender(info_of(way, address, width), client)


async def send(weights: Weights, links: Links, receiver: WeightReceiver, layout: CheckpointLayout) -> None:
    """Send the base weights of a policy to a replica that waits for them.

    Args:
        layout: of the model.

    Raises:
        UserError: a tensor doesn't fit the model.
        NoGroup: there is no connection.
        ServerLost: the replica is gone, or failed half-way.
    """
    from coterie.backends.engines.vllm.sync import BaseWeights

    base = await compute(BaseWeights, weights, layout=layout)
    if not receiver.way:
        await _store(base, receiver.handle)
        return
    known = links.get(receiver.name)
    if known is not None and known.handle != receiver.handle:  # its actor was replaced
        await asyncio.to_thread(links.pop(receiver.name).close)
    link = links.setdefault(receiver.name, Link(receiver))
    try:
        await link.send(base)
    except BaseException:  # a group that was left half-way is never used again
        links.pop(receiver.name, None)
        await asyncio.shield(asyncio.to_thread(link.close))
        raise


def refused(receiver: WeightReceiver, none: NoGroup) -> UserError:
    """The error of a replica that can't be reached in the way that `cluster.weights` names."""
    return UserError(
        f"weights can't go to {receiver.who} by {WORDS[receiver.way]}",
        path=PATH,
        why=str(none),
        fix="let the nodes connect on all ports (NCCL_SOCKET_IFNAME names the interface), raise "
        "cluster.timeout, or set cluster.weights=auto or store",
    )


async def _store(named_tensors: Iterable[tuple[str, Any]], handle: Any) -> None:
    """Send tensors through the object store, `IN_HAND` objects at a time."""
    parts, ray = packed(named_tensors), import_ray()
    waiting: list[asyncio.Future[Any]] = []
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        if len(waiting) == IN_HAND and not unwrapped(await waiting.pop(0)):
            return
        reference = await asyncio.to_thread(ray.put, part)
        waiting.append(handle.take.remote(reference))
    for answer in waiting:
        unwrapped(await answer)
