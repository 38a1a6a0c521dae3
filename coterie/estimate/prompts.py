"""The prompts of a run, measured: first ones, and whether later ones extend what was sampled.

A role that remembers, or that uses tools, is asked again with its earlier answers in the prompt. Where its
chat format writes these as they were, the next prompt begins with the ids before it: an engine with a prefix
cache computes only what is new, and the calls of an action are one sample. Where it rewrites them (drops
thoughts, moves the tools to the last question), the next prompt begins anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from coterie.backends.models.sizes import Blueprint
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Codec, EngineClient, RolloutJob
from coterie.core.rollout.actions import chat_message
from coterie.core.training.run import Run
from coterie.core.types import Call, Message, Prompt
from coterie.estimate.cost import calls_of, first_state, played_environments
from coterie.estimate.counts import Growth, remembers
from coterie.estimate.prompt_checks import check_room, notes_of, prompt_doubts

log = logging.getLogger("coterie")

SAMPLED_TASKS = 16
"""Tasks of each environment whose first prompts are measured."""

MOST_TURNS = 8
MOST_CALLS = 8
"""Most turns of an episode, and calls of an action, that are rendered; further ones go on like the last."""
LONGEST_ANSWER = 512
"""Most tokens of a made-up answer; a shorter limit of the role holds."""
_WORDS = " the answer"
_RESULT = "the result"
_OPEN, _CLOSE = "<think>\n", "\n</think>\n\n"


@dataclass(slots=True)
class MeasuredPrompts:
    """The lengths of a run's prompts, where they can be made here."""

    lengths: dict[str, int] = field(default_factory=dict)
    """By role: tokens of its longest first prompt."""
    growths: dict[str, Growth] = field(default_factory=dict)
    """By role that is asked again with its earlier answers: how its prompts grow."""
    notes: list[str] = field(default_factory=list)
    """What is assumed, and why something can't be measured."""


def measured_prompts(run: Run, models: Sequence[Blueprint]) -> MeasuredPrompts:
    """Measure first prompts. Where that fails, a note says why, and prompts are assumed to fill the context.

    Raises:
        ConfigError: all first prompts of a role outgrow the context, so that a run would be refused.
    """
    measured = MeasuredPrompts()
    try:
        codecs = {
            name: run.chat.codec(model.tokenizer, model.contexts[name])
            for model in models
            if model.tokenizer is not None
            for name in model.modules
        }
        measured.lengths = first_prompts(run, codecs)
        doubts = asyncio.run(prompt_doubts(run, cast(EngineClient, PromptsOnly(codecs)), "train"))
    except Exception as error:  # an environment's mistake, or its data isn't here
        log.debug("no first prompts", exc_info=True)
        lines = str(error).strip().splitlines()
        measured.notes.append(
            "the first prompts can't be made here, so prompts are assumed to fill the context: "
            + (lines[0] if lines else type(error).__name__)
        )
        return measured
    check_room(run, doubts)
    measured.notes += notes_of(doubts)
    try:
        measured.growths = growths(run, codecs)
    except Exception as error:  # a template's refusal, an environment's mistake
        log.debug("no later prompts", exc_info=True)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        measured.notes.append(f"whether later prompts extend what was sampled is unknown: {lines[0]}")
    for model in models:
        if model.tokenizer is None:
            measured.notes.append(
                f"the tokenizer of {', '.join(model.modules)} can't be read here, so prompts are assumed to "
                "fill the context, and whether later ones extend what was sampled is unknown"
            )
    if measured.lengths:
        measured.notes.append(
            f"prompts are assumed to be as long as the longest first prompt of {SAMPLED_TASKS} tasks: "
            + ", ".join(_length_of(run, role, length) for role, length in measured.lengths.items())
            + "; later turns, and prompts that hold other roles' messages, may be longer"
        )
    return measured


def _length_of(run: Run, role: str, length: int) -> str:
    """A role's assumed length of prompts; of one that remembers also how it follows from the first."""
    turns, answer = run.team.max_turns, run.sampler.sampling(role).max_new_tokens
    if turns == 1 or not remembers(run.team.members[role].role):
        return f"{role} {length:,}"
    first = (length - (turns - 1) * answer) // turns
    return f"{role} {length:,} (its last of {turns} turns: {first:,} a turn and the answers before it)"


def first_prompts(run: Run, codecs: Mapping[str, Codec]) -> dict[str, int]:
    """By role: tokens of its longest prompt in the start states of some tasks.

    A role that remembers sees its earlier prompts and answers again in every turn, so they are added.
    Messages of other roles and feedback of a transition are not: a start state has none.

    Args:
        codecs: by policy; roles of other policies are left out.
    """
    lengths = asyncio.run(_first_prompts(run, codecs))
    turns = run.team.max_turns
    for role, length in lengths.items():
        if remembers(run.team.members[role].role):
            lengths[role] = turns * length + (turns - 1) * run.sampler.sampling(role).max_new_tokens
    return lengths


@dataclass(frozen=True, slots=True)
class PromptsOnly:
    """An engine client for prompts alone."""

    codecs: Mapping[str, Codec]

    def codec(self, policy: str) -> Codec:
        return self.codecs[policy]


async def _first_prompts(run: Run, codecs: Mapping[str, Codec]) -> dict[str, int]:
    lengths: dict[str, int] = {}
    client = cast(EngineClient, PromptsOnly(codecs))
    for number, (environment, source) in enumerate(played_environments(run)):
        level = number - 1 if number else None  # the target environment is the first
        for index in range(min(SAMPLED_TASKS, len(source))):
            task, state = first_state(run, environment, source, index)
            context = run.rollout_side.context(RolloutJob(task=task, level=level), client)
            for role, policy in run.team.policies.items():
                if policy in codecs:
                    request = await context.ask(role, state, 0, (), run.sampler.sampling(role))
                    lengths[role] = max(lengths.get(role, 0), len(request.prompt.ids))
    return lengths


# ---------------------------------------------------------------------------------------- later prompts


def growths(run: Run, codecs: Mapping[str, Codec]) -> dict[str, Growth]:
    """By role that is asked again with its earlier answers: how its prompts grow.

    It renders the first prompt of the first train task, made-up answers, and the same prompt again as the
    message of each later turn.

    Args:
        codecs: by policy; roles of other policies are left out.
    """
    return asyncio.run(_growths(run, codecs))


async def _growths(run: Run, codecs: Mapping[str, Codec]) -> dict[str, Growth]:
    grown: dict[str, Growth] = {}
    client = cast(EngineClient, PromptsOnly(codecs))
    for role, policy in run.team.policies.items():
        again = remembers(run.team.members[role].role)
        turns = min(run.team.max_turns, MOST_TURNS) if again else 1
        calls = min(calls_of(run.team, role), MOST_CALLS)
        if policy not in codecs or turns * calls == 1:
            continue
        with plugin_call(run.environment, "tasks"):
            tasks = run.environment.tasks("train", run.config.seed)
        task, state = first_state(run, run.environment, tasks, 0)
        context = run.rollout_side.context(RolloutJob(task=task), client)
        request = await context.ask(role, state, 0, (), run.sampler.sampling(role))
        limit = min(request.sampling.max_new_tokens, LONGEST_ANSWER)
        grown[role] = growth(context.codec(policy, role), request.messages, turns, calls, limit)
    return grown


def growth(codec: Codec, messages: Sequence[Message], turns: int, calls: int, answer: int) -> Growth:
    """How a role's prompts grow; of answers with and without thoughts those that cost more.

    Args:
        messages: of the first prompt, and of each later turn.
        calls: of each action; each but the last one is followed by a tool's result.
        answer: tokens of an answer, about.
    """
    first = codec.encode(messages)
    opening = "" if first.thinking else _OPEN
    thought = _filled(codec, opening, answer // 2) + _CLOSE + _filled(codec, "", answer // 2)
    if first.thinking:  # every answer goes on with a thought
        result = _Walk(codec, messages, thought).walk(turns, calls).result(calls)
        return replace(result, why="the template drops earlier thoughts") if result.anew else result
    plain = _Walk(codec, messages, _filled(codec, "", answer)).walk(turns, calls)
    zeros = (0.0,) * len(first.ids)
    written = Call(prompt_ids=(), token_ids=first.ids, logprobs=zeros, version=0, finish="length")
    if codec.decode(written).rstrip().endswith(_CLOSE.strip()):
        return plain.result(calls)  # the template has written a thought, so that answers have none
    thinking = _Walk(codec, messages, thought).walk(turns, calls)
    if sum(thinking.anew) <= sum(plain.anew):
        return plain.result(calls)
    others = f", {sum(plain.anew)} where they have none" if any(plain.anew) else ""
    why = f"the template drops earlier thoughts, where answers have some{others}"
    return replace(thinking.result(calls), why=why)


@dataclass(slots=True)
class _Walk:
    """One conversation, prompt by prompt."""

    codec: Codec
    messages: Sequence[Message]
    """Of the first prompt, and of each later turn."""
    answer: str
    anew: list[bool] = field(default_factory=list)
    whole: int = 0
    new: int = 0
    least: int = 0
    why: str = ""

    def walk(self, turns: int, calls: int) -> _Walk:
        codec, context = self.codec, self.codec.context
        messages, before, previous = [*self.messages], [*self.messages], None
        for index in range(turns * calls):
            added = [*self.messages] if index % calls == 0 else [chat_message("tool", _RESULT)]
            if previous is not None:
                before = messages
                messages = [*messages, chat_message("assistant", codec.decode(previous)), *added]
            prompt = codec.encode(messages, previous, before if previous else ())
            ids = codec.encode_completion(self.answer)
            if context is not None and len(prompt.ids) + len(ids) > context:
                break  # `team.overflow` says what becomes of it
            self._add(prompt, previous, added)
            previous = Call(
                prompt_ids=prompt.ids,
                token_ids=ids,
                logprobs=(0.0,) * len(ids),
                version=0,
                finish="stop",
                continues=prompt.continues,
            )
        return self

    def _add(self, prompt: Prompt, previous: Call | None, added: Sequence[Message]) -> None:
        length = len(prompt.ids)
        self.whole += length
        if previous is None:
            self.new, self.least = length, length
            return
        known = previous.prompt_ids + previous.token_ids
        common = next(
            (at for at, pair in enumerate(zip(known, prompt.ids, strict=False)) if pair[0] != pair[1]),
            min(len(known), length),
        )
        self.anew.append(not prompt.continues)
        self.new += length - common
        self.least += length - common if prompt.continues else min(length - common, self._added(added))
        if not prompt.continues and not self.why:
            earlier = common < len(previous.prompt_ids)
            self.why = f"the template writes earlier {'prompts' if earlier else 'answers'} differently"

    def _added(self, added: Sequence[Message]) -> int:
        """Tokens that these messages add behind a short answer to the first prompt, the answer left out."""
        codec, answer = self.codec, chat_message("assistant", "?")
        longer = codec.encode([*self.messages, answer, *added])
        return len(longer.ids) - len(codec.encode(self.messages).ids) - len(codec.encode_completion("?"))

    def result(self, calls: int) -> Growth:
        return Growth(
            begins_anew=tuple(self.anew),
            calls=calls,
            whole=self.whole,
            new=self.new,
            least=self.least,
            why=self.why,
        )


def _filled(codec: Codec, opening: str, tokens: int) -> str:
    """A text of about this many tokens."""
    ten = max(1, len(codec.encode_completion(_WORDS * 10)) - 1)
    return opening + (_WORDS * max(1, tokens * 10 // ten)).strip()
