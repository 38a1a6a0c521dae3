"""What the chat models of providers share: settings, and calls within limits, a cache and a budget."""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from coterie.backends.remote.answers import Answer, expected
from coterie.backends.remote.calls import FOLDER, RemoteCalls
from coterie.backends.remote.secrets import redacted
from coterie.backends.remote.settings import RemoteSettings
from coterie.core.errors import ConfigError, UserError, WriteError
from coterie.core.plugins import MayChange, Plugin
from coterie.core.protocols import ChatAnswer, ChatRequest
from coterie.core.storage.atomic import write_atomic

log = logging.getLogger("coterie")


class RemoteChatConfig(RemoteSettings):
    """Settings of every chat model behind an endpoint."""

    model: Annotated[str, MayChange(asked=True)] = Field(
        min_length=1, description="The model's name, as the provider writes it.", examples=["gpt-5-mini"]
    )


class RemoteChatModel(Plugin, ABC):
    """Asks a provider's model. Limits, retries, the cache and the budget are those of `RemoteCalls`.

    A provider's class gives `connect`, `disconnect`, `table`, `limit`, `send` and `text`.
    """

    Config = RemoteChatConfig
    config: RemoteChatConfig
    structured = True
    instead = ""
    """What else can be done where it can't open, such as without a key; a component that asks may set it."""

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self.path = str(build.path) if build is not None else "chat_models.model"
        self._files = _file_name(self.path)
        self._folder: Path | None = None
        self._calls: RemoteCalls | None = None

    # ------------------------------------------------------------------------------- a provider's part

    @abstractmethod
    async def connect(self) -> str:
        """Make the client; nothing is sent yet. Returns the endpoint, a part of the cache's key.

        Raises:
            ConfigError: a key that is not set.
            MissingExtra: the SDK is not installed.
        """

    @abstractmethod
    async def disconnect(self) -> None:
        """Close the client."""

    @abstractmethod
    def table(self, request: ChatRequest) -> dict[str, Any]:
        """Everything that the answer depends on, as JSON with the key `model`: the cache's key."""

    @abstractmethod
    def limit(self, request: ChatRequest) -> int:
        """Most tokens that the model may generate for a request, thoughts included."""

    @abstractmethod
    async def send(self, request: ChatRequest) -> Answer:
        """One attempt. Raises as `send` of `RemoteCalls.call`."""

    @abstractmethod
    def text(self, body: Mapping[str, Any]) -> str:
        """The text of an answer's body."""

    @abstractmethod
    def finish(self, body: Mapping[str, Any]) -> str:
        """Why the text of an answer's body ended, as `ChatAnswer.finish`."""

    # ------------------------------------------------------------------------------------ the protocol

    def use_run_folder(self, folder: Path) -> None:
        """Store the cache, the budget, the usage and the model's version in a run's folder."""
        self._folder = folder

    async def open(self) -> None:
        """Make the client; nothing is sent yet.

        Raises:
            ConfigError: a key that is not set, or a budget in money without the model's price.
            UserError: the database of the cache does not work where it has to.
            MissingExtra: the SDK is not installed.
        """
        try:
            endpoint = await self.connect()
        except UserError as error:
            error.fix = "; or ".join(filter(None, (error.fix, self.instead)))
            raise
        file = None if self._folder is None else self._folder / FOLDER / f"version-{self._files}.json"
        self._versions = VersionWatch(self.path, self.config.model, file)
        calls = RemoteCalls(
            self.config, endpoint=endpoint, name=self._files, path=self.path, folder=self._folder
        )
        await calls.open({self.config.model: f"{self.path}.model"})
        self._calls = calls

    async def close(self) -> None:
        """Let the requests that were sent finish, and log what all have used."""
        if self._calls is not None:
            await self._calls.close()
            self._calls = None
        await self.disconnect()

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        """The provider's answer.

        Raises:
            SystemFault: no answer after all attempts, or one that can't be used.
            UserError: a wrong key, an unknown model, or a spent budget: the run stops.
        """
        if self._calls is None:
            raise RuntimeError("the chat model is not open")
        table = self.table(request)

        async def send() -> Answer:
            answer = await self.send(request)
            self._versions.fresh(answer.version)
            return answer

        texts = [message["content"] for message in request.messages]
        most = expected([*texts, str(table.get("schema") or "")], self.limit(request))
        answer = await self._calls.call(table, send, most)
        self._versions.cached(answer.version)
        return ChatAnswer(
            text=self.text(answer.body), version=answer.version, finish=self.finish(answer.body)
        )


def _file_name(path: str) -> str:
    """The name of a chat model's files: its entry's, or its path where it is written inside a component.

    Raises:
        ConfigError: the engine's files have this name.
    """
    name = re.sub(r"[^\w.\-]", "_", path.removeprefix("chat_models."))
    if name == "engine":
        raise ConfigError(
            "a chat model can't be called 'engine'",
            path=path,
            why="its files in the run's folder would be those of the engine (remote/engine.sqlite)",
            fix="rename the entry, and the settings that refer to it",
        )
    return name


class VersionWatch:
    """Compares the versions of answers, also with those of the run before it was resumed.

    Args:
        path: dotted path of the chat model, for the warning.
        model: the name that is asked for.
        file: where the last version is stored; None: it is forgotten with the process.
    """

    def __init__(self, path: str, model: str, file: Path | None) -> None:
        self._path, self._model, self._file = path, model, file
        self._warned: set[tuple[str, str]] = set()
        self.last = self._stored()

    def fresh(self, version: str) -> None:
        """Note the version of an answer that was just sent."""
        version = redacted(version)
        if not version or version == self.last:
            return
        before, self.last = self.last, version
        self._store()
        if before and (before, version) not in self._warned:
            self._warned.add((before, version))
            log.warning(
                "%s: the provider answers '%s' with another version: %s -> %s. Scores of the two may differ, "
                "and stored answers of %s are no longer used. fix: name a fixed version as the model, where "
                "the provider has one",
                self._path, redacted(self._model), before, version, before,
            )  # fmt: skip

    def cached(self, version: str) -> None:
        """Note the version of a stored answer, where no other is known yet."""
        if version and not self.last:
            self.last = version
            self._store()

    def _stored(self) -> str:
        if self._file is None:
            return ""
        try:
            version = json.loads(self._file.read_text(encoding="utf-8"))["version"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""  # of a first process, or damaged: the next answer names the version
        return version if isinstance(version, str) else ""

    def _store(self) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(
                self._file, json.dumps({"model": redacted(self._model), "version": self.last}) + "\n"
            )
        except (WriteError, OSError) as error:
            log.warning(
                "%s: a change of the model's version won't be seen after a resume: %s", self._path, error
            )
            self._file = None
