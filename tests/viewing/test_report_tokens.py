"""Where tokens begin and end in a completion: right, or not known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from coterie.backends.models.tokenizers import bytes_tokenizer
from coterie.backends.models.wordcodec import WordCodec
from coterie.core.types import Call
from coterie.viewing.report.trees import TokenCuts, byte_alphabet

BYTES = {"p": {"model": {"init": "qwen3", "tokenizer": "bytes"}}}


def branch(text, ids, finish="length", thought="", policy="p"):
    call = {"token_ids": list(ids), "logprobs": [0.0] * len(ids), "finish": finish}
    return {"policy": policy, "completion": text, "thought": thought, "calls": [call]}


def cut(cuts, of):
    return cuts.cut(of["policy"], of["calls"][0], of["completion"])


def ids_of_bytes(text):
    place = {
        byte: index for index, byte in enumerate((byte_alphabet()[c] for c in sorted(byte_alphabet())), 2)
    }
    return [place[byte] for byte in text.encode()]


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
def test_bytes_are_cut_where_their_characters_end(text):
    ids = [*ids_of_bytes(text), 1]
    lengths, whole = cut(TokenCuts(BYTES), branch(text, ids, "stop"))
    assert whole == text and len(lengths) == len(ids) and lengths[-1] == 0
    assert sum(lengths) == len(text.encode("utf-16-le")) // 2, "in the units of JavaScript"


@pytest.mark.torch
def test_the_bytes_are_those_of_the_tokenizer():
    pytest.importorskip("transformers")
    text = "añ😀 <b>\n"
    assert bytes_tokenizer()(text)["input_ids"] == ids_of_bytes(text)


def test_bytes_that_are_no_text_are_one_sign_each():
    ids = [*ids_of_bytes("a"), ids_of_bytes("é")[0], *ids_of_bytes("b")]
    lengths, whole = cut(TokenCuts(BYTES), branch("a\ufffdb", ids))
    assert whole == "a\ufffdb" and sum(lengths) == 3


@pytest.mark.parametrize("exact", [True, False])
def test_words_are_known_from_completions(exact):
    codec = WordCodec(exact=exact)
    texts = ["go left now", "left  or right" if exact else "left or right", "now"]
    rows = [branch(text, codec.encode_completion(text), "stop") for text in texts]
    cuts = TokenCuts({})
    cuts.learn(rows)
    for row in rows:
        lengths, whole = cut(cuts, row)
        assert whole == row["completion"] == codec.decode(Call(**call_of(row)))
        assert sum(lengths) == len(whole) and lengths[-1] == 0


def call_of(row):
    call = row["calls"][0]
    ids, logprobs = tuple(call["token_ids"]), tuple(call["logprobs"])
    return {"prompt_ids": (), "token_ids": ids, "logprobs": logprobs, "finish": call["finish"], "version": 0}


def test_an_id_with_two_words_is_no_word():
    rows = [branch("a b", [1, 2]), branch("b a", [1, 2])]
    cuts = TokenCuts({})
    cuts.learn(rows)
    assert [cut(cuts, row) for row in rows] == [None, None]


def test_a_completion_with_an_unknown_id_is_not_cut():
    cuts = TokenCuts({})
    cuts.learn([branch("a b", [1, 2])])
    assert cut(cuts, branch("a c d", [1, 9, 9, 9])) is None
    assert cut(cuts, branch("a b", [1, 2])) == ([2, 1], "a b")


def test_the_tokenizer_of_a_folder_is_read_without_its_library(tmp_path):
    vocabulary = {"Ġthe": 0, "Ã": 1, "©": 2, "a": 3}
    content = {
        "model": {"vocab": vocabulary},
        "added_tokens": [{"id": 4, "content": "<eos>", "special": True}],
        "decoder": {"type": "ByteLevel"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    cuts = TokenCuts({"p": {"model": str(tmp_path)}})
    assert cut(cuts, branch("a theé", [3, 0, 1, 2, 4], "stop")) == ([1, 4, 0, 1, 0], "a theé")
    assert cut(cuts, branch("something else", [3, 0])) is None, "pieces that don't make the text"


def test_a_tokenizer_of_another_format_is_not_used(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["a", -1.0]]}}))
    assert cut(TokenCuts({"p": {"model": str(tmp_path)}}), branch("a", [0])) is None
