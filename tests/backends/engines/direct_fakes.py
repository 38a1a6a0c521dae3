"""A group over TCP in the place of NCCL's, and replicas whose fake vLLM receives real bytes by it.

The calls, their order and their payloads are those of vLLM's NCCL classes; only the broadcast is another.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from coterie.backends.engines.vllm import replica_actor
from coterie.backends.engines.vllm.replica_actor import ReplicaActor
from coterie.backends.engines.vllm.server import Outside, ServerLost, in_daemon_thread
from tests.backends.engines.replica_fakes import FakeActors, FakeVLLM

LONG = timedelta(seconds=600)
"""NCCL waits without an end."""


def port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def digest(named_tensors: Any) -> str:
    """Of names, shapes, types and bits, in their order."""
    whole = hashlib.sha256()
    for name, tensor in named_tensors:
        data = tensor.detach().cpu().contiguous()
        whole.update(f"{name} {tuple(data.shape)} {data.dtype}".encode())
        whole.update(data.flatten().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def raw(tensor: Any) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


class FakeSender:
    """`sender.WeightSender` without vLLM. It waits for a receiver without an end."""

    made: list[FakeSender] = []

    def __init__(self, way: str, client: Any, address: str, width: int) -> None:
        self.way, self.client, self.address, self.width = way, client, address, width
        self.port, self.round, self.closed, self.store = port(), 0, False, None
        self.sent = 0
        FakeSender.made.append(self)

    async def connect(self) -> None:
        await in_daemon_thread(self._connect)

    def _connect(self) -> None:
        if self.way == "ipc":
            self.client.init_weight_transfer_engine({"packed": True})
            return
        size = 1 + self.width
        info = {
            "master_address": self.address,
            "master_port": self.port,
            "world_size": size,
            "rank_offset": 1,
        }
        asking = threading.Thread(target=self._quietly, args=(info,), daemon=True)
        asking.start()
        self.store = TCPStore(self.address, self.port, size, True, LONG, wait_for_workers=False)
        self._wait([f"rank{rank}" for rank in range(1, size)])

    def _quietly(self, info: dict[str, Any]) -> None:
        try:
            self.client.init_weight_transfer_engine(info)
        except Exception:
            return  # as in vLLM, whose other thread waits for the group

    def _wait(self, keys: list[str]) -> None:
        while not self.store.check(keys):  # type: ignore[union-attr]
            if self.closed:  # as an abort of NCCL's ends its kernels
                raise RuntimeError("the group was aborted")
            time.sleep(0.01)

    async def send(self, named_tensors: Any) -> None:
        pairs = await asyncio.to_thread(list, named_tensors)
        await in_daemon_thread(lambda: self._send(pairs))

    def _send(self, pairs: list[tuple[str, Any]]) -> None:
        self.round += 1
        update = {
            "names": [name for name, _ in pairs],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in pairs],
            "shapes": [list(tensor.shape) for _, tensor in pairs],
        }
        self.client.start_weight_update()
        if self.way == "ipc":
            handles = {"GPU-0": {name: raw(tensor) for name, tensor in pairs}}
            self.client.update_weights({**update, "ipc_handles": handles})
        else:
            receiving = threading.Thread(target=self._receive, args=(update,), daemon=True)
            receiving.start()
            for name, tensor in pairs:
                self.store.set(f"{self.round}/{name}", raw(tensor))  # type: ignore[union-attr]
            self._wait([f"{self.round}/done{rank}" for rank in range(1, 1 + self.width)])
            receiving.join()
        self.client.finish_weight_update()
        self.sent += 1

    def _receive(self, update: dict[str, Any]) -> None:
        try:
            self.client.update_weights(update)
        except Exception:
            return  # the main thread waits for the group, and doesn't see it

    def close(self) -> None:
        self.closed = True


class DirectVLLM(FakeVLLM):
    """A fake vLLM with `width` workers. `engine.options.fake` says what it does wrong, `record` is a folder.

    `deaf`: it never joins a group; `refuse`: its workers fail in an update; `stop`: it stands still in one,
    the first time.
    """

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.stores: list[TCPStore] = []
        self.round = 0
        self.syncing = False
        self.got: list[tuple[str, Any]] = []

    @property
    def fake(self) -> str:
        return str(self.spec.settings.options.get("fake", ""))

    async def sync(self, named_tensors: Any, version: int) -> None:
        self.version = -1
        if isinstance(named_tensors, Outside):
            assert self.spec.outside, "it was started for tensors in its process"
            self.got, self.syncing = [], True
            try:
                await named_tensors.sent()
            except BaseException as error:
                self.alive = False
                raise ServerLost("half-way") from error
            finally:
                self.syncing = False
        else:
            assert not self.spec.outside
            self.got = [(n, t.clone()) for n, t in await asyncio.to_thread(list, named_tensors)]
        self.version, self.sum = version, sum(int(tensor.double().sum()) for _, tensor in self.got)
        record = Path(self.spec.settings.options["record"])
        (record / f"{os.getpid()}-{version}").write_text(digest(self.got))

    async def weight_call(self, call: str, argument: Any) -> None:
        assert self.syncing and self.alive
        await asyncio.to_thread(getattr(self, f"_{call}"), argument)

    def _init(self, info: dict[str, Any]) -> None:
        if self.fake == "deaf":
            time.sleep(3600)
        if "packed" in info:
            assert self.spec.outside == "ipc"
            return
        assert self.spec.outside == "nccl"
        self.stores, self.round = [], 0
        for worker in range(self.spec.settings.tensor_parallel):
            rank, size = info["rank_offset"] + worker, info["world_size"]
            store = TCPStore(info["master_address"], info["master_port"], size, False, LONG)
            store.set(f"rank{rank}", "here")
            self.stores.append(store)
        assert len(self.stores) == info["world_size"] - 1

    def _start(self, _: Any) -> None:
        self.got = []

    def _update(self, update: dict[str, Any]) -> None:
        if self.fake == "refuse":
            raise ValueError("a worker has no such layer")
        record = Path(self.spec.settings.options["record"])
        if self.fake == "stop" and not (record / "stopped").exists():
            (record / "stopped").write_text(str(os.getpid()))
            time.sleep(3600)
        self.round += 1
        wanted = list(zip(update["names"], update["dtype_names"], update["shapes"], strict=True))
        if "ipc_handles" in update:
            (given,) = update["ipc_handles"].values()
            self.got += [(name, tensor_of(given[name], dtype, shape)) for name, dtype, shape in wanted]
            return
        for number, store in enumerate(self.stores, 1):
            mine = [
                (name, tensor_of(store.get(f"{self.round}/{name}"), dtype, shape))
                for name, dtype, shape in wanted
            ]
            store.set(f"{self.round}/done{number}", "yes")
            assert not self.got or digest(mine) == digest(self.got), "two workers have different weights"
            self.got = mine

    def _finish(self, _: Any) -> None:
        assert self.got


def tensor_of(data: bytes, dtype: str, shape: list[int]) -> Any:
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)


class DirectReplica(ReplicaActor):
    """A replica's actor with such a fake vLLM."""

    def __init__(self) -> None:
        super().__init__()
        replica_actor.make = lambda owner, spec: DirectVLLM(spec)  # of this actor's process alone


class DirectActors(FakeActors):
    """Starts such replicas."""

    replica = DirectReplica
