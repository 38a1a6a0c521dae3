"""Tensors that leave a GPU for the CPU's memory, and come back to the same storages.

A storage leaves as a whole, so that no alias of it keeps memory: views, and what a library such as DeepSpeed
keeps of a tensor, have their values again once it is back. While it is away, the tensors that left can be
read, and written, in the CPU's memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.backends.models.devices import is_out_of_memory, release
from coterie.core.errors import UserError

log = logging.getLogger("coterie")
PATH = "trainer.offload_in_rollouts"


class TorchDevice:
    """A device whose memory tensors leave.

    Args:
        kind: its type, such as `cuda`.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self._pins = kind, kind == "cuda"

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is in its memory."""
        return tensor.device.type == self.kind

    def buffer(self, size: int) -> Tensor:
        """So many bytes of the CPU's memory: uint8, shape (size,).

        Pinned, while the system gives such memory: a GPU reads and writes it without a further copy.
        """
        if self._pins:
            try:
                return torch.empty(size, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                self._pins = False
                log.warning(
                    "the system gives no more pinned memory (%s): what leaves the GPU in rollouts goes to "
                    "pageable memory, which takes longer", str(error).strip().partition("\n")[0],
                )  # fmt: skip
        return torch.empty(size, dtype=torch.uint8)

    def free(self, data: Tensor) -> None:
        """Free the storage of `data`, its bytes as uint8, of shape (size,). What it held is lost."""
        data.untyped_storage().resize_(0)

    def allocate(self, data: Tensor, size: int) -> None:
        """Undo `free`; the bytes are arbitrary."""
        data.untyped_storage().resize_(size)

    def release(self) -> None:
        """Give memory that is free to other processes."""
        release()


class _Moved(NamedTuple):
    """A storage that is away."""

    data: Tensor
    """All of it, as bytes."""
    buffer: Tensor
    """Its values."""
    tensors: list[tuple[Tensor, Tensor]]
    """Those that left, each with an alias of what it was on the device."""


class Offloaded:
    """The tensors of one process that are away.

    The CPU's memory that they get stays theirs when they are back: to pin it takes longer than to copy.
    """

    def __init__(self, device: TorchDevice) -> None:
        self.device = device
        self.part = ""
        """What has left, in the words of who asked for it; it is empty once all is back."""
        self._moved: dict[int, _Moved] = {}
        """By storage."""
        self._free: dict[int, list[Tensor]] = {}
        """By size: buffers that nothing uses."""

    def __bool__(self) -> bool:
        """Whether anything is away."""
        return bool(self._moved)

    @property
    def bytes(self) -> int:
        """Bytes that are away."""
        return sum(len(moved.buffer) for moved in self._moved.values())

    def leave(self, tensors: Iterable[Tensor], beside: Iterable[Tensor] = ()) -> None:
        """Copy tensors to the CPU's memory, and free theirs; nothing happens to those that are away.

        Args:
            tensors: all that will be read or written before `come_back`, of each storage.
            beside: tensors whose storages stay.

        Raises:
            UserError: the CPU's memory is too small. Each tensor is then in one place or the other.
        """
        away = {id(tensor) for moved in self._moved.values() for tensor, _ in moved.tensors}
        staying = {_key(tensor) for tensor in beside}
        leaving: dict[int, dict[int, Tensor]] = {}
        for tensor in tensors:
            key = _key(tensor)
            if id(tensor) in away or key in staying or not tensor.untyped_storage().nbytes():
                continue
            if self.device.holds(tensor):
                leaving.setdefault(key, {})[id(tensor)] = tensor
        for key, members in leaving.items():
            self._leave(key, [*members.values()])
        if leaving:
            self.device.release()

    def _leave(self, key: int, tensors: list[Tensor]) -> None:
        data = _bytes(tensors[0])
        spare = self._free.get(len(data))
        try:
            buffer = spare.pop() if spare else self.device.buffer(len(data))
        except (RuntimeError, MemoryError) as error:
            raise UserError(
                f"the CPU's memory has no room for {self.bytes + len(data):,} bytes of the trainer's",
                path=PATH,
                why=str(error).strip().partition("\n")[0],
                fix=f"set {PATH}=optimizer or none, or use a machine with more memory; `coterie plan` "
                "has the numbers",
            ) from error
        buffer.copy_(data)
        moved = _Moved(data, buffer, [(tensor, tensor.data) for tensor in tensors])
        self._moved[key] = moved
        host = buffer.untyped_storage()
        for tensor, there in moved.tensors:
            empty = torch.empty(0, dtype=there.dtype)
            tensor.data = empty.set_(host, there.storage_offset(), there.size(), there.stride())
        self.device.free(data)

    def come_back(self) -> None:
        """Undo `leave`, for all that is away.

        Raises:
            UserError: the device has no room. Each tensor is then in one place or the other.
        """
        for key, (data, buffer, tensors) in [*self._moved.items()]:
            try:
                self.device.allocate(data, len(buffer))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                raise UserError(
                    f"the GPU has no room for {self.bytes:,} bytes of the trainer's that come back to it",
                    path=PATH,
                    why=str(error).strip().partition("\n")[0],
                    fix="lower engine.memory_share where vLLM doesn't sleep during updates (engine.sleep)",
                ) from error
            data.copy_(buffer)
            for tensor, there in tensors:
                tensor.data = there
            del self._moved[key]
            self._free.setdefault(len(buffer), []).append(buffer)
        self.part = ""


def _key(tensor: Tensor) -> int:
    """What tensors with one storage have in common, while one of them lives."""
    return tensor.untyped_storage()._cdata


def _bytes(tensor: Tensor) -> Tensor:
    """The storage of a tensor: uint8, shape (size,)."""
    storage = tensor.untyped_storage()
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))
