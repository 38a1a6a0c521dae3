"""The collective operations of several ranks, by torch.distributed: gloo on the CPU, NCCL between GPUs.

The process groups are this world's alone. torch's default group stays free for an engine in the same process,
or for a library that needs it.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from coterie.backends.cluster.wire import environment
from coterie.backends.trainers.packing import TokenRow, parts
from coterie.backends.trainers.ranks import group as groups, processes
from coterie.backends.trainers.ranks.commands import RankCommands
from coterie.backends.trainers.ranks.group import MOST_LAG, RankAddress, RankPlace, check_world, watch_over
from coterie.backends.trainers.ranks.processes import RanksOnCluster

_SETTING = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
BUCKET_BYTES = 2**26
"""Most bytes of gradients in one all-reduce: gloo copies them."""


def start(trainer: Any, world: int, config: Any, cluster: RanksOnCluster | None = None) -> RankCommands:
    """Start the other ranks and make the same trainer on each: `type(trainer)(config)`, then `join(address)`.

    Args:
        cluster: where they start; None: on this host.

    Returns:
        the commands; every rank has called `join`.

    Raises:
        ConfigError: another program started a world of another size.
        RankLost: a rank could not start.
    """
    check_world(world)
    group = groups.joined or (processes.start if cluster is None else cluster.start)(world)
    watch_over(group, config.patience)
    commands = RankCommands(trainer, group)
    try:
        commands.make(type(trainer), config)
        store = dist.TCPStore(
            group.host, 0, world, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=MOST_LAG)
        )
        locals_ = [group.local, *(rank.local for rank in group.ranks)]
        addresses = [RankAddress(n, world, local, group.host, store.port) for n, local in enumerate(locals_)]
        commands.store = store
        commands.run_each("join", [(address,) for address in addresses])
    except BaseException:
        commands.close()
        raise

    group.on_loss = lambda: trainer.place.abort()
    return commands


class DistributedPlace(RankPlace):
    """One rank of several.

    Args:
        address: its place.
        device: the device of its tensors. Tensors on GPUs go by NCCL, all others by gloo.
        default: whether to make torch's default process group too, for libraries that need it (DeepSpeed).
    """

    def __init__(self, address: RankAddress, device: torch.device, *, default: bool = False) -> None:
        self.number, self.world, self.local = address.number, address.world, address.local
        self.device = device
        if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:  # idle threads spin on others' cores
            torch.set_num_threads(max((os.cpu_count() or 1) // self.world, 1))
        timeout = timedelta(seconds=MOST_LAG)
        self._store = dist.TCPStore(
            address.host, address.port, address.world, is_master=False, timeout=timeout
        )
        store = self._store
        with gloo_by(address.host):
            self._cpu = dist.ProcessGroupGloo(
                dist.PrefixStore("gloo", store), self.number, self.world, timeout
            )
        self._gpu: Any = None
        if device.type == "cuda":
            torch.cuda.set_device(device)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._gpu = dist.ProcessGroupNCCL(
                dist.PrefixStore("nccl", self._store), self.number, self.world, options
            )
        self.default = default and not dist.is_initialized()
        if self.default:
            with gloo_by(address.host):
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                    store=dist.PrefixStore("default", self._store),
                    rank=self.number,
                    world_size=self.world,
                    timeout=timeout,
                )

    def share(self, rows: Sequence[TokenRow], packing: bool) -> list[int]:
        """Indices of the rows of this rank (see `shares`)."""
        return shares(rows, self.world, packing)[self.number]

    def sum_gradients(self, tensors: Sequence[Tensor], loss: float) -> float:
        """Add the gradients of all ranks in place, in their own precision; returns the sum of the losses.

        A rank without a gradient adds zeros. A tensor without a gradient on any rank keeps none, so that the
        optimiser leaves it alone, as in one process.
        """
        counts = torch.tensor([loss, *(tensor.grad is not None for tensor in tensors)], dtype=torch.float64)
        self._cpu.allreduce(counts).wait()
        with_gradient = [tensor for tensor, count in zip(tensors, counts[1:].tolist(), strict=True) if count]
        for tensor in with_gradient:
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
            elif not tensor.grad.is_contiguous():
                tensor.grad = tensor.grad.contiguous()
        for bucket in buckets([tensor.grad for tensor in with_gradient]):
            self._group(bucket[0]).allreduce_coalesced(bucket).wait()
        return float(counts[0])

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, pickled, by rank."""
        data = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        self._cpu.allgather([sizes], [torch.tensor([len(data)])]).wait()
        longest = int(max(int(size) for size in sizes))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(data)] = torch.from_numpy(data.copy())
        received = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world)]
        self._cpu.allgather([received], [padded]).wait()
        parts = zip(received, sizes, strict=True)
        return [pickle.loads(part[: int(size)].numpy().tobytes()) for part, size in parts]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy rank 0's tensors to all ranks, in place."""
        with torch.no_grad():
            for tensor in tensors:
                values = tensor.detach().contiguous()
                self._group(values).broadcast(values, 0).wait()
                if values.data_ptr() != tensor.data_ptr():
                    tensor.copy_(values)

    def _group(self, tensor: Tensor) -> Any:
        return self._gpu if tensor.is_cuda else self._cpu

    def abort(self) -> None:
        """Break collectives that wait for a rank that is gone. gloo notices by itself."""
        if self._gpu is not None:
            with suppress(Exception):
                self._gpu.abort()

    def close(self) -> None:
        """Leave the world."""
        if self.default and dist.is_initialized():
            dist.destroy_process_group()
        for group in (self._gpu, self._cpu):
            if group is not None:
                with suppress(Exception):
                    group.shutdown()


def buckets(tensors: Sequence[Tensor], most: int = BUCKET_BYTES) -> Iterator[list[Tensor]]:
    """Tensors of one type and device, in buckets of at most so many bytes; a larger tensor is alone."""
    kinds: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for members in kinds.values():
        bucket: list[Tensor] = []
        size = 0
        for tensor in members:
            if bucket and size + tensor.nbytes > most:
                yield bucket
                bucket, size = [], 0
            bucket.append(tensor)
            size += tensor.nbytes
        yield bucket


def shares(rows: Sequence[TokenRow], world: int, packing: bool) -> list[list[int]]:
    """Indices of each rank's rows, about equally many tokens each; the same on every rank.

    With packing, rows that share a prompt stay together, since the prompt is computed once on a rank. A group
    of more tokens than a rank's fair share is divided. The longest groups are dealt first, each to the rank
    with the fewest tokens.
    """
    divided = [parts(row) for row in rows]
    groups: dict[bytes | int, list[int]] = {}
    for index, part in enumerate(divided):
        groups.setdefault(part.prompt.tobytes() if packing else index, []).append(index)

    def tokens(members: Sequence[int]) -> int:
        prompt = len(divided[members[0]].prompt)
        return prompt + sum(len(divided[index].completion) for index in members)

    fair = max(sum(map(tokens, groups.values())) / world, 1)
    pieces: list[list[int]] = []
    for members in groups.values():
        count = min(-(-tokens(members) // int(fair + 1)), len(members))
        pieces += [members[piece::count] for piece in range(count)]
    dealt: list[list[int]] = [[] for _ in range(world)]
    loads = [0] * world
    for members in sorted(pieces, key=lambda members: (-tokens(members), members[0])):
        rank = loads.index(min(loads))
        dealt[rank] += members
        loads[rank] += tokens(members)
    return [sorted(indices) for indices in dealt]


@contextmanager
def gloo_by(host: str) -> Iterator[None]:
    """Let gloo listen where this process reaches `host`, rank 0's address, unless the user has chosen.

    By default it listens at the address of the host's name. That is often a loopback address, at which ranks
    of other hosts look in vain.
    """
    interface = _interface(host) if _SETTING not in os.environ else ""
    with environment({_SETTING: interface} if interface else {}):
        yield


def _interface(host: str) -> str:
    """The interface of the IPv4 address from which packets to a host leave; empty: none is known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        try:
            peer.connect((host, 9))  # a port of UDP sends nothing yet
            address = peer.getsockname()[0]
        except OSError:
            return ""
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(peer, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
