"""A chat format: how messages become the token ids of a prompt, and ids become text.

A transcript: one line a message, `user: ...`, and the model writes on after `assistant:`.
"""

from collections.abc import Sequence
from typing import Any

from coterie import Call, Message, Plugin, Prompt, Register, hookimpl


class ExampleNameCodec:
    """The format for one tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer.
        context: the longest prompt with its answer, in tokens; None: any.
    """

    def __init__(self, tokenizer: Any, context: int | None) -> None:
        self.tokenizer, self.context = tokenizer, context
        self.stop_ids = frozenset((tokenizer.eos_token_id,))

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text. What somebody wrote never becomes the token that ends a turn."""
        text = text.replace(self.tokenizer.eos_token, "")
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def lines(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of messages. The model's own end with its stop token, as they were sampled."""
        ids: tuple[int, ...] = ()
        for message in messages:
            if message["role"] == "assistant":
                ids += self.ids("assistant:") + self.encode_completion(message["content"])
            else:
                ids += self.ids(f"{message['role']}: {message['content']}\n")
        return ids

    # Sampled ids are trained on as they are, and never encoded again: a prompt that goes on from `previous`
    # begins with its ids. Where that isn't certain, all is encoded, and `continues` stays False.
    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        opening, count = self.ids("assistant:"), len(previous_messages)
        if previous is not None and self.goes_on(messages, previous, previous_messages):
            played = previous.prompt_ids + previous.token_ids
            end = () if played[-1] in self.stop_ids else (self.tokenizer.eos_token_id,)
            return Prompt(ids=played + end + self.lines(messages[count + 1 :]) + opening, continues=True)
        return Prompt(ids=self.lines(messages) + opening)

    def goes_on(self, messages: Sequence[Message], previous: Call, before: Sequence[Message]) -> bool:
        """Whether the messages are those of the previous prompt, then its answer, then others."""
        played = [*before, {"role": "assistant", "content": self.decode(previous)}]
        text = self.tokenizer.decode(self.lines(before) + self.ids("assistant:"))
        same = self.tokenizer.decode(previous.prompt_ids) == text
        return same and len(messages) > len(before) and list(messages[: len(played)]) == played

    def decode(self, call: Call) -> str:
        ids = call.token_ids[:-1] if call.finish == "stop" else call.token_ids
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def encode_completion(self, text: str) -> tuple[int, ...]:
        return (*self.ids(text), self.tokenizer.eos_token_id)


class ExampleNameChatFormat(Plugin):
    """Conversations as transcripts."""

    def codec(self, tokenizer: Any, context: int | None) -> ExampleNameCodec:
        return ExampleNameCodec(tokenizer, context)


@hookimpl
def register_chat_formats(register: Register) -> None:
    register("example_name", ExampleNameChatFormat)
