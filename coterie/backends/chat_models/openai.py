"""The chat model `openai`: any endpoint with OpenAI's protocol, through its SDK."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from coterie.backends.chat_models.remote import RemoteChatConfig, RemoteChatModel
from coterie.backends.remote.answers import Answer
from coterie.backends.remote.faults import Refused
from coterie.backends.remote.openai_wire import client_of, completion_of, posted, sent_message
from coterie.backends.remote.secrets import key_of, path_of, redacted, secrets_in
from coterie.backends.remote.settings import LIMITS, further_fields, omitted_fields
from coterie.backends.remote.vendors import AUTO, VENDORS, Json, Vendor, vendor_of
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import MayChange
from coterie.core.protocols import ChatRequest

log = logging.getLogger("coterie")

FORMS: tuple[Json, ...] = ("schema", "object", "off")
"""Of asking for JSON, each for endpoints that refuse the one before."""
_REFUSES_FORM = re.compile(r"response.?format|json.?schema|json.?object|structured|guided|grammar", re.I)
"""What an endpoint writes of a form of JSON that it doesn't have."""
RESERVED = {
    "model": "set the chat model's own setting model",
    **dict.fromkeys(
        ("messages", "prompt", "tools", "tool_choice"), "the component that asks makes the messages"
    ),
    **dict.fromkeys((*LIMITS, "max_output_tokens"), "the component that asks sets the limit"),
    **dict.fromkeys(("n", "temperature", "seed"), "the component that asks sets it"),
    "response_format": "set json: auto, schema, object or off",
    **dict.fromkeys(("stream", "stream_options"), "remove it: a whole answer is read at once"),
}


def _further(fields: Any, info: ValidationInfo) -> Any:
    return further_fields(fields, info, RESERVED, "the chat model")


def _omitted(names: Any, info: ValidationInfo) -> Any:
    return omitted_fields(names, info, ("model", "messages"), path_of(info, "limit_field"))


def _known_vendor(name: Any, info: ValidationInfo) -> Any:
    if name is not None and name != AUTO and name not in VENDORS:
        fix = f"{did_you_mean(str(name), VENDORS)}; or set base_url and api_key"
        raise ConfigError(f"no vendor is called '{name}'", path=path_of(info, "vendor"), fix=fix)
    return name


class OpenAIChatConfig(RemoteChatConfig):
    """Asks a model behind an endpoint with OpenAI's protocol, by /chat/completions."""

    vendor: Annotated[str | None, BeforeValidator(_known_vendor), MayChange()] = Field(
        None,
        description="Name of a vendor, for its address and the variable of its key; default: openai. `auto`: "
        "the vendor whose models have such names.",
    )
    json_form: Literal["auto", "schema", "object", "off"] = Field(
        "auto",
        alias="json",
        description="How JSON is asked for: `schema` and `object` by `response_format`, `off`: not at all; "
        "`auto`: by a schema, and where the endpoint refuses that, by the next form.",
    )
    limit_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="Name of the token limit; OpenAI's reasoning models take the second."
    )
    thought_tokens: int = Field(
        0, ge=0, description="Added to the limit, for models whose thoughts count as a part of the answer."
    )
    omit: Annotated[list[str], BeforeValidator(_omitted)] = Field(
        default_factory=list,
        description="Fields that are not sent, such as temperature or seed where a model refuses them.",
    )
    fields: Annotated[dict[str, Any], BeforeValidator(_further)] = Field(
        default_factory=dict,
        description="Further fields of every request, such as reasoning_effort; none that are set anyway.",
    )


class OpenAIChat(RemoteChatModel):
    """Asks an endpoint with OpenAI's protocol: OpenAI's own, another vendor's, or a vLLM server of one's own.

    A plugin adds a vendor by a class of its own: `class Acme(OpenAIChat): row = Vendor(url, "ACME_API_KEY")`.
    """

    Config = OpenAIChatConfig
    config: OpenAIChatConfig
    row: Vendor | None = None
    """The vendor of a class of its own; None: `vendor` names it."""

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        settings = self.config
        vendor = _vendor_by_model(settings, self.path) if settings.vendor == AUTO else settings.vendor
        known = self.row is not None or vendor is not None or settings.base_url is None
        named = VENDORS[vendor or "openai"] if self.row is None or vendor else self.row
        self._vendor = named if known else Vendor(settings.base_url or "")
        self._json: Json = self._vendor.json if settings.json_form == "auto" else settings.json_form
        self._client: Any = None

    @property
    def structured(self) -> bool:  # type: ignore[override]
        """Whether JSON is asked for, by the endpoint's own means or in words."""
        return self.config.json_form != "off"

    async def connect(self) -> str:
        settings, vendor = self.config, self._vendor
        setting = settings.api_key or (f"${{{vendor.key}}}" if vendor.key else None)
        key = None if setting is None else key_of(setting, f"{self.path}.api_key")
        headers = secrets_in(settings.headers, f"{self.path}.headers")
        url = secrets_in({"base_url": settings.base_url or vendor.base_url}, self.path)["base_url"]
        self._client = client_of(url, key, headers, f"{self.path}.type=openai")
        return url

    async def disconnect(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    def limit(self, request: ChatRequest) -> int:
        return request.max_tokens + self.config.thought_tokens

    def table(self, request: ChatRequest) -> dict[str, Any]:
        # Which form of JSON the endpoint has shows in the course of a run. It is no part of the key, so a
        # resumed run finds its answers before it has asked.
        return {
            "api": "chat",
            **self._plain(request),
            "json": self.config.json_form,
            "schema": self._schema(request),
            "sample": request.sample if request.temperature > 0 else None,
        }

    async def send(self, request: ChatRequest) -> Answer:
        while True:
            form = self._json
            body = self._body(request, form)
            try:
                answer = await posted(self._client, "chat", body, self.path, f"{self.path}.model")
                return self._with_text(answer)
            except Refused as fault:
                lower = FORMS[FORMS.index(form) + 1 :]
                refused = fault.status in (400, 415, 422) and _REFUSES_FORM.search(str(fault))
                if not (refused and lower and self._schema(request) and self.config.json_form == "auto"):
                    raise
                if self._json == form:  # else a call at the same time saw it first
                    self._json = lower[0]
                    log.warning(
                        "%s: the endpoint refuses JSON by %s (%s): from now on JSON is asked for %s. Set "
                        "%s.json=%s to begin with that",
                        self.path, form, redacted(str(fault)), _IN_WORDS[lower[0]], self.path, lower[0],
                    )  # fmt: skip

    def text(self, body: Mapping[str, Any]) -> str:
        return completion_of(body, "chat").text

    def finish(self, body: Mapping[str, Any]) -> str:
        return completion_of(body, "chat").finish

    # ----------------------------------------------------------------------------------------- its parts

    def _with_text(self, answer: Answer) -> Answer:
        """The answer, unless it is empty: a model whose thoughts used up the limit writes none."""
        completion = completion_of(answer.body, "chat")
        if completion.text.strip():
            return answer
        cut = (
            f": its limit ended it; raise {self.path}.thought_tokens" if completion.finish == "length" else ""
        )
        raise Refused(f"{redacted(str(self._client.base_url))}: an answer without text{cut}", charged=True)

    def _schema(self, request: ChatRequest) -> Mapping[str, Any] | None:
        return dict(request.schema) if self.structured and request.schema is not None else None

    def _plain(self, request: ChatRequest) -> dict[str, Any]:
        """The body without a form of JSON."""
        settings = self.config
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": [sent_message(message) for message in request.messages],
            settings.limit_field: self.limit(request),
            "temperature": request.temperature,
        }
        if request.temperature > 0:
            body["seed"] = request.sample
        return body | settings.fields

    def _body(self, request: ChatRequest, form: Json) -> dict[str, Any]:
        body, schema = self._plain(request), self._schema(request)
        for name in (*self.config.omit, *self._vendor.omit):
            body.pop(name, None)
        if schema is None:
            return body
        if form == "schema":
            strict = _strict(schema)
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": strict, "strict": True},
            }
            return body
        if form == "object":
            body["response_format"] = {"type": "json_object"}
        wish = f"Answer with one JSON object by this JSON schema, and nothing else: {json.dumps(schema)}"
        body["messages"] = [*body["messages"][:-1], _with(body["messages"][-1], wish)]
        return body


def _vendor_by_model(settings: OpenAIChatConfig, path: str) -> str | None:
    """The vendor of the model's name; None with `base_url`: an address of one's own gets no vendor's key.

    Raises:
        ConfigError: no vendor is known for the name.
    """
    if settings.base_url is not None:
        return None
    vendor = vendor_of(settings.model)
    if vendor is None:
        raise ConfigError(
            f"no vendor is known for the model '{redacted(settings.model)}'",
            path=f"{path}.vendor",
            fix="set base_url, and api_key=${NAME} where the endpoint needs a key; or name the vendor: "
            + ", ".join(sorted(VENDORS)),
        )
    return vendor


_IN_WORDS = {
    "object": "as an object, with the schema in the prompt",
    "off": "by the schema in the prompt alone",
}


def _with(message: Mapping[str, str], wish: str) -> dict[str, str]:
    return {**message, "content": f"{message['content']}\n\n{wish}"}


def _strict(schema: Any) -> Any:
    """A schema as `strict` needs it: no object has other properties, and all of its own are required."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    table = {name: _strict(part) for name, part in schema.items()}
    if table.get("type") == "object" and isinstance(table.get("properties"), Mapping):
        table |= {"additionalProperties": False, "required": list(table["properties"])}
    return table
