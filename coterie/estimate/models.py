"""What an estimate of memory follows from: a run's models without their weights, and the lengths of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coterie.backends.models.policy import TorchPolicy
from coterie.backends.models.precision import choices, with_dtype
from coterie.backends.models.sizes import Blueprint, ModelSize, blueprint
from coterie.backends.models.sources import initial_weights_of
from coterie.core.errors import UserError
from coterie.core.training.run import Run
from coterie.estimate.cost import longest_answer
from coterie.estimate.counts import StepCounts
from coterie.estimate.prompts import MeasuredPrompts, measured_prompts


class CallLengths(NamedTuple):
    """Tokens of a policy's longest calls."""

    prompt: int
    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModels:
    """A composed run, its models, and the device that they are planned for."""

    run: Run
    counts: StepCounts
    configs: Mapping[str, TorchPolicy]
    """By policy of tensors, with `dtype: auto` resolved."""
    models: Sequence[Blueprint]
    """One for all policies of the same initial weights."""
    unknown: Mapping[str, UserError]
    """By policy whose model can't be read on this machine: why."""
    prompts: MeasuredPrompts
    device: str
    """The type of the device."""
    gpu: float | None
    """Bytes of one GPU; None: a CPU."""
    notes: list[str]
    """What is assumed. Each part of the estimate adds its own."""

    @property
    def branches(self) -> int:
        return self.run.sampler.plan.branches

    @property
    def sizes(self) -> dict[str, ModelSize]:
        """By policy: the size of its model."""
        return {name: model.size for model in self.models for name in model.modules}

    @property
    def contexts(self) -> dict[str, int]:
        """By policy, where it is known: longest prompt and answer, in tokens."""
        pairs = [pair for model in self.models for pair in model.contexts.items()]
        return {name: context for name, context in pairs if context is not None}

    def lengths(self, policy: str) -> CallLengths:
        """The longest calls of a policy; prompts that weren't measured fill its context."""
        counts, context = self.counts.policies[policy], self.contexts.get(policy)
        answer = longest_answer(self.run, counts.roles)
        prompts = [self.prompts.lengths.get(role) for role in counts.roles]
        if context is None:
            return CallLengths(max((prompt or 0 for prompt in prompts), default=0), answer)
        answer = min(answer, context - 1)
        return CallLengths(max(min(prompt or context, context - answer) for prompt in prompts), answer)


def planned_models(
    run: Run,
    counts: StepCounts,
    configs: Mapping[str, TorchPolicy],
    *,
    device: str,
    gpu: float,
    hint: bool,
) -> PlannedModels:
    """Read the models of policies without their weights, and measure the first prompts.

    Args:
        configs: by policy of tensors: its settings.
        device: the type of the device that the plan is for; `gpu`: bytes of one GPU.
        hint: note how to plan for something else.
    """
    configs, notes = _with_dtypes(run, configs, device, gpu, hint)
    models, unknown = _read(run, configs)
    notes += _notes_of(models)
    prompts = measured_prompts(run, models)
    return PlannedModels(
        run=run,
        counts=counts,
        configs=configs,
        models=models,
        unknown=unknown,
        prompts=prompts,
        device=device,
        gpu=gpu if device == "cuda" else None,
        notes=[*notes, *prompts.notes],
    )


def _with_dtypes(
    run: Run, configs: Mapping[str, TorchPolicy], device: str, gpu: float, hint: bool
) -> tuple[dict[str, TorchPolicy], list[str]]:
    """The policies with `dtype: auto` resolved as the trainer does, and notes of what the plan is for."""
    place = f"a GPU of {gpu / 1e9:g} GB" if device == "cuda" else "a CPU"
    left_open = {name: config for name, config in configs.items() if config.dtype == "auto"}
    required = getattr(run.trainer, "required_dtypes", dict)(left_open)
    chosen = with_dtype({**left_open, **required}, device)
    by_dtype: dict[str, list[str]] = {}
    for name, config in chosen.items():
        by_dtype.setdefault(config.dtype, []).append(name)
    parts = [f"; dtype auto of {', '.join(names)} is {dtype}" for dtype, names in by_dtype.items()]
    options = "; --gpus and --gpu-memory plan for GPUs" if hint else ""
    notes = [f"planned for {place}{''.join(parts)}{options}", *choices({**left_open, **required}, device)]
    return {**configs, **chosen}, notes


def _read(run: Run, configs: Mapping[str, TorchPolicy]) -> tuple[list[Blueprint], dict[str, UserError]]:
    """The models that can be read here, and by policy of the others: why not."""
    models: list[Blueprint] = []
    unknown: dict[str, UserError] = {}
    for names in initial_weights_of(configs).values():
        try:
            models.append(blueprint({name: configs[name] for name in names}, vocabulary=run.vocabulary))
        except UserError as error:
            unknown.update(dict.fromkeys(names, error))
    return models, unknown


def _notes_of(models: Sequence[Blueprint]) -> list[str]:
    notes = []
    for model in models:
        if model.known:
            whose = f"{model.known} ({', '.join(model.modules)})"
            notes.append(f"the shape of {whose} is Coterie's own table's: the hub's cache lacks it")
        unbounded = [name for name, context in model.contexts.items() if context is None]
        if unbounded:
            policies = ", ".join(unbounded)
            notes.append(f"the context of {policies} is unknown: prompts that can't be made count nothing")
    return notes
