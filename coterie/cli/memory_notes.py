"""What a plan of memory assumes, and says so: the device, `dtype: auto`, and the prompts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from coterie.api.cost import SAMPLED_TASKS, PromptsOnly, first_prompts
from coterie.api.counts import remembers
from coterie.api.prompt_checks import check_room, notes_of, prompt_doubts
from coterie.api.prompt_growth import growths
from coterie.backends.models.precision import choices, with_dtype
from coterie.core.protocols import EngineClient

if TYPE_CHECKING:  # the backends of models import torch, and a plan of tables works without it
    from coterie.backends.models.policy import TorchPolicy
    from coterie.backends.models.sizes import Blueprint
    from coterie.cli.memory_footprint import Footprint
    from coterie.core.training.run import Run

log = logging.getLogger("coterie")


def note_device(
    run: Run, estimate: Footprint, configs: Mapping[str, TorchPolicy], gpu: float, *, hint: bool
) -> dict[str, TorchPolicy]:
    """Say what the plan is for, and with `hint` how to plan for something else.

    Returns:
        the policies with `dtype: auto` resolved as the trainer does.
    """
    place = f"a GPU of {gpu / 1e9:g} GB" if estimate.device == "cuda" else "a CPU"
    left_open = {name: config for name, config in configs.items() if config.dtype == "auto"}
    required = getattr(run.trainer, "required_dtypes", dict)(left_open)
    chosen = with_dtype({**left_open, **required}, estimate.device)
    by_dtype: dict[str, list[str]] = {}
    for name, config in chosen.items():
        by_dtype.setdefault(config.dtype, []).append(name)
    parts = [f"; dtype auto of {', '.join(names)} is {dtype}" for dtype, names in by_dtype.items()]
    options = "; --gpus and --gpu-memory plan for GPUs" if hint else ""
    estimate.notes.append(f"planned for {place}{''.join(parts)}{options}")
    estimate.notes += choices({**left_open, **required}, estimate.device)
    return {**configs, **chosen}


def read_prompts(run: Run, models: Sequence[Blueprint], estimate: Footprint) -> None:
    """Measure first prompts. Where that fails, a note says why, and prompts are assumed to fill the context.

    Raises:
        ConfigError: all first prompts of a role outgrow the context, so that a run would be refused.
    """
    try:
        codecs = {
            name: run.chat.codec(model.tokenizer, model.contexts[name])
            for model in models
            if model.tokenizer is not None
            for name in model.modules
        }
        estimate.prompts = first_prompts(run, codecs)
        doubts = asyncio.run(prompt_doubts(run, cast(EngineClient, PromptsOnly(codecs)), "train"))
    except Exception as error:  # an environment's mistake, or its data isn't here
        log.debug("no first prompts", exc_info=True)
        lines = str(error).strip().splitlines()
        estimate.notes.append(
            "the first prompts can't be made here, so prompts are assumed to fill the context: "
            + (lines[0] if lines else type(error).__name__)
        )
        return
    check_room(run, doubts)
    estimate.notes += notes_of(doubts)
    try:
        estimate.growths = growths(run, codecs)
    except Exception as error:  # a template's refusal, an environment's mistake
        log.debug("no later prompts", exc_info=True)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        estimate.notes.append(f"whether later prompts extend what was sampled is unknown: {lines[0]}")
    for model in models:
        if model.tokenizer is None:
            estimate.notes.append(
                f"the tokenizer of {', '.join(model.modules)} can't be read here, so prompts are assumed to "
                "fill the context, and whether later ones extend what was sampled is unknown"
            )
    if estimate.prompts:
        estimate.notes.append(
            f"prompts are assumed to be as long as the longest first prompt of {SAMPLED_TASKS} tasks: "
            + ", ".join(_length_of(run, role, length) for role, length in estimate.prompts.items())
            + "; later turns, and prompts that hold other roles' messages, may be longer"
        )


def _length_of(run: Run, role: str, length: int) -> str:
    """A role's assumed length of prompts; of one that remembers also how it follows from the first."""
    turns, answer = run.team.max_turns, run.sampler.sampling(role).max_new_tokens
    if turns == 1 or not remembers(run.team.members[role].role):
        return f"{role} {length:,}"
    first = (length - (turns - 1) * answer) // turns
    return f"{role} {length:,} (its last of {turns} turns: {first:,} a turn and the answers before it)"
