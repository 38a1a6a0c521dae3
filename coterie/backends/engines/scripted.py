"""An engine that plays by a function: for tests, oracles, and measuring everything but a model."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import Field

from coterie.backends.models.wordcodec import EOS_ID, WordCodec
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import EngineContext
from coterie.core.types import Call, Request, Weights

RolloutPass = Callable[[Request, str], str | Awaitable[str]]
"""(request, text of the prompt) -> answer."""


class ScriptedEngine(Plugin):
    """Answers with `play(request, text)`, at once and without a batch.

    Tokens are words, every log-prob is 0, and every call ends with `<eos>` whatever `max_new_tokens` says:
    the script decides. A deterministic script gives a deterministic run; for a random one, draw from
    `request.seed`. The script may raise `SystemFault`, as any engine.
    """

    class Config(PluginConfig):
        play: Any = Field(
            description="`module:function`, or (in Python) the function (request, text) -> str."
        )

    config: Config

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._play: RolloutPass = resolved(self.config.play)
        self._codec = WordCodec()
        self._versions: dict[str, int] = {}

    async def open(self, ctx: EngineContext) -> None:
        pass

    async def close(self) -> None:
        pass

    async def load_weights(self, weights: Weights) -> None:
        self._versions[weights.policy] = weights.version

    def codec(self, policy: str) -> WordCodec:
        return self._codec

    async def generate(self, request: Request) -> Call:
        text = self._play(request, self._codec.text(request.prompt_ids))
        if not isinstance(text, str):
            if not inspect.isawaitable(text):
                raise ConfigError(
                    f"the script answered with a {type(text).__name__}, not with text", path="engine.play"
                )
            text = await text
        ids = (*self._codec.ids(text), EOS_ID)
        return Call(
            prompt_ids=request.prompt_ids,
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            version=self._versions.get(request.policy, 0),
            finish="stop",
            continues=request.continues,
        )


def resolved(play: Any) -> RolloutPass:
    """The function that `module:function` names.

    Raises:
        ConfigError: there is none.
    """
    if callable(play):
        return play
    module, _, name = str(play).partition(":")
    if not module or not name:
        raise ConfigError(
            f"{play!r} names no function", path="engine.play", fix="write it as module:function"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"there is no {play}",
            path="engine.play",
            why=f"{type(error).__name__}: {error}",
            fix="check the spelling, and that the module can be imported from here",
        ) from error
    if not callable(found):
        raise ConfigError(f"{play} is a {type(found).__name__}, not a function", path="engine.play")
    return found
