"""An engine that answers with a function: for tests, oracles and measurements without a model."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import Field, field_validator

from coterie.backends.engines.requests import call_of
from coterie.backends.models.versions import Versions
from coterie.backends.models.wordcodec import EOS_ID, WordCodec
from coterie.core.errors import ConfigError, type_text
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import EngineContext
from coterie.core.types import Call, Request, Weights

Script = Callable[[Request, str], str | Awaitable[str]]
"""(request, text of the prompt) -> answer."""


class ScriptedEngine(Plugin):
    """Answers each request with `play(request, text)`, immediately and without a batch.

    Tokens are words, every log-prob is 0, and every call ends with `<eos>`; `max_new_tokens` is ignored. A
    deterministic script gives a deterministic run. A random script should draw from `request.seed`. The
    script may raise `SystemFault`, like any engine.
    """

    class Config(PluginConfig):
        play: Any = Field(
            description="`module:function`, or (in Python) the function (request, text) -> str.",
            examples=["my_answers:answer"],
        )

        @field_validator("play")
        @classmethod
        def _names_a_function(cls, play: Any) -> Any:
            resolved(play)
            return play

    config: Config

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._play: Script = resolved(self.config.play)
        self._codec = WordCodec()
        self._versions: Versions[int] = Versions()

    async def open(self, ctx: EngineContext) -> None:
        pass

    async def close(self) -> None:
        pass

    async def load_weights(self, weights: Weights) -> None:
        self._versions.put(weights.policy, weights.version, weights.version)

    async def lease(self, policy: str, version: int) -> None:
        self._versions.lease(policy, version)

    async def release(self, policy: str, version: int) -> None:
        self._versions.release(policy, version)

    def codec(self, policy: str) -> WordCodec:
        return self._codec

    async def codecs(self, ctx: EngineContext) -> dict[str, WordCodec]:
        """Of all policies one, which knows the words that it has seen."""
        return dict.fromkeys(ctx.policies, self._codec)

    async def generate(self, request: Request) -> Call:
        known = request.policy in self._versions or request.version
        version = self._versions.at(request.policy, request.version) if known else 0
        text = self._play(request, self._codec.text(request.prompt_ids))
        if not isinstance(text, str):
            if not inspect.isawaitable(text):
                raise ConfigError(f"the script returned {type_text(text)}, not a string", path="engine.play")
            text = await text
        ids = (*self._codec.ids(text), EOS_ID)
        return call_of(request, version, ids, (0.0,) * len(ids), "stop")


def resolved(play: Any) -> Script:
    """The function that `module:function` names.

    Raises:
        ConfigError: the reference is malformed, can't be imported or is not a function.
    """
    if callable(play):
        return play
    module, _, name = str(play).partition(":")
    if not module or not name:
        raise ConfigError(
            f"{play!r} names no function", path="engine.play", fix="write it as module:function"
        )
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"there is no {play}",
            path="engine.play",
            why=f"{type(error).__name__}: {error}",
            fix="check the spelling, and that the module can be imported from here",
        ) from error
    if not callable(function):
        raise ConfigError(f"{play} is {type_text(function)}, not a function", path="engine.play")
    return function
