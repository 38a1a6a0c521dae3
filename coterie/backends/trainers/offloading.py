"""The part of a trainer that leaves its GPUs while episodes are played, and comes back before it computes."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from coterie.backends.models.compute_threads import compute
from coterie.backends.trainers.offloaded import Device, Offloaded, TorchDevice
from coterie.backends.trainers.policies import InitialWeights, PolicyWeights
from coterie.backends.trainers.ranks.commands import Commands
from coterie.backends.trainers.settings import TorchConfig, offload_of

log = logging.getLogger("coterie")
T = TypeVar("T")
P = ParamSpec("P")
Self = TypeVar("Self", bound="Offloading")


@runtime_checkable
class HoldsTensors(Protocol):
    """An optimiser whose tensors can leave."""

    def held(self) -> Iterator[Tensor]:
        """Masters and moments, as they are now; weights may be among them."""


def present(method: Callable[Concatenate[Self, P], T]) -> Callable[Concatenate[Self, P], T]:
    """A method before which all tensors of this rank come back to its GPU, and stay there."""

    @functools.wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.come_back()
        return method(self, *args, **kwargs)

    return call


def visiting(method: Callable[Concatenate[Self, P], T]) -> Callable[Concatenate[Self, P], T]:
    """A method during which all tensors of this rank are on its GPU; then they are where they were."""

    @functools.wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.visit():
            return method(self, *args, **kwargs)

    return call


class Offloading:
    """The part of a trainer that implements `device_memory.Offloads`.

    Masters and moments leave after each update. Weights leave when an engine asks for the memory: until then
    it may read them on the GPU, and afterwards it reads them in the CPU's memory.
    """

    config: TorchConfig
    build: Any
    _commands: Commands
    _policies: dict[str, PolicyWeights]
    _initial_weights: list[InitialWeights]
    _computing: threading.Lock
    _device: Any
    _away: Offloaded | None = None

    @functools.cached_property
    def offloads(self) -> Literal["none", "optimizer", "all"]:
        """What leaves; rank 0 decides.

        Raises:
            ConfigError: the run doesn't allow what the setting asks for.
        """
        return offload_of(self.config, getattr(self.build, "run", None))

    async def offload(self) -> None:
        """Free the memory of all ranks' GPUs until one of them computes, if the settings say so."""
        if self.offloads != "all" or (self._away is not None and self._away.part == "all"):
            return
        await compute(self._commands.run, "rank_offload", "all")
        if self._away:
            log.debug("%.3g GB of rank 0 leave its GPU until the next update", self._away.bytes / 1e9)

    def offload_optimizer(self) -> None:
        """Free the memory of masters and moments on all ranks, if the settings say so."""
        if self.offloads != "none":
            self._commands.run("rank_offload", "optimizer")

    def rank_offload(self, part: str) -> None:
        """`offload` on one rank.

        Args:
            part: `optimizer` or `all`.
        """
        with self._computing:
            self._leave(part)

    def come_back(self) -> None:
        """Bring all tensors of this rank back."""
        if self._away is not None:
            self._away.come_back()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """The context in which all tensors of this rank are on its GPU."""
        away = "" if self._away is None else self._away.part
        self.come_back()
        try:
            yield
        finally:
            if away:
                self._leave(away)

    def _offload_device(self) -> Device:
        return TorchDevice("cuda")

    def _leave(self, part: str) -> None:
        if self._away is None:
            self._away = Offloaded(self._offload_device())
        weights = [*weights_of(self._initial_weights, self._policies)]
        if part == "optimizer":
            self._away.leave(masters_of(self._policies), beside=weights)
        else:
            self._away.leave([*weights, *masters_of(self._policies)])
        if self._away.part != "all":
            self._away.part = part


def weights_of(
    initial_weights: Sequence[InitialWeights], policies: Mapping[str, PolicyWeights]
) -> Iterator[Tensor]:
    """All tensors of the models, and what belongs to them; a tensor may come twice."""
    modules = [initial.frozen for initial in initial_weights if initial.frozen is not None]
    for module in (*modules, *(policy.model for policy in policies.values())):
        for tensor in (*module.parameters(), *module.buffers()):
            yield tensor
            if hasattr(tensor, "ds_tensor"):  # this rank's part, where ZeRO divides it
                yield tensor.ds_tensor
    for policy in policies.values():
        if policy.value_head is not None:
            yield policy.value_head
            if hasattr(policy.value_head, "ds_tensor"):
                yield policy.value_head.ds_tensor
        yield from (policy.initial_adapter or {}).values()


def masters_of(policies: Mapping[str, PolicyWeights]) -> Iterator[Tensor]:
    """Masters and moments of all optimisers."""
    for policy in policies.values():
        if isinstance(policy.optimizer, HoldsTensors):
            yield from policy.optimizer.held()
