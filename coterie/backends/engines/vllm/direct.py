"""Weights from the process that has them to a replica on any node: by NCCL, CUDA IPC, or Ray's object store.

`send` runs in the process with the trainer. It makes vLLM's four calls (`server.weight_call`) through the
replica's actor, while vLLM's own classes move the tensors from GPU to GPU. Each replica has a group of its
own: vLLM's groups can't lose or gain a member, so that one replica's death would cost all others theirs, and
one on the trainer's GPU takes `ipc` while others take `nccl`.

In the object store, weights and adapters are put once for all replicas, and held until the last one has them.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.backends.cluster.hosts import import_ray
from coterie.backends.cluster.transfer import IPC, PATH, WORDS, Links, NoGroup
from coterie.backends.cluster.wire import unwrapped
from coterie.backends.engines.vllm.server import ServerLost, WeightClient
from coterie.backends.engines.vllm.transfer import chunks
from coterie.backends.models.compute_threads import compute
from coterie.core.errors import UserError
from coterie.core.types import Weights

CHUNK = 2**27
"""Most bytes of one object with tensors; a larger tensor has an object of its own."""
IN_HAND = 2
"""Objects with tensors that a replica's actor holds: one that vLLM reads, and the next."""
AHEAD = 2
"""Objects that are made before the slowest replica has taken the one in front of them."""


class PackedTensor(NamedTuple):
    """A tensor as bytes, which Ray's object store shares between processes; numpy has no bfloat16."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Any
    """A numpy array of uint8."""


def packed(named_tensors: Iterable[tuple[str, Any]], most: int = CHUNK) -> Iterator[list[PackedTensor]]:
    """All tensors in order, in lists of at most `most` bytes."""
    import torch

    for part in chunks(named_tensors, most):
        yield [
            PackedTensor(
                name,
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy(),
            )
            for name, tensor in part
        ]


def unpacked(part: Iterable[PackedTensor]) -> Iterator[tuple[str, Any]]:
    """The tensors of `packed`, in the memory of the object store: they are only read."""
    import torch

    for name, dtype, shape, data in part:
        if not data.size:
            yield name, torch.empty(shape, dtype=getattr(torch, dtype))
            continue
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            tensor = torch.from_numpy(data)
        yield name, tensor.view(getattr(torch, dtype)).reshape(shape)


class Published:
    """Objects on their way to several takers: each is put once, and let go when the last taker has it.

    They are made one after the other, in a thread, at most `AHEAD` of the slowest taker.

    Args:
        objects: are read once. An exception that they raise is raised to all takers.
        put: puts one in the object store, and returns its reference.
    """

    def __init__(self, objects: Iterator[Any], put: Callable[[Any], Any]) -> None:
        self._objects, self._put = objects, put
        self._held: dict[int, Any] = {}
        """References by number."""
        self._at: dict[object, int] = {}
        """By taker: the number of the object that it needs next."""
        self._made = 0
        self._ended = False
        self._error: BaseException | None = None
        self._making: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def whole(self) -> bool:
        """Whether a new taker would get all objects."""
        return not self._made or 0 in self._held

    def join(self) -> object:
        """A new taker, for whom all objects are held until `leave`."""
        taker = object()
        self._at[taker] = 0
        return taker

    async def each(self, taker: object) -> AsyncGenerator[Any, None]:
        """All references, in order. One is let go when the next is asked for."""
        while await self._there(number := self._at[taker]):
            yield self._held[number]
            self._at[taker] += 1
            self._release()

    async def leave(self, taker: object) -> None:
        """End a taker's interest, whatever it has got."""
        del self._at[taker]
        self._release()
        if self._at:
            return
        while self._making is not None and not self._making.done():  # a thread reads the objects
            await asyncio.wait({self._making})
        if not self._at and hasattr(self._objects, "close"):
            self._ended = True
            self._objects.close()

    async def _there(self, number: int) -> bool:
        """Whether there is an object of this number; waits until that is known."""
        while number not in self._held:
            if self._error is not None:
                raise self._error
            if self._ended:
                return False
            self._make()
            await self._changed.wait()
        self._make()  # the next one, while this one is taken
        return True

    def _release(self) -> None:
        least = min(self._at.values(), default=self._made)
        for number in [number for number in self._held if number < least]:
            del self._held[number]
        if self._at:
            self._make()

    def _make(self) -> None:
        """Make the next object beside what goes on, unless that would be too early."""
        idle = self._making is None or self._making.done()
        if idle and not self._ended and self._made - min(self._at.values()) < AHEAD:
            self._making = asyncio.ensure_future(self._make_one())

    async def _make_one(self) -> None:
        try:
            reference = await asyncio.to_thread(self._next)
            self._ended = reference is None
            if reference is not None and self._at:
                self._held[self._made] = reference
            self._made += reference is not None
        except BaseException as error:
            self._error, self._ended = error, True
        finally:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def _next(self) -> Any:
        made = next(self._objects, None)
        return None if made is None else self._put(made)


class Publisher:
    """What the replicas of a base take at the same time, so that they share it.

    Args:
        put: puts an object in the object store, and returns its reference.
    """

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self.published: dict[Any, Published] = {}
        """By the key's `id`: what somebody takes."""

    @asynccontextmanager
    async def taken(
        self, key: Any, make: Callable[[], Iterator[Any]]
    ) -> AsyncIterator[AsyncGenerator[Any, None]]:
        """References to the objects that `make` makes, the same for all who take a key at the same time.

        All are held from the entry on, until the reference after them is asked for, or the exit.

        Args:
            key: an object that two takers have in common where they need the same.
        """
        published = self.published.get(id(key))
        if published is None or not published.whole:
            published = self.published[id(key)] = Published(make(), self._put)
        taker = published.join()
        try:
            async with aclosing(published.each(taker)) as references:
                yield references
        finally:
            await published.leave(taker)
            if not published._at and self.published.get(id(key)) is published:
                del self.published[id(key)]


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
