"""OpenAI's protocol, through its SDK: requests, answers, and what its exceptions mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coterie.backends.remote.answers import Answer, Usage
from coterie.backends.remote.faults import Again, Refused, of_status, shown
from coterie.core.errors import MissingExtra, type_text
from coterie.core.types import Message


@dataclass(frozen=True, slots=True)
class Completion:
    """One choice of an answer."""

    text: str
    finish: Literal["stop", "length"]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


def client_of(url: str, key: str | None, headers: Mapping[str, str], needed_by: str) -> Any:
    """The SDK's client, without its own retries and time limits.

    Args:
        needed_by: the setting that chose it, for the error about a missing package.

    Raises:
        MissingExtra: the SDK is not installed.
    """
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise MissingExtra("openai", "openai", needed_by=needed_by) from error
    return AsyncOpenAI(
        base_url=url, api_key=key or "none", max_retries=0, timeout=None, default_headers=dict(headers)
    )


async def posted(client: Any, api: str, body: Mapping[str, Any], path: str, model_path: str) -> Answer:
    """One attempt.

    Args:
        api: "chat" or "completions".
        path, model_path: dotted paths of the endpoint's settings and of the model's name, for errors.

    Raises:
        Again, Refused, UserError: as of `RemoteCalls.call`'s `send`.
    """
    import openai

    url = str(client.base_url).rstrip("/")
    resource = client.chat.completions if api == "chat" else client.completions
    fields = dict(body)
    named = {name: fields.pop(name) for name in ("model", "messages", "prompt") if name in fields}
    try:
        # Everything else goes into the body as it is: servers know fields that the SDK doesn't.
        raw = await resource.with_raw_response.create(**named, extra_body=fields)
    except openai.APIStatusError as error:
        response = error.response
        raise of_status(
            error.status_code, response.text, response.headers, url=url, model=str(body["model"]), path=path,
            model_path=model_path,
        ) from None  # fmt: skip
    except openai.APIConnectionError as error:
        cause = error.__cause__ or error
        unsent = type(cause).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout")
        reason = shown(f"{type(cause).__name__}: {cause}".rstrip(": "))
        raise Again(f"{url}: {reason}", charged=not unsent) from None
    except (TypeError, UnicodeEncodeError) as error:  # of the arguments or the body: nothing was sent
        raise Refused(f"{url}: nothing was sent: {type(error).__name__}: {error}") from None
    return answer_of(raw.http_response.content, api, url)


def answer_of(content: bytes, api: str, url: str) -> Answer:
    """The answer in a 200's body.

    Raises:
        Refused: it is not in OpenAI's form, or the provider blocked it.
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        beginning = shown(content.decode(errors="replace"))
        raise Refused(f"{url}: an answer that is no JSON ({error}): {beginning}", charged=True) from None
    try:
        completion_of(body, api)
    except ValueError as error:
        raise Refused(f"{url}: {error}", charged=True) from None
    version = body.get("model")
    return Answer(body, _usage(body.get("usage")), version if isinstance(version, str) else "")


def completion_of(body: Any, api: str) -> Completion:
    """The first choice of an answer.

    Raises:
        ValueError: the answer is not in OpenAI's form, or the provider blocked it.
    """
    if not isinstance(body, dict):
        raise ValueError(f"an answer that is {type_text(body)}, not a table")
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        what = "without a candidate" if isinstance(choices, list) else "without a list of choices"
        raise ValueError(f"an answer {what}: {shown(str(body.get('error') or body))}")
    choice = choices[0]
    if not isinstance(choice, dict):
        raise ValueError(f"an answer whose first choice is {shown(repr(choice))}")
    reason = choice.get("finish_reason")
    if reason == "content_filter":
        raise ValueError("the provider's safety filter blocked the answer (finish_reason content_filter)")
    finish: Literal["stop", "length"] = "length" if reason == "length" else "stop"
    if api == "chat":
        return Completion(_content(choice.get("message")), finish)
    text: Any = choice.get("text")
    ids: Any = choice.get("token_ids")
    table = choice.get("logprobs")
    values: Any = table.get("token_logprobs") if isinstance(table, dict) else None
    if not _list_of(ids, int) or not isinstance(text, str):
        raise ValueError(
            "the endpoint returns no token ids (`return_token_ids`): set engine.api=chat, or use a server "
            "that has them, such as vLLM's"
        )
    logprobs = tuple(map(float, values)) if _list_of(values, (int, float)) else ()
    if len(logprobs) != len(ids):
        logprobs = (0.0,) * len(ids)
    return Completion(text, finish, tuple(ids), logprobs)


def _content(message: Any) -> str:
    """The text of a chat message; a refusal is an answer too."""
    if not isinstance(message, dict):
        raise ValueError(f"an answer whose message is {shown(repr(message))}")
    content = message.get("content")
    if content is None:
        if message.get("tool_calls"):
            raise ValueError("the model called a tool of the provider's protocol, which is not supported")
        content = message.get("refusal") or ""
    if not isinstance(content, str):
        raise ValueError(f"an answer whose content is {type_text(content)}, not a text")
    return content


def sent_message(message: Message) -> Message:
    """A message as it is sent. OpenAI's role `tool` needs the id of a structured call, and there is none: a
    tool's result is sent as the user's."""
    return {**message, "role": "user"} if message["role"] == "tool" else dict(message)


def _list_of(value: Any, kind: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, kind) and not isinstance(part, bool) for part in value
    )


def _usage(table: Any) -> Usage | None:
    """The counts of a server; None where it has none, or they are no whole numbers."""
    if not isinstance(table, dict):
        return None
    counts: Sequence[Any] = [table.get("prompt_tokens"), table.get("completion_tokens")]
    if not _list_of(counts, int):
        return None
    return Usage(*counts)
