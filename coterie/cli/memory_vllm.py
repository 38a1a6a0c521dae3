"""The memory of engine `vllm` in a plan: it takes its share of a GPU at the start, and keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from coterie.backends.engines.vllm.arguments import APART, BESIDE, sleeps
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.backends.engines.vllm.steps_ahead import adapter_versions
from coterie.cli.memory_layout import Layout
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.backends.models.policy import TorchPolicy
    from coterie.backends.models.sizes import ModelSize
    from coterie.core.training.run import Run

GIB = 2**30


def adapter_bytes(
    run: Run, configs: Mapping[str, TorchPolicy], sizes: Mapping[str, ModelSize]
) -> dict[str, int]:
    """Bytes of the places that vLLM reserves for versions of each adapter; the host has twice as many."""
    from coterie.backends.models.memory import WIDTH

    versions = adapter_versions(run.config.schedule.max_staleness, run.pinned)
    return {
        name: versions * WIDTH[configs[name].dtype] * size.adapters.get(name, 0)
        for name, size in sizes.items()
        if configs[name].train == "lora"
    }


class Server(NamedTuple):
    """The memory of vLLM on one GPU."""

    weights: int
    """Bytes of all bases' copies, and of the places for adapters."""
    cache: int
    """Bytes of the KV cache."""
    beside_trainer: bool
    """Whether it is on the trainer's GPU."""
    sleeps: bool
    """Whether the memory is free during updates."""
    note: str


def server(
    config: VLLMConfig,
    weights: int,
    gpu: float | None,
    layout: Layout,
    inside: bool,
    *,
    beside_updates: bool = False,
) -> Server:
    """The memory that the engine's settings reserve.

    Args:
        weights: bytes of one copy of every base, and of the places for adapters.
        gpu: bytes of one GPU; None: a CPU.
        inside: vLLM is in the run's process.
        beside_updates: it generates during updates.
    """
    beside = inside or bool(layout.shared)
    held = -(-weights // config.tensor_parallel)
    if gpu is None:
        cache = int((config.kv_gib or 1) * GIB)
        return Server(held, cache, True, False, "vLLM's KV cache on a CPU is engine.kv_gib, or 1 GiB")
    share = config.memory_share or (BESIDE if beside else APART)
    cache = int(share * gpu) - held
    if config.kv_gib is not None:
        cache = int(config.kv_gib * GIB) // config.replicas
    if cache <= 0:
        raise UserError(
            f"vLLM's share of the GPU, {share:g} of {gpu / 1e9:.3g} GB, is smaller than the weights "
            f"({held / 1e9:.3g} GB)",
            path="engine.memory_share",
            why="nothing is left for its KV cache",
            fix="raise engine.memory_share or engine.tensor_parallel, or choose a smaller model",
        )
    place = "on GPUs that the trainer uses too" if beside else "on GPUs that the trainer doesn't use"
    note = (
        f"vLLM reserves {share:g} of a GPU, {place}: weights, KV cache and its own activations; what the "
        "weights leave is shown as KV cache"
    )
    sleep = sleeps(config, on_cpu=False, shared=beside and not beside_updates)
    return Server(held, cache, beside, sleep, note + ("; it is free during updates" if sleep else ""))
