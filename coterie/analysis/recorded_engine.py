"""The recorded calls of a run in place of its engine, so that its own sampler plays the same trees again.

Every draw of a rollout is keyed by its place. So a sampler that gets the recorded call at each place asks for
the same places again, and what it plays can be compared with the record, or changed at one place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from coterie.api.open_run import to_its_end
from coterie.api.rollouts import prompt_text
from coterie.compose.builder import ComponentBuilder
from coterie.core.concurrency.active_rollouts import ActiveRollouts, together
from coterie.core.config import RunConfig
from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.plugins.origin import origin_of, plugin_call, record_origin
from coterie.core.protocols import Codec, EngineClient, EngineContext, Member
from coterie.core.protocols.tool import HasSchemas
from coterie.core.training.run import Run
from coterie.core.types import Call, Key, Message, Prompt, Request
from coterie.data.prompts import NoTokens
from coterie.discovery.members import MakesCodecs

T = TypeVar("T")
Row = Mapping[str, Any]
BranchPlace = tuple[str, str, int]
"""Of a branch: the text of its node's key, role, branch."""
Replace = Callable[[Request], Awaitable[Call] | None]
"""The call in place of the recorded one; None: the recorded one stays."""

_RAISED = re.compile(r".*?: run raised (\w+): (.*)", re.S)

CALL: ContextVar[Key | None] = ContextVar("recorded_call", default=None)
"""The key of the last call of this coroutine: what a tool's result, which comes next, belongs to."""


class NotRecorded(SystemFault):
    """The record has no call at a place. It is a fault of the system, so the episode ends there."""

    def __init__(self, key: Key) -> None:
        self.key = key
        super().__init__(f"the record has no call at {key.text()}")


def place_of(key: Key) -> BranchPlace:
    """The place of a branch, or of one of its calls."""
    return key.node.text(), key.role, key.branch


@dataclass(slots=True)
class RecordedActions:
    """The rows of kind `node` and `branch` by place. The order of the rows doesn't matter here."""

    branches: dict[BranchPlace, Row] = field(default_factory=dict)
    prompts: dict[tuple[str, str], Row] = field(default_factory=dict)
    """By the node's key and the role."""

    @classmethod
    def of(cls, rows: Iterable[Row]) -> RecordedActions:
        """Those of the rows of one step or more. Of rows with one place the first counts."""
        recorded = cls()
        for row in rows:
            if row["kind"] == "node":
                recorded.prompts.setdefault((row["node"], row["role"]), row)
            elif row["kind"] == "branch":
                recorded.branches.setdefault((row["node"], row["role"], row["branch"]), row)
        return recorded

    def prompt_ids(self, key: Key) -> tuple[int, ...] | None:
        """The prompt of a recorded call; None: there is none."""
        calls = self.branches.get(place_of(key), {}).get("calls", ())
        if key.call > 0:
            return tuple(calls[key.call]["prompt_ids"]) if key.call < len(calls) else None
        prompt = self.prompts.get((key.node.text(), key.role))
        return None if prompt is None else tuple(prompt["prompt_ids"])

    def call(self, request: Request) -> Call | None:
        """The recorded call at a request's place, with the request's prompt; None: there is none.

        Raises:
            SystemFault: the recorded action was lost there; it has the recorded reason.
        """
        row = self.branches.get(place_of(request.key))
        if row is None:
            return None
        calls, index = row["calls"], request.key.call
        if index >= len(calls):
            fault = row["fault"]
            if fault is not None and fault["kind"] == "system":
                raise SystemFault(fault["reason"])
            return None
        made = calls[index]
        return Call(
            prompt_ids=request.prompt_ids,
            token_ids=tuple(made["token_ids"]),
            logprobs=tuple(math.nan if value is None else value for value in made["logprobs"]),
            version=made.get("version", row["version"]),
            finish=made["finish"],
            continues=request.continues,
            version_runs=tuple((version, count) for version, count in made.get("version_runs", ())),
        )


@dataclass(slots=True)
class RecordedClient:
    """An engine client that answers with recorded calls."""

    actions: RecordedActions
    codecs: Mapping[str, Codec] = field(default_factory=dict)
    """By policy; a policy without one has that of `otherwise`."""
    otherwise: EngineClient | None = None
    """Generates what the record lacks; None: `NotRecorded`."""
    replace: Replace | None = None
    """Asked first at every place."""
    same_prompts: bool = False
    """Whether a recorded call to another prompt than the request's counts as not recorded. So play after a
    replaced action goes on with `otherwise`, wherever a role sees the difference."""
    lacking: list[Key] = field(default_factory=list)
    """The places that the record lacked."""

    def codec(self, policy: str) -> Codec:
        if policy in self.codecs or self.otherwise is None:
            return self.codecs[policy]
        return self.otherwise.codec(policy)

    async def generate(self, request: Request) -> Call:
        """The call at the request's place.

        Raises:
            NotRecorded: the record has none, and there is no other engine.
            SystemFault: the recorded call was lost.
        """
        CALL.set(request.key)
        if self.replace is not None and (replaced := self.replace(request)) is not None:
            return await replaced
        same = not self.same_prompts or self.actions.prompt_ids(request.key) == request.prompt_ids
        if same and (call := self.actions.call(request)) is not None:
            return call
        self.lacking.append(request.key)
        if self.otherwise is None:
            raise NotRecorded(request.key)
        return await self.otherwise.generate(request)

    async def active(self, work: Awaitable[T]) -> T:
        return await work if self.otherwise is None else await self.otherwise.active(work)

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        if self.otherwise is not None:
            return await self.otherwise.gather(work)
        return await together(_coroutine(each) for each in work)


class RecordedTool:
    """A tool that finds calls in a text as ever, and answers them with what it answered in the run."""

    def __init__(self, tool: Any, actions: RecordedActions, used: dict[BranchPlace, int]) -> None:
        self.name, self._tool, self._actions, self._used = tool.name, tool, actions, used
        record_origin(self, origin_of(tool))
        if isinstance(tool, HasSchemas):  # which the chat template shows to the model
            self.schemas = tool.schemas

    def find(self, text: str) -> Any | None:
        return self._tool.find(text)

    async def run(self, call: Any) -> str:
        """The next recorded result of the action.

        Raises:
            SystemFault: as recorded, or the record has none.
            PolicyFault: as recorded.
        """
        key = CALL.get()
        assert key is not None, "a tool is called after a call of the engine"
        place = place_of(key)
        row, index = self._actions.branches.get(place), self._used.get(place, 0)
        self._used[place] = index + 1
        if row is None or (index >= len(row["tool_results"]) and row["fault"] is None):
            raise NotRecorded(key)
        if index < len(row["tool_results"]):
            return str(row["tool_results"][index])
        reason = row["fault"]["reason"]
        if row["fault"]["kind"] == "policy":  # `_result` of the core writes the tool's name before it
            raise PolicyFault(reason.removeprefix(f"tool {self.name}: "))
        # The exception of which the core made the reason, `tool 'x' of y: run raised NAME: text`.
        parts = _RAISED.fullmatch(reason)
        fault = SystemFault if parts is None else type(parts[1], (SystemFault,), {})
        raise fault(reason if parts is None else parts[2])


def with_recorded_tools(
    members: Mapping[str, Member], actions: RecordedActions, kind: type[RecordedTool] = RecordedTool
) -> dict[str, Member]:
    """The members, with tools that know what they answered in the record."""
    used: dict[BranchPlace, int] = {}
    return {
        role: replace(member, tools=tuple(kind(tool, actions, used) for tool in member.tools))
        for role, member in members.items()
    }


async def _coroutine(work: Awaitable[T]) -> T:
    return await work


# ---------------------------------------------------------------------------------------- the codecs

Ids = tuple[int, ...]


class RecordedCodec(NoTokens):
    """A codec that knows the recorded prompts and texts alone, where no tokenizer can be read.

    A prompt that the record doesn't have gets no ids; its text tells that it is another one. Of an action
    with several calls only the last one's text is on record, so tool calls can't be found again.
    """

    def __init__(self, rows: Iterable[Row], policy: str) -> None:
        self._prompts: dict[str, Ids] = {}
        self._following: dict[tuple[Ids, Ids], Prompt] = {}
        """The prompt after a call, by the call's prompt and tokens."""
        self._texts: dict[Ids, str] = {}
        of_node: dict[tuple[str, str], Ids] = {}
        for row in rows:
            if row.get("policy") != policy:
                continue
            if row["kind"] == "node":
                of_node[row["node"], row["role"]] = self._prompts[row["prompt"]] = tuple(row["prompt_ids"])
            elif row["kind"] == "branch":
                self._add(row, of_node.get((row["node"], row["role"]), ()))

    def _add(self, row: Row, prompt: Ids) -> None:
        for index, call in enumerate(row["calls"]):
            tokens = tuple(call["token_ids"])
            if index == len(row["calls"]) - 1:
                self._texts[tokens] = raw_text(row)
            elif "text" in call:
                self._texts[tokens] = call["text"]
            if index + 1 < len(row["calls"]):
                after = row["calls"][index + 1]
                made = Prompt(ids=tuple(after["prompt_ids"]), continues=after["continues"])
                self._following[prompt, tokens] = made
                prompt = made.ids

    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        """The recorded prompt of the messages; without ids where there is none."""
        known = self._prompts.get(prompt_text(messages))
        if known is not None:
            continues = previous is not None and known[: len(previous.prompt_ids)] == previous.prompt_ids
            return Prompt(ids=known, continues=continues)
        after = None if previous is None else (previous.prompt_ids, previous.token_ids)
        return self._following.get(after, Prompt(ids=())) if after is not None else Prompt(ids=())

    def decode(self, call: Call) -> str:
        """The recorded text of a call; empty where there is none."""
        return self._texts.get(call.token_ids, "")


def raw_text(branch: Row) -> str:
    """The text of an action's last call, with its thought."""
    thought, text = branch["thought"], branch["completion"]
    return text if not thought or thought in text else f"<think>\n{thought}\n</think>\n\n{text}"


def codecs_of(run: Run, rows: Sequence[Row]) -> tuple[dict[str, Codec], list[str]]:
    """The codec of each policy, and the policies of which the record alone is known.

    Args:
        rows: of the steps that are played again.
    """
    made: dict[str, Codec] = {}
    engine, config = run.engine, run.config
    if not isinstance(engine, MakesCodecs):  # it stands for one in another process
        engine = ComponentBuilder(config).make("engine", config.engine, "engine")
    if isinstance(engine, MakesCodecs) and callable(engine.codecs):
        made = codecs_of_engine(engine, config, run.chat, run.vocabulary)
    lacking = [policy for policy in config.policies if policy not in made]
    codecs = {**made, **{policy: RecordedCodec(rows, policy) for policy in lacking}}
    learn_words(made.get, rows)
    return codecs, lacking


def codecs_of_engine(
    engine: MakesCodecs, config: RunConfig, chat: Any, vocabulary: tuple[str, ...]
) -> dict[str, Codec]:
    """The codecs that an engine can make without its weights, by policy."""
    ctx = EngineContext(
        policies=config.policies,
        chat=chat,
        active_rollouts=ActiveRollouts(),
        deterministic=config.deterministic,
        vocabulary=vocabulary,
    )
    with plugin_call(engine, "codecs"):
        return dict(to_its_end(engine.codecs(ctx)))


def learn_words(codec_of: Callable[[str], Any], rows: Iterable[Row]) -> None:
    """Show the recorded texts to the codecs of policies that know the words alone that they have seen."""
    for row in rows:
        codec = codec_of(row["policy"]) if row["kind"] == "branch" and row["policy"] else None
        if codec is not None and hasattr(codec, "learn"):
            for text in (raw_text(row), *(call.get("text", "") for call in row["calls"])):
                codec.encode_completion(text)
