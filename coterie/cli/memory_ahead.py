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
    """Add the engine's older versions to the parts of each policy.

    vLLM's versions lie in what it reserves anyway.

    Returns:
        Bytes of the copies that the trainer keeps on the host.
    """
    from coterie.backends.models.memory import FP32, WIDTH

    ahead, kept = run.config.schedule.max_staleness, 0
    for name in parts if run.pinned else ():
        size, config = sizes[name], configs[name]
        trained = {
            "full": WIDTH[config.dtype] * size.parameters,
            "lora": FP32 * size.adapters.get(name, 0),
            "none": 0,
        }[config.train]
        kept += (ahead + 1) * trained if ahead else 0
        if run.config.engine["type"] == "hf":
            parts[name]["engine"] += ahead * trained
    return kept
