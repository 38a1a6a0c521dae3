"""The trainer's part of a plan's memory: activations, and the division between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from coterie.backends.models.policy import TorchPolicy
    from coterie.backends.models.sizes import ModelSize
    from coterie.core.training.run import Run

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

    def leaving(self, held: Iterable[Mapping[str, int]]) -> int:
        """Bytes that leave one rank's GPU in rollouts, of what `on_gpu` gives of each policy."""
        names = {"none": (), "optimizer": OPTIMISER, "all": OPTIMISER + PARAMETERS}[self.leaves]
        return sum(parts[name] for parts in held for name in names)

    def on_gpu(self, parts: dict[str, int]) -> dict[str, int]:
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
        if self.offload_optimizer:
            held["gradients"] -= _in_fp32(parts) * held["gradients"] // max(parts["gradients"], 1)
        return held

    def on_host(self, parts: dict[str, int]) -> int:
        """Bytes of one policy in the memory of the host, or of all hosts together."""
        names = (OPTIMISER if self.offload_optimizer else ()) + (
            PARAMETERS if self.offload_parameters else ()
        )
        gradients = _in_fp32(parts) if self.offload_optimizer else 0
        return sum(parts[name] for name in names) + gradients


def _in_fp32(parts: dict[str, int]) -> int:
    """Bytes of the gradients that belong to masters; those of the weights stay on the GPU."""
    return parts["masters"]


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


def activations(
    run: Run,
    policy: str,
    config: TorchPolicy,
    size: ModelSize,
    *,
    prompts: int,
    samples: int,
    prompt: int,
    answer: int,
    gpu: float | None,
) -> int:
    """Bytes of the largest micro-batch of so many samples.

    Args:
        prompts: distinct prompts of the samples; `prompt` and `answer` are lengths in tokens.
        gpu: bytes of the GPU; None: a CPU.
    """
    from coterie.backends.models.activations import activation_bytes, largest_forward

    settings = settings_of(run)
    forward = largest_forward(
        prompts,
        samples,
        prompt,
        answer,
        budget=None if settings is None else settings.micro_tokens,
        packing=settings is None or settings.packing,
    )
    if gpu is not None:  # masks hold the queries of all heads of a group, see `attention.grouped_sdpa`
        forward = forward._replace(masked=forward.masked * size.heads // size.kv_heads)
    checkpointing = settings is not None and settings.gradient_checkpointing
    divided = division_of(run).stage == 3
    return activation_bytes(
        size, config, policy, forward, checkpointing=checkpointing, gpu=gpu, divided=divided
    )


def leave(division: Division, held: Sequence[Mapping[str, int]], notes: list[str]) -> int:
    """Bytes that leave one rank's GPU in rollouts.

    Args:
        held: by policy, the bytes of its parts on that GPU.
        notes: gets one that says so.
    """
    leaving = division.leaving(held)
    if leaving:
        ranks = f" of each of {division.ranks} ranks" if division.ranks > 1 else ""
        what = "masters and moments" if division.leaves == "optimizer" else "weights, masters and moments"
        notes.append(
            f"in rollouts {what}{ranks} leave the GPU for the host's memory, {leaving / 1e9:.3g} GB "
            "(trainer.offload_in_rollouts); PyTorch may round pinned memory up to twice that"
        )
    return leaving
