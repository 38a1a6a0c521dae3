"""The trainer's part of an estimate of memory: its tensors, their division between ranks, and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from coterie.backends.models import memory
from coterie.backends.models.memory import FP32, WIDTH, Activations, largest_forward
from coterie.backends.models.policy import ModelInit
from coterie.backends.models.sizes import Blueprint
from coterie.backends.trainers.none import NoTrainer
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.training.run import Run
from coterie.estimate.models import PlannedModels

PARAMETERS = ("weights", "adapter", "reference")
OPTIMISER = ("masters", "moments")


class Division(NamedTuple):
    """The division of a trainer's tensors between ranks, each with a GPU of its own."""

    ranks: int = 1
    stage: int = 0
    """Stage of ZeRO (arXiv 1910.02054): 1 divides the optimiser, 2 gradients too, 3 parameters too."""
    offload_optimizer: bool = False
    """Whether masters, moments and the fp32 gradients are in the host's memory."""
    offload_parameters: bool = False
    """Whether parameters are in the host's memory; a GPU holds the layer that it computes."""
    leaves: str = "none"
    """What leaves the GPUs in rollouts: `none`, `optimizer` or `all`."""

    def on_gpu(self, parts: Mapping[str, int]) -> dict[str, int]:
        """Bytes of one policy's parts on one rank's GPU."""
        held = dict(parts)
        for names, stage, offloaded in (
            (OPTIMISER, 1, self.offload_optimizer),
            (("gradients",), 2, False),
            (PARAMETERS, 3, self.offload_parameters),
        ):
            for name in names:
                if offloaded:
                    held[name] = 0
                elif self.stage >= stage:
                    held[name] = -(-held[name] // self.ranks)
        if self.offload_optimizer:  # the gradients of masters leave; those of the weights stay on the GPU
            held["gradients"] -= parts["masters"] * held["gradients"] // max(parts["gradients"], 1)
        return held

    def on_host(self, parts: Mapping[str, int]) -> int:
        """Bytes of one policy in the memory of the host, or of all hosts together."""
        names = (OPTIMISER if self.offload_optimizer else ()) + (
            PARAMETERS if self.offload_parameters else ()
        )
        gradients = parts["masters"] if self.offload_optimizer else 0
        return sum(parts[name] for name in names) + gradients


def settings_of(run: Run) -> Any:
    """The settings of trainer `torch` or of one made like it; None: micro-batches are not known."""
    config = getattr(run.trainer, "config", None)
    return config if hasattr(config, "micro_tokens") else None


def division_of(run: Run) -> Division:
    """The division that the trainer's settings name; trainers without them have one rank."""
    config = getattr(run.trainer, "config", None)
    offload = getattr(config, "offload", None)
    return Division(
        ranks=int(getattr(config, "ranks", 1) or 1),
        stage=int(getattr(config, "stage", 0) or 0),
        offload_optimizer=_chosen(getattr(offload, "optimizer", None)),
        offload_parameters=_chosen(getattr(offload, "parameters", None)),
        leaves=getattr(run.trainer, "offloads", "none"),
    )


def _chosen(place: Any) -> bool:
    """Whether a setting names a place outside the GPU: true, `cpu`, `nvme`."""
    return bool(place) and place != "none"


def device_of(run: Run, planned: str | None) -> str:
    """The type of the device that a plan is for.

    Args:
        planned: what the plan's options say: `cuda` where they name GPUs; None: they say nothing.
    """
    named = str(getattr(getattr(run.trainer, "config", None), "device", "auto"))
    if named != "auto":
        return named.partition(":")[0]
    if planned is not None:
        return planned
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def add_trainer(planned: PlannedModels) -> tuple[dict[str, dict[str, int]], bool]:
    """Bytes of what the trainer holds, by policy and part, and whether it holds weights at all.

    The parts of the engine are there too, and empty. A third-party trainer counts as `torch`.
    """
    from coterie.backends.trainers.torch_trainer import TorchTrainer

    run, parts = planned.run, dict[str, dict[str, int]]()
    annotations = {*run.estimator.needs, *run.loss.needs}
    trainer, kind = run.trainer, run.config.trainer["type"]
    for model in planned.models:
        parts |= memory.trainer_bytes(
            {name: planned.configs[name] for name in model.modules},
            model.size,
            references="ref_logprobs" in annotations,
            values="values" in annotations,
            low_gradients=kind == "deepspeed",
        )
    if not isinstance(trainer, TorchTrainer | NoTrainer | TabularTrainer) and kind != "deepspeed":
        planned.notes.append(f"the memory of trainer '{kind}' is counted as that of 'torch'")
    if isinstance(trainer, NoTrainer | TabularTrainer):
        return {name: dict.fromkeys(memory.PARTS, 0) for name in parts}, False
    return parts, True


def update_activations(planned: PlannedModels, policy: str) -> int:
    """Activations of the largest micro-batch of an update, in bytes."""
    samples, settings = planned.counts.policies[policy].samples, settings_of(planned.run)
    if settings is not None and settings.minibatch_size is not None:
        samples = min(samples, -(-settings.minibatch_size // planned.branches) * planned.branches)
    return _activations(planned, policy, -(-samples // planned.branches), samples)


def warm_start(planned: PlannedModels, model: Blueprint) -> int:
    """Bytes that the supervised steps of a warm start hold besides the tensors that stay."""
    name = next(iter(model.modules))
    settings = planned.configs[name].warm_start
    if settings is None:
        return 0
    kept = _activations(planned, name, settings.batch, settings.batch)
    return memory.warm_start_bytes(planned.configs[name], model.size) + kept


def _activations(planned: PlannedModels, policy: str, prompts: int, samples: int) -> int:
    """Bytes of the largest micro-batch of so many samples, which have so many distinct prompts."""
    settings, size, length = settings_of(planned.run), planned.sizes[policy], planned.lengths(policy)
    forward = largest_forward(
        prompts,
        samples,
        length.prompt,
        length.answer,
        budget=None if settings is None else settings.micro_tokens,
        packing=settings is None or settings.packing,
    )
    if planned.gpu is not None:  # masks hold the queries of all heads of a group: `attention.grouped_sdpa`
        forward = forward._replace(masked=forward.masked * size.heads // size.kv_heads)
    checkpointing = settings is not None and settings.gradient_checkpointing
    divided = division_of(planned.run).stage == 3
    activations = Activations(size, planned.configs[policy], policy, checkpointing, planned.gpu, divided)
    return activations.most(forward)


def leave(division: Division, held: Sequence[Mapping[str, int]], notes: list[str]) -> int:
    """Bytes that leave one rank's GPU in rollouts.

    Args:
        held: by policy, the bytes of its parts on that GPU.
        notes: gets one that says so.
    """
    names = {"none": (), "optimizer": OPTIMISER, "all": OPTIMISER + PARAMETERS}[division.leaves]
    leaving = sum(parts[name] for parts in held for name in names)
    if leaving:
        ranks = f" of each of {division.ranks} ranks" if division.ranks > 1 else ""
        what = "masters and moments" if division.leaves == "optimizer" else "weights, masters and moments"
        notes.append(
            f"in rollouts {what}{ranks} leave the GPU for the host's memory, {leaving / 1e9:.3g} GB "
            "(trainer.offload_in_rollouts); PyTorch may round pinned memory up to twice that"
        )
    return leaving


# -------------------------------------------------------------------------------- versions, and checkpoints


def add_versions(planned: PlannedModels, parts: Mapping[str, dict[str, int]]) -> int:
    """Add the engine's older versions to the parts of each policy, and `copies`: the trainer's, on the host.

    They are those of pinned steps ahead. vLLM's versions have places that `engines.py` counts.

    Returns:
        Bytes of all copies.
    """
    run, kept = planned.run, 0
    ahead = run.config.schedule.max_staleness
    for name in parts if run.pinned else ():
        trained = _trained_bytes(planned, name)
        parts[name]["copies"] = (ahead + 1) * trained if ahead else 0
        kept += parts[name]["copies"]
        if run.config.engine["type"] == "hf":
            parts[name]["engine"] += ahead * trained
    return kept


def _trained_bytes(planned: PlannedModels, policy: str) -> int:
    """Bytes of what a policy trains, in the precision in which it is used: a version of its weights."""
    config, size = planned.configs[policy], planned.sizes[policy]
    return {
        "full": WIDTH[config.dtype] * size.parameters,
        "lora": FP32 * size.adapters.get(policy, 0),
        "none": 0,
    }[config.train]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What checkpoints take at most, without rollouts and logs."""

    checkpoint: int = 0
    """Bytes of one."""
    versions: int = 0
    """Of it, of earlier weights that steps in play are pinned to."""
    checkpoints: int = 0
    """How many are there at once: those that are kept, the best, and the one that is being written."""

    @property
    def bytes(self) -> int:
        return self.checkpoint * self.checkpoints

    def as_dict(self) -> dict[str, int]:
        """As plain data."""
        return {**asdict(self), "bytes": self.bytes}


def disk(planned: PlannedModels, parts: Mapping[str, Mapping[str, int]]) -> Disk:
    """Add up the tensors of a checkpoint (`backends/trainers/torch_state.py` writes them).

    Args:
        parts: by policy: the bytes of its parts, of all ranks together (`memory.trainer_bytes`).
    """
    run, checkpoint, versions = planned.run, 0, 0
    schedule = run.config.schedule
    for name, part in parts.items():
        config = planned.configs[name]
        if config.train == "full":
            checkpoint += part["weights"] + part["masters"] + part["moments"]
        else:
            checkpoint += part["adapter"] + part["moments"]
        if run.pinned:
            versions += schedule.max_staleness * _trained_bytes(planned, name)
        made = isinstance(config.model, ModelInit) or config.warm_start is not None
        if made:  # frozen initial weights can't be read again from anywhere
            checkpoint += part["reference"] + (part["weights"] if config.train != "full" else 0)
    return Disk(
        checkpoint=checkpoint + versions,
        versions=versions,
        checkpoints=_at_once(schedule, bool(run.evaluate_every)),
    )


def _at_once(schedule: Any, evaluates: bool) -> int:
    """The most checkpoints that a run's folder has at once."""
    kept = schedule.keep_checkpoints + evaluates + 1
    if schedule.checkpoint_every == "auto" or schedule.steps is None:
        return int(kept)
    every = schedule.checkpoint_every or schedule.steps
    made = -(-schedule.steps // every) + (schedule.steps if evaluates else 0)  # a best one may be between
    return int(min(kept, made, schedule.steps + 1))
