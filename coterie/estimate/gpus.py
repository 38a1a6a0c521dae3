"""The GPUs of a planned run: what is on which, and how much memory there is."""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.backends.engines.vllm.arguments import gpus_of, needed_gpus
from coterie.backends.engines.vllm.settings import may_be_inside
from coterie.core.training.run import Run
from coterie.estimate.trainer import division_of
from coterie.machine import machine_memory

GB = 10**9


class Capacity(NamedTuple):
    """The GPUs that a run is planned for, or the memory of this machine for a run on its CPU."""

    gpus: int
    each: float
    """Memory of one GPU, or of the machine, in bytes."""
    machine: bool = False
    """Whether it is the machine's."""
    given: bool = False
    """Whether somebody has said how many GPUs there are."""


def capacity_of(device: str, needed: int, gpus: int | None, each: float, *, named: bool) -> Capacity:
    """The capacity for a plan.

    Args:
        device: the type of the device that the plan is for; `needed`: GPUs that its settings need.
        gpus: how many there are; None: as many as the settings need.
        each: bytes of one.
        named: whether GPUs were named. Else a run on a CPU has what the machine gives.
    """
    here = machine_memory() if device == "cpu" and not named else None
    if here is not None:
        return Capacity(1, here, machine=True)
    return Capacity(gpus or needed, each, given=gpus is not None)


class GpuLayout(NamedTuple):
    """Which GPUs of a run compute what."""

    trainer: tuple[int, ...] = (0,)
    """Of its ranks, by rank; () without a trainer of tensors."""
    engine: tuple[int, ...] = (0,)
    """Of the engine; () where it has no model on this host."""
    needed: int = 1
    """Fewest GPUs with which the run starts."""
    reason: str = ""
    """Why so many, and what to lower."""
    fixed: bool = False
    """Whether the settings say what is on which of several GPUs."""
    trainer_type: str = "torch"
    engine_type: str = "hf"

    @property
    def shared(self) -> tuple[int, ...]:
        """GPUs on which both compute."""
        return tuple(gpu for gpu in self.engine if gpu in self.trainer)

    @property
    def sentence(self) -> str:
        """What is where."""
        parts = []
        if self.trainer:
            parts.append(f"the trainer '{self.trainer_type}' computes on {_names(self.trainer)}")
        if self.engine:
            parts.append(f"the engine '{self.engine_type}' on {_names(self.engine)}")
        text = ", ".join(parts)
        if self.shared and self.engine_type == "vllm" and self.fixed:
            apart = len(self.trainer) + len(self.engine)
            text += f"; they share {_names(self.shared)}, and {apart} GPUs keep them apart"
        return text


def _names(gpus: tuple[int, ...]) -> str:
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    if len(gpus) > 2 and gpus == tuple(range(gpus[0], gpus[-1] + 1)):
        return f"GPUs {gpus[0]} to {gpus[-1]}"
    return f"GPUs {', '.join(map(str, gpus[:-1]))} and {gpus[-1]}"


def layout_of(run: Run, device: str, gpus: int | None) -> GpuLayout:
    """The layout that the settings name.

    Args:
        device: the type of the device that the plan is for.
        gpus: how many there are; None: as many as keep trainer and engine apart.
    """
    trainer = _trainer(run)
    kinds = {"trainer_type": run.config.trainer["type"], "engine_type": run.config.engine["type"]}
    if device != "cuda":
        return GpuLayout(**kinds)
    reasons = [f"trainer.ranks is {len(trainer)}, with a GPU for each"] if len(trainer) > 1 else []
    least = max(trainer, default=0) + 1
    fixed = least > 1
    engine: tuple[int, ...] = trainer[:1] or (0,)
    if kinds["engine_type"] == "vllm" and not vllm_inside(run):
        settings = run.engine.config  # type: ignore[attr-defined]
        servers = needed_gpus(settings)
        if servers > least:
            reasons = [
                f"engine.devices names GPU {servers - 1}"
                if settings.devices is not None
                else f"engine.replicas is {settings.replicas}, "
                f"with engine.tensor_parallel {settings.tensor_parallel} for each"
            ]
        least, fixed = max(least, servers), True
        apart = least if settings.devices is not None else len(set(trainer)) + servers
        engine = tuple(gpus_of(settings, max(gpus or apart, least), trainer))
    elif kinds["engine_type"] in ("openai", "scripted", "tabular"):
        engine = ()
    return GpuLayout(trainer, engine, least, "; ".join(reasons), fixed, **kinds)


def vllm_inside(run: Run) -> bool:
    """Whether vLLM is in the run's process: not beside ranks in torch's default process group."""
    settings: Any = run.engine.config  # type: ignore[attr-defined]
    grouped = run.config.trainer["type"] == "deepspeed" and division_of(run).ranks > 1
    return may_be_inside(settings) and (settings.process == "inside" or not grouped)


def _trainer(run: Run) -> tuple[int, ...]:
    if run.config.trainer["type"] in ("none", "tabular"):
        return ()
    device = str(getattr(getattr(run.trainer, "config", None), "device", "auto"))
    named = device.partition(":")[2]
    return (int(named),) if named.isdigit() else tuple(range(division_of(run).ranks))
