"""The engine arguments and environment that start vLLM for a `ServerSpec`; imports neither vLLM nor torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coterie.backends.cluster.transfer import WORDS
from coterie.backends.engines.vllm.server import ServerSpec
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.core.errors import ConfigError, did_you_mean

EXTENSION = "coterie.backends.engines.vllm.worker.Extension"
_GIB = 2**30
BESIDE, APART = 0.4, 0.9
"""Default shares of a GPU: beside the trainer, and on a GPU of its own."""


def engine_arguments(
    spec: ServerSpec, *, inside: bool, on_cpu: bool, backend: str, shared: bool | None = None
) -> dict[str, Any]:
    """Keyword arguments of vLLM's `EngineArgs` (and `AsyncEngineArgs`).

    Args:
        inside: vLLM runs in the run's process.
        backend: of the weight transfer, as vLLM knows it.
        shared: whether vLLM computes on the trainer's GPU; None: where it runs inside.

    Raises:
        ConfigError: `engine.options` names an argument that has a key of its own, or that Coterie sets.
    """
    settings: VLLMConfig = spec.settings
    shared = inside if shared is None else shared
    arguments: dict[str, Any] = {
        "model": spec.model,
        "revision": spec.revision,
        "runner": "generate",
        "load_format": "auto" if spec.stored else "dummy",
        "dtype": spec.dtype,
        "max_model_len": spec.context,
        "seed": 0,  # of unseeded draws; every request has its own
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # else the model's folder sets a temperature and filters
        "logprobs_mode": "processed_logprobs",
        "enforce_eager": on_cpu if settings.eager is None else settings.eager,
        "max_num_seqs": settings.max_batch,
        "max_num_batched_tokens": settings.max_batch_tokens,
        "enable_prefix_caching": settings.prefix_cache,
        "tensor_parallel_size": settings.tensor_parallel,
        "gpu_memory_utilization": _share(settings, shared) * spec.share,
        "kv_cache_memory_bytes": _kv_bytes(spec, on_cpu),
        "weight_transfer_config": {"backend": backend},
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": True,
        "enable_sleep_mode": sleeps(settings, on_cpu=on_cpu, shared=shared and not spec.beside_updates),
    }
    if on_cpu:
        # A seeded request whose prompt is computed in chunks kills vLLM 0.32 on a CPU: to take back the draw
        # after an unfinished chunk, it rewinds the generator's offset, which CPU generators lack.
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(settings.max_batch_tokens or 4096, spec.context)
    if inside:
        arguments["async_scheduling"] = False  # a sync comes between two steps, never into one
    if spec.adapters:
        arguments |= {
            "enable_lora": True,
            "max_loras": spec.adapters,
            "max_lora_rank": spec.adapter_rank,
            # Twice: old versions stay while requests in flight use them.
            "max_cpu_loras": 2 * spec.adapters,
        }
    for name in settings.options.keys() & arguments:
        raise ConfigError(
            "the engine sets this argument of vLLM itself",
            path=f"engine.options.{name}",
            fix="remove it; see the keys of the engine `vllm` (docs/vllm.md)",
        )
    return arguments | settings.options


def check_options(options: dict[str, Any], known: set[str]) -> None:
    """Raise ConfigError for an option that the installed vLLM's engine arguments lack."""
    for name in options:
        if name not in known:
            raise ConfigError(
                "vLLM has no such engine argument",
                path=f"engine.options.{name}",
                fix=did_you_mean(name, known),
            )


def check_platform(config: Any, spec: ServerSpec, on_cpu: bool) -> None:
    """Refuse what vLLM would only fail at in its first step.

    Args:
        config: a `VllmConfig`.

    Raises:
        ConfigError: vLLM has no attention for the model's head size on a CPU, or its settings need a GPU.
    """
    if not on_cpu:
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    size, sizes = config.model_config.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes:
        raise ConfigError(
            f"vLLM has no attention for heads of size {size} on a CPU",
            path=f"policies.{spec.name}.model",
            why=f"it has sizes {', '.join(map(str, sizes))}",
            fix="choose such a model (`head_dim`), or engine.type: hf",
        )
    if spec.settings.sleep is True:
        raise ConfigError("sleep mode needs a GPU", path="engine.sleep", fix="set engine.sleep: false")


def sleeps(settings: VLLMConfig, *, on_cpu: bool, shared: bool) -> bool:
    """Whether vLLM frees its memory while the trainer computes.

    Args:
        shared: vLLM and trainer take turns on a GPU.
    """
    return shared and not on_cpu if settings.sleep == "auto" else settings.sleep


def _share(settings: VLLMConfig, shared: bool) -> float:
    if settings.memory_share is not None:
        return settings.memory_share
    return BESIDE if shared else APART


def _kv_bytes(spec: ServerSpec, on_cpu: bool) -> int | None:
    settings: VLLMConfig = spec.settings
    if settings.kv_gib is not None:
        return int(settings.kv_gib * spec.share * _GIB / settings.replicas)
    return _GIB if on_cpu else None


def replace_variables(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set environment variables, or unset them (None); returns their values before."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


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
