"""The whole estimate of a run as one value: `coterie.plan`, which `coterie plan` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie.compose import compose
from coterie.core.config import PolicyConfig, Resolved, RunConfig, ScheduleConfig
from coterie.core.training.run import Run
from coterie.estimate.cost import BOUND, check_size, count, longest_answer, read_splits
from coterie.estimate.counts import Growth, PolicyCounts, StepCounts, steps_of_update
from coterie.estimate.gpus import GB, Capacity, capacity_of
from coterie.estimate.memory import MemoryEstimate, memory_of
from coterie.estimate.placement import (
    ClusterPlacement,
    check_options,
    check_ranges,
    on_one_machine,
    placement_of,
)
from coterie.estimate.val_interval import evaluating
from coterie.recipes import load

LARGE = 10**300
"""Larger numbers are no JSON numbers: they become null."""


class Load(NamedTuple):
    """An amount beside its limit: bytes of memory, or generations."""

    part: str
    amount: int
    limit: float

    @property
    def share(self) -> float:
        """The amount as a share of the limit."""
        return min(self.amount, LARGE) / self.limit


class GpuFit(NamedTuple):
    """Whether the peak of memory fits. All are None where a model is unknown."""

    single: bool | None
    """Into one GPU, or this machine. False where the settings need more GPUs than there are."""
    spread: bool | None
    """Into all GPUs, if it is spread evenly over them."""
    least_gpus: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """What a run costs, estimated before anything is played or loaded."""

    name: str
    schedule: ScheduleConfig
    evaluate_every: int
    """Steps from one evaluation to the next; 0: none."""
    policies: Mapping[str, PolicyConfig]
    step: StepCounts
    """Generations, tokens and samples of a step, at most. Policies are bounded by their model's context."""
    memory: MemoryEstimate
    """Bytes by policy and part, by phase and on disk."""
    capacity: Capacity
    """The GPUs, or the machine, that the run is planned for."""
    prefix_cache: bool
    """Whether the engine keeps the keys and values of prompts for later ones."""
    placement: ClusterPlacement | None
    """The processes on each node; None: no nodes were given."""

    @property
    def fit(self) -> GpuFit:
        """Whether the peak of memory fits the capacity."""
        peak, each, gpus = self.memory.peak, self.capacity.each, self.capacity.gpus
        layout = self.memory.layout
        if peak is None:
            return GpuFit(None, None, None)
        enough = layout.needed <= gpus
        return GpuFit(
            enough and peak <= each,
            enough and peak / (1 if layout.fixed else gpus) <= each,
            max(math.ceil(peak / each), layout.needed, 1),
        )

    @property
    def loads(self) -> list[Load]:
        """All loads, the fullest first: it is the one that saturates as the run is made larger.

        Amounts are those of the fullest GPU where the settings say what is on which, else of all of them.
        """
        memory = self.memory
        held = [memory.division.on_gpu(parts) for parts in memory.policies.values()]

        def all_of(*names: str) -> int:
            return sum(parts[name] for parts in held for name in names)

        def largest(name: str) -> int:
            return max((parts[name] for parts in held), default=0)

        by_part = {
            "weights": all_of("weights", "adapter", "reference"),
            "the optimiser": all_of("masters", "moments") + largest("gradients"),
            "the engine's copies": all_of("engine"),
            "the KV cache": memory.cache,
            "activations": largest("activations"),
        }
        limit = self.capacity.each * (1 if memory.layout.fixed else self.capacity.gpus)
        by_share = [Load(part, size, limit) for part, size in by_part.items() if size]
        by_share.append(Load("generations", self.step.generations, BOUND))
        return sorted(by_share, key=lambda load: -load.share)

    @property
    def notes(self) -> list[str]:
        """What the numbers leave out or assume."""
        lengths = [
            f"the prompt tokens of {name} are unknown: its tokenizer is made when a run is opened"
            for name, counts in self.step.policies.items()
            if name not in self.memory.unknown and counts.prompt_tokens is None
        ]
        return [*self.step.notes, *self.memory.notes, *lengths]

    def as_dict(self) -> dict[str, Any]:
        """The whole plan as plain data, in bytes and tokens."""
        step, memory, capacity, first = self.step, self.memory, self.capacity, self.loads[0]
        return {
            "name": self.name,
            "steps": self.schedule.steps,
            "tokens": self.schedule.tokens,
            "step": {
                "tasks": self.schedule.tasks_per_step,
                "trees": step.trees,
                "generations": _json_number(step.generations),
                "joints": _json_number(step.joints),
                "leaves": _json_number(step.leaves),
                "outside_calls": {name: _json_number(calls) for name, calls in step.outside_calls.items()},
                "outside_tokens": {
                    name: {"read": tokens.read(step.policies, memory.contexts), "written": tokens.written}
                    for name, tokens in step.outside_tokens.items()
                },
            },
            "evaluation": {"every": self.evaluate_every, "generations": _json_number(step.evaluation)},
            "policies": {name: self._policy(name) for name in self.policies},
            "memory": {
                "cache": memory.cache,
                "phases": memory.phases,
                "peak": memory.peak,
                "ranks": memory.division.ranks,
                "stage": memory.division.stage,
                "host": memory.host,
                "device": memory.device,
            },
            "disk": memory.disk.as_dict(),
            "fit": {
                "gpus": capacity.gpus,
                "gpu_memory": capacity.each,
                "of": "machine" if capacity.machine else "gpu",
                "needed_gpus": memory.layout.needed,
                "one": self.fit.single,
                "spread": self.fit.spread,
                "least_gpus": self.fit.least_gpus,
            },
            "saturates_first": {"what": first.part, "share": first.share},
            "notes": self.notes,
            **({} if self.placement is None else {"placement": self.placement.as_dict()}),
        }

    def _policy(self, name: str) -> dict[str, Any]:
        counts, config, memory = self.step.policies[name], self.policies[name], self.memory
        unknown, model = memory.unknown.get(name), config.model
        growths = {role: memory.growths[role] for role in counts.roles if role in memory.growths}

        def numbers(*names: str) -> dict[str, int | None]:
            return {each: _json_number(getattr(counts, each)) for each in names}

        return {
            "roles": list(counts.roles),
            "train": config.train,
            "model": model if isinstance(model, str) else dict(model).get("init", "table"),
            **numbers("generations", "generated_tokens", "prompts", "prompt_tokens", "prefill_tokens"),
            "first_prompts": {role: memory.prompts[role] for role in counts.roles if role in memory.prompts},
            "prompt_growth": {role: _growth(growth) for role, growth in growths.items()},
            **numbers("samples", "sample_tokens", "optimizer_steps"),
            "context": memory.contexts.get(name),
            "parameters": memory.parameters.get(name),
            "adapter_parameters": memory.adapters.get(name, 0),
            "trained_parameters": memory.trained.get(name),
            "trained_share": memory.trained_share(name),
            "memory": memory.policies.get(name),
            "unknown": None if unknown is None else {"what": unknown.what, "fix": unknown.fix},
        }


def plan(
    source: str | Path | Mapping[str, Any] | RunConfig | Resolved,
    *,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    overlays: Sequence[str] = (),
    gpus: int | None = None,
    gpu_memory: float | None = None,
    nodes: int | None = None,
    node_cpus: float | None = None,
    node_gpus: int | None = None,
    any_size: bool = False,
) -> RunEstimate:
    """Estimate what a run costs, without playing anything or loading weights.

    Args:
        source: a recipe's name, a YAML file, a run's folder, a table, a RunConfig, or what `load` returned.
        overrides: settings as `key=value`.
        scale: a block of the recipe's `scales`.
        overlays: names of overlays or their YAML files, applied over the recipe from left to right.
        gpus: how many GPUs there are; None: as many as the settings need.
        gpu_memory: of one GPU, in units of 10^9 bytes; None: 80. Without both, the run is planned for what
            this machine has.
        nodes: how many nodes the processes are placed on (executor `ray`); None: none are placed.
        node_cpus: of a node, as `node_gpus`; None: what this machine has.
        any_size: also plan a step of more than 20,000 generations.

    Raises:
        ConfigError: the configuration is wrong, a number is out of range, or a step is too large to be
            intended.
        UserError: an option has no effect, or the run can't be placed on the nodes.
    """
    check_ranges(gpu_memory=gpu_memory, node_cpus=node_cpus, gpus=gpus, nodes=nodes, node_gpus=node_gpus)
    check_options(nodes, node_cpus=node_cpus, node_gpus=node_gpus, gpus=gpus)
    resolved = load(source, overrides=overrides, scale=scale, overlays=overlays)
    splits = read_splits(resolved.config)
    placement = None if nodes is None else placement_of(resolved.config, nodes, node_cpus, node_gpus)
    run = evaluating(compose(on_one_machine(resolved), splits))
    counts = count(run)
    if not any_size:
        check_size(counts)
    if placement is not None:
        gpus = placement.shared_by(run)
    named = bool(gpus) or gpu_memory is not None
    each = GB * (80.0 if gpu_memory is None else gpu_memory)
    memory = memory_of(run, counts, device="cuda" if named else None, gpu=each, gpus=gpus)
    return RunEstimate(
        name=resolved.name,
        schedule=run.config.schedule,
        evaluate_every=run.evaluate_every,
        policies=run.config.policies,
        step=replace(counts, policies=_bounded(run, counts, memory)),
        memory=memory,
        capacity=capacity_of(memory.device, memory.layout.needed, gpus, each, named=named),
        prefix_cache=_prefix_cache(run),
        placement=placement,
    )


def _bounded(run: Run, counts: StepCounts, memory: MemoryEstimate) -> dict[str, PolicyCounts]:
    """The counts of each policy, bounded by its model's context."""
    bounded = {}
    for name, policy in counts.policies.items():
        measured = policy.bounded(
            memory.contexts.get(name),
            longest_answer(run, policy.roles),
            memory.prompts,
            memory.growths,
            _prefix_cache(run),
        )
        if measured.samples != policy.samples:
            steps = steps_of_update(run.trainer, measured.samples, run.sampler.plan.branches)
            measured = replace(measured, optimizer_steps=steps)
        bounded[name] = measured
    return bounded


def _prefix_cache(run: Run) -> bool:
    return bool(getattr(getattr(run.engine, "config", None), "prefix_cache", False))


def _growth(growth: Growth) -> dict[str, Any]:
    """How a role's prompts grow, as plain data."""
    return {
        "prompts": len(growth.begins_anew) + 1,
        "begin_anew": growth.anew,
        "why": growth.why,
        "prefill_factor": growth.factor,
        "samples_of_action": 1 + sum(growth.of_call),
    }


def _json_number(number: int | None) -> int | None:
    """The number; None where it is unknown, or has more digits than JSON's readers take."""
    return number if number is not None and number < LARGE else None
