"""Codecs for a replay: those of the run's engine without its weights, or the recorded prompts and texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coterie.api.open_run import to_its_end
from coterie.api.rollouts import prompt_text
from coterie.compose.builder import ComponentBuilder
from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.config import RunConfig
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Codec, EngineContext
from coterie.core.training.run import Run
from coterie.core.types import Call, Message, Prompt
from coterie.discovery.members import MakesCodecs

Row = Mapping[str, Any]
Ids = tuple[int, ...]


class RecordedCodec:
    """A codec that knows the recorded prompts and texts alone, where no tokenizer can be read.

    A prompt that the record doesn't have gets no ids; its text tells that it is another one. Of an action
    with several calls only the last one's text is on record, so tool calls can't be found again.
    """

    stop_ids: frozenset[int] = frozenset()
    context: int | None = None

    def __init__(self, rows: Iterable[Row], policy: str) -> None:
        self._prompts: dict[str, Ids] = {}
        self._following: dict[tuple[Ids, Ids], Prompt] = {}
        """The prompt after a call, by the call's prompt and tokens."""
        self._texts: dict[Ids, str] = {}
        of_node: dict[tuple[str, str], Ids] = {}
        for row in rows:
            if row.get("policy") != policy:
                continue
            if row["kind"] == "node":
                of_node[row["node"], row["role"]] = self._prompts[row["prompt"]] = tuple(row["prompt_ids"])
            elif row["kind"] == "branch":
                self._add(row, of_node.get((row["node"], row["role"]), ()))

    def _add(self, row: Row, prompt: Ids) -> None:
        for index, call in enumerate(row["calls"]):
            tokens = tuple(call["token_ids"])
            if index == len(row["calls"]) - 1:
                self._texts[tokens] = raw_text(row)
            elif "text" in call:
                self._texts[tokens] = call["text"]
            if index + 1 < len(row["calls"]):
                after = row["calls"][index + 1]
                made = Prompt(ids=tuple(after["prompt_ids"]), continues=after["continues"])
                self._following[prompt, tokens] = made
                prompt = made.ids

    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        """The recorded prompt of the messages; without ids where there is none."""
        known = self._prompts.get(prompt_text(messages))
        if known is not None:
            continues = previous is not None and known[: len(previous.prompt_ids)] == previous.prompt_ids
            return Prompt(ids=known, continues=continues)
        after = None if previous is None else (previous.prompt_ids, previous.token_ids)
        return self._following.get(after, Prompt(ids=())) if after is not None else Prompt(ids=())

    def decode(self, call: Call) -> str:
        """The recorded text of a call; empty where there is none."""
        return self._texts.get(call.token_ids, "")

    def encode_completion(self, text: str) -> tuple[int, ...]:
        return ()


def raw_text(branch: Row) -> str:
    """The text of an action's last call, with its thought."""
    thought, text = branch["thought"], branch["completion"]
    return text if not thought or thought in text else f"<think>\n{thought}\n</think>\n\n{text}"


def codecs_of(run: Run, rows: Sequence[Row]) -> tuple[dict[str, Codec], list[str]]:
    """The codec of each policy, and the policies of which the record alone is known.

    Args:
        rows: of the steps that are played again.
    """
    made: dict[str, Codec] = {}
    engine, config = run.engine, run.config
    if not isinstance(engine, MakesCodecs):  # it stands for one in another process
        engine = ComponentBuilder(config).make("engine", config.engine, "engine")
    if isinstance(engine, MakesCodecs) and callable(engine.codecs):
        made = codecs_of_engine(engine, config, run.chat, run.vocabulary)
    lacking = [policy for policy in config.policies if policy not in made]
    codecs = {**made, **{policy: RecordedCodec(rows, policy) for policy in lacking}}
    learn_words(made.get, rows)
    return codecs, lacking


def codecs_of_engine(
    engine: MakesCodecs, config: RunConfig, chat: Any, vocabulary: tuple[str, ...]
) -> dict[str, Codec]:
    """The codecs that an engine can make without its weights, by policy."""
    ctx = EngineContext(
        policies=config.policies,
        chat=chat,
        active_rollouts=ActiveRollouts(),
        deterministic=config.deterministic,
        vocabulary=vocabulary,
    )
    with plugin_call(engine, "codecs"):
        return dict(to_its_end(engine.codecs(ctx)))


def learn_words(codec_of: Callable[[str], Any], rows: Iterable[Row]) -> None:
    """Show the recorded texts to the codecs of policies that know the words alone that they have seen."""
    for row in rows:
        codec = codec_of(row["policy"]) if row["kind"] == "branch" and row["policy"] else None
        if codec is not None and hasattr(codec, "learn"):
            for text in (raw_text(row), *(call.get("text", "") for call in row["calls"])):
                codec.encode_completion(text)
