"""The disk that a run's checkpoints take, by arithmetic (`backends/trainers/torch_state.py` writes them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from coterie.cli.memory_ahead import trained_bytes

if TYPE_CHECKING:
    from coterie.backends.models.policy import TorchPolicy
    from coterie.backends.models.sizes import ModelSize
    from coterie.core.training.run import Run


@dataclass(slots=True)
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


def disk(
    run: Run,
    configs: Mapping[str, TorchPolicy],
    sizes: Mapping[str, ModelSize],
    parts: Mapping[str, Mapping[str, int]],
) -> Disk:
    """Add up the tensors of a checkpoint.

    Args:
        parts: by policy: the bytes of its parts, of all ranks together (`memory.trainer_bytes`).
    """
    from coterie.backends.models.policy import ModelInit

    total, schedule = Disk(), run.config.schedule
    for name, part in parts.items():
        config = configs[name]
        version = trained_bytes(name, config, sizes[name])
        if config.train == "full":
            total.checkpoint += part["weights"] + part["masters"] + part["moments"]
        else:
            total.checkpoint += part["adapter"] + part["moments"]
        if run.pinned:
            total.versions += schedule.max_staleness * version
        made = isinstance(config.model, ModelInit) or config.warm_start is not None
        if made:  # frozen initial weights can't be read again from anywhere
            total.checkpoint += part["reference"] + (part["weights"] if config.train != "full" else 0)
    total.checkpoint += total.versions
    total.checkpoints = _at_once(schedule, bool(run.evaluate_every))
    return total


def _at_once(schedule: Any, evaluates: bool) -> int:
    """The most checkpoints that a run's folder has at once."""
    kept = schedule.keep_checkpoints + evaluates + 1
    if schedule.checkpoint_every == "auto" or schedule.steps is None:
        return int(kept)
    every = schedule.checkpoint_every or schedule.steps
    made = -(-schedule.steps // every) + (schedule.steps if evaluates else 0)  # a best one may be between
    return int(min(kept, made, schedule.steps + 1))
