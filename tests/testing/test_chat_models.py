"""What `check_chat_model` catches."""

from __future__ import annotations

import itertools

import pytest

from coterie import ChatAnswer, Plugin
from coterie.core.errors import ConfigError, SystemFault, UserError
from coterie.testing import ConformanceError, check_chat_model

FORM = '{"score": 5, "reason": "so"}'


class Sound(Plugin):
    structured = True

    async def answer(self, request):
        return ChatAnswer(text=FORM if request.schema else "PROCESS_SCORE: 5")


def answering(text, **members):
    async def answer(self, request):
        if isinstance(text, BaseException):
            raise text
        return text(request) if callable(text) else text

    return type("Broken", (Sound,), {"answer": answer, **members})()


def at_once(self, request):
    return ChatAnswer(text=FORM)


def changing(request):
    request.messages[0]["content"] += "!"
    return ChatAnswer(text=FORM)


NUMBERS = itertools.count()


def without_budget(request):
    """Both errors that the Protocol allows; the request with a schema has its answer."""
    if request.schema is None:
        raise UserError("the budget is spent") if request.sample else SystemFault("down")
    return ChatAnswer(text=FORM)


def test_a_sound_one_passes():
    check_chat_model(Sound())
    check_chat_model(answering(lambda request: ChatAnswer(text="plain"), structured=False))
    check_chat_model(
        answering(lambda request: ChatAnswer(text=str(next(NUMBERS))), structured=False), repeats=False
    )
    check_chat_model(answering(without_budget))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (answering("text"), "returned a str"),
        (answering(ChatAnswer(text=5)), "returned 5 as text"),
        (answering(ChatAnswer(text="x", version=None)), "returned None as version"),
        (answering(ValueError("x")), "raised ValueError: x"),
        (answering(ConfigError("a wrong key")), "answered none of the requests: a wrong key"),
        (answering(SystemFault("down")), "answered none of the requests: down"),
        (answering(SystemExit(3)), "raised SystemExit: 3"),
        (answering(ChatAnswer(text=" \n")), "answered without text"),
        (type("Without", (Sound,), {"answer": None})(), "lacks answer"),
        (type("Swapped", (Sound,), {"clsoe": lambda self: None})(), "did you mean `close`?"),
        (type("Unopened", (Sound,), {"open": None})(), "`open`, which is None and no method"),
        (answering(ChatAnswer(text="plain")), "which is no JSON"),
        (answering(ChatAnswer(text='{"score": 1}')), "without reason"),
        (answering(ChatAnswer(text="[1]")), "without score, reason"),
        (answering(lambda request: ChatAnswer(text=str(next(NUMBERS)))), "at temperature 0"),
        (answering(changing), "changed its request"),
        (type("Plain", (Sound,), {"answer": at_once})(), "answer: is not asynchronous"),
        (type("Maybe", (Sound,), {"structured": None})(), "structured: is None"),
        (type("Engine", (Sound,), {"use_engine": lambda self, engine: None})(), "needs an engine"),
    ],
)
def test_what_it_catches(model, words):
    with pytest.raises(ConformanceError) as caught:
        check_chat_model(model)
    assert words in str(caught.value), caught.value
