"""The trainer's side of vLLM's own weight transfers, `nccl` and `ipc`.

The calls are vLLM's documented interface (docs.vllm.ai/en/latest/training/weight_transfer):
`WeightTransferTrainerFactory.trainer_init(init_info, client=..., source=...)` once, then `send_weights()` for
each sync, which drives start_weight_update, update_weights and finish_weight_update through the client. Each
server has a group of its own, so that one that dies takes no other along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

from coterie.backends.engines.vllm.server import WeightClient, in_daemon_thread
from coterie.backends.models.device_memory import trainer_gpus


class TensorSource(WeightSource):
    """The tensors of the present sync; vLLM reads their metadata first, and then the tensors.

    Those of a trainer that has left its GPU are copied back to it, one after the other.
    """

    def __init__(self) -> None:
        self.tensors: Iterable[tuple[str, Tensor]] = ()

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.tensors]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.tensors:
            away = not tensor.is_cuda and torch.cuda.is_available()
            yield name, tensor.to(f"cuda:{trainer_gpus()[0]}") if away else tensor


def info_of(backend: str, address: str, width: int) -> Any:
    """What vLLM's side with the weights is made of, for `nccl` or `ipc`.

    Args:
        address: of this node, where the server reaches it.
        width: GPUs of the server.
    """
    if backend == "ipc":
        return IPCTrainerInitInfo(packed=True, rank=0)
    return NCCLTrainerInitInfo(
        master_address=address, master_port=get_open_port(), world_size=1 + width, rank=0
    )


class WeightSender:
    """Sends all weights to one server, over `nccl` or `ipc`.

    Args:
        info: of `info_of`.
        client: makes vLLM's four calls to the server.
    """

    def __init__(self, info: Any, client: WeightClient) -> None:
        self._source = TensorSource()
        self._connect = lambda: WeightTransferTrainerFactory.trainer_init(
            info, client=client, source=self._source
        )
        self._engine: Any = None

    async def connect(self) -> None:
        """Let the two sides meet, in a thread of its own."""
        if self._engine is None:
            self._engine = await in_daemon_thread(self._connect)

    async def send(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Run the transfer in a thread of its own; the first time, the two sides meet before."""
        # vLLM reads names and shapes before the tensors, and an iterator can't be read twice. A trainer's own
        # tensors aren't copied by this; ones that it gathers are all kept until the transfer ends.
        self._source.tensors = await asyncio.to_thread(list, named_tensors)
        try:
            await self.connect()
            await in_daemon_thread(self._engine.send_weights)
        finally:
            self._source.tensors = ()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None
