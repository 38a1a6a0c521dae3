"""What a replica's vLLM is made from in its actor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.backends.cluster.transfer import WORDS
from coterie.backends.engines.vllm.arguments import APART, BESIDE
from coterie.backends.engines.vllm.server import ServerSpec


def spec_of_actor(spec: ServerSpec, *, on_gpus: bool, shared: bool, way: str = "") -> ServerSpec:
    """The spec of a replica's vLLM where it runs: alone in a process, on devices that are its own.

    Args:
        shared: whether the trainer computes on these devices too.
        way: how the trainer's process sends base weights itself, `nccl` or `ipc`.
    """
    settings = spec.settings
    alone: dict[str, Any] = {"replicas": 1}
    if settings.transfer in WORDS:
        alone["transfer"] = "auto"
    if settings.kv_gib is not None:
        alone["kv_gib"] = settings.kv_gib * spec.share / settings.replicas
    if settings.memory_share is None:
        alone["memory_share"] = BESIDE if shared else APART
    if settings.sleep == "auto":
        alone["sleep"] = on_gpus and shared and not spec.beside_updates
    return replace(
        spec, replica=0, share=1.0, ways=None, outside=way, settings=settings.model_copy(update=alone)
    )
