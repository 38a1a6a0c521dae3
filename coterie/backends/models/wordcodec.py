"""The plain-text format of conversations, and a codec for engines without tensors: a word's id is its hash.

The format is for models without a chat template, too. It is append-only: later prompts repeat the text of an
earlier turn exactly, so a prompt can extend sampled ids verbatim (invariant 1). An opening user message and
its answer have no markers; every other message has one:

    What is 2 + 2? 4<eos>          System: Be brief.
    User: And 3 + 3?               User: What is 2 + 2?
    Assistant:                     Assistant:
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from coterie.backends.models.lru import Lru
from coterie.core.types import Call, Message, Prompt

MARKERS: dict[str, str] = {"system": "System:", "user": "User:", "assistant": "Assistant:", "tool": "Tool:"}


class Piece(NamedTuple):
    """A text, and whether the end-of-turn token follows it."""

    text: str
    ends: bool


def pieces(messages: Sequence[Message], *, markers: bool = True, start: int = 0) -> list[Piece]:
    """The conversation's text, which ends with the marker of the next answer.

    Args:
        markers: False for vocabularies without the markers' words; turns are then lines.
        start: the first message to write; earlier messages are left out.
    """
    written: list[Piece] = []
    bare = bool(messages) and (messages[0]["role"] == "user" or not markers)
    for index, message in enumerate(messages[start:], start):
        role, content = message["role"], message["content"]
        if role == "assistant":
            written += [_call_for_answer(index == 1 and bare, markers), Piece(content, True)]
        elif index == 0:
            written.append(Piece(content if bare else f"{_marker(role)} {content}", False))
        else:
            written.append(Piece(f"\n{_marker(role)} {content}" if markers else f"\n{content}", False))
    written.append(_call_for_answer(len(messages) == 1 and bare, markers))
    return [piece for piece in written if piece.text or piece.ends]


def _call_for_answer(bare: bool, markers: bool) -> Piece:
    """The text between a prompt and its answer."""
    return Piece("" if bare or not markers else f"\n{MARKERS['assistant']}", False)


def _marker(role: str) -> str:
    return MARKERS.get(role, f"{role.capitalize()}:")


EOS_ID = 0
"""Id of `<eos>`; it has no text."""

_PIECE = re.compile(r"\s*\S+|\s+")


Conversation = tuple[tuple[str, str], ...]


def word_id(word: str) -> int:
    """A stable 62-bit id from two crc32 of the word; two words of a run practically never share an id."""
    data = word.encode("utf-8", "surrogatepass")
    return ((crc32(data) & 0x7FFFFFFF) << 31 | (crc32(data[::-1] + b"|") & 0x7FFFFFFF)) or 1


class WordCodec:
    """Converts text to word ids, and back with a table of the words seen.

    Conversations have the format of `PlainChat`. A prompt continues a previous call if its messages begin
    with that call's messages and then repeat the call's decoded text. The format is append-only, so such a
    prompt's ids extend the call's ids.

    Args:
        context: longest prompt plus completion; None: any.
        exact: True: a word includes the white space before it, so that decoding restores every text exactly.
            False: words without white space, decoded with single spaces between them.
        markers: whether to write markers such as `User:`.
    """

    def __init__(self, context: int | None = None, *, exact: bool = True, markers: bool = True) -> None:
        self.context = context
        self.stop_ids = frozenset((EOS_ID,))
        self._exact, self._markers = exact, markers
        self._word_of: dict[int, str] = {EOS_ID: ""}
        self._id_of: dict[str, int] = {}
        self._prompts: Lru[Conversation, tuple[int, ...]] = Lru(4096)
        self._conversation_of: Lru[tuple[int, ...], Conversation] = Lru(4096)

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text."""
        known = self._id_of
        words = _PIECE.findall(text) if self._exact else text.split()
        try:
            return tuple([known[word] for word in words])
        except KeyError:
            return tuple([self._learn(word) for word in words])

    def words(self, since: int) -> list[str]:
        """The words seen, in their order, from the n-th on: for a codec in another process."""
        return list(self._id_of)[since:] if since < len(self._id_of) else []

    def learn(self, words: Iterable[str]) -> None:
        """See words, so that their ids have a text."""
        for word in words:
            if word not in self._id_of:
                self._learn(word)

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids that this codec made; `<eos>` has no text."""
        words = [self._word_of.get(index, "<unk>") for index in ids]
        return "".join(words) if self._exact else " ".join(word for word in words if word)

    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        """The ids of a prompt; they extend the ids of `previous` if the messages continue that call."""
        conversation = _conversation(messages)
        if previous is not None and self._continues(messages, previous, previous_messages):
            rest = pieces(messages, markers=self._markers, start=len(previous_messages) + 1)
            turn_end = () if previous.token_ids[-1:] == (EOS_ID,) else (EOS_ID,)
            ids = previous.prompt_ids + previous.token_ids + turn_end + self._joined(rest)
            self._conversation_of.put(ids, conversation)
            return Prompt(ids=ids, continues=True)
        return Prompt(ids=self._fresh(conversation, messages))

    def prompt_text(self, messages: Sequence[Message]) -> str:
        """The text of a prompt, with the markers of the format."""
        return self.text(self._fresh(_conversation(messages), messages))

    def decode(self, call: Call) -> str:
        """The text of a call, without its stop token."""
        return self.text(call.token_ids[:-1] if call.finish == "stop" else call.token_ids)

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """The ids of an answer and `<eos>`."""
        return (*self.ids(text), EOS_ID)

    def _learn(self, word: str) -> int:
        index = self._id_of.get(word)
        if index is None:
            index = self._id_of[word] = word_id(word)
            self._word_of[index] = word
        return index

    def _fresh(self, conversation: Conversation, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._prompts.of(conversation, lambda: self._joined(pieces(messages, markers=self._markers)))

    def _joined(self, written: Sequence[Piece]) -> tuple[int, ...]:
        ids: list[int] = []
        for text, ends in written:
            ids.extend(self.ids(text))
            if ends:
                ids.append(EOS_ID)
        return tuple(ids)

    def _continues(self, messages: Sequence[Message], previous: Call, before: Sequence[Message]) -> bool:
        count = len(before)
        if not 0 < count < len(messages) or tuple(messages[:count]) != tuple(before):
            return False
        if messages[count] != {"role": "assistant", "content": self.decode(previous)}:
            return False
        conversation = _conversation(before)
        return (
            self._conversation_of.get(previous.prompt_ids) == conversation
            or self._fresh(conversation, before) == previous.prompt_ids
        )


def _conversation(messages: Sequence[Message]) -> Conversation:
    return tuple([(message["role"], message["content"]) for message in messages])
