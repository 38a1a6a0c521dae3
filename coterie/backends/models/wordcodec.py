"""A codec without a tokenizer: words by hash, for engines that compute on no tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

from coterie.backends.models import plain
from coterie.backends.models.lru import Lru
from coterie.core.types import Call, Message, Prompt

EOS_ID = 0
"""Id of `<eos>`; it has no text."""

_PIECE = re.compile(r"\s*\S+|\s+")


Conversation = tuple[tuple[str, str], ...]


def word_id(word: str) -> int:
    """A stable id: two crc32 of the word, 62 bits, so that two words of a run never share one."""
    data = word.encode("utf-8", "surrogatepass")
    return ((crc32(data) & 0x7FFFFFFF) << 31 | (crc32(data[::-1] + b"|") & 0x7FFFFFFF)) or 1


class WordCodec:
    """Text to ids by words, with a table to come back.

    Conversations are written as `PlainChat` writes them. A prompt continues a previous call where the
    messages begin with that call's and the answer is its decoded text: the format is append-only, so
    the ids are those of the same text.

    Args:
        context: longest prompt plus completion; None: any.
        exact: a word carries the white space before it, so that decoding gives back every text as it
            was. False: words alone, joined by single spaces.
        markers: write `User:` and the like.
    """

    def __init__(self, context: int | None = None, *, exact: bool = True, markers: bool = True) -> None:
        self.context = context
        self.stop_ids = frozenset((EOS_ID,))
        self._exact, self._markers = exact, markers
        self._word: dict[int, str] = {EOS_ID: ""}
        self._id: dict[str, int] = {}
        self._prompts: Lru[Conversation, tuple[int, ...]] = Lru(4096)
        self._stands_for: Lru[tuple[int, ...], Conversation] = Lru(4096)

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text."""
        known = self._id
        words = _PIECE.findall(text) if self._exact else text.split()
        try:
            return tuple([known[word] for word in words])
        except KeyError:
            return tuple([self._learn(word) for word in words])

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids that this codec has given out; `<eos>` has none."""
        words = [self._word.get(index, "<unk>") for index in ids]
        return "".join(words) if self._exact else " ".join(word for word in words if word)

    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        """The ids of a prompt, extending those of `previous` where the messages do."""
        conversation = _conversation(messages)
        if previous is not None and self._continues(messages, previous, previous_messages):
            rest = plain.pieces(messages, markers=self._markers, start=len(previous_messages) + 1)
            turn_end = () if previous.token_ids[-1:] == (EOS_ID,) else (EOS_ID,)
            ids = previous.prompt_ids + previous.token_ids + turn_end + self._joined(rest)
            self._stands_for.put(ids, conversation)
            return Prompt(ids=ids, continues=True)
        return Prompt(ids=self._fresh(conversation, messages))

    def decode(self, call: Call) -> str:
        """The text of a call, without its stop token."""
        return self.text(call.token_ids[:-1] if call.finish == "stop" else call.token_ids)

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """The ids of an answer, with `<eos>`."""
        return (*self.ids(text), EOS_ID)

    def _learn(self, word: str) -> int:
        index = self._id.get(word)
        if index is None:
            index = self._id[word] = word_id(word)
            self._word[index] = word
        return index

    def _fresh(self, conversation: Conversation, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._prompts.of(
            conversation, lambda: self._joined(plain.pieces(messages, markers=self._markers))
        )

    def _joined(self, pieces: Sequence[plain.Piece]) -> tuple[int, ...]:
        found: list[int] = []
        for text, ends in pieces:
            found.extend(self.ids(text))
            if ends:
                found.append(EOS_ID)
        return tuple(found)

    def _continues(self, messages: Sequence[Message], previous: Call, before: Sequence[Message]) -> bool:
        count = len(before)
        if not 0 < count < len(messages) or tuple(messages[:count]) != tuple(before):
            return False
        if messages[count] != {"role": "assistant", "content": self.decode(previous)}:
            return False
        told = _conversation(before)
        return (
            self._stands_for.get(previous.prompt_ids) == told
            or self._fresh(told, before) == previous.prompt_ids
        )


def _conversation(messages: Sequence[Message]) -> Conversation:
    return tuple([(message["role"], message["content"]) for message in messages])
