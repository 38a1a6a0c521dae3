"""The checks open what they check, and the chat models that it holds, as a run does."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from coterie import TEAM, ChatAnswer, ChatRequest, Composed, Plugin, PluginConfig
from coterie.core.errors import SystemFault
from coterie.testing import build, check_environment, check_reward, check_transition
from coterie.testing.support.toys import GAME, NumberGame
from tests.testing.support import caught

HERE = "tests.testing.test_opening"
EVENTS: list[str] = []
ROLES = ["one", "two"]
PLAY = {"roles": ROLES, "act": ["1", "2"]}


class Opened(Plugin):
    """It works between `open` and `close` alone."""

    open_now = False

    async def open(self) -> None:
        EVENTS.append(f"open {type(self).__name__}")
        self.open_now = True

    async def close(self) -> None:
        EVENTS.append(f"close {type(self).__name__}")
        self.open_now = False


class Model(Opened):
    structured = False

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        if not self.open_now:
            raise SystemFault("it is not open")
        return ChatAnswer(text="5")


class Engined(Model):
    def use_engine(self, engine: Any) -> None:
        EVENTS.append(f"use {engine}")


class Asks(Plugin):
    class Config(PluginConfig):
        model: Annotated[Any, Composed("chat_model")]

    async def ask(self) -> str:
        return (
            await self.config.model.answer(ChatRequest(messages=({"role": "user", "content": "?"},)))
        ).text


class Adviser(Asks):
    async def tell(self, role: str, state: Any, history: Any, environment: Any) -> list[str]:
        return [await self.ask()]


class Judge(Asks):
    scope = "joint"
    components = {"judged": "increment"}
    weights: dict[str, float] = {}
    policy_fault = 0.0

    async def score(self, view: Any) -> dict[Any, float]:
        return {(TEAM, "judged"): float(await self.ask())}


class Game(Opened, NumberGame):
    """A game whose steps need a connection."""

    async def step(self, state: Any, actions: Any, ctx: Any) -> Any:
        if not self.open_now:
            raise RuntimeError("the game is not open")
        return await super().step(state, actions, ctx)


@pytest.fixture(autouse=True)
def _no_events():
    EVENTS.clear()


def game() -> Any:
    return build("environment", GAME, order=ROLES)


@pytest.mark.parametrize("model", ["Model", "Engined"])
def test_the_chat_model_of_a_transition_mode_is_open(model):
    mode = build("transition", {"type": f"{HERE}:Adviser", "model": {"type": f"{HERE}:{model}"}}, order=ROLES)
    check_transition(mode, game(), **PLAY, engine="the engine")
    use = ["use the engine"] if model == "Engined" else []
    assert [*use, f"open {model}", f"close {model}"] == EVENTS
    if model == "Engined":
        caught("Engined: needs an engine", check_transition, mode, game(), **PLAY)


def test_the_chat_model_of_a_reward_source_is_open():
    source = build("reward", {"type": f"{HERE}:Judge", "model": {"type": f"{HERE}:Model"}}, order=ROLES)
    check_reward(source, environment=game(), **PLAY)
    assert EVENTS == ["open Model", "close Model"]


def test_an_environment_is_open_while_it_is_played():
    """The second instance, which the check of its memory plays, too."""
    table = {"type": f"{HERE}:Game"}
    check_environment(build("environment", table, order=ROLES), **PLAY, episodes=3)
    assert EVENTS == ["open Game", "open Game", "close Game", "close Game"]


@pytest.mark.parametrize("method", ["open", "close"])
def test_an_environment_that_does_not_open_or_close_is_caught(method):
    async def broken(self: Any) -> None:
        raise ConnectionError("no such server")

    made = build("environment", {"type": f"{HERE}:Game"}, order=ROLES)
    made.__class__ = type("Broken", (Game,), {method: broken})
    caught(f"Broken.{method}: raised ConnectionError", check_environment, made, **PLAY, episodes=1)
