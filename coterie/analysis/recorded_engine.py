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

from coterie.core.concurrency.active_rollouts import together
from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.plugins.origin import origin_of, record_origin
from coterie.core.protocols import Codec, EngineClient, Member
from coterie.core.protocols.tool import HasSchemas
from coterie.core.types import Call, Key, Request

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
