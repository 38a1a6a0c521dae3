"""The chat model `gemini`: Google's models through the google-genai SDK, by an API key or by Vertex AI."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from coterie.backends.chat_models import gemini_wire as wire
from coterie.backends.chat_models.remote import RemoteChatConfig, RemoteChatModel
from coterie.backends.remote.answers import Answer
from coterie.backends.remote.secrets import NAME, filled, key_of, path_of, secrets_in
from coterie.core.errors import ConfigError
from coterie.core.plugins import MayChange, PluginConfig
from coterie.core.protocols import ChatRequest

ADDRESS = "https://generativelanguage.googleapis.com"
THOUGHTS = 8192
"""Tokens for thoughts beside an answer, where the model decides itself how much it thinks."""


def _variable(value: Any, info: ValidationInfo) -> Any:
    """Accept `${NAME}` alone: a path in a configuration would be that of one machine, or the key itself."""
    if value is None or (isinstance(value, str) and NAME.fullmatch(value.strip())):
        return value if value is None else value.strip()
    raise ConfigError(
        "the setting names no environment variable",
        path=path_of(info, "vertex.credentials"),
        why="the value is not repeated here: it may be a key",
        fix="export MY_CREDENTIALS=/path/to/file.json and write credentials: ${MY_CREDENTIALS}",
    )


class Vertex(PluginConfig):
    """A project of Vertex AI."""

    project: str = Field("${VERTEX_PROJECT}", min_length=1, description="Its id, or ${NAME} of a variable.")
    location: str = Field("us-central1", min_length=1, description="Region, or `global`.")
    credentials: Annotated[str | None, BeforeValidator(_variable)] = Field(
        None,
        description="`${NAME}` of a variable with the path of a credentials file; default: the application's "
        "default credentials.",
    )


class GeminiConfig(RemoteChatConfig):
    """Asks one of Google's models."""

    vertex: Annotated[Vertex | None, MayChange()] = Field(
        None, description="Vertex AI in place of an API key: {project, location, credentials}."
    )
    api_version: str | None = Field(None, description="Such as v1beta; default: the SDK's.")
    thinking_budget: int | None = Field(
        None, ge=-1, description="Most tokens of thoughts; 0: none, -1 or null: the model decides."
    )
    thought_tokens: int | None = Field(
        None,
        ge=0,
        description="Added to the limit of a request: Gemini counts thoughts with the answer. Default: "
        f"thinking_budget, or {THOUGHTS} where the model decides.",
    )

    exclusive = (("api_key", "vertex"),)

    @field_validator("vertex", mode="before")
    @classmethod
    def _table(cls, value: object) -> object:
        return {} if value is True else value

    @model_validator(mode="after")
    def _key_or_vertex(self, info: ValidationInfo) -> GeminiConfig:
        if self.vertex is not None and self.api_key is not None:
            raise ConfigError(
                "a request has an API key or the credentials of Vertex AI, and not both",
                path=path_of(info, "vertex"),
                fix="remove api_key, or vertex",
            )
        return self

    @property
    def thoughts(self) -> int:
        if self.thought_tokens is not None:
            return self.thought_tokens
        return THOUGHTS if self.thinking_budget in (None, -1) else int(self.thinking_budget or 0)


class GeminiModel(RemoteChatModel):
    """Asks Gemini by `generateContent`; a request with a schema is answered in JSON that follows it.

    The SDK's own retries are off. A blocked prompt, a blocked answer and one without text are missing: the
    provider withheld them, and no other attempt would change it.
    """

    Config = GeminiConfig
    config: GeminiConfig

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._client: Any = None
        self._http: Any = None
        self._endpoint = ""

    async def connect(self) -> str:
        settings = self.config
        headers = secrets_in(settings.headers, f"{self.path}.headers")
        url = None
        if settings.base_url is not None:
            url = secrets_in({"base_url": settings.base_url}, self.path)["base_url"]
        if settings.vertex is None:
            access: dict[str, Any] = {"api_key": self._key()}
            self._endpoint = url or ADDRESS
        else:
            access = self._project(settings.vertex)
            place = f"projects/{access['project']}/locations/{access['location']}"
            self._endpoint = f"{url or 'https://aiplatform.googleapis.com'}/{place}"
        self._http = wire.http_client()
        self._client = wire.client_of(
            self._http, url, settings.api_version, headers, f"{self.path}.type=gemini", access
        )
        return self._endpoint

    async def disconnect(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._client = self._http = None

    def limit(self, request: ChatRequest) -> int:
        return request.max_tokens + self.config.thoughts

    def table(self, request: ChatRequest) -> dict[str, Any]:
        return {
            "api": "generateContent",
            "model": self.config.model,
            "messages": [dict(message) for message in request.messages],
            "max_tokens": self.limit(request),
            "temperature": request.temperature,
            "thinking_budget": self.config.thinking_budget,
            "schema": None if request.schema is None else dict(request.schema),
            "sample": request.sample if request.temperature > 0 else None,
        }

    async def send(self, request: ChatRequest) -> Answer:
        setting = "vertex" if self.config.vertex is not None else "api_key"
        target = wire.GeminiTarget(self._endpoint, self.config.model, self.path, f"{self.path}.{setting}")
        return await wire.generated(
            self._client, request, target, self.limit(request), self.config.thinking_budget
        )

    def text(self, body: Mapping[str, Any]) -> str:
        return str(body["text"])

    def finish(self, body: Mapping[str, Any]) -> str:
        return "length" if body.get("finish") == "MAX_TOKENS" else "stop"

    # ----------------------------------------------------------------------------------------- its parts

    def _key(self) -> str:
        path = f"{self.path}.api_key"
        if self.config.api_key is not None:
            return key_of(self.config.api_key, path)
        names = [name for name in wire.KEYS if os.environ.get(name, "").strip()]
        if not names:
            raise ConfigError(
                f"no key: neither {' nor '.join(wire.KEYS)} is set",
                path=path,
                fix=f"export {wire.KEYS[0]}=YOUR_KEY; or set {self.path}.vertex, or {path}=${{NAME}}",
            )
        return key_of(f"${{{names[0]}}}", path)

    def _project(self, vertex: Vertex) -> dict[str, Any]:
        """The SDK's arguments for a project of Vertex AI.

        Raises:
            ConfigError: a variable is not set, or the file holds no credentials.
        """
        path = f"{self.path}.vertex"
        names = filled({"project": vertex.project, "location": vertex.location}, path)
        if vertex.credentials is None:
            return {"vertexai": True, **names}
        variable = vertex.credentials[2:-1]
        file = os.environ.get(variable, "").strip()
        if not file:
            raise ConfigError(
                f"the environment variable {variable} is not set",
                path=f"{path}.credentials",
                fix=f"export {variable}=/path/to/credentials.json",
            )
        credentials = wire.credentials_of(os.path.expanduser(file), f"{path}.credentials")
        return {"vertexai": True, **names, "credentials": credentials}
