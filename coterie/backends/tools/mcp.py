"""The tool `mcp`: the tools of a Model Context Protocol server, through the official client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, TextIO

from pydantic import Field, model_validator

from coterie import logs
from coterie.backends.models.patience import Patience
from coterie.backends.remote.secrets import filled, secrets_in
from coterie.backends.tools.calls import ToolUse, beginning, native, numbered, schema
from coterie.core.errors import ConfigError, MissingExtra, SystemFault
from coterie.core.plugins import Plugin, PluginConfig

log = logging.getLogger("coterie")

_END_SECONDS = 10.0
"""For the client to end a server's process: within 5 seconds it has killed one that hangs."""


class _Unreachable(Exception):
    """The server can't be started, or doesn't complete the connection."""


class McpTool(Plugin):
    """Lists the server's tools, gives their schemas to the chat template, and runs the model's native calls.

    `command` starts the server (stdio), or `url` names a running one (streamable HTTP). If the server dies,
    the current call is a system fault and the next call connects again. A server serves all branches of a
    step at the same time. It should keep no state between calls: siblings would see one another's changes.
    """

    class Config(PluginConfig):
        command: list[str] = Field(
            default_factory=list, description="Program and arguments; stdio.", examples=[["my-mcp-server"]]
        )
        env: dict[str, str] = Field(
            default_factory=dict,
            description="Environment of the command, besides PATH, HOME and the like. ${NAME} in a value "
            "stands for an environment variable of this process, such as a key.",
        )
        url: str | None = Field(None, description="Address of a streamable HTTP server.")
        headers: dict[str, str] = Field(
            default_factory=dict, description="HTTP headers; ${NAME} as in `env`."
        )
        only: list[str] | None = Field(None, description="Tools that the role may use; default: all.")
        announce: bool = Field(
            True,
            description="Give the schemas to the chat template. False: the role's prompt describes the "
            "tools.",
        )
        timeout: float = Field(30.0, gt=0, description="Seconds per call, and to connect.")
        result_chars: int = Field(8000, ge=100, description="First characters kept of a result.")

        exclusive = (("command", "url"),)
        only_with = {"env": "command", "headers": "url"}

        @model_validator(mode="after")
        def _one_way(self) -> McpTool.Config:
            if bool(self.command) == (self.url is not None):
                raise ValueError("give either `command` or `url`")
            if self.headers and self.url is None:
                raise ValueError("`headers` are for `url`")
            if self.env and not self.command:
                raise ValueError("`env` is for `command`")
            return self

    config: Config

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._schemas: dict[str, dict[str, Any]] = {}
        self._connecting = asyncio.Lock()
        self._client: Any = None
        self._serving: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    @property
    def name(self) -> str:
        return str(self.build.name)

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """The tools' schemas for the chat template; empty before `open`."""
        return tuple(self._schemas.values()) if self.config.announce else ()

    async def open(self) -> None:
        """Connect, and list the server's tools.

        Raises:
            MissingExtra: the client is not installed.
            ConfigError: no server answers, or it lacks a tool that `only` names.
        """
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise MissingExtra("mcp", "mcp", needed_by="tool 'mcp'") from None
        self._connecting = asyncio.Lock()  # belongs to the running event loop
        try:
            client = await self._connected()
            self._schemas = await self._listed(client)
        except _Unreachable as error:
            raise ConfigError(
                "the MCP server can't be reached",
                path=self.build.path,
                why=f"{error}{self._see()}",
                fix="run its command by hand, or check the url",
            ) from error
        for name in self.config.only or ():
            if name not in self._schemas:
                known = ", ".join(sorted(self._schemas)) or "none"
                raise ConfigError(
                    f"the server has no tool '{name}'",
                    path=f"{self.build.path}.only",
                    fix=f"it has: {known}",
                )
        if self.config.only is not None:
            self._schemas = {name: self._schemas[name] for name in self.config.only}

    async def close(self) -> None:
        await self._drop(self._client)

    def find(self, text: str) -> tuple[ToolUse, ...] | None:
        """The native calls of the server's tools."""
        return native(text, tuple(self._schemas)) or None

    async def run(self, call: tuple[ToolUse, ...]) -> str:
        """The server's answers as a text for the model; errors of its tools are answers too.

        Raises:
            SystemFault: the server died, or doesn't answer.
        """
        return numbered([await self._used(use) for use in call])

    async def _used(self, use: ToolUse) -> str:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        if use.error:
            return f"error: {use.error}"
        settings = self.config
        try:
            client = await self._connected()
        except _Unreachable as error:
            raise SystemFault(f"the MCP server can't be reached: {error}") from error
        patience = Patience(f"the MCP server of tool '{self.name}'", settings.timeout)
        try:
            answer = await client.call_tool(
                use.name, dict(use.arguments), read_timeout_seconds=settings.timeout
            )
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT and await self._lives(client):
                # The server works, so the call caused this: a hanging tool must not make a score missing.
                return f"error: no answer within {settings.timeout:g} seconds"
            if error.code == REQUEST_TIMEOUT:
                log.warning("%s: the next call connects anew", patience)
                await self._drop(client)
                raise SystemFault(str(patience)) from error
            if error.code == CONNECTION_CLOSED:
                await self._drop(client)
                raise SystemFault(f"the MCP server is gone: {error}") from error
            return f"error: {beginning(str(error), settings.result_chars)}"
        except Exception as error:  # transports raise anything, as do answers that violate the protocol
            await self._drop(client)
            raise SystemFault(f"the MCP server failed: {_cause(error)}") from error
        return beginning(_answer_text(answer), settings.result_chars)

    async def _lives(self, client: Any) -> bool:
        try:
            async with asyncio.timeout(self.config.timeout):
                await client.list_tools(cache_mode="refresh")
        except Exception:
            return False
        return True

    async def _listed(self, client: Any) -> dict[str, dict[str, Any]]:
        schemas, cursor = {}, None
        while True:
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                schemas[tool.name] = schema(tool.name, tool.description or "", tool.input_schema)
            cursor = page.next_cursor
            if cursor is None:
                return schemas

    # ------------------------------------------------------------------------------------- connection

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._client is None or self._serving is None or self._serving.done():
                self._stop = asyncio.Event()
                ready = asyncio.get_running_loop().create_future()
                self._serving = asyncio.create_task(self._serve(ready, self._stop))
                try:
                    self._client = await asyncio.wait_for(asyncio.shield(ready), self.config.timeout)
                except TimeoutError:
                    self._serving.cancel()
                    await asyncio.wait([self._serving], timeout=_END_SECONDS)
                    raise _Unreachable(f"no greeting within {self.config.timeout:g} seconds") from None
            return self._client

    async def _serve(self, ready: asyncio.Future[Any], stop: asyncio.Event) -> None:
        """Keep the connection open in one task: the task that enters the client's scopes must leave them."""
        from mcp import Client

        errors = logs.opened(f"mcp-{self.name}") if self.config.command else None
        try:
            async with Client(self._server(errors), read_timeout_seconds=self.config.timeout) as client:
                ready.set_result(client)
                await stop.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(_Unreachable(_cause(error)))
            elif not stop.is_set():
                text = f"{_cause(error)}{self._see()}"
                log.warning("tool '%s': the MCP server is gone: %s", self.name, text)
        finally:
            if errors is not None:
                errors.close()

    def _see(self) -> str:
        """Where a server that this tool starts has said more, for a message."""
        return f"; see {logs.where(f'mcp-{self.name}')}" if self.config.command else ""

    def _server(self, errors: TextIO | None) -> Any:
        from mcp import StdioServerParameters, stdio_client

        settings, path = self.config, self.build.path
        if settings.url is None:
            env = filled(settings.env, f"{path}.env")
            command = StdioServerParameters(command=settings.command[0], args=settings.command[1:], env=env)
            return command if errors is None else stdio_client(command, errlog=errors)
        if not settings.headers:
            return settings.url
        import httpx2  # the HTTP client of mcp
        from mcp.client.streamable_http import streamable_http_client

        client = httpx2.AsyncClient(
            headers=secrets_in(settings.headers, f"{path}.headers"), timeout=settings.timeout
        )
        return streamable_http_client(settings.url, http_client=client)

    async def _drop(self, client: Any) -> None:
        """Close a connection, unless another call has already replaced it."""
        async with self._connecting:
            if client is None or client is not self._client or self._serving is None:
                return
            self._stop.set()
            await asyncio.wait([self._serving], timeout=_END_SECONDS)
            self._serving.cancel()
            self._client = self._serving = None


def _cause(error: BaseException) -> str:
    """The first exception of a group, as text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _answer_text(answer: Any) -> str:
    parts = [block.text if block.type == "text" else f"[{block.type}]" for block in answer.content]
    if not parts and isinstance(answer.structured_content, Mapping):
        parts = [str(dict(answer.structured_content))]
    text = "\n".join(parts) or "(nothing)"
    return f"error: {text}" if answer.is_error else text
