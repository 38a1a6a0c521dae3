"""A chat model: what a coach, a judge or a transition mode asks, here rules instead of a provider.

Grader: the longer the text that it is shown, up to a length, the higher the grade.
"""

import re

from pydantic import Field

from coterie import ChatAnswer, ChatRequest, Plugin, PluginConfig, Register, hookimpl

WROTE = re.compile(r"^<wrote>$(.*)^</wrote>$", re.DOTALL | re.MULTILINE)
"""The part of a coach's prompt that holds what a role wrote."""


class ExampleNameChatModel(Plugin):
    """Grades what a coach's prompt shows, from 0 to 10, by its words."""

    class Config(PluginConfig):
        words: int = Field(3, ge=1, description="The fewest words of a text with the best grade.")

    config: Config
    structured = False  # whether answers follow `request.schema`; False: they are plain text

    # Many requests may be answered at once. Equal requests at temperature 0 have equal answers.
    # SystemFault: no answer, what depends on it is missing. UserError: no request can be answered, e.g. a
    # wrong key; the run stops. A model behind a connection bounds every wait, and opens it in `open`.
    async def answer(self, request: ChatRequest) -> ChatAnswer:
        prompt = request.messages[-1]["content"]
        wrote = WROTE.search(prompt)
        words = len((wrote[1] if wrote else prompt).split())
        score = min(10, 10 * words // self.config.words)
        return ChatAnswer(text=f"REASONING: {words} words.\nPROCESS_SCORE: {score}", version="rules")


@hookimpl
def register_chat_models(register: Register) -> None:
    register("example_name", ExampleNameChatModel)
