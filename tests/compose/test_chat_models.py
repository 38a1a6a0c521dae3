"""The table `chat_models`: components name its entries, each is made once, and the rest is checked."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml

import coterie
from coterie import (
    TEAM,
    ChatAnswer,
    ChatRequest,
    Composed,
    ConfigError,
    Plugin,
    PluginConfig,
    PolicyFault,
    SystemFault,
)
from coterie.core.errors import PluginError, RunFolderError, TooManyMissing
from coterie.testing.support.runs import coterie_run, play_episode
from tests.cli.support import coterie as command

HERE = "tests.compose.test_chat_models"
MATRIX = str(Path(__file__).parents[1] / "recipes" / "matrix.yaml")


class Asks(Plugin):
    """A reward source with a chat model."""

    class Config(PluginConfig):
        model: Annotated[Any, Composed("chat_model")]

    scope = "joint"
    weights = {}
    policy_fault = 0.0

    @property
    def components(self):
        return {f"asked_{self.build.name}": "increment"}

    async def score(self, view):
        return {}


class Reads(Asks):
    """A source that reads an answer without a look at it."""

    async def score(self, view):
        answer = await self.config.model.answer(ChatRequest(messages=({"role": "user", "content": "?"},)))
        return {(TEAM, f"asked_{self.build.name}"): float(answer.text)}


class Model(Plugin):
    """A chat model that notes what is done with it."""

    class Config(PluginConfig):
        word: str = "yes"

    structured = False
    opened = closed = 0
    folder = None

    def use_run_folder(self, folder):
        self.folder = folder

    async def open(self):
        self.opened += 1

    async def close(self):
        self.closed += 1

    async def answer(self, request):
        return ChatAnswer(text=self.config.word)


MODEL = {"type": f"{HERE}:Model"}


def asks(model, name="r"):
    return {name: {"type": f"{HERE}:Asks", "model": model}}


def models(run):
    return [source.plugin.config.model for source in run.reward_sources]


def resources(run):
    return [part for part in run.rollout_side.resources if isinstance(part, Model)]


def test_components_that_name_an_entry_share_it():
    run = coterie_run(rewards={**asks("judge", "r"), **asks("judge", "s")}, chat_models={"judge": MODEL})
    first, second = models(run)
    assert first is second and resources(run) == [first.model]
    play_episode(run)
    assert (first.opened, first.closed) == (1, 1)


def test_a_table_in_the_component_is_a_chat_model_of_its_own():
    run = coterie_run(rewards={**asks(MODEL, "r"), **asks(MODEL, "s")})
    first, second = models(run)
    assert first is not second and first.build.path == "rewards.r.model"
    assert resources(run) == [first.model, second.model]


def test_the_name_of_a_plugin_is_short_for_its_table_unless_an_entry_has_it():
    (plain,) = models(coterie_run(rewards=asks("heuristic")))
    assert type(plain.model).__name__ == "Heuristic" and plain.build.path == "rewards.r.model"
    entry = {"heuristic": {**MODEL, "word": "no"}}
    (named,) = models(coterie_run(rewards=asks("heuristic"), chat_models=entry))
    assert type(named.model).__name__ == "Model" and named.config.word == "no"
    assert named.build.path == "chat_models.heuristic" and named.build.name == "heuristic"


@pytest.mark.parametrize(
    ("model", "entries", "path", "words"),
    [
        ("jugde", {"judge": MODEL}, "rewards.r.model", "did you mean 'judge'?"),
        ("hueristic", {}, "rewards.r.model", "did you mean 'heuristic'?"),
        (MODEL, {"judge": MODEL}, "chat_models.judge", "nothing uses this"),
        ("judge", {"judge": MODEL, "other": MODEL}, "chat_models.other", "nothing uses this"),
        ("judge", {"judge": {**MODEL, "wrod": "x"}}, "chat_models.judge.wrod", "did you mean 'word'?"),
        ("judge", {"judge": {"type": "openia", "model": "m"}}, "chat_models.judge.type", "openai"),
        ("judge", {"judge": {"word": "x"}}, "chat_models.judge.type", "'type' is missing"),
        ("judge", {"judge": {"type": "policy", "policy": "q"}}, "chat_models.judge.policy", "known: p"),
    ],
)
def test_what_is_wrong_with_an_entry_is_named(model, entries, path, words):
    with pytest.raises((ConfigError, PluginError)) as caught:
        coterie_run(rewards=asks(model), chat_models=entries)
    assert caught.value.path == path and words in str(caught.value)


class Needs(Model):
    """A chat model that needs another one."""

    class Config(PluginConfig):
        other: Annotated[Any, Composed("chat_model")]


def needs(other):
    return {"type": f"{HERE}:Needs", "other": other}


@pytest.mark.parametrize(
    ("entries", "path", "cycle"),
    [
        ({"a": needs("a")}, "chat_models.a.other", "chat_models.a -> chat_models.a"),
        (
            {"a": needs("b"), "b": needs("c"), "c": needs("b")},
            "chat_models.c.other",
            "chat_models.b -> chat_models.c -> chat_models.b",
        ),
    ],
)
def test_a_cycle_is_shown(entries, path, cycle):
    with pytest.raises(ConfigError, match="in a cycle") as caught:
        coterie_run(rewards=asks("a"), chat_models=entries)
    assert caught.value.path == path and caught.value.why.endswith(f": {cycle}")


def test_two_that_need_the_same_one_are_no_cycle():
    entries = {"a": needs("c"), "b": needs("c"), "c": MODEL}
    first, second = models(coterie_run(rewards={**asks("a", "r"), **asks("b", "s")}, chat_models=entries))
    assert first.config.other is second.config.other


class MayAsk(Asks):
    class Config(PluginConfig):
        model: Annotated[Any, Composed("chat_model")] = None


@pytest.mark.parametrize("given", [None, 3, True, 0.5, ["judge"]])
def test_what_is_no_chat_model_is_refused_where_one_is_needed(given):
    with pytest.raises(ConfigError, match="a chat model is needed here") as caught:
        coterie_run(rewards=asks(given), chat_models={})
    assert caught.value.path == "rewards.r.model" and "`chat_models`" in caught.value.fix
    if given is not None:
        with pytest.raises(ConfigError, match="a chat model is needed here"):
            coterie_run(rewards={"r": {"type": f"{HERE}:MayAsk", "model": given}})


def test_null_is_accepted_where_a_field_may_be_empty():
    assert models(coterie_run(rewards={"r": {"type": f"{HERE}:MayAsk", "model": None}})) == [None]


@pytest.mark.parametrize(("table", "warned"), [(MODEL, True), ({"type": "heuristic"}, False)])
def test_an_entry_with_the_name_of_another_plugin_is_a_warning(caplog, table, warned):
    coterie_run(rewards=asks("heuristic"), chat_models={"heuristic": table})
    text = "chat_models.heuristic has the name of a chat model plugin"
    assert (text in caplog.text) is warned


# ------------------------------------------------------------------------------------- what a model returns


class Gives(Model):
    """A chat model that returns, or raises, what the test sets."""

    given: Any = None

    async def answer(self, request):
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given(request) if callable(self.given) else self.given


def answer_of(given, text="go"):
    table = {"type": f"{HERE}:Gives"}
    (model,) = models(coterie_run(rewards=asks("judge"), chat_models={"judge": table}))
    model.model.given = given
    return asyncio.run(model.answer(ChatRequest(messages=({"role": "user", "content": text},), max_tokens=7)))


@pytest.mark.parametrize(
    "error", [PolicyFault("p"), KeyError("k"), SystemExit(3), TimeoutError(), asyncio.CancelledError()]
)
def test_what_a_model_raises_is_no_fault_of_the_output(error):
    with pytest.raises(SystemFault, match=f"Gives' of tests: answer raised {type(error).__name__}"):
        answer_of(error)


class Waits(Model):
    async def answer(self, request):
        await asyncio.sleep(60)


def test_a_run_that_ends_while_it_asks_is_cancelled():
    async def ended():
        (model,) = models(coterie_run(rewards=asks("j"), chat_models={"j": {"type": f"{HERE}:Waits"}}))
        task = asyncio.ensure_future(model.answer(ChatRequest(messages=())))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ended())


def test_a_long_error_is_cut():
    with pytest.raises(SystemFault) as caught:
        answer_of(ValueError("y" * 1_000_000))
    assert 2_000 < len(str(caught.value)) < 2_200


def test_its_own_system_fault_is_left_alone():
    with pytest.raises(SystemFault) as caught:
        answer_of(SystemFault("503"))
    assert str(caught.value) == "503"


def test_a_user_error_has_the_path_of_the_model():
    with pytest.raises(ConfigError) as caught:
        answer_of(ConfigError("the budget is spent"))
    assert caught.value.path == "chat_models.judge"
    with pytest.raises(ConfigError) as caught:
        answer_of(ConfigError("a wrong key", path="chat_models.judge.api_key"))
    assert caught.value.path == "chat_models.judge.api_key"


@pytest.mark.parametrize(
    "given", [None, "text", ChatAnswer(text=b"x"), ChatAnswer(text="x", version=None), ChatAnswer(text=None)]
)
def test_an_answer_that_is_no_text_is_refused(given):
    with pytest.raises(PluginError, match="answer returned") as caught:
        answer_of(given)
    assert caught.value.path == "chat_models.judge" and "coterie.ChatAnswer" in caught.value.fix


def test_texts_are_those_that_utf8_can_encode():
    """In the answer, in its version and in the request."""
    asked = []

    def echo(request):
        asked.append(request)
        return ChatAnswer(text="\ud800 é \U0001f600", version="v\udfff")

    assert answer_of(echo, text="\udc00?") == ChatAnswer(text="\ufffd é \U0001f600", version="v\ufffd")
    (request,) = asked
    assert request.messages[0]["content"] == "\ufffd?" and request.max_tokens == 7


def test_a_handed_model_can_be_copied():
    (model,) = models(coterie_run(rewards=asks(MODEL)))
    assert copy.copy(model).model is model.model and model.config.word == "yes"


def test_a_policy_that_only_judges_is_used():
    judge = {"model": {"init": "none"}, "train": "none"}
    policies = {"p": judge, "judge": judge}
    table = {"judge": {"type": "policy", "policy": "judge"}}
    (model,) = models(coterie_run(rewards=asks("judge"), chat_models=table, policies=policies))
    assert model.config.policy == "judge"
    (model,) = models(coterie_run(rewards=asks(table["judge"]), policies=policies))
    assert model.config.policy == "judge", "also where the model is written inside the source"
    with pytest.raises(ConfigError, match="judge"):
        coterie_run(rewards=asks(MODEL), policies=policies)
    with pytest.raises(ConfigError, match="unknown policy 'jude'") as caught:
        coterie_run(rewards=asks({"type": "policy", "policy": "jude"}), policies=policies)
    assert caught.value.path == "rewards.r.model.policy"


def plain_answer(self, request):
    return ChatAnswer(text="1")


def gives(value):
    async def answer(self, request):
        return value

    return answer


def reads(monkeypatch, answer):
    """A run whose source asks a chat model with this `answer`, which is set after it was made."""
    rewards = {"r": {"type": f"{HERE}:Reads", "model": "judge", "weights": {"asked_r": 1.0}}}
    run = coterie_run(rewards=rewards, chat_models={"judge": MODEL})
    monkeypatch.setattr(Model, "answer", answer)
    return run


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (gives(None), "answer returned None"),
        (gives("1"), "answer returned '1'"),
        (gives(ChatAnswer(text=None)), "return coterie.ChatAnswer(text=..., version=...)"),
        (plain_answer, "`answer` must be `async def`"),
    ],
)
def test_an_answer_that_is_none_names_the_chat_model(monkeypatch, answer, words):
    with pytest.raises(PluginError) as caught:
        play_episode(reads(monkeypatch, answer))
    assert caught.value.path == "chat_models.judge"
    assert f"chat_model '{HERE}:Model' of tests: answer returned" in caught.value.what
    assert words in str(caught.value)


def test_an_exception_of_a_chat_model_is_a_missing_score_that_names_it(monkeypatch):
    async def answer(self, request):
        return {}["text"]

    named = f"chat_model '{HERE}:Model' of tests: answer raised KeyError"
    with pytest.raises(TooManyMissing, match=re.escape(named)):
        play_episode(reads(monkeypatch, answer))


def test_a_sound_answer_passes(monkeypatch):
    _, scores = play_episode(reads(monkeypatch, gives(ChatAnswer(text="3"))))
    assert {value.value for *_, name, value in scores if "asked_r" in name} == {3.0}


def wrong_arguments(self):
    """It takes no folder."""


async def never_awaited(self, folder):
    """Nothing awaits it."""


@pytest.mark.parametrize(
    ("method", "error", "words"),
    [
        (wrong_arguments, TypeError, "takes 1 positional argument"),
        (never_awaited, PluginError, "`use_run_folder` is a coroutine function"),
    ],
)
def test_a_wrong_use_run_folder_names_the_chat_model(tmp_path, monkeypatch, method, error, words):
    monkeypatch.setattr(Model, "use_run_folder", method)
    with pytest.raises(error) as caught:
        coterie.train(MATRIX, overrides=["schedule.steps=1", *OVERRIDES], out=tmp_path / "run")
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert words in text and f"chat_model '{HERE}:Model' of tests" in text and "use_run_folder" in text


OVERRIDES = [
    f"rewards.r={json.dumps(asks('judge')['r'])}",
    f"chat_models.judge={json.dumps({**MODEL, 'word': 'maybe'})}",
]


def test_config_shows_the_entry():
    done = command("config", MATRIX, *OVERRIDES)
    assert done.exit_code == 0, done.output
    table = yaml.safe_load(done.stdout)
    assert table["chat_models"] == {"judge": {**MODEL, "word": "maybe"}}
    assert table["rewards"]["r"]["model"] == "judge"


def test_a_run_hands_out_its_folder_and_a_resume_with_another_entry_is_refused(tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr(Model, "use_run_folder", lambda self, folder: folders.append(folder))
    folder = tmp_path / "run"
    coterie.train(MATRIX, overrides=["schedule.steps=1", *OVERRIDES], out=folder)
    assert folders == [folder]
    with pytest.raises(RunFolderError, match=r"chat_models\.judge\.word"):
        coterie.train(resume=folder, overrides=["schedule.steps=2", "chat_models.judge.word=never"])
    coterie.train(resume=folder, overrides=["schedule.steps=2"])
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.coach
def test_settings_that_are_no_part_of_an_answer_may_change(tmp_path):
    judge = {"type": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    overrides = [OVERRIDES[0], f"chat_models.judge={json.dumps(judge)}"]
    coterie.train(MATRIX, overrides=["schedule.steps=1", *overrides], out=tmp_path / "run")
    more = ["schedule.steps=2", "chat_models.judge.concurrency=3", "chat_models.judge.budget.calls=9"]
    coterie.train(resume=tmp_path / "run", overrides=more)
    with pytest.raises(RunFolderError, match=r"chat_models\.judge\.model"):
        coterie.train(resume=tmp_path / "run", overrides=["schedule.steps=3", "chat_models.judge.model=n"])


def test_a_configuration_without_the_table_has_the_digest_of_before():
    without, empty = coterie.load(MATRIX), coterie.load(MATRIX, overrides=["chat_models={}"])
    assert without.digest() == empty.digest() != coterie.load(MATRIX, overrides=OVERRIDES).digest()
    assert "chat_models" not in without.table or without.table["chat_models"] == {}
