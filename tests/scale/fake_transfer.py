"""A plugin of vLLM that replaces what its GPU transfers need a GPU for, so that the rest of them runs.

`nccl`: vLLM's own classes on both sides, with a TCP store for the NCCL group. `ipc`: a backend of the same
name, whose payload has vLLM's types, and bytes for the handles of GPU memory.
"""

import torch
from safetensors.torch import load, save
from torch.distributed import TCPStore
from vllm.distributed.weight_transfer import (
    TrainerWeightTransferEngine,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
    ipc_engine,
    nccl_engine,
)

from coterie.backends.engines.vllm import worker


class Group:
    """Rank 0 sends, the others receive."""

    def __init__(self, address, port, rank, world_size):
        self.store = TCPStore(address, port, world_size, is_master=rank == 0, wait_for_workers=False)
        self.world_size, self.round = world_size, 0
        self.store.set(f"rank{rank}", str(world_size))
        self.store.wait([f"rank{other}" for other in range(world_size)])

    def destroy(self):
        pass


def trainer_group(info):
    return Group(info.master_address, info.master_port, 0, info.world_size)


def worker_group(info, parallel_config):
    rank = info.rank_offset + parallel_config.rank
    return Group(info.master_address, info.master_port, rank, info.world_size)


def produce(iterator, group, src, post_iter_func, **_):
    group.round += 1
    for item in iterator:
        group.store.set(f"{group.round}/{item[0]}", save({"t": post_iter_func(item).detach().contiguous()}))


def consume(iterator, group, src, post_unpack_func, **_):
    group.round += 1
    for name, (shape, dtype) in iterator:
        tensor = load(group.store.get(f"{group.round}/{name}"))["t"]
        assert list(tensor.shape) == list(shape) and tensor.dtype == dtype
        post_unpack_func([(name, tensor)])


class NCCLWorker(nccl_engine.NCCLWeightTransferEngine):
    """vLLM's class, and the fix that a CPU needs."""

    def finish_weight_update(self):
        super().finish_weight_update()
        worker.fix_tied_head(self.model)


class IPCWorker(ipc_engine.IPCWeightTransferEngine):
    """vLLM's class, without the mapping of GPU memory."""

    def receive_weights(self, update_info):
        assert self.packed
        (tensors,) = update_info.ipc_handles.values()
        self.model.load_weights([(name, load(tensors[name])["t"]) for name in update_info.names])

    def finish_weight_update(self):
        super().finish_weight_update()
        worker.fix_tied_head(self.model)


class IPCTrainer(TrainerWeightTransferEngine):
    """The calls of vLLM's class in their order, two payloads for each update."""

    init_info_cls = ipc_engine.IPCTrainerInitInfo

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        assert isinstance(init_info, ipc_engine.IPCTrainerInitInfo) and init_info.rank == 0
        client.init_weight_transfer_engine({"packed": init_info.packed})
        return cls(client=client, source=source)

    def send_weights(self):
        pairs = list(self.source)
        assert [name for name, _ in pairs] == [meta.name for meta in self.source.metadata()]
        self.client.start_weight_update()
        for part in (pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]):
            self.client.update_weights(
                {
                    "names": [name for name, _ in part],
                    "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in part],
                    "shapes": [list(tensor.shape) for _, tensor in part],
                    "ipc_handles": {"GPU-0": {n: save({"t": t.detach().contiguous()}) for n, t in part}},
                    "tensor_sizes": [tensor.nbytes for _, tensor in part],
                }
            )
        self.client.finish_weight_update()


def register():
    """What the entry point of group `vllm.general_plugins` names; vLLM calls it in each of its processes."""
    nccl_engine.open_trainer_endpoint = trainer_group
    nccl_engine.worker_init_process_group = worker_group
    nccl_engine.packed_nccl_broadcast_producer = produce
    nccl_engine.packed_nccl_broadcast_consumer = consume
    WeightTransferEngineFactory._registry["nccl"] = lambda: NCCLWorker
    WeightTransferEngineFactory._registry["ipc"] = lambda: IPCWorker
    WeightTransferTrainerFactory._registry["ipc"] = lambda: IPCTrainer
    assert not torch.cuda.is_available()
