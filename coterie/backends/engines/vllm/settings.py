"""The settings of the engine `vllm`, and what it refuses; imports neither vLLM nor torch."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from coterie.backends.cluster.transfer import check_engine
from coterie.backends.models.policy import TensorPolicy
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError, MissingExtra
from coterie.core.plugins import MayChange, PluginConfig
from coterie.discovery.validation import validate

if TYPE_CHECKING:
    from coterie.core.protocols import EngineContext

log = logging.getLogger("coterie")
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM can be set to."""

_Process = Literal["auto", "inside", "own"]
_Transfer = Literal["auto", "memory", "file", "nccl", "ipc"]
_KV = Literal["recompute", "keep"]


class VLLMConfig(PluginConfig):
    """The settings of the engine `vllm`."""

    process: Annotated[_Process, MayChange()] = Field(
        "auto",
        description="`inside`: vLLM runs in the run's process; `own`: in processes of its own; `auto`: "
        "inside with one replica and no tensor parallelism, else own; own too where the trainer's ranks "
        "have torch's default process group (`deepspeed` with several ranks). On a cluster `inside` is the "
        "engine's process, and with `own` and `auto` each replica is an actor on any node.",
    )
    replicas: Annotated[int, MayChange()] = Field(
        1, ge=1, strict=True, description="Copies of each base model; requests are spread over them."
    )
    tensor_parallel: Annotated[int, MayChange()] = Field(
        1, ge=1, strict=True, description="GPUs that share one copy."
    )
    devices: Annotated[list[int] | None, MayChange()] = Field(
        None,
        description="GPUs of the servers with processes of their own, by index: `tensor_parallel` for each "
        "replica. Default: the last ones; the trainer's ranks compute on the first.",
    )
    memory_share: Annotated[float | None, MayChange()] = Field(
        None,
        gt=0,
        le=1,
        description="Share of a GPU's memory for all vLLM servers on it: weights and KV cache. "
        "Default: 0.4 on a GPU of the trainer, which needs memory too, else 0.9.",
    )
    kv_gib: Annotated[float | None, MayChange()] = Field(
        None,
        gt=0,
        description="KV cache of all servers together, in GiB. Default: 1 for each on a CPU; on a GPU "
        "what `memory_share` leaves.",
    )
    eager: Annotated[bool | None, MayChange()] = Field(
        None, description="Without CUDA graphs and compilation. Default: true on a CPU, false on a GPU."
    )
    max_batch: Annotated[int, MayChange()] = Field(
        256, ge=1, strict=True, description="Most requests that are computed at once; further ones queue."
    )
    max_batch_tokens: Annotated[int | None, MayChange()] = Field(
        None, ge=1, strict=True, description="Most tokens of one step, prompts included. Default: vLLM's."
    )
    prefix_cache: Annotated[bool, MayChange()] = Field(
        True, description="Keep the KV cache of prompts, for later prompts that begin alike."
    )
    kv: Annotated[_KV, MayChange()] = Field(
        "recompute",
        description="Keys and values of requests that run while all weights are replaced "
        "(`schedule.play: in_flight`). `recompute`: they are computed again with the new weights; `keep`: "
        "requests go on with those of the old weights, and no later request reads them.",
    )
    transfer: Annotated[_Transfer, MayChange()] = Field(
        "auto",
        description="How weights reach vLLM. `memory`: the trainer's tensors, inside one process; `file`: a "
        "safetensors file in shared memory; `nccl`, `ipc`: vLLM's own, for GPUs; `auto`: memory inside; "
        "for processes of its own ipc on the trainer's GPU, nccl on others, and file on a CPU. On a cluster "
        "`cluster.weights` decides.",
    )
    sleep: Annotated[Literal["auto"] | bool, MayChange()] = Field(
        "auto",
        description="Free the GPU's memory while the trainer computes (vLLM's sleep mode). `auto`: where "
        "vLLM shares a GPU of the trainer; a CPU has no sleep mode.",
    )
    restarts: Annotated[int, MayChange()] = Field(
        3, ge=0, strict=True, description="Most restarts of a vLLM that died, between two updates."
    )
    start_seconds: Annotated[float, MayChange()] = Field(
        600.0, gt=0, description="Longest start of a process of its own."
    )
    patience: Annotated[float, MayChange(exact=True)] = Field(
        300.0,
        gt=0,
        description="Seconds without a token of any request, or without an answer to a call, after which a "
        "vLLM in processes of its own counts as dead.",
    )
    options: Annotated[dict[str, Any], MayChange()] = Field(
        default_factory=dict,
        description="Further engine arguments of vLLM by their Python names, e.g. {quantization: fp8}.",
    )

    @classmethod
    def check_packages(cls) -> None:
        """Raise MissingExtra unless vLLM can be imported: its CPU builds have other names in the metadata."""
        if importlib.util.find_spec("vllm") is None:
            raise MissingExtra("vllm", "vllm", needed_by="engine", instead="engine.type=hf")


class VLLMPolicy(TensorPolicy):
    """What the engine `vllm` reads of a policy's table: what `hf` reads."""

    def check(self, path: str, run: RunConfig) -> None:
        """Refuse settings of the engine that exclude each other, before vLLM is looked for."""
        super().check(path, run)
        if run.engine["type"] == "vllm":
            table = {key: value for key, value in run.engine.items() if key != "type"}
            settings = validate(VLLMConfig, table, "engine", also=("type",))
            check_settings(settings)
            if run.executor["type"] == "ray":
                check_actors(settings, (run.cluster or {}).get("weights", "auto"))


def check_settings(settings: VLLMConfig) -> None:
    """Refuse settings that exclude each other.

    Raises:
        ConfigError: which ones.
    """
    may_be_inside(settings)
    devices = settings.devices or []
    twice = next((device for device in devices if devices.count(device) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"GPU {twice} is named twice",
            path="engine.devices",
            why="each GPU holds one part of one replica",
            fix="name each once, `tensor_parallel` of them for each replica",
        )


def check_actors(settings: VLLMConfig, weights: str = "auto") -> None:
    """Refuse what replicas in actors can't have: Ray chooses their nodes and GPUs.

    Args:
        weights: `cluster.weights`, which says how weights travel.

    Raises:
        ConfigError: which setting.
    """
    if settings.process == "inside":
        return
    check_engine(settings.transfer, weights)
    if settings.devices is not None:
        raise ConfigError(
            "executor 'ray' chooses the GPUs itself",
            path="engine.devices",
            why="each replica is an actor on any node, and gets `tensor_parallel` of its GPUs",
            fix="leave engine.devices out, or set executor=local",
        )


def may_be_inside(settings: VLLMConfig) -> bool:
    """Whether the settings allow vLLM in the run's process.

    Raises:
        ConfigError: `process: inside` with what needs other processes.
    """
    many = "replicas" if settings.replicas > 1 else "tensor_parallel" if settings.tensor_parallel > 1 else ""
    if settings.process == "inside" and many:
        raise ConfigError(
            f"`process: inside` can't have {many}: {getattr(settings, many)}",
            path="engine.process",
            why="one process has one vLLM of each base",
            fix="set engine.process: own (or auto)",
        )
    return settings.process == "inside" or (settings.process == "auto" and not many)


def check_ahead(policies: Mapping[str, VLLMPolicy], settings: VLLMConfig, ahead: int, pinned: bool) -> None:
    """Refuse steps ahead that vLLM can't play, before it is open.

    Raises:
        ConfigError: steps are pinned, and all weights of a policy are trained; or vLLM should sleep.
    """
    if settings.sleep is True:
        raise ConfigError(
            "vLLM can't sleep during updates",
            path="engine.sleep",
            why=f"schedule.max_staleness={ahead}: it plays further steps meanwhile",
            fix="set engine.sleep=false (or leave it out), or schedule.max_staleness=0",
        )
    for name, policy in policies.items() if pinned else ():
        if policy.train == "full":
            raise one_version(name, ahead, "all of its weights are trained", _gib(policy))


def warn_ahead(ctx: EngineContext, settings: VLLMConfig, *, inside: bool) -> None:
    """Warn of settings that have no effect, or cost time, with steps ahead.

    Args:
        inside: vLLM runs in the run's process.
    """
    if not ctx.ahead:
        return
    if ctx.pinned and settings.kv == "keep":
        log.warning("engine.kv=keep has no effect: one version of the weights draws all of a pinned step")
    if inside:
        log.warning(
            "engine vllm: inside the run's process it shares the trainer's thread, and generates nothing "
            "during an update: with schedule.max_staleness, engine.process=own is faster"
        )


def _gib(policy: VLLMPolicy) -> float:
    """The least of a model's weights in GiB; 0: its size isn't known without asking a hub."""
    from coterie.backends.models.memory import WIDTH
    from coterie.backends.models.sizes import least_size

    if isinstance(policy.model, str) and not Path(policy.model).is_dir():
        return 0.0
    size = least_size(policy, ())
    return 0.0 if size is None else size.parameters * WIDTH.get(policy.dtype, min(WIDTH.values())) / 2**30


def one_version(policy: str, ahead: int, why: str, gib: float = 0.0) -> ConfigError:
    """The error of a policy with one set of weights in vLLM, where several versions must be held.

    Args:
        why: it has one set.
        gib: of the model's weights, at least; 0: unknown.
    """
    versions = ahead + 1
    memory = f" ({versions} x {gib:.1f} GiB or more)" if gib >= 0.1 else ""
    return ConfigError(
        f"vLLM holds one version of policy '{policy}', and pinned steps ahead need {versions}",
        path="schedule.max_staleness",
        why=f"{why}, so that {versions} versions are {versions} times the whole model{memory}; vLLM "
        "keeps versions of LoRA adapters only",
        fix=f"set schedule.play=in_flight, schedule.max_staleness=0, policies.{policy}.train=lora (with "
        "low-rank parts alone), or engine.type=hf",
    )


def adapter_versions(ahead: int, pinned: bool) -> int:
    """The versions of an adapter that one batch may have: vLLM evicts adapters beyond that silently.

    Pinned steps lease `ahead` + 1, and an evaluation or a sync brings the newest besides. In flight, requests
    that began with one version go on beside those of the next.
    """
    if not ahead:
        return 1
    return ahead + 2 if pinned else 2
