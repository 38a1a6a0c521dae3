"""Gemini's protocol, through the google-genai SDK: requests, answers, and what its exceptions mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from coterie.backends.remote.answers import Answer, Usage
from coterie.backends.remote.faults import Again, Failed, Refused, of_status, shown
from coterie.backends.remote.secrets import redacted
from coterie.core.errors import ConfigError, MissingExtra, UserError
from coterie.core.protocols import ChatRequest

KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
"""The variables of a key that no setting names; the first that is set."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
WHOLE = ("", "FINISH_REASON_UNSPECIFIED", "STOP", "MAX_TOKENS")
"""Reasons of an end that leave an answer; after any other, the provider withheld it or broke it off."""


@dataclass(frozen=True, slots=True)
class GeminiTarget:
    """Where a request goes, for errors."""

    url: str
    model: str
    path: str
    """Dotted path of the chat model."""
    key_path: str
    """Dotted path of the setting of its key or its credentials."""


def http_client() -> httpx.AsyncClient:
    """The HTTP client of the SDK, without limits of its own.

    The SDK takes aiohttp where that is installed, and then sends again by itself after a lost connection.
    A client of our own keeps it from that.
    """
    return httpx.AsyncClient(
        timeout=None, limits=httpx.Limits(max_connections=None), event_hooks={"response": [_checked]}
    )


class _NoAnswer(Exception):
    """A response with another status than 200. The SDK's errors fail on a body that is no UTF-8."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"status {response.status_code}")
        self.response = response


async def _checked(response: httpx.Response) -> None:
    if response.status_code != 200:
        await response.aread()
        raise _NoAnswer(response)


def client_of(
    http: httpx.AsyncClient,
    url: str | None,
    version: str | None,
    headers: Mapping[str, str],
    needed_by: str,
    access: Mapping[str, Any],
) -> Any:
    """The SDK's client, without its own retries and time limits.

    Args:
        access: an API key; or the project, the location and the credentials for Vertex AI.

    Raises:
        MissingExtra: the SDK is not installed.
    """
    try:
        from google import genai
        from google.genai import types
    except ImportError as error:
        raise MissingExtra("google-genai", "coach", needed_by=needed_by) from error
    options = types.HttpOptions(
        base_url=url, api_version=version, headers=dict(headers), httpx_async_client=http
    )
    # `vertexai` is set: a variable of the environment would decide otherwise.
    return genai.Client(http_options=options, **{"vertexai": False, **access})


def credentials_of(file: str, path: str) -> Any:
    """The credentials in a file: of a service account, or of a user.

    Raises:
        ConfigError: it can't be read, or holds none.
        MissingExtra: the SDK is not installed.
    """
    try:
        from google.auth import exceptions, load_credentials_from_dict
    except ImportError as error:
        raise MissingExtra("google-genai", "coach", needed_by=path) from error
    fix = "name a variable with the path of a service account's JSON file"
    try:
        with open(file, encoding="utf-8") as opened:
            info = json.load(opened)
        credentials, _ = load_credentials_from_dict(info, scopes=[SCOPE])
    except OSError as error:
        raise ConfigError("the credentials file can't be read", path=path, why=str(error), fix=fix) from None
    except (ValueError, TypeError, AttributeError, exceptions.GoogleAuthError) as error:
        why = f"{file}: {type(error).__name__} (its content is not repeated here)"
        raise ConfigError("the file holds no credentials", path=path, why=why, fix=fix) from None
    return credentials


async def generated(
    client: Any, request: ChatRequest, target: GeminiTarget, limit: int, thinking_budget: int | None
) -> Answer:
    """One attempt.

    Raises:
        Again, Refused, UserError: as of `RemoteCalls.call`'s `send`.
    """
    from google.auth import exceptions

    try:
        contents, config = _arguments(request, limit, thinking_budget)
    except Exception as error:  # of pydantic, on a text that is no Unicode
        reason = shown(f"{type(error).__name__}: {error}")
        raise Refused(f"{target.url}: nothing was sent: {reason}") from None
    try:
        reply = await client.aio.models.generate_content(model=target.model, contents=contents, config=config)
    except _NoAnswer as error:
        raise of_response(error.response, target) from None
    except httpx.TransportError as error:
        unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
        reason = shown(f"{type(error).__name__}: {error}".rstrip(": "))
        raise Again(f"{target.url}: {reason}", charged=not unsent) from None
    except exceptions.TransportError as error:
        raise Again(f"{target.url}: no access token: {shown(str(error))}") from None
    except exceptions.GoogleAuthError as error:
        if getattr(error, "retryable", False):
            raise Again(f"{target.url}: no access token: {shown(str(error))}") from None
        raise _no_credentials(error, target) from None
    except TimeoutError:
        raise
    except json.JSONDecodeError as error:
        beginning = shown(error.doc)
        raise Refused(
            f"{target.url}: an answer that is no JSON ({error}): {beginning}", charged=True
        ) from None
    except Exception as error:  # pydantic and the SDK's own, on an answer of another form
        reason = shown(f"{type(error).__name__}: {error}")
        raise Refused(f"{target.url}: an answer in another form: {reason}", charged=True) from None
    try:
        return answer_of(reply)
    except ValueError as error:
        raise Refused(f"{target.url}: {error}", charged=True) from None


def _arguments(request: ChatRequest, limit: int, thinking_budget: int | None) -> tuple[list[Any], Any]:
    """The contents and the settings of a request, in the SDK's types."""
    from google.genai import types

    system = [message["content"] for message in request.messages if message["role"] == "system"]
    others = [message for message in request.messages if message["role"] != "system"]
    if not others:  # a request has at least one content
        others, system = [{"role": "user", "content": text} for text in system], []
    contents = [
        types.Content(
            role="model" if message["role"] == "assistant" else "user",
            parts=[types.Part(text=message["content"])],
        )
        for message in others
    ]
    settings: dict[str, Any] = {"temperature": request.temperature, "max_output_tokens": limit}
    if system:
        settings["system_instruction"] = types.Content(parts=[types.Part(text="\n\n".join(system))])
    if request.temperature > 0:
        settings["seed"] = request.sample
    if request.schema is not None:
        settings |= {"response_mime_type": "application/json", "response_json_schema": dict(request.schema)}
    if thinking_budget is not None:
        settings["thinking_config"] = types.ThinkingConfig(thinking_budget=thinking_budget)
    return contents, types.GenerateContentConfig(**settings)


def answer_of(reply: Any) -> Answer:
    """The answer in a 200's body.

    Raises:
        ValueError: the provider blocked the prompt or the answer, or there is no text.
    """
    feedback = reply.prompt_feedback
    if feedback is not None and feedback.block_reason:
        raise ValueError(f"the provider's safety filter blocked the prompt ({_name(feedback.block_reason)})")
    candidate = reply.candidates[0] if reply.candidates else None
    if candidate is None:
        raise ValueError("an answer without a candidate")
    reason = _name(candidate.finish_reason)
    if reason not in WHOLE:
        raise ValueError(f"the provider withheld the answer (finishReason {reason})")
    parts = (candidate.content.parts if candidate.content is not None else None) or []
    text = "".join(part.text for part in parts if part.text and not part.thought)
    if not text.strip():
        cut = ": its limit ended it; raise thought_tokens, or set thinking_budget" * (reason == "MAX_TOKENS")
        raise ValueError(f"an answer without text{cut}")
    version = reply.model_version or ""
    return Answer({"text": text, "finish": reason}, _usage(reply.usage_metadata), version)


def _usage(counts: Any) -> Usage | None:
    """The counts of a server, thoughts with the answer; None where it has none."""
    if counts is None or counts.prompt_token_count is None:
        return None
    return Usage(
        counts.prompt_token_count, (counts.candidates_token_count or 0) + (counts.thoughts_token_count or 0)
    )


def _name(reason: Any) -> str:
    """The name of an enumeration's value; of one that the SDK doesn't know, its text."""
    return "" if reason is None else str(getattr(reason, "value", reason))


def of_response(response: httpx.Response, target: GeminiTarget) -> Failed | UserError:
    """The failure that a response without an answer stands for.

    Gemini says 400 for a wrong key and for a country or a project that may not ask; a 429 may be for the
    rest of the day, and has the seconds to wait for in its body.
    """
    status, body, headers = response.status_code, response.text, dict(response.headers)
    why = f"{target.url} answered {status}: {shown(body)}"
    if status == 400 and ("API_KEY_INVALID" in body or "API key not valid" in body):
        fix = f"check the environment variable that {target.key_path} names, by default {' or '.join(KEYS)}"
        return ConfigError("the endpoint refuses the key", path=target.key_path, why=why, fix=fix)
    if status == 400 and '"FAILED_PRECONDITION"' in body:
        fix = "check the account's billing and region, or use Vertex AI"
        return UserError("the provider refuses this account", path=target.path, why=why, fix=fix)
    if status == 429 and "PerDay" in body:
        fix = (
            "wait for the provider's next day, or raise its limit; then resume: what is cached costs nothing"
        )
        return UserError("the provider's quota of this day is spent", path=target.path, why=why, fix=fix)
    if status == 404:
        fix = "check the model's name; base_url has no version at its end (api_version sets it)"
        what = f"the endpoint does not have the model '{target.model}', or is not at this address"
        return ConfigError(what, path=f"{target.path}.model", why=why, fix=fix)
    if status in (401, 403) and target.key_path.endswith("vertex"):
        verb = "refuses the credentials" if status == 401 else "denies these credentials access"
        fix = "check the project, the location and the credentials, and that the API is enabled there"
        return ConfigError(f"Vertex AI {verb}", path=target.key_path, why=why, fix=fix)
    asked = re.search(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"', body)
    if asked is not None:
        headers.setdefault("retry-after", asked[1])
    return of_status(
        status, body, headers, url=target.url, model=target.model, path=target.path,
        model_path=f"{target.path}.model",
    )  # fmt: skip


def _no_credentials(error: Exception, target: GeminiTarget) -> ConfigError:
    return ConfigError(
        "there is no access token for Vertex AI",
        path=f"{target.key_path}.credentials",
        why=redacted(shown(f"{type(error).__name__}: {error}")),
        fix="name a valid credentials file, or run: gcloud auth application-default login",
    )
