"""One action of a role: its calls, the results of tools between them, and what the parser makes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.core.errors import PluginError, PolicyFault, SystemFault
from coterie.core.plugins.origin import cancelled, failure
from coterie.core.protocols import Codec, EngineClient, Member, PromptRequest, Tool
from coterie.core.rollout import contracts
from coterie.core.rollout.thoughts import split
from coterie.core.types import Action, Call, Fault, Key, Message, Prompt, Request
from coterie.core.types.messages import encodable
from coterie.spans import span

log = logging.getLogger("coterie")

UNREADABLE = "raise PolicyFault for a text that can't be read; anything else is a bug of the parser"


@dataclass(slots=True)
class ActionBuilder:
    """An action while its calls are made."""

    key: Key
    """Of the branch."""
    request: PromptRequest
    member: Member
    engine: EngineClient
    codec: Codec | None
    """None: no policy plays the role. Its action has no call and means what the parser makes of ""."""
    seed: Callable[[Key, str], int]
    """`RolloutContext.seed`."""
    version: int | None
    """`Request.version` of every call."""
    messages: tuple[Message, ...] = ()
    """Of the last call's prompt, or of the next one's."""
    calls: list[Call] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    text: str = ""
    thought: str = ""
    limit: bool = False

    async def action(self, warned: set[tuple[str, str]]) -> Action:
        """The finished action. What fails becomes its fault: the policy's where the output caused it.

        Args:
            warned: (role, exception) of the parsers' bugs that were logged.
        """
        self.messages = self.request.messages
        # The overflow is a first prompt's. No policy caused it, so the scores are missing.
        if reason := self.request.lost or self.request.overflow:
            return self._build(fault=Fault(kind="system", reason=reason))
        try:
            if self.codec is not None:
                await self._generate(self.codec)
            return self._build(parsed=self._parsed(warned))
        except SystemFault as fault:
            return self._build(fault=Fault(kind="system", reason=str(fault)))
        except PolicyFault as fault:  # also of a tool call that killed its sandbox twice
            return self._build(fault=Fault(kind="policy", reason=str(fault)))

    async def _generate(self, codec: Codec) -> None:
        """Make a call; while it uses tools, run them and make another one."""
        prompt = self.request.prompt
        for index in range(self.member.tool_turns + 1):
            place = self.key.of_call(index)
            call, raw = await self._call(place, prompt, codec)
            completion = split(raw, prompt.thinking)
            self.calls.append(call)
            self.thought = completion.thought
            self.text = raw if self.member.show_thoughts else completion.text
            # A thought may consider a tool call and reject it, so only the text outside it is searched.
            uses = _tool_uses(self.member.tools, completion.text)
            self.limit = bool(uses) and index == self.member.tool_turns
            if not uses or self.limit:
                return
            results = [await _result(tool, use, place) for tool, use in uses]
            following = self._continued(codec, call, raw, results)
            if following is None:
                return
            prompt = following

    async def _call(self, place: Key, prompt: Prompt, codec: Codec) -> tuple[Call, str]:
        """One generation, and its text with the thought."""
        sent = Request(
            key=place,
            policy=self.request.policy,
            prompt_ids=prompt.ids,
            sampling=self.request.sampling,
            seed=self.seed(place, "tokens"),
            continues=prompt.continues,
            version=self.version,
        )
        with span("call", place, request=sent, messages=self.messages) as about:
            call = about["call"] = await self.engine.generate(sent)
            if call.finish == "abort":
                raise SystemFault("the engine aborted the call")
            contracts.check_version(self.engine, sent, call)
            raw = about["text"] = codec.decode(call)
        return call, raw

    def _continued(self, codec: Codec, call: Call, raw: str, results: list[str]) -> Prompt | None:
        """The prompt with the results of tools; None where they leave no room for an answer."""
        self.results += results
        # The raw text, thought included: the chat template decides what of it stays in the prompt.
        answered = (chat_message("assistant", raw), *[chat_message("tool", result) for result in results])
        messages = (*self.messages, *answered)
        prompt = codec.encode(messages, call, self.messages)
        self.limit = full(codec, prompt)
        if self.limit:
            return None
        self.messages = messages
        return prompt

    def _parsed(self, warned: set[tuple[str, str]]) -> Any:
        """What the role's parser makes of the text."""
        role = self.member.role
        try:
            parsed = role.parse(self.text, self.request.observation)
        except (PluginError, PolicyFault):
            raise
        except SystemFault as fault:
            raise SystemFault(failure(role, "parse", fault)) from fault
        except (Exception, SystemExit) as error:  # the text broke the parser: a fault of the output
            reason, kind = failure(role, "parse", error), (self.request.role, type(error).__name__)
            if kind not in warned:
                warned.add(kind)
                log.warning("%s. It counts as a fault of the policy: %s (told once)", reason, UNREADABLE)
            raise PolicyFault(reason) from error
        return contracts.check_async(role, "parse", parsed, False)

    def _build(self, parsed: Any = None, fault: Fault | None = None) -> Action:
        return Action(
            calls=tuple(self.calls),
            text=self.text,
            thought=self.thought,
            parsed=parsed,
            tool_results=tuple(self.results),
            tool_limit=self.limit,
            dialogue=self.messages if self.results else (),
            fault=fault,
        )


def chat_message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def full(codec: Codec, prompt: Prompt, answer: int = 1) -> bool:
    """Whether an answer of so many tokens, or of half the context, doesn't fit after the prompt."""
    return codec.context is not None and len(prompt.ids) + min(answer, codec.context // 2) > codec.context


def _tool_uses(tools: Sequence[Tool], text: str) -> list[tuple[Tool, Any]]:
    """The tool calls in a text. A tool's bug is a system fault."""
    uses = []
    for tool in tools:
        try:
            use = tool.find(text)
        except (Exception, SystemExit) as error:
            raise SystemFault(failure(tool, "find", error)) from error
        if contracts.check_async(tool, "find", use, False) is False:
            contracts.refuse(tool, "find", use, "return None where the text has no call")
        if use is not None:
            uses.append((tool, use))
    return uses


async def _result(tool: Tool, use: Any, place: Key) -> str:
    try:
        with span("tool", place, tool=tool.name, use=use) as about:
            result = about["result"] = await contracts.check_async(tool, "run", tool.run(use))
    except PluginError:
        raise
    except PolicyFault as fault:
        raise PolicyFault(f"tool {tool.name}: {fault}") from fault
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if cancelled(error):
            raise
        raise SystemFault(failure(tool, "run", error)) from error
    if not isinstance(result, str):
        contracts.refuse(tool, "run", result, "the result is a text")
    return encodable(result)
