"""Trainer `deepspeed`: the updates of trainer `torch`, with DeepSpeed's ZeRO as optimiser.

DeepSpeed is imported for the device, without compiled kernels, and works in a process group.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from coterie.backends.models.device_memory import RankDevice
from coterie.backends.models.merged_weights import Gathered
from coterie.backends.models.policy import TorchPolicy, declared
from coterie.backends.trainers import torch_state
from coterie.backends.trainers.annotations import annotated, forwards
from coterie.backends.trainers.deepspeed.engines import DeepSpeedOptimizer, Engines
from coterie.backends.trainers.deepspeed.settings import DeepSpeedConfig, DeepSpeedPolicy, check_precision
from coterie.backends.trainers.devices import device_of
from coterie.backends.trainers.optim import Optimizer
from coterie.backends.trainers.parameters import SourceWeights, adapter_parameters, fill, plain_parameters
from coterie.backends.trainers.policies import PolicyWeights, set_up
from coterie.backends.trainers.ranks.group import RankAddress
from coterie.backends.trainers.torch_state import export
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.backends.trainers.torch_weights import present, visiting
from coterie.backends.trainers.update_metrics import Meter
from coterie.core.errors import ConfigError
from coterie.core.protocols import TrainerContext
from coterie.core.types import Metrics, Sample, Weights

_users = 0
"""Open trainers of one rank; they share the process group that the first of them made."""
_made = False
"""Whether `leave_group` removes torch's default process group: it is the trainers'."""
_LOCAL_RANK = "LOCAL_RANK"
"""The environment variable by which DeepSpeed knows a process's device, again and again."""
_named = False
"""Whether `enter_group` has set it."""


def import_deepspeed(device: torch.device) -> Any:
    """The module `deepspeed`, for tensors on this device.

    Raises:
        MissingExtra: it isn't installed.
        ConfigError: the process uses DeepSpeed with another kind of device.
    """
    DeepSpeedConfig.check_packages()
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    # It logs each engine's configuration, on standard output.
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    deprecated = r"`torch\.distributed\.(reduce_scatter|all_gather)"
    warnings.filterwarnings("ignore", message=deprecated, category=FutureWarning)
    import deepspeed
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # A shared-memory all-reduce that init_distributed would compile, with a compiler: gloo does as well.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    kind = get_accelerator().device_name()
    if kind != device.type:
        raise ConfigError(
            f"DeepSpeed computes on '{kind}' in this process",
            path="trainer.device",
            why=f"DS_ACCELERATOR is {os.environ['DS_ACCELERATOR']}, or another trainer uses it there",
            fix=f"set trainer.device={kind}, or unset DS_ACCELERATOR in a new process",
        )
    return deepspeed


def refuse_other_group() -> None:
    """Refuse a default process group that this trainer's ranks can't join.

    Raises:
        ConfigError: another library made it.
    """
    if dist.is_initialized():
        raise ConfigError(
            "torch's default process group is taken",
            path="trainer.ranks",
            why="DeepSpeed works in that group alone; another library in this process, such as the engine "
            "`vllm` inside it or a second trainer, has made it",
            fix="set engine.process=own, or trainer.ranks=1",
        )


def enter_group(world: int, local: int, device: torch.device) -> None:
    """Begin to use DeepSpeed's process group; `leave_group` ends it.

    With several ranks torch's default group is theirs already. A group of one is made here, unless another
    library has made one.
    """
    global _users, _made, _named
    _users += 1
    if _LOCAL_RANK not in os.environ:
        os.environ[_LOCAL_RANK], _named = str(local), True
    if world == 1 and not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        _made = True
    elif world > 1:
        _made = True
    if dist.get_world_size() != world:
        _users -= 1
        refuse_other_group()
    from deepspeed import comm

    # It finds the default group, and never looks for MPI or for a launcher's variables.
    comm.init_distributed(
        dist_backend="nccl" if device.type == "cuda" else "gloo", auto_mpi_discovery=False, verbose=False
    )


def leave_group() -> None:
    """End the use of the process group; the last user removes it, and what DeepSpeed remembers of it."""
    global _users, _made, _named
    _users -= 1
    if _users:
        return
    if _named:
        del os.environ[_LOCAL_RANK]
    _named = False
    import deepspeed.comm.comm

    if _made and dist.is_initialized():
        deepspeed.comm.destroy_process_group()
    deepspeed.comm.comm.cdb = None
    _made = False


def forget_group() -> None:
    """Remove the process group of an earlier trainer, which rank 0 closed without telling this rank."""
    global _users
    if _users:
        _users = 1
        leave_group()


class DeepSpeedTrainer(TorchTrainer):
    """Updates policies with DeepSpeed's ZeRO: optimiser, gradients and weights divided between the ranks.

    Each trained policy has an engine of its own. Losses, minibatches, annotations, metrics and checkpoints
    are those of trainer `torch`. Engines are made when the first update begins, so that a warm start and the
    loading of a checkpoint work on whole models.
    """

    default_group = True
    config: DeepSpeedConfig
    Config = DeepSpeedConfig
    Policy = DeepSpeedPolicy
    persistent = 100_000
    """Numbers of the largest tensor that every rank keeps whole at stage 3: DeepSpeed's default."""
    keep: Any = None  # not `KeepsVersions`: the weights are divided between the ranks

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._engines: Engines | None = None

    # ------------------------------------------------------------------------------------------------- life

    async def open(self, ctx: TrainerContext) -> None:
        self.config.check_packages()
        self.config.check_offload("trainer")
        for name, policy in declared(ctx.policies, TorchPolicy).items():
            check_precision(policy, f"policies.{name}", self.config.stage)
        if self.config.ranks > 1:
            refuse_other_group()
        await super().open(ctx)

    def required_dtypes(self, open_: Mapping[str, TorchPolicy]) -> dict[str, TorchPolicy]:
        """Fully trained policies at stage 0 in float32: see `check_precision`."""
        return {
            name: policy.model_copy(update={"dtype": "float32"})
            for name, policy in open_.items()
            if policy.train == "full" and self.config.stage == 0
        }

    def join(self, address: RankAddress) -> None:
        """Take this rank's place among the others; every rank does."""
        if address.number > 0:
            forget_group()
        super().join(address)

    def rank_open(self, ctx: TrainerContext, sources: dict[str, SourceWeights] | None) -> RankDevice:
        """Make the weights of all policies."""
        device = device_of(self.config.device, self.place.local if self.place.world > 1 else None)
        deepspeed = import_deepspeed(device)
        enter_group(self.place.world, self.place.local, device)
        self._engines = Engines(deepspeed, self.config, self.place, device, self.persistent)
        return super().rank_open(ctx, sources)

    def _new_optimizer(self, policy: PolicyWeights) -> Optimizer:
        return self._opened.optimizer(policy)

    async def close(self) -> None:
        if self._engines is not None:
            self._engines.close()
            self._engines = None
            leave_group()
        await super().close()

    @property
    def _opened(self) -> Engines:
        assert self._engines is not None, "the trainer is not open"
        return self._engines

    @property
    def _divided(self) -> bool:
        """Whether no rank has whole models."""
        return self.config.stage == 3 and self._opened.made

    # ----------------------------------------------------------------------------------------------- updates

    @present
    def rank_update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """`update` on one rank."""
        if any(samples.values()):
            self._opened.make()
        return super().rank_update(samples, step)

    def _optimiser_step(self, policy: PolicyWeights, batch: Sequence[Sample], meter: Meter) -> None:
        if isinstance(policy.optimizer, DeepSpeedOptimizer):
            policy.optimizer.head.trained = any("targets" in sample.extras for sample in batch)
        before = meter.steps
        super()._optimiser_step(policy, batch, meter)
        if meter.steps > before:
            # DeepSpeed writes behind torch's back, and an engine sees by torch's count what has changed.
            increment_version(list(policy.own_parameters().values()))

    def _micro_batches(
        self,
        policy: PolicyWeights,
        batch: Sequence[Sample],
        coefficients: Sequence[np.ndarray],
        meter: Meter,
    ) -> Iterator[tuple[list[Sample], list[np.ndarray], Meter]]:
        """This rank's micro-batches, and others without weight, so that all ranks have equally many.

        From stage 2 on the ranks add the gradients of every micro-batch, layer by layer.
        """
        count = 0
        for micro_batch in super()._micro_batches(policy, batch, coefficients, meter):
            count += 1
            yield micro_batch
        most = max(self.place.gather(len(self._planned(policy, batch))))
        for _ in range(most - count):
            row = min(batch, key=lambda sample: len(sample.token_ids))
            yield [row], [np.zeros(len(row.token_ids), dtype=np.float32)], Meter((), policy.version)

    def _annotated(
        self, policy: PolicyWeights, samples: Sequence[Sample], here: Sequence[int], what: str
    ) -> list[np.ndarray]:
        """The annotations of this rank's samples; the ranks of a divided model take equally many forwards."""
        mine = [samples[index] for index in here]
        if not self._divided:
            return annotated(policy, mine, what)
        count = forwards(policy, mine, what)
        most = max(self.place.gather(count))  # before the forwards: each of them waits for the other ranks
        arrays = annotated(policy, mine, what)
        for _ in range(most - count):
            annotated(policy, samples[:1], what)
        return arrays

    # ----------------------------------------------------------------------------------------- weights, state

    def weights(self, policy: str) -> Weights:
        """The live module, up to stage 2. At stage 3 whole tensors that `tensors` gathers.

        Until the first update, stage 3 gives the module as well. An engine that keeps the handle reads
        `tensors`: the update divides the module.
        """
        weights = super().weights(policy)
        if self.config.stage < 3 or weights.module is None:
            return weights
        frozen = None if weights.adapter is None else self._gathered(policy, frozen=True)
        return replace(
            weights,
            module=None if self._divided else weights.module,
            tensors=self._gathered(policy, base=frozen),
        )

    def _gathered(self, name: str, *, frozen: bool = False, base: Gathered | None = None) -> Gathered:
        """The policy's part of its model, or the frozen weights below its adapter."""

        def read() -> dict[str, Tensor]:
            tensors: dict[str, Tensor] = self.commands.run("rank_tensors", name, frozen)[0]
            return tensors

        def state() -> int:
            policy = self._policy(name)
            parameters = self._parts(policy, frozen)
            version = None if frozen else policy.version  # an update leaves no trace in divided tensors
            return hash((version, *((id(tensor), tensor._version) for tensor in parameters.values())))

        return Gathered(read, state, base)

    @staticmethod
    def _parts(policy: PolicyWeights, frozen: bool) -> Mapping[str, Parameter]:
        return policy.initial.weights() if frozen else policy.own_parameters()

    @visiting
    def rank_tensors(self, name: str, frozen: bool = False) -> dict[str, Tensor]:
        """The policy's part of its model, or the frozen weights, whole, on the CPU of rank 0.

        Other ranks give nothing.
        """
        whole = {}
        with self._computing:  # an update changes them
            for parameter_name, parameter in self._parts(self._policy(name), frozen).items():
                with self._opened.gather([parameter], False):
                    if self.place.number == 0:
                        whole[parameter_name] = parameter.detach().to("cpu", copy=True)
        return whole

    @visiting
    def rank_digest(self) -> dict[str, str]:
        """`digest` on one rank."""
        return super().rank_digest()

    def save(self, folder: Path) -> None:
        self.commands.run("rank_save", Path(folder))

    @visiting
    def rank_save(self, folder: Path) -> None:
        """`save` on one rank: all gather, rank 0 writes."""
        target = folder if self.place.number == 0 else None
        torch_state.save(target, self.initial_weights, self.policies)

    def load(self, folder: Path) -> None:
        if self._opened.made:
            self.commands.run("rank_renew")
        super().load(folder)

    @present
    def rank_renew(self) -> None:
        """Make all weights anew, without engines."""
        configs = {name: policy.config for name, policy in self.policies.items()}
        groups = [initial.policies for initial in self.initial_weights]
        self._opened.close()
        self.initial_weights, self.policies = set_up(configs, self._setup, groups=groups)

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        if self._divided:
            self.commands.run("rank_export", policy, Path(folder), merge)
        else:
            super().export(policy, folder, merge=merge)

    @visiting
    def rank_export(self, policy: str, folder: Path, merge: bool) -> None:
        """`export` of a divided model: all gather, rank 0 writes."""
        export_whole(self._policy(policy), folder if self.place.number == 0 else None, merge=merge)


def export_whole(policy: PolicyWeights, folder: Path | None, *, merge: bool) -> None:
    """Export a policy through a whole copy of its model in rank 0's memory; every rank calls this.

    Args:
        folder: None: take part in the collective calls alone.
    """
    model = policy.model
    copy = None if folder is None else type(model)(model.config).to(model.dtype)
    peft = None
    if copy is not None and policy.adapter is not None:
        from peft import get_peft_model

        settings = policy.initial.peft.peft_config[policy.adapter]
        peft = get_peft_model(copy, settings, adapter_name=policy.adapter)
    parts = [(plain_parameters(model), None if copy is None else plain_parameters(copy))]
    if policy.adapter is not None:
        theirs = None if copy is None else adapter_parameters(copy, policy.adapter)
        parts.append((adapter_parameters(model, policy.adapter), theirs))
    for ours, theirs in parts:
        for name, parameter in ours.items():
            with policy.gathered([parameter]):
                if theirs is not None:
                    fill({name: theirs[name]}, {name: parameter})
    if folder is not None:
        initial = replace(policy.initial, frozen=copy, peft=peft)
        export(replace(policy, initial=initial, model=copy), folder, merge=merge)
