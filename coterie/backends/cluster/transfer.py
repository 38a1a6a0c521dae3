"""How weights travel from the trainer on a cluster, and why so. Imports neither Ray nor torch.

Where a process sends them straight to a receiver, the engine's process has an `Order` for each receiver, and
the process with the weights fulfils it. The latter may be the run's process, which nobody can call: it asks
for orders, and passes those of other processes on.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from coterie.backends.cluster.placement import RUN, TRAINER, Process, kind_of
from coterie.backends.cluster.settings import ClusterConfig
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError, SystemFault

NCCL, IPC = "nccl", "ipc"
WORDS = {NCCL: "NCCL", IPC: "CUDA IPC"}
PATH = "cluster.weights"
SEVERAL = (
    "on the GPUs of rank 0 and of others, where NCCL connects no two processes, and CUDA IPC would have to "
    "come from each rank"
)


class Transfer(NamedTuple):
    """How weights travel, in words."""

    name: str
    """`nccl`, `ipc`, `store` or `disk`."""
    text: str
    """What is said of it."""
    why: str
    ways: Mapping[str, str] = MappingProxyType({})
    """By replica that gets its base weights from the trainer's GPU: `nccl` or `ipc`."""

    @property
    def sentence(self) -> str:
        return f"{self.text}: {self.why}"

    def of(self, policy: str) -> dict[str, str]:
        """`ways` of the replicas of a policy's own weights."""
        return {name: way for name, way in self.ways.items() if base_of(name) == policy}


def transfer_of(
    settings: ClusterConfig, processes: Sequence[Process], run: RunConfig | None = None
) -> Transfer:
    """How weights go from the trainer to the engine's process, and to replicas.

    Args:
        processes: of the run, as they are placed.
        run: says which policies are trained whole; None: all are.

    Raises:
        ConfigError: `cluster.weights` names a way that these processes don't have.
    """
    replicas = [each for each in processes if "/" in each.name and kind_of(each) != TRAINER]
    onward = ", and from there through the object store to the replicas" if replicas else ""
    if settings.weights == "disk":
        place = settings.weights_folder or "the run's folder"
        text = f"weights go to the engine's process by safetensors files in {place}{onward}"
        return Transfer("disk", text, "cluster.weights is disk")
    end = f"the engine's process{onward and ' and its replicas'}"
    text = f"weights go to {end} through Ray's object store"
    if settings.weights == "store":
        return Transfer("store", text, "cluster.weights is store")
    whole = [each for each in replicas if _whole(each, run)]
    senders = {each.name: _sender(each, processes) for each in whole}
    if settings.weights in WORDS:
        _check(settings.weights, replicas, whole, senders)
        return _direct(dict.fromkeys(senders, settings.weights), replicas, "cluster.weights says so")
    ahead = 0 if run is None else run.schedule.max_staleness
    ways = {each.name: way for each in whole if (way := _way(each, senders[each.name]))}
    if ways and not ahead:
        why, left = _gain(set(ways.values())), [each.name for each in whole if each.name not in ways]
        why += f"; {', '.join(left)}: {SEVERAL}" if left else ""
        return _direct(ways, replicas, why)
    reason = _reason(replicas, whole, senders, ahead=bool(ways))
    return Transfer("store", text, f"{reason}; files (cluster.weights=disk) are used on request")


def check_engine(transfer: str, weights: str) -> None:
    """Refuse an `engine.transfer` that says something else than `cluster.weights`.

    Raises:
        ConfigError: they contradict each other.
    """
    if transfer in ("auto", weights) or not {transfer, weights} & set(WORDS):
        return
    also = f" and cluster.weights={transfer}" if transfer in WORDS else ""
    raise ConfigError(
        f"engine.transfer is {transfer}, and cluster.weights is {weights}",
        path="engine.transfer",
        why="both say how weights travel, and on a cluster cluster.weights decides",
        fix=f"set engine.transfer=auto{also}",
    )


def base_of(replica: str) -> str:
    """The base of a replica, by its name: the first policy that plays on it."""
    return replica.partition(" ")[2].rpartition("/")[0]


def _whole(replica: Process, run: RunConfig | None) -> bool:
    """Whether a replica's base weights are trained."""
    base = base_of(replica.name)
    return run is None or (base in run.policies and run.policies[base].train == "full")


def _sender(replica: Process, processes: Sequence[Process]) -> Process | None:
    """The process with rank 0 of the trainer of a replica's weights; None: it has no GPU."""
    names = (f"{TRAINER} {base_of(replica.name)}/0", RUN)
    there = {each.name: each for each in processes if each.name in names}
    sender = next((there[name] for name in names if name in there), None)
    return sender if sender is not None and sender.gpus else None


def _way(replica: Process, sender: Process | None) -> str:
    """How a replica can get weights from the sender's GPU; empty: it can't.

    NCCL takes each GPU once, and vLLM's workers open memory of their own GPU alone.
    """
    if sender is None:
        return ""
    if sender.name in replica.shares:
        return IPC if len(replica.shares) == 1 else ""
    return NCCL if replica.gpus or replica.shares else ""


def _direct(ways: Mapping[str, str], replicas: Sequence[Process], why: str) -> Transfer:
    """The transfer of those that go from GPU to GPU."""
    kinds = set(ways.values())
    named = {kind: ", ".join(name for name, way in ways.items() if way == kind) for kind in kinds}
    by = " or ".join(
        WORDS[kind] + (f" ({named[kind]})" if len(kinds) > 1 else "") for kind in (NCCL, IPC) if kind in kinds
    )
    bases = ", ".join(dict.fromkeys(map(base_of, ways)))
    text = f"weights of {bases} go from the trainer's GPU to the replicas by {by}"
    others = any(each.name not in ways for each in replicas)
    text += ", all others through Ray's object store" if others else ""
    return Transfer(NCCL if NCCL in kinds else IPC, text, why, MappingProxyType(dict(ways)))


def _gain(kinds: Collection[str]) -> str:
    apart, same = "trainer and replicas have different GPUs", "replicas are on the trainer's GPU"
    if len(kinds) > 1:
        return "NCCL between different GPUs, CUDA IPC where a replica is on the GPU of rank 0"
    return apart if NCCL in kinds else f"{same}, where NCCL connects no two processes"


def _reason(
    replicas: Sequence[Process],
    whole: Sequence[Process],
    senders: Mapping[str, Process | None],
    ahead: bool,
) -> str:
    """Why weights don't go from GPU to GPU."""
    if not replicas:
        return "the engine has a process of its own, without a group of GPUs in common with the trainer"
    if ahead:
        return (
            "steps are played ahead (schedule.max_staleness), and a replica that dies would need weights "
            "that the trainer has changed since"
        )
    if not whole:
        return "no policy is trained whole, and adapters are small"
    if any(senders[each.name] is not None and len(each.shares) > 1 for each in whole):
        return f"a replica is {SEVERAL}"
    return "NCCL needs GPUs on both sides, and trainer or replicas compute on CPUs"


def _check(
    way: str,
    replicas: Sequence[Process],
    whole: Sequence[Process],
    senders: Mapping[str, Process | None],
) -> None:
    """Refuse a way that the processes don't have.

    Raises:
        ConfigError: with the first replica that lacks it.
    """
    what, fix = f"weights can't go to the replicas by {WORDS[way]}", "set cluster.weights=auto"
    if not replicas:
        why = "the engine has no replicas on a cluster"
        raise ConfigError(what, path=PATH, why=why, fix=f"{fix}, or engine.type=vllm")
    if not whole:
        why = "no policy is trained whole: adapters and frozen weights go through Ray's object store"
        raise ConfigError(what, path=PATH, why=why, fix=f"{fix}, or train all weights of a policy")
    for replica in whole:
        possible = _way(replica, senders[replica.name])
        if possible == way:
            continue
        if possible:
            where = "on another GPU than rank 0" if possible == NCCL else "on the trainer's GPU"
            why = f"{replica.name} is {where}, which takes {WORDS[possible]}"
        elif len(replica.shares) > 1:
            why = f"{replica.name} is {SEVERAL}"
        else:
            why = "trainer or replicas have no GPU"
        raise ConfigError(what, path=PATH, why=why, fix=fix)


Links = dict[str, Any]
"""What a process with weights keeps between two sends, by receiver; each has `close`."""
Send = Callable[[Any, Links], Awaitable[None]]
"""Sends weights (a handle, `Weights`) to one receiver. Picklable."""


class NotAtHand(SystemFault):
    """The weights of a version are gone: the trainer has changed them."""


class NoGroup(SystemFault):
    """Two processes didn't connect to each other."""


@dataclass(frozen=True, slots=True)
class Order:
    """Asks for weights to be sent. Picklable."""

    number: int
    policy: str
    version: int
    send: Send


class Orders:
    """The orders of an engine's process."""

    def __init__(self) -> None:
        self._numbers = itertools.count(secrets.randbits(60))  # another engine's process has others
        self._new: list[Order] = []
        self._dropped: list[int] = []
        self._open: dict[int, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()

    async def fulfilled(self, policy: str, version: int, send: Send) -> None:
        """Wait until weights were sent; a caller that is cancelled drops the order.

        Raises:
            NotAtHand: they are gone.
            NoGroup: the receiver can't be reached.
            Exception: what the sending raised.
        """
        order = Order(next(self._numbers), policy, version, send)
        self._open[order.number] = done = asyncio.get_running_loop().create_future()
        self._new.append(order)
        self._changed.set()
        try:
            await done
        except asyncio.CancelledError:
            self._dropped.append(order.number)
            self._changed.set()
            raise
        finally:
            del self._open[order.number]

    async def take(self, patience: float) -> tuple[list[Order], list[int]]:
        """New orders, and numbers of dropped ones, once there are any or after `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()
        taken = self._new, self._dropped
        self._new, self._dropped = [], []
        return taken

    def settle(self, number: int, error: BaseException | None) -> None:
        """Take the end of an order."""
        done = self._open.get(number)
        if done is None or done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
