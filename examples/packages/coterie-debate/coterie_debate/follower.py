"""A chat model of rules that judges debates, for tests and smoke runs of `debate_panel`."""

from __future__ import annotations

from coterie import ChatAnswer, ChatRequest, Plugin


class Follower(Plugin):
    """Names the side that had a source; con where neither had one."""

    structured = False

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        return ChatAnswer(text="pro" if "pro source" in str(request.messages[-1]["content"]) else "con")
