"""The memory of pinned steps ahead: older versions in the engine, and copies in the trainer's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.backends.models.policy import TorchPolicy
    from coterie.backends.models.sizes import ModelSize
    from coterie.core.training.run import Run


def add_versions(
    run: Run,
    configs: Mapping[str, TorchPolicy],
    sizes: Mapping[str, ModelSize],
    parts: Mapping[str, dict[str, int]],
) -> int:
    """Add the engine's older versions to the parts of each policy, and `copies`: the trainer's, on the host.

    vLLM's versions have places that `memory_vllm.adapter_bytes` counts.

    Returns:
        Bytes of all copies.
    """
    ahead, kept = run.config.schedule.max_staleness, 0
    for name in parts if run.pinned else ():
        trained = trained_bytes(name, configs[name], sizes[name])
        parts[name]["copies"] = (ahead + 1) * trained if ahead else 0
        kept += parts[name]["copies"]
        if run.config.engine["type"] == "hf":
            parts[name]["engine"] += ahead * trained
    return kept


def trained_bytes(name: str, config: TorchPolicy, size: ModelSize) -> int:
    """Bytes of what a policy trains, in the precision in which it is used: a version of its weights."""
    from coterie.backends.models.memory import FP32, WIDTH

    return {
        "full": WIDTH[config.dtype] * size.parameters,
        "lora": FP32 * size.adapters.get(name, 0),
        "none": 0,
    }[config.train]
