"""What a run has once: which chat models and bounds are shared, and what stands for them elsewhere."""

from __future__ import annotations

import asyncio
import pickle
from typing import Annotated, Any

import pytest

from coterie import ChatAnswer, ChatRequest, Composed, ConfigError, Plugin, PluginConfig, SystemFault
from coterie.compose.account import Account, ModelElsewhere, Shared, named_variables, shared_parts
from coterie.compose.builder import ComponentBuilder
from coterie.compose.rollout_side import make_rollout_parts
from coterie.core.config import Resolved
from coterie.core.plugins.origin import origin_of
from coterie.recipes import load
from tests.compose.test_chat_models import MATRIX

HERE, THERE = "tests.compose.test_account", "tests.compose.test_chat_models"
CALLS: list[str] = []
QUESTION = ChatRequest(messages=({"role": "user", "content": "?"},))


class Panel(Plugin):
    """A chat model that asks others."""

    class Config(PluginConfig):
        first: Annotated[Any, Composed("chat_model")]
        second: Annotated[Any, Composed("chat_model")] = None

    structured = True

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        CALLS.append(f"make {build.path}")

    async def open(self) -> None:
        CALLS.append(f"open {self.build.path}")

    async def close(self) -> None:
        CALLS.append(f"close {self.build.path}")

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        return ChatAnswer(text=f"panel of {(await self.config.first.answer(request)).text}")


class Keyless(Plugin):
    """A chat model that can't open, and raises a bug."""

    structured = False

    async def open(self) -> None:
        if self.build.name == "closed":
            raise ConfigError("the environment variable K is not set", path=self.build.path)

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        raise KeyError("no such word")


class Fake:
    """An account in this process."""

    def __init__(self, shared: Shared) -> None:
        self.models = shared.make_models()
        self.slots_asked: list[tuple[str, int]] = []

    async def answer(self, model: int, request: ChatRequest) -> ChatAnswer:
        return await self.models.answer(model, pickle.loads(pickle.dumps(request)))

    def slots(self, name: str, limit: int) -> asyncio.Semaphore:
        self.slots_asked.append((name, limit))
        return asyncio.Semaphore(limit)


def resolved(*overrides: str) -> Resolved:
    return load(MATRIX, overrides=list(overrides))


def shared_of(made: Resolved) -> Shared:
    builder = ComponentBuilder(made.config)
    side = make_rollout_parts(made, builder).side
    return pickle.loads(pickle.dumps(shared_parts(made, side, builder.chat_models)))


def asks(name: str, model: str) -> str:
    return f"rewards.{name}={{type: '{THERE}:Asks', model: {model}}}"


WORDS = f"chat_models={{a: {{type: '{THERE}:Model', word: yes}}, b: {{type: '{THERE}:Model', word: no}}}}"
JUDGE = "policies.judge={model: {init: tabular}, train: none}"


def test_entries_and_models_written_in_a_component_are_shared_once_each():
    inline = f"{{type: '{THERE}:Model', word: inner}}"
    made = resolved(WORDS, asks("one", "a"), asks("two", "a"), asks("three", "b"), asks("four", inline))
    shared = shared_of(made)
    paths = {model.path: model.table["word"] for model in shared.models}
    assert paths == {"chat_models.a": "yes", "chat_models.b": "no", "rewards.four.model": "inner"}
    assert shared.anything and len(shared.models) == 3

    account = Fake(shared)
    side = shared.make_side(account)
    assert not [part for part in side.resources if hasattr(part, "answer")], "none is opened in a host"
    models = [source.plugin.config.model for source in side.reward_sources]
    assert models[0] is models[1] is not models[2], "as in one process"
    assert isinstance(models[3].model, ModelElsewhere)
    assert str(origin_of(models[3])).startswith(f"chat_model '{THERE}:Model'")

    async def go() -> list[str]:
        await account.models.open(None)
        try:
            return [(await model.answer(QUESTION)).text for model in models]
        finally:
            await account.models.close()

    words = asyncio.run(go())
    assert words[0] == words[1] != words[2] and words[3] == "inner"


def test_a_policy_of_the_run_stays_with_its_rollouts():
    made = resolved(JUDGE, "chat_models.own={type: policy, policy: judge}", asks("one", "own"))
    shared = shared_of(made)
    assert shared.models == () and shared.bounded
    side = shared.make_side(Fake(shared))
    assert side.reward_sources[0].plugin.config.model.use_engine


def test_a_model_inside_a_shared_one_goes_with_it_and_one_of_an_engine_keeps_both_here():
    CALLS.clear()
    panel = f"{{type: '{HERE}:Panel', first: {{type: '{THERE}:Model', word: deep}}}}"
    shared = shared_of(resolved(f"chat_models.panel={panel}", asks("one", "panel")))
    assert [(model.path, model.structured) for model in shared.models] == [("chat_models.panel", True)]
    CALLS.clear()
    account = Fake(shared)
    side = shared.make_side(account)
    assert CALLS == ["make chat_models.panel"], "by the account alone"

    async def go() -> str:
        await account.models.open(None)
        answer = await side.reward_sources[0].plugin.config.model.answer(QUESTION)
        await account.models.close()
        return answer.text

    assert asyncio.run(go()) == "panel of deep"
    assert CALLS[1:] == ["open chat_models.panel", "close chat_models.panel"]

    mixed = f"{{type: '{HERE}:Panel', first: a, second: own}}"
    own = (
        f"chat_models={{own: {{type: policy, policy: judge}}, a: {{type: '{THERE}:Model'}}, panel: {mixed}}}"
    )
    shared = shared_of(resolved(JUDGE, own, asks("one", "panel")))
    assert [model.path for model in shared.models] == ["chat_models.a"]
    side = shared.make_side(Fake(shared))
    assert isinstance(side.reward_sources[0].plugin.config.model.model, Panel)
    assert isinstance(side.reward_sources[0].plugin.config.model.config.first.model, ModelElsewhere)


def test_errors_of_a_model_are_those_of_one_process():
    made = resolved(f"chat_models.buggy={{type: '{HERE}:Keyless'}}", asks("one", "buggy"))
    shared = shared_of(made)
    side = shared.make_side(Fake(shared))
    with pytest.raises(SystemFault) as there:
        asyncio.run(side.reward_sources[0].plugin.config.model.answer(QUESTION))
    alone = make_rollout_parts(made, ComponentBuilder(made.config)).side
    with pytest.raises(SystemFault) as here:
        asyncio.run(alone.reward_sources[0].plugin.config.model.answer(QUESTION))
    assert str(there.value) == str(here.value) and "no such word" in str(here.value)

    shared = shared_of(resolved(f"chat_models.closed={{type: '{HERE}:Keyless'}}", asks("one", "closed")))
    with pytest.raises(ConfigError, match="variable K is not set") as error:
        asyncio.run(Fake(shared).models.open(None))
    assert error.value.path == "chat_models.closed"


def test_sources_that_ask_at_once_share_their_bound():
    plain, stated = "rewards={environment: {}}", "rewards={environment: {concurrency: 1}}"
    shared = shared_of(resolved(plain))
    assert not shared.anything, "it waits for nothing, and needs no account"
    shared = shared_of(resolved(stated))
    account = Fake(shared)
    side = shared.make_side(account)
    assert account.slots_asked == [("rewards.environment", 1)]

    async def held() -> bool:
        slots = side.reward_sources[0].slots()
        async with slots:
            return slots.locked()

    assert asyncio.run(held()), "core takes the shared semaphore"
    account = Fake(
        shared_of(resolved(WORDS, asks("one", "a"), asks("two", "b"), "rewards.two.concurrency=3"))
    )
    shared_of(resolved(WORDS, asks("one", "a"), asks("two", "b"), "rewards.two.concurrency=3")).make_side(
        account
    )
    assert dict(account.slots_asked) == {"rewards.one": 64, "rewards.two": 3}


def test_variables_are_told_by_the_process_that_needs_them():
    table = {
        "engine": {"api_key": "${ENGINE}"},
        "chat_models": {"coach": {"api_key": "${COACH}", "headers": {"X": "a ${EXTRA}"}}},
        "rewards": {"coach": {"model": {"base_url": "http://${PLACE}/v1"}, "api_key": "${OWN}"}},
        "tools": {"search": {"headers": {"A": "${SEARCH}"}}, "mcp": {"env": {"H": "${HOME}"}}},
        "trackers": {"w": {"key": "${TRACKER}"}},
        "team": {"order": [["${LISTED}"]]},
    }
    named = named_variables(table, ["chat_models.coach", "rewards.coach.model"])
    assert named.sides == {"OWN", "SEARCH", "HOME", "LISTED"}
    assert named.engine == {"ENGINE"}
    assert named.every == {"ENGINE", "COACH", "EXTRA", "PLACE", "OWN", "SEARCH", "TRACKER", "LISTED"}


def test_the_fake_is_an_account():
    account: Account = Fake(shared_of(resolved("rewards={environment: {}}")))
    assert account.slots("x", 2).locked() is False
