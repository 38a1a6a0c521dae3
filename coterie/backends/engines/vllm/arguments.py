"""What starts vLLM for a `ServerSpec`: engine arguments, GPUs, variables; imports neither vLLM nor torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        "gpu_memory_utilization": (settings.memory_share or (BESIDE if shared else APART)) * spec.share,
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


def _kv_bytes(spec: ServerSpec, on_cpu: bool) -> int | None:
    settings: VLLMConfig = spec.settings
    if settings.kv_gib is not None:
        return int(settings.kv_gib * spec.share * _GIB / settings.replicas)
    return _GIB if on_cpu else None


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


@dataclass(frozen=True, slots=True)
class ServerPlacement:
    """The GPUs of one server, and its way of transfer."""

    gpus: tuple[int, ...]
    """Indices among the run's visible GPUs; () on a CPU."""
    transfer: str
    """`file`, `nccl` or `ipc`."""
    pickled: bool = False
    """Whether any server of these settings uses `ipc`, whose handles of GPU memory pass pickled."""
    shared: bool = False
    """Whether the trainer computes on one of these GPUs too."""

    @property
    def variables(self) -> dict[str, str | None]:
        """The environment variables that place it."""
        if not self.gpus:
            return {}
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        names = [visible[gpu] if visible else str(gpu) for gpu in self.gpus]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names)}


def needed_gpus(settings: VLLMConfig) -> int:
    """Fewest GPUs that the run must see, for servers with processes of their own."""
    if settings.devices:
        return max(settings.devices) + 1
    return settings.replicas * settings.tensor_parallel


def gpus_of(settings: VLLMConfig, gpus: int, trainer: Sequence[int] = (0,)) -> list[int]:
    """The GPUs of all servers, `tensor_parallel` of them for each replica.

    They are the last ones that the trainer doesn't use. Where these don't suffice, the trainer's last ones
    are shared too.

    Args:
        gpus: how many the run sees.
        trainer: the GPUs on which its ranks compute.

    Raises:
        ConfigError: there are too few, or `devices` names others.
    """
    width, needed = settings.tensor_parallel, settings.replicas * settings.tensor_parallel
    free = [gpu for gpu in range(gpus) if gpu not in trainer]
    used = [gpu for gpu in range(gpus) if gpu in trainer]
    devices = settings.devices if settings.devices is not None else sorted([*used, *free][-needed:])
    if len(devices) != needed or not all(device in range(gpus) for device in devices):
        path = "engine.replicas" if settings.devices is None else "engine.devices"
        raise ConfigError(
            f"{settings.replicas} replicas of {width} GPUs need {needed} GPUs",
            path=path,
            why=f"{len(devices)} are named, and the run sees {gpus} (0 to {gpus - 1})",
            fix="lower engine.replicas or engine.tensor_parallel, or set engine.devices",
        )
    return devices


def place(
    settings: VLLMConfig, replica: int, gpus: int, trainer: Sequence[int] = (0,), outside: str = ""
) -> ServerPlacement:
    """The placement of a replica.

    Args:
        gpus: how many the run sees; 0: it runs on a CPU.
        trainer: the GPUs on which its ranks compute, rank 0's first, which sends the weights; (): none does.
        outside: how a process elsewhere sends the weights; "": none does.

    Raises:
        ConfigError: there are too few GPUs, or the transfer is impossible there.
    """
    if outside:
        devices = gpus_of(settings, gpus, ()) if gpus else ()
        return ServerPlacement(tuple(devices[: settings.tensor_parallel]), outside, outside == "ipc")
    if gpus == 0 or not trainer:
        if settings.transfer in ("nccl", "ipc"):
            raise ConfigError(
                f"`transfer: {settings.transfer}` needs a trainer on a GPU",
                path="engine.transfer",
                fix="set engine.transfer: auto (a file in shared memory here)",
            )
        if gpus == 0:
            return ServerPlacement((), _way(settings, "file"))
    width, devices = settings.tensor_parallel, gpus_of(settings, gpus, trainer)
    mine = tuple(devices[replica * width : (replica + 1) * width])
    if not trainer:
        return ServerPlacement(mine, _way(settings, "file"))
    sender = trainer[0]
    same = mine == (sender,)
    pickled = width == 1 and sender in devices and settings.transfer in ("auto", "ipc")
    if settings.transfer == "ipc" and not same:
        raise ConfigError(
            "`transfer: ipc` shares memory within one GPU",
            path="engine.transfer",
            why=f"the trainer sends from GPU {sender}, and vLLM computes on {', '.join(map(str, mine))}",
            fix="set engine.transfer: auto (nccl here)",
        )
    if settings.transfer == "nccl" and sender in mine:
        raise ConfigError(
            "`transfer: nccl` can't send from a GPU to itself",
            path="engine.transfer",
            why=f"trainer and vLLM both compute on GPU {sender}",
            fix=f"set engine.transfer: auto, or engine.devices without {sender}",
        )
    way = _way(settings, "ipc" if same else "file" if sender in mine else "nccl")
    return ServerPlacement(mine, way, pickled, shared=any(gpu in trainer for gpu in mine))


def _way(settings: VLLMConfig, default: str) -> str:
    if settings.transfer == "memory":
        raise ConfigError(
            "`transfer: memory` is for a vLLM inside the run's process",
            path="engine.transfer",
            fix="set engine.transfer: auto, or engine.process: inside",
        )
    return default if settings.transfer == "auto" else settings.transfer
