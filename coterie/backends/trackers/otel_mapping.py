"""Spans of a run as OpenTelemetry has them, by the semantic conventions for generative AI (version 1.41)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from coterie.core.types import Score
from coterie.core.types.messages import encodable
from coterie.spans import TraceSpan

PROVIDER = "coterie"
"""Of `gen_ai.provider.name`: the conventions have no value for one's own engines."""
SCOPE = InstrumentationScope("coterie")
Attributes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SpanMaker:
    """Makes OpenTelemetry's spans of one opening of a run."""

    run: str
    """Name of the run's folder."""
    opening: str
    """Unique to this opening of the run: trace and span ids derive from it."""
    resource: Resource
    share: float
    content: bool
    """Whether prompts, completions and what tools read and wrote are attributes."""

    def run_context(self) -> SpanContext:
        return self._context("run", 0)

    def run_span(self, start: int, end: int) -> ReadableSpan:
        """The span of a run from `open` to `close`, in a trace of its own."""
        values = {"coterie.kind": "run", "coterie.run": self.run, "session.id": self.run}
        return ReadableSpan(
            f"run {self.run}", self.run_context(), None, self.resource, values, (), (), SpanKind.INTERNAL,
            start_time=start, end_time=end, instrumentation_scope=SCOPE,
        )  # fmt: skip

    def wanted(self, spans: Sequence[TraceSpan]) -> list[tuple[int, TraceSpan]]:
        """The spans with their indices, without the episodes that are not in the share."""
        dropped: set[int] = set()
        for index, each in enumerate(spans):  # parents come before their parts
            job = each.attributes.get("job")
            if each.parent in dropped or (job is not None and job.draw >= self.share):
                dropped.add(index)
        return [(index, each) for index, each in enumerate(spans) if index not in dropped]

    def _context(self, trace: str, index: int) -> SpanContext:
        trace_id = _bits(f"{self.opening}/{trace}", 16)
        span_id = _bits(f"{self.opening}/{trace}/{index}", 8)
        return SpanContext(trace_id, span_id, False, TraceFlags(TraceFlags.SAMPLED))

    def span(self, step: int, index: int, span: TraceSpan) -> ReadableSpan:
        """A span of a step's trace.

        Args:
            index: among all spans of the step, those that are not exported too.
        """
        name, attributes = self._described(span)
        status = Status(StatusCode.UNSET)
        if span.error:
            kind, _, reason = span.error.partition(": ")
            attributes["error.type"] = kind
            # What a policy is at fault for may repeat what it wrote.
            shown = reason if self.content or kind != "PolicyFault" else ""
            status = Status(StatusCode.ERROR, encodable(shown))
        root = span.parent < 0
        attributes |= {"coterie.kind": span.kind, "coterie.place": span.place, "coterie.step": step}
        if root:
            attributes |= {"coterie.run": self.run, "session.id": self.run}
        return ReadableSpan(
            name,
            self._context(str(step), index),
            None if root else self._context(str(step), span.parent),
            self.resource,
            {key: _plain(value) for key, value in attributes.items() if value is not None},
            (),
            [Link(self.run_context())] if root else (),
            SpanKind.CLIENT if span.kind == "call" else SpanKind.INTERNAL,
            status=status,
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=SCOPE,
        )

    def _described(self, span: TraceSpan) -> tuple[str, Attributes]:
        describe = _DESCRIBE.get(span.kind)
        if describe is not None:
            return describe(self, span)
        several = span.kind in ("sync", "annotate")  # one a policy, one an annotation
        return f"{span.kind} {span.place}" if several else span.kind, {}

    def _update(self, span: TraceSpan) -> tuple[str, Attributes]:
        return "update", {
            f"coterie.update.{policy}.{name}": value
            for policy, metrics in span.attributes.get("policies", {}).items()
            for name, value in metrics.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }  # fmt: skip

    def _episode(self, span: TraceSpan) -> tuple[str, Attributes]:
        job = span.attributes["job"]
        return f"invoke_workflow {self.run}", {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.workflow.name": self.run,
            "gen_ai.conversation.id": f"{self.run}/{span.place}",
            "coterie.task": job.task.id,
            "coterie.epoch": job.epoch,
            "coterie.chain": job.chain,
            "coterie.evaluation": job.evaluation,
            "coterie.draw": job.draw,
        }  # fmt: skip

    def _decision(self, span: TraceSpan) -> tuple[str, Attributes]:
        request, actions = span.attributes["request"], sorted(span.attributes["actions"].items())
        faults = [f"b{branch}: {action.fault.kind}" for branch, action in actions if action.fault]
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": request.role,
            "gen_ai.request.model": request.policy or None,
            "gen_ai.request.choice.count": len(actions),
            "coterie.faults": faults or None,
        }
        if self.content:
            attributes["gen_ai.input.messages"] = _messages(request.messages)
            attributes["gen_ai.output.messages"] = _json(
                [{"role": "assistant", "parts": [_text(action.text)]} for _, action in actions]
            )
        return f"invoke_agent {request.role}", attributes

    def _call(self, span: TraceSpan) -> tuple[str, Attributes]:
        request, call = span.attributes["request"], span.attributes.get("call")
        sampling = request.sampling
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": request.key.role,
            "gen_ai.request.model": request.policy,
            "gen_ai.request.max_tokens": sampling.max_new_tokens,
            "gen_ai.request.temperature": float(sampling.temperature),
            "gen_ai.request.top_p": float(sampling.top_p),
            "gen_ai.request.top_k": float(sampling.top_k) if sampling.top_k else None,
            "gen_ai.request.stop_sequences": list(sampling.stop) or None,
            "gen_ai.usage.input_tokens": len(request.prompt_ids),
            # The seed has 64 bits without a sign; an attribute's integer has one.
            "coterie.seed": str(request.seed),
        }
        if call is not None:
            attributes |= {
                "gen_ai.response.model": request.policy,
                "gen_ai.response.finish_reasons": [call.finish],
                "gen_ai.usage.output_tokens": len(call.token_ids),
                "coterie.version": call.version,
            }
        if self.content:
            attributes["gen_ai.input.messages"] = _messages(span.attributes["messages"])
            if call is not None and "text" in span.attributes:  # an aborted call has none
                parts = [_text(span.attributes["text"])]
                answer = {"role": "assistant", "parts": parts, "finish_reason": call.finish}
                attributes["gen_ai.output.messages"] = _json([answer])
        return f"chat {request.policy}", attributes

    def _tool(self, span: TraceSpan) -> tuple[str, Attributes]:
        tool, result = span.attributes["tool"], span.attributes.get("result")
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.type": "function",
        }
        if self.content:
            attributes["gen_ai.tool.call.arguments"] = _json(span.attributes["use"])
            attributes["gen_ai.tool.call.result"] = None if result is None else str(result)
        return f"execute_tool {tool}", attributes

    def _judge(self, span: TraceSpan) -> tuple[str, Attributes]:
        source, scores = span.attributes["source"], span.attributes.get("scores")
        attributes = {"coterie.source": source, "coterie.scope": span.attributes["scope"]}
        several = not isinstance(scores, Mapping)  # a row for each of several actions
        for index, row in enumerate(scores or () if several else (scores,)):
            for (owner, component), value in row.items() if isinstance(row, Mapping) else ():
                score = value if isinstance(value, Score) else Score(value)
                name = f"{index}.{owner}.{component}" if several else f"{owner}.{component}"
                attributes[f"coterie.score.{name}"] = None if score.value is None else float(score.value)
                if self.content and score.comment:
                    attributes[f"coterie.comment.{name}"] = score.comment
        return f"judge {source}", attributes


_DESCRIBE: dict[str, Callable[[SpanMaker, TraceSpan], tuple[str, Attributes]]] = {
    "update": SpanMaker._update,
    "episode": SpanMaker._episode,
    "decision": SpanMaker._decision,
    "call": SpanMaker._call,
    "tool": SpanMaker._tool,
    "judge": SpanMaker._judge,
}


def _bits(text: str, size: int) -> int:
    """A number of so many bytes, never 0: the conventions have no such id."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "big") or 1


def _text(content: str) -> dict[str, str]:
    return {"type": "text", "content": content}


def _messages(messages: Sequence[Mapping[str, str]]) -> str:
    return _json([{"role": each["role"], "parts": [_text(each["content"])]} for each in messages])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    """A value that can be encoded: lone surrogates can't."""
    if isinstance(value, str):
        return encodable(value)
    return [encodable(each) for each in value] if isinstance(value, list) else value
