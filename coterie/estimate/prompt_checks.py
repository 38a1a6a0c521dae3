"""First prompts of the user's records: those that outgrow the context, and words unknown to the tokenizer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.core.errors import ConfigError
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Codec, EngineClient, RolloutJob
from coterie.core.rollout.turns import first_stage
from coterie.core.training.run import Run
from coterie.core.types.splits import Split
from coterie.discovery.members import LocatesTasks
from coterie.estimate.cost import first_state

log = logging.getLogger("coterie")

MEASURED = 1000
"""Records of a split whose prompts are made: a second of work, at most a few."""
_NAMED = 5
"""Places and words that a warning names."""


@dataclass(slots=True)
class PromptDoubts:
    """What is odd about one role's first prompts."""

    measured: int = 0
    too_long: list[str] = field(default_factory=list)
    """Places of the records whose prompt leaves no room for an answer."""
    longest: int = 0
    """Tokens of the longest prompt."""
    context: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    """Words that hold a token for unknown text, with their number."""
    with_unknown: list[str] = field(default_factory=list)
    """Places of the records that hold them."""


async def check_prompts(run: Run, split: Split) -> None:
    """Warn of records whose first prompts outgrow the context or hold unknown words.

    Raises:
        ConfigError: all first prompts of a role outgrow the context, so that it can never answer.
    """
    doubts = await prompt_doubts(run, run.engine_client, split)
    check_room(run, doubts)
    for note in notes_of(doubts):
        log.warning("%s", note)


def check_room(run: Run, doubts: Mapping[str, PromptDoubts]) -> None:
    """Refuse a role that can never answer.

    Raises:
        ConfigError: all first prompts of a role outgrow the context.
    """
    for role, doubt in doubts.items():
        if doubt.too_long and len(doubt.too_long) == doubt.measured:
            policy = run.team.policies[role]
            raise ConfigError(
                f"every first prompt of role '{role}' outgrows the context of policy '{policy}'",
                path=f"policies.{policy}",
                why=f"the context has {doubt.context:,} tokens, and the longest prompt {doubt.longest:,}",
                fix=f"use a model with a longer context, or shorten team.roles.{role}.prompt or the records",
            )


async def prompt_doubts(run: Run, client: EngineClient, split: Split) -> dict[str, PromptDoubts]:
    """By role: what is odd about the first prompts of a split's records; empty for made tasks."""
    environment = run.environment
    if not isinstance(environment, LocatesTasks):
        return {}
    with plugin_call(environment, "tasks"):
        tasks = environment.tasks(split, run.config.seed)
    doubts = {role: PromptDoubts() for role, policy in run.team.policies.items() if _has(client, policy)}
    for index in range(min(len(tasks), MEASURED)):
        task, state = first_state(run, environment, tasks, index)
        with plugin_call(environment, "place"):
            place = environment.place(task)
        if not place:
            return {}
        stage = first_stage(environment, run.team.order, state)
        context = run.rollout_side.context(RolloutJob(task=task), client)
        for role, doubt in doubts.items():
            try:
                request = await context.ask(role, state, 0, (), run.sampler.sampling(role))
            except Exception:
                if stage is not None and role in stage.roles:
                    raise
                continue  # a later role may need what the first ones did
            _note(doubt, client.codec(run.team.policies[role]), request, place)
    return doubts


def notes_of(doubts: Mapping[str, PromptDoubts]) -> list[str]:
    """Each finding as a sentence, with its number and the first places."""
    notes = []
    for role, doubt in doubts.items():
        if doubt.too_long:
            notes.append(
                f"{len(doubt.too_long)} of {doubt.measured} first prompts of role '{role}' leave no room for "
                f"an answer (the context has {doubt.context:,} tokens, the longest {doubt.longest:,}), "
                f"and team.overflow says what becomes of them: {_first(doubt.too_long)}"
            )
        if doubt.unknown:
            words = ", ".join(repr(word[:40]) for word, _ in doubt.unknown.most_common(_NAMED))
            notes.append(
                f"the tokenizer of role '{role}' maps {doubt.unknown.total()} words of first prompts to "
                f"unknown ({len(doubt.unknown)} different, such as {words}), in {len(doubt.with_unknown)} of "
                f"{doubt.measured} records: the model can't tell them apart: {_first(doubt.with_unknown)}"
            )
    return notes


def _note(doubt: PromptDoubts, codec: Any, request: Any, place: str) -> None:
    ids = request.prompt.ids
    doubt.measured += 1
    doubt.longest = max(doubt.longest, len(ids))
    if codec.context is not None and len(ids) >= codec.context:
        doubt.context = codec.context
        doubt.too_long.append(place)
    tokenizer = getattr(codec, "tokenizer", None)
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None or unknown not in ids:
        return
    texts = (str(message["content"]) for message in request.messages)
    words = [word for text in texts for word in text.split() if unknown in tokenizer.encode(word)]  # type: ignore[union-attr]
    if words:
        doubt.unknown.update(words)
        doubt.with_unknown.append(place)


def _has(client: EngineClient, policy: str) -> bool:
    """Whether the policy has a codec here; a plan has none of policies behind an endpoint."""
    try:
        codec: Codec | None = client.codec(policy)
    except KeyError:
        return False
    return codec is not None


def _first(places: list[str]) -> str:
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return ", ".join(places[:_NAMED]) + more
