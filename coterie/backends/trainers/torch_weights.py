"""The weights of trainer `torch`: made, equal on all ranks, handed over, kept, saved, exported."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from torch import Tensor

from coterie.backends.cluster.connection import Connection
from coterie.backends.models.compute_threads import compute
from coterie.backends.models.device_memory import RankDevice, occupy, rank_device, vacate
from coterie.backends.models.devices import fix_cublas
from coterie.backends.models.policy import TorchPolicy, declared
from coterie.backends.models.precision import chosen_dtypes, kept_dtypes, left_open, with_dtype
from coterie.backends.models.sources import initial_weights_of
from coterie.backends.trainers import torch_state
from coterie.backends.trainers.devices import check_ranks, device_of, on_gpu
from coterie.backends.trainers.offloading import Offloaded, TorchDevice
from coterie.backends.trainers.optim import Optimizer, PolicyOptimizer
from coterie.backends.trainers.parameters import SourceWeights, digest, hollow, read_sources
from coterie.backends.trainers.policies import InitialWeights, PolicySetup, PolicyWeights, set_up
from coterie.backends.trainers.ranks.commands import Commands
from coterie.backends.trainers.ranks.group import RankAddress, RankPlace
from coterie.backends.trainers.ranks.processes import RanksOnCluster
from coterie.backends.trainers.replicas import TrainerLayout, check_same, layout_of, receive
from coterie.backends.trainers.settings import TorchConfig, offload_of
from coterie.backends.trainers.torch_state import export
from coterie.core.config import PolicyConfig
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Plugin
from coterie.core.protocols import TrainerContext
from coterie.core.types import Weights

log = logging.getLogger("coterie")
T = TypeVar("T")
P = ParamSpec("P")
Self = TypeVar("Self", bound="TorchWeights")


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


class TorchWeights(Plugin):
    """The part of trainer `torch` that has the weights.

    Methods that begin with `rank_` run on every rank (see `ranks.commands`).

    Tensors may leave the GPUs while episodes are played. Masters and moments leave after each update. Weights
    leave when an engine asks for the memory (`device_memory.make_room`): until then it may read them on the
    GPU, and afterwards it reads them in the CPU's memory.
    """

    config: TorchConfig
    default_group = False
    """Whether the ranks make torch's default process group, too."""

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self.initial_weights: list[InitialWeights] = []
        """The weights that policies begin with: one for each group that shares them."""
        self.policies: dict[str, PolicyWeights] = {}
        """Empty before `open`, as `initial_weights` is; a policy behind an endpoint isn't there."""
        self._sources: dict[str, SourceWeights] | None = None
        # The active adapter is a setting of the shared module, so only one thread may compute at a time.
        self._computing = threading.Lock()
        self._left_open: tuple[str, ...] = ()
        """The policies whose dtype is `auto`, which a checkpoint's replaces."""
        self._cluster: RanksOnCluster | None = None
        self.place, self.commands = RankPlace(), Commands(self)

    def begin_with(self, weights: Mapping[str, Weights]) -> None:
        """Copy the weights of policies with a `from` into memory; `open` gives them to the policies.

        Raises:
            ConfigError: they can't be read, or are no tensors.
        """
        self._sources = read_sources(weights)

    def use_cluster(self, cluster: Connection) -> None:
        """Start the other ranks on a cluster, once the trainer is opened."""
        if self.config.ranks > 1:
            self._cluster = RanksOnCluster(cluster, functools.partial(on_gpu, self.config.device))

    def required_dtypes(self, open_: Mapping[str, TorchPolicy]) -> Mapping[str, TorchPolicy]:
        """Policies with `dtype: auto` for which the trainer has one dtype only, with that one."""
        return {}

    async def open(self, ctx: TrainerContext) -> None:
        self.config.check_needs(ctx.needs, "trainer")
        if self._cluster is None:  # else its connection refuses more ranks than can run
            check_ranks(self.config.ranks, self.config.device)
        _ = self.offloads  # a setting that the run doesn't allow is refused before anything is loaded
        sources, self._sources = self._sources, None
        await compute(self._open, ctx, sources)

    def _open(self, ctx: TrainerContext, sources: dict[str, SourceWeights] | None) -> None:
        open_ = left_open(ctx.policies)
        self._left_open = tuple(open_)
        resolved = chosen_dtypes({**open_, **self.required_dtypes(open_)}, device_of(self.config.device).type)
        ctx = replace(ctx, policies={**ctx.policies, **resolved})
        if self.config.ranks > 1:
            from coterie.backends.trainers.ranks.collectives import start

            self.commands = start(self, self.config.ranks, self.config, self._cluster)
        occupy(self, self.commands.run("rank_open", ctx, sources, others=(ctx, hollow(sources))))
        self._equalise()

    def join(self, address: RankAddress) -> None:
        """Take this rank's place among the others; every rank does."""
        from coterie.backends.trainers.ranks.collectives import DistributedPlace

        device = device_of(self.config.device, address.local)
        self.place = DistributedPlace(address, device, default=self.default_group)

    def rank_open(self, ctx: TrainerContext, sources: dict[str, SourceWeights] | None) -> RankDevice:
        """Make the weights of all policies. The others are filled by rank 0's afterwards."""
        self.ctx = ctx
        fix_cublas(wanted=ctx.deterministic)
        self._device = device_of(self.config.device, self.place.local if self.place.world > 1 else None)
        self._setup = PolicySetup(
            ctx=ctx, config=self.config, device=self._device, make_optimizer=self._new_optimizer
        )
        remote = {name for name, policy in ctx.policies.items() if getattr(policy, "behind_endpoint", False)}
        loaded = {name: policy for name, policy in ctx.policies.items() if name not in remote}
        self.initial_weights, self.policies = set_up(declared(loaded, TorchPolicy), self._setup, sources)
        return rank_device(self._device)

    def _new_optimizer(self, policy: PolicyWeights) -> Optimizer:
        """An optimiser over the policy's present weights."""
        return PolicyOptimizer(policy.weights(), policy.config.optimizer, policy.rates)

    def _equalise(self) -> None:
        """Give every rank rank 0's weights, optimisers and versions."""
        if self.config.ranks > 1:
            self.commands.run("rank_receive", layout_of(self.initial_weights, self.policies))
        self.offload_optimizer()

    @present
    def rank_receive(self, layout: TrainerLayout) -> None:
        """Take the state that rank 0 has."""
        configs = {name: policy.config for name, policy in self.policies.items()}
        groups = [initial.policies for initial in self.initial_weights]
        if (layout.configs, layout.groups) != (configs, groups):
            self.initial_weights, self.policies = set_up(layout.configs, self._setup, groups=layout.groups)
        receive(self.place, layout, self.initial_weights, self.policies)

    async def close(self) -> None:
        vacate(self)
        self.commands.close()
        self.place.close()
        self.place, self.commands = RankPlace(), Commands(self)
        self.initial_weights, self.policies = [], {}
        vars(self).pop("away", None)

    # ------------------------------------------------------------------------------------- away from the GPU

    @functools.cached_property
    def offloads(self) -> Literal["none", "optimizer", "all"]:
        """What leaves; rank 0 decides.

        Raises:
            ConfigError: the run doesn't allow what the setting asks for.
        """
        return offload_of(self.config, getattr(self.build, "run", None))

    async def offload(self) -> None:
        """Free the memory of all ranks' GPUs until one of them computes, if the settings say so."""
        if self.offloads != "all" or self.away.part == "all":
            return
        await compute(self.commands.run, "rank_offload", "all")
        if self.away:
            log.debug("%.3g GB of rank 0 leave its GPU until the next update", self.away.bytes / 1e9)

    def offload_optimizer(self) -> None:
        """Free the memory of masters and moments on all ranks, if the settings say so."""
        if self.offloads != "none":
            self.commands.run("rank_offload", "optimizer")

    def rank_offload(self, part: str) -> None:
        """`offload` on one rank.

        Args:
            part: `optimizer` or `all`.
        """
        with self._computing:
            self._leave(part)

    def come_back(self) -> None:
        """Bring all tensors of this rank back."""
        self.away.come_back()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """The context in which all tensors of this rank are on its GPU."""
        away = self.away.part
        self.come_back()
        try:
            yield
        finally:
            if away:
                self._leave(away)

    @functools.cached_property
    def away(self) -> Offloaded:
        """The tensors of this rank that are away."""
        return Offloaded(self._offload_device())

    def _offload_device(self) -> TorchDevice:
        return TorchDevice("cuda")

    def _leave(self, part: str) -> None:
        weights = [*weights_of(self.initial_weights, self.policies)]
        if part == "optimizer":
            self.away.leave(masters_of(self.policies), beside=weights)
        else:
            self.away.leave([*weights, *masters_of(self.policies)])
        if self.away.part != "all":
            self.away.part = part

    # ------------------------------------------------------------------------------------ handed over, kept

    def bases(self) -> dict[str, tuple[str, ...]]:
        """The initial weights, as first policy -> all policies that begin with them."""
        return {initial.name: initial.policies for initial in self.initial_weights}

    def weights(self, policy: str) -> Weights:
        """The live module. If `module` is a PeftModel and `adapter` is None, adapters are disabled."""
        if policy in self.ctx.policies and policy not in self.policies:  # behind an endpoint
            return Weights(policy=policy, version=0)
        trained = self._policy(policy)
        return Weights(
            policy=policy,
            version=trained.version,
            module=trained.module,
            adapter=trained.adapter,
            tokenizer=trained.initial.tokenizer,
        )

    def keep(self, policy: str) -> None:
        """Copy the policy's trained weights to the CPU's memory, under their version."""
        known = self.policies.get(policy)
        if known is not None and known.optimizer is not None and known.version not in known.kept:
            known.kept[known.version] = {
                name: tensor.detach().to("cpu", copy=True) for name, tensor in known.own_parameters().items()
            }

    def drop(self, policy: str, version: int) -> None:
        if policy in self.policies:
            self.policies[policy].kept.pop(version, None)

    @contextmanager
    def weights_at(self, policy: str, version: int) -> Iterator[Weights]:
        """The live module, which has a kept version's values within the context."""
        known = self.policies[policy]
        self.come_back()
        with self._computing, known.holding(known.kept[version]):
            yield replace(self.weights(policy), version=version)

    def digest(self) -> dict[str, str]:
        digests: list[dict[str, str]] = self.commands.run("rank_digest")
        for name in digests[0]:
            check_same(name, [theirs[name] for theirs in digests])
        return digests[0]

    def rank_digest(self) -> dict[str, str]:
        """`digest` on one rank."""
        digests = {}
        for name, policy in self.policies.items():
            with policy.whole():
                digests[name] = digest(policy.weights())
        return digests

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        export(self._policy(policy), Path(folder), merge=merge)

    # ------------------------------------------------------------------------------------------------ state

    def save(self, folder: Path) -> None:
        torch_state.save(Path(folder), self.initial_weights, self.policies)

    @present
    def load(self, folder: Path) -> None:
        """Restore what `save` wrote.

        A run's dtypes stay those with which it began. A `from` may have given some policies equal weights, or
        not.
        """
        here = {name: policy.config for name, policy in self.policies.items()}
        saved = torch_state.initial_groups(Path(folder))
        dtypes = {name: dtype for names, dtype in saved.items() for name in names}
        configs = kept_dtypes(here, self._left_open, dtypes)
        begun = any(config.from_ is not None for config in here.values())
        regrouped = begun and sorted(saved) != sorted(initial.policies for initial in self.initial_weights)
        if (configs != here or regrouped) and dtypes.keys() == here.keys():
            self.initial_weights, self.policies = [], {}  # freed before the others are made
            self.initial_weights, self.policies = set_up(configs, self._setup, groups=[*saved])
        torch_state.load(Path(folder), self.initial_weights, self.policies)
        self._equalise()

    def same_start(self, policies: Mapping[str, PolicyConfig]) -> dict[str, tuple[str, ...]]:
        """The policies with the same initial weights; without those of a `from`, which are read elsewhere."""
        made = {
            name: policy
            for name, policy in policies.items()
            if policy.from_ is None and not getattr(policy, "behind_endpoint", False)
        }
        return initial_weights_of(with_dtype(declared(made, TorchPolicy), self._device.type))

    def part_of_state(self, folder: Path, policies: Collection[str]) -> dict[str, Path | bytes]:
        """The state of some policies; see `torch_state.part_of`."""
        return torch_state.part_of(Path(folder), policies)

    def join_states(self, parts: Sequence[Path], folder: Path, alike: Mapping[str, Sequence[str]]) -> None:
        """The state of all policies; see `torch_state.join`."""
        torch_state.join(parts, Path(folder), alike)

    def _policy(self, name: str) -> PolicyWeights:
        if name not in self.policies:
            raise ConfigError(
                f"there is no policy '{name}'", path="policies", fix=did_you_mean(name, self.policies)
            )
        return self.policies[name]


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
        if policy.optimizer is not None:
            yield from policy.optimizer.held()
