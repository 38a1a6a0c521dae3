"""What to expect where generation and updates share hardware (`schedule.max_staleness`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


def on_device(device: Any) -> str:
    """What to warn of where an engine in the run's process generates on this torch device, the trainer's too.

    Returns:
        "" where they don't get into each other's way: a CPU with a core for each thread of both.
    """
    return on_gpus([device.index or 0]) if device.type == "cuda" else _on_cores()


def on_gpus(gpus: Sequence[int]) -> str:
    """What to warn of where both compute on these GPUs."""
    which = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"
    return (
        f"schedule.max_staleness: generation and updates share {which}: each slows the other down, so that a "
        "step takes about as long as both one after the other, and the memory must hold both. What still "
        "overlaps is the waiting of episodes for environments, tools and judges. Give the engine a GPU of "
        "its own (engine.type=vllm, engine.process=own, engine.devices), or set schedule.max_staleness=0"
    )


def _on_cores() -> str:
    """Threads of both, as OpenMP has them, beside the cores."""
    import torch

    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    if 2 * threads <= cores:
        return ""
    return (
        f"schedule.max_staleness: the engine generates while the trainer updates, each with {threads} "
        f"threads, on {cores} cores: threads that wait in turn make both several times slower. Set "
        f"OMP_NUM_THREADS={max(cores // 2, 1)} in the shell that starts the run"
    )
