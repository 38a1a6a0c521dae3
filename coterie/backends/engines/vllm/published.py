"""Weights and adapters in Ray's object store: put once for all replicas, held until the last one has them."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

from coterie.backends.engines.vllm.transfer import chunks

CHUNK = 2**27
"""Most bytes of one object with tensors; a larger tensor has an object of its own."""
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
        self._open: dict[Any, Published] = {}

    @asynccontextmanager
    async def taken(
        self, key: Any, make: Callable[[], Iterator[Any]]
    ) -> AsyncIterator[AsyncGenerator[Any, None]]:
        """References to the objects that `make` makes, the same for all who take a key at the same time.

        All are held from the entry on, until the reference after them is asked for, or the exit.

        Args:
            key: an object that two takers have in common where they need the same.
        """
        published = self._open.get(id(key))
        if published is None or not published.whole:
            published = self._open[id(key)] = Published(make(), self._put)
        taker = published.join()
        try:
            async with aclosing(published.each(taker)) as references:
                yield references
        finally:
            await published.leave(taker)
            if not published._at and self._open.get(id(key)) is published:
                del self._open[id(key)]
