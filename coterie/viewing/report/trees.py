"""Trees of a rollout file as the page's script reads them: what rows have in common is said once."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coterie.api.episodes import RecordedEpisode, RecordedNode, RecordedTree

PIECES: tuple[tuple[Callable[[str], list[str]], str], ...] = (
    (str.split, " "),
    (re.compile(r"\s*\S+|\s+").findall, ""),
)
"""Ways in which words are tokens, and what joins them again."""
Bytes = Callable[[int], bytes]
"""Id -> its bytes."""


@cache
def byte_alphabet() -> Mapping[str, int]:
    """The printable characters that byte-level tokenizers write bytes as (GPT-2's)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = sorted({*range(256)} - {*printable})
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(256 + index): byte for index, byte in enumerate(others)},
    }


def utf16(text: str) -> int:
    """The length of a text in the units of JavaScript."""
    return len(text) + sum(character > "\uffff" for character in text)


class TokenCuts:
    """Cuts texts into tokens, for the policies of one run, without a model.

    Rollout files have ids. Which text an id stands for is taken from the policy's tokenizer where that is on
    this machine (`bytes`, or a `tokenizer.json` of the hub's cache or of a folder), else from the
    completions: where each has as many words as it has ids, and an id is the same word everywhere, words are
    tokens. A cut is used only where its pieces make the text again, so it is right or absent.

    Args:
        policies: the table `policies` of its configuration.
    """

    def __init__(self, policies: Mapping[str, Any]) -> None:
        self._policies = policies
        self._bytes: dict[str, Bytes | None] = {}
        self._words: dict[str, list[dict[int, str] | None]] = {}

    def learn(self, branches: Iterable[Mapping[str, Any]]) -> None:
        """See completions of one call, so that their words may be known."""
        for branch in branches:
            calls, tables = branch["calls"], self._tables(branch["policy"])
            if len(calls) != 1 or branch.get("thought") or self._bytes_of(branch["policy"]):
                continue
            ids = _spoken(calls[0])
            for index, (split, _) in enumerate(PIECES):
                table = tables[index]
                pieces = split(branch["completion"])
                if table is None or len(pieces) != len(ids):
                    continue
                if any(table.setdefault(id, piece) != piece for id, piece in zip(ids, pieces, strict=True)):
                    tables[index] = None  # one id, two words: not the tokens

    def cut(
        self, policy: str | None, call: Mapping[str, Any], completion: str
    ) -> tuple[list[int], str] | None:
        """Lengths of a call's tokens in units of UTF-16, and the text that they make; None: not known.

        A token without text, such as that of the end, has length 0. The text contains the completion.
        """
        of_bytes = self._bytes_of(policy)
        pieces = _byte_pieces(call, of_bytes) if of_bytes else self._word_pieces(policy, call, completion)
        if pieces is None:
            return None
        text = "".join(pieces)
        if completion.strip() not in text:
            return None
        return [utf16(piece) for piece in pieces], text

    def _word_pieces(self, policy: str | None, call: Mapping[str, Any], completion: str) -> list[str] | None:
        ids = _spoken(call)
        for table, (_, joint) in zip(self._tables(policy), PIECES, strict=True):
            if table and all(id in table for id in ids):
                pieces = [table[id] + joint for id in ids[:-1]] + [table[id] for id in ids[-1:]]
                if "".join(pieces) == completion:
                    return pieces + [""] * (len(call["token_ids"]) - len(ids))
        return None

    def _tables(self, policy: str | None) -> list[dict[int, str] | None]:
        return self._words.setdefault(policy or "", [{} for _ in PIECES])

    def _bytes_of(self, policy: str | None) -> Bytes | None:
        name = policy or ""
        if name not in self._bytes:
            table = self._policies.get(name) or {}
            self._bytes[name] = _bytes_of_model(table.get("model"), table.get("revision"))
        return self._bytes[name]


def _spoken(call: Mapping[str, Any]) -> Sequence[int]:
    """The ids of a call without that of the end."""
    ids: Sequence[int] = call["token_ids"]
    return ids[:-1] if call["finish"] == "stop" else ids


def _byte_pieces(call: Mapping[str, Any], of_bytes: Bytes) -> list[str] | None:
    """The characters that each token completes; bytes that are none are the replacement character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        pieces = [decoder.decode(of_bytes(id)) for id in call["token_ids"]]
    except KeyError:
        return None
    if pieces:
        pieces[-1] += decoder.decode(b"", True)
    return pieces


def _bytes_of_model(model: Any, revision: Any) -> Bytes | None:
    name = model.get("tokenizer") if isinstance(model, Mapping) else model
    if name == "bytes" and isinstance(model, Mapping):
        alphabet = byte_alphabet()
        table = {index: bytes([alphabet[c]]) for index, c in enumerate(sorted(alphabet), 2)}
        return lambda id: b"" if id < 2 else table[id]
    if not isinstance(name, str) or name == "words":
        return None
    path = _tokenizer_file(name, revision if isinstance(model, str) else None)
    try:
        return None if path is None else _bytes_of_file(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # another format: completions are shown whole, and the page says so


def _tokenizer_file(name: str, revision: Any) -> Path | None:
    """`tokenizer.json` of a model's folder or of the hub's cache; nothing is downloaded."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder / "tokenizer.json"
    try:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(name, "tokenizer.json", revision=revision)
    except (ImportError, ValueError):
        return None
    return Path(path) if isinstance(path, str) else None


def _bytes_of_file(content: Mapping[str, Any]) -> Bytes | None:
    """Of a tokenizer whose vocabulary is byte-level, or has `▁` for spaces."""
    vocabulary = content["model"]["vocab"]
    texts = {id: text for text, id in vocabulary.items()}
    special = {token["id"] for token in content.get("added_tokens") or () if token.get("special")}
    added = {token["id"]: token["content"] for token in content.get("added_tokens") or ()}
    byte_level = "ByteLevel" in json.dumps([content.get("decoder"), content.get("pre_tokenizer")])
    alphabet = byte_alphabet()

    def of(id: int) -> bytes:
        if id in special:
            return b""
        if id in added:
            return str(added[id]).encode()
        text = texts[id]
        if byte_level:
            return bytes(alphabet[character] for character in text)
        of_byte = re.fullmatch(r"<0x([0-9A-F]{2})>", text)
        return bytes.fromhex(of_byte[1]) if of_byte else text.replace("▁", " ").encode()

    return of


DIGITS = 2
"""Decimal places of per-token numbers, where all digits would make the file too large."""
PLACE = {"kind", "format", "task_id", "epoch", "chain", "node", "stratum", "turn", "stage", "role"}
LEFT_OUT = {"state_digest", "prompt_ids", "prompt_sha256", "float32"}
DEFAULTS: dict[str, Any] = {
    "thought": "",
    "tool_results": [],
    "tool_limit": False,
    "fault": None,
    "reasons": {},
    "comments": {},
    "annotations": {},
    "whole": [],
    "recombined": False,
    "terminated": False,
    "truncated": False,
    "outcome": None,
    "weight": 1.0,
}
"""Values that the page's script puts in where a key is absent."""


def tree_json(tree: RecordedTree, cuts: TokenCuts, rounded: bool) -> dict[str, Any]:
    """A tree as JSON: its nodes, each with the decisions of its roles and its joint actions.

    Args:
        rounded: per-token numbers as integers, in units of `10 ** -DIGITS`; else exactly.
    """
    index = {key: position for position, key in enumerate(tree.nodes)}
    return {
        "step": tree.step,
        "task": tree.task_id,
        "epoch": tree.epoch,
        "chain": tree.chain,
        "stratum": tree.stratum,
        "nodes": [_node(node, index, cuts, rounded) for node in tree.nodes.values()],
    }


def path_json(episode: RecordedEpisode) -> list[list[int | None]]:
    """The path of an episode: [position of the node in its tree, joint action]."""
    index = {key: position for position, key in enumerate(episode.tree.nodes)}
    return [[index[node.key], joint] for node, joint in episode.path]


def _node(node: RecordedNode, index: Mapping[str, int], cuts: TokenCuts, rounded: bool) -> dict[str, Any]:
    return {
        "key": node.key,
        "turn": node.turn,
        "stage": node.stage,
        "decisions": [
            {
                "role": role,
                **_short(decision.prompt),
                "prompt_tokens": len(decision.prompt["prompt_ids"]),
                "branches": [_branch(branch, cuts, rounded) for branch in decision.branches],
            }
            for role, decision in node.decisions.items()
        ],
        "joints": [
            {**_short(joint), "child": index.get(joint["child"]) if joint["child"] is not None else None}
            for joint in node.joints
        ],
    }


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without its place, digests and what is as usual."""
    return {
        key: value
        for key, value in row.items()
        if key not in PLACE
        and key not in LEFT_OUT
        and not (key in DEFAULTS and value == DEFAULTS[key] and type(value) is type(DEFAULTS[key]))
    }


def _branch(row: Mapping[str, Any], cuts: TokenCuts, rounded: bool) -> dict[str, Any]:
    short = _short(row)
    short["calls"] = [_call(call, row, cuts, rounded) for call in row["calls"]]
    if isinstance(row["advantage"], list) and rounded:
        short["advantage"] = _scaled(row["advantage"])
    if row.get("annotations") and rounded:
        short["annotations"] = {name: _scaled(values) for name, values in row["annotations"].items()}
    if "policy" in short:
        del short["policy"]  # the decision says it
    return short


def _call(call: Mapping[str, Any], row: Mapping[str, Any], cuts: TokenCuts, rounded: bool) -> dict[str, Any]:
    logprobs = call["logprobs"]
    short: dict[str, Any] = {
        "finish": call["finish"],
        "tokens": len(call["token_ids"]),
        "logprobs": _scaled(logprobs) if rounded else logprobs,
    }
    for key in ("version", "version_runs", "continues"):
        if key in call:
            short[key] = call[key]
    last = call is row["calls"][-1]
    known = cuts.cut(row["policy"], call, row["completion"] if last else "")
    if known is not None:
        lengths, text = known
        short["cuts"] = "words" if lengths == _words(text, len(lengths)) else lengths
        if text != row["completion"] or not last:
            short["text"] = text
    return short


def _words(text: str, count: int) -> list[int] | None:
    """The lengths where each word with the space after it is a token; tokens after the last have no text."""
    words = text.split(" ")
    lengths = [utf16(word) + 1 for word in words[:-1]] + [utf16(words[-1])]
    return lengths + [0] * (count - len(lengths)) if text and len(lengths) <= count else None


def _scaled(values: Sequence[float | None]) -> list[int | None]:
    return [None if value is None else round(value * 10**DIGITS) for value in values]
