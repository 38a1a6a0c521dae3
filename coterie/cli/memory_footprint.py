"""The memory of a run as a plan estimates it."""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.api.counts import Growth
from coterie.cli.disk import Disk
from coterie.cli.memory_layout import Layout
from coterie.cli.memory_trainer import Division
from coterie.core.errors import UserError


@dataclass(slots=True)
class Footprint:
    """Bytes of tensors, and the sizes that they follow from."""

    policies: dict[str, dict[str, int]] = field(default_factory=dict)
    """By policy and part (`memory.PARTS` and `activations`). Policies without tensors are absent."""
    unknown: dict[str, UserError] = field(default_factory=dict)
    """By policy whose model can't be read on this machine: why."""
    parameters: dict[str, int] = field(default_factory=dict)
    """By policy: parameters of its model, without adapters."""
    adapters: dict[str, int] = field(default_factory=dict)
    """By policy: parameters of its adapter."""
    contexts: dict[str, int] = field(default_factory=dict)
    """By policy: longest prompt and answer, in tokens."""
    prompts: dict[str, int] = field(default_factory=dict)
    """By role: tokens of its longest first prompt in the sampled tasks."""
    growths: dict[str, Growth] = field(default_factory=dict)
    """By role that is asked again with its earlier answers: how its prompts grow."""
    cache: int = 0
    """Bytes of the largest batch's KV cache."""
    phases: dict[str, int] = field(default_factory=dict)
    """By phase of a run: the most bytes that are alive at once; with ranks, on the fullest GPU."""
    trained: dict[str, int] = field(default_factory=dict)
    """By policy: its parameters that are trained."""
    device: str = "cpu"
    """The type of the device that the plan is for."""
    division: Division = field(default_factory=Division)
    layout: Layout = field(default_factory=Layout)
    host: int = 0
    """Bytes that are offloaded to the host's memory."""
    disk: Disk = field(default_factory=Disk)
    one_device: bool = False
    """Whether trainer and engine share one GPU, however many there are."""
    notes: list[str] = field(default_factory=list)

    @property
    def peak(self) -> int | None:
        """The most bytes of any phase; None where a model is unknown."""
        return None if self.unknown else max(self.phases.values(), default=0)
