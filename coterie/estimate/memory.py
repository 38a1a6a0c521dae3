"""The memory that a run's trainer and engine hold, estimated before any weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coterie.backends.models import memory
from coterie.backends.models.policy import of_tensors
from coterie.core.errors import UserError
from coterie.core.training.run import Run
from coterie.estimate.counts import Growth, StepCounts
from coterie.estimate.engines import EngineMemory
from coterie.estimate.gpus import GpuLayout, layout_of
from coterie.estimate.models import PlannedModels, planned_models
from coterie.estimate.trainer import (
    Disk,
    Division,
    add_trainer,
    add_versions,
    device_of,
    disk,
    division_of,
    leave,
    update_activations,
    warm_start,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes of tensors, and the sizes that they follow from."""

    policies: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By policy and part (`memory.PARTS` and `activations`). Policies without tensors are absent."""
    unknown: Mapping[str, UserError] = field(default_factory=dict)
    """By policy whose model can't be read on this machine: why."""
    parameters: Mapping[str, int] = field(default_factory=dict)
    """By policy: parameters of its model, without adapters."""
    adapters: Mapping[str, int] = field(default_factory=dict)
    """By policy: parameters of its adapter."""
    contexts: Mapping[str, int] = field(default_factory=dict)
    """By policy: longest prompt and answer, in tokens."""
    prompts: Mapping[str, int] = field(default_factory=dict)
    """By role: tokens of its longest first prompt in the sampled tasks."""
    growths: Mapping[str, Growth] = field(default_factory=dict)
    """By role that is asked again with its earlier answers: how its prompts grow."""
    cache: int = 0
    """Bytes of the largest batch's KV cache."""
    phases: Mapping[str, int] = field(default_factory=dict)
    """By phase of a run: the most bytes that are alive at once; with ranks, on the fullest GPU."""
    trained: Mapping[str, int] = field(default_factory=dict)
    """By policy: its parameters that are trained."""
    device: str = "cpu"
    """The type of the device that the plan is for."""
    division: Division = field(default_factory=Division)
    layout: GpuLayout = field(default_factory=GpuLayout)
    host: int = 0
    """Bytes that are offloaded to the host's memory."""
    disk: Disk = field(default_factory=Disk)
    one_device: bool = False
    """Whether trainer and engine share one GPU, however many there are."""
    notes: Sequence[str] = ()

    @property
    def peak(self) -> int | None:
        """The most bytes of any phase; None where a model is unknown."""
        return None if self.unknown else max(self.phases.values(), default=0)

    def trained_share(self, policy: str) -> float | None:
        """Trained parameters as a share of the model's and the adapter's; None: the model is unknown."""
        if policy not in self.trained:
            return None
        return self.trained[policy] / (self.parameters[policy] + self.adapters.get(policy, 0))


def memory_of(
    run: Run, counts: StepCounts, *, device: str | None = None, gpu: float = 80e9, gpus: int | None = None
) -> MemoryEstimate:
    """Read the policies' models without their weights, and add up their tensors.

    Args:
        device: the type of the device that the plan is for; None: what this machine has.
        gpu: bytes of one GPU.
        gpus: how many there are; None: as many as keep trainer and engine apart.
    """
    configs = of_tensors(run.config.policies)
    if not configs:
        return MemoryEstimate()
    place = device_of(run, device)
    layout = layout_of(run, place, gpus)
    planned = planned_models(run, counts, configs, device=place, gpu=gpu, hint=device is None)
    parts, trains = add_trainer(planned)
    on_disk = disk(planned, parts) if trains else Disk()
    engine = EngineMemory(planned, parts, layout)
    cache = engine.fill()
    copies = add_versions(planned, parts) if trains else 0
    for name, part in parts.items():
        part["activations"] = update_activations(planned, name) if part["gradients"] else 0
    phases, host = _phases(planned, parts, engine, cache, copies, trains)
    return MemoryEstimate(
        policies=parts,
        unknown=planned.unknown,
        parameters={name: size.parameters for name, size in planned.sizes.items()},
        adapters={name: count for model in planned.models for name, count in model.size.adapters.items()},
        contexts=planned.contexts,
        prompts=planned.prompts.lengths,
        growths=planned.prompts.growths,
        cache=cache,
        phases=phases,
        trained={name: part["moments"] // (2 * memory.FP32) for name, part in parts.items()},
        device=place,
        division=division_of(run),
        layout=layout,
        host=host,
        disk=on_disk,
        one_device=engine.beside_trainer and trains,
        notes=planned.notes,
    )


def _phases(
    planned: PlannedModels,
    parts: Mapping[str, dict[str, int]],
    engine: EngineMemory,
    cache: int,
    copies: int,
    trains: bool,
) -> tuple[dict[str, int], int]:
    """By phase, the most bytes that are alive at once on a GPU; and the bytes in the host's memory.

    Args:
        parts: bytes, by policy and part.
        cache: bytes of the largest batch's keys and values.
        copies: bytes of the trainer's copies of earlier versions.
        trains: whether the trainer holds weights.
    """
    division, server, on_gpu = division_of(planned.run), engine.server, planned.device == "cuda"
    held = [division.on_gpu(part) for part in parts.values()]
    host = sum(division.on_host(part) for part in parts.values())
    staying = memory.summed(held)
    if on_gpu:
        host += copies
    else:
        staying += copies
    leaving = leave(division, held, planned.notes) if on_gpu else 0
    host += division.ranks * leaving
    phases = {"generation": staying - leaving + cache}
    beside = server is None or (server.beside_trainer and not server.sleeps)
    if not beside:
        staying -= memory.summed(held, ("engine",))
    if server is not None and not server.beside_trainer:
        phases["generation"] = server.weights + server.cache  # on another GPU
    phases["update"] = staying + max((part["gradients"] + part["activations"] for part in held), default=0)
    if (server is not None and beside) or (server is None and planned.run.ahead):
        phases["update"] += cache  # a batch may be under way
    warm = [warm_start(planned, model) for model in planned.models]
    if trains and any(warm):
        resident = memory.summed(held, ("weights", "adapter", "reference", "masters"))
        phases["warm start"] = resident + max(warm)
    return phases, host
