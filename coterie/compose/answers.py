"""Answers of chat models, checked where a component asks: an error names the chat model at fault.

The component that asks would otherwise get the blame, for it is the one that reads the answer.
"""

from __future__ import annotations

from typing import Any

from coterie.core.errors import CoterieError, SystemFault
from coterie.core.plugins.origin import failure, plugin_call
from coterie.core.protocols import ChatAnswer, ChatRequest
from coterie.core.rollout.contracts import check_async, refuse


def check_answers(model: Any) -> None:
    """Check every later answer of a chat model. One without a `__dict__` stays as it is.

    Its `answer` then raises PluginError for what is no `ChatAnswer`, and turns an exception that its Protocol
    doesn't know into a SystemFault with the model's name: what depends on the answer is missing.
    """
    given = getattr(model, "__dict__", {}).get("answer")

    async def answer(request: ChatRequest) -> ChatAnswer:
        try:
            asked = given or _of_class(model)
            with plugin_call(model, "answer"):
                answered = await check_async(model, "answer", asked(request))
        except CoterieError:
            raise
        except Exception as error:
            raise SystemFault(failure(model, "answer", error)) from error
        if not isinstance(answered, ChatAnswer):
            refuse(model, "answer", answered, "return a coterie.ChatAnswer(text=...)")
        for part in ("text", "version"):
            if not isinstance(getattr(answered, part), str):
                refuse(model, "answer", answered, f"`{part}` of a coterie.ChatAnswer is a text")
        return answered

    try:
        object.__setattr__(model, "answer", answer)
    except (AttributeError, TypeError):
        return


def _of_class(model: Any) -> Any:
    """The method of a model's class, as it is now: a test may have another one in its place."""
    cls: Any = type(model)
    return cls.answer.__get__(model, cls) if hasattr(type(cls.answer), "__get__") else cls.answer
