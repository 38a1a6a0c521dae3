"""A chat model as the components that name it get it: what it answers and raises is checked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from coterie.core.errors import SystemFault, UserError
from coterie.core.plugins.origin import failure, origin_of, record_origin
from coterie.core.protocols import ChatAnswer, ChatModel, ChatRequest
from coterie.core.rollout.contracts import check_async, refuse
from coterie.core.types.messages import encodable


class CheckedChatModel:
    """A chat model whose failures are never those of the output that it is asked about (invariant 3).

    Its members beside `answer` are those of `model`.
    """

    def __init__(self, model: ChatModel) -> None:
        self.model = model
        record_origin(self, origin_of(model))

    def __getattr__(self, name: str) -> Any:
        if name == "model" or name.startswith("__"):  # of an object that `copy` is about to fill
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    def structured(self) -> bool:
        return self.model.structured

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        """The model's answer, without text that UTF-8 can't encode.

        Raises:
            SystemFault: the model raised anything but a UserError. A PolicyFault is one of the judge's.
            UserError: no request can be answered; with the model's path.
            PluginError: it returned no `ChatAnswer` of texts.
        """
        model = self.model
        messages = tuple(
            {**message, "content": encodable(message["content"])} for message in request.messages
        )
        try:
            asking = model.answer(replace(request, messages=messages))
            answer = await check_async(model, "answer", asking)
        except UserError as error:
            error.path = error.path or origin_of(model).path
            raise
        except SystemFault:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the run ends, and not a task of the model's own
            raise SystemFault(failure(model, "answer", error)) from error
        sound = isinstance(answer, ChatAnswer) and isinstance(answer.text, str)
        if not sound or not isinstance(answer.version, str):
            refuse(model, "answer", answer, "return coterie.ChatAnswer(text=..., version=...), both texts")
        return replace(answer, text=encodable(answer.text), version=encodable(answer.version))


def checked(kind: str, component: Any) -> Any:
    """A component that another one names; a chat model is checked."""
    return CheckedChatModel(component) if kind == "chat_model" else component
