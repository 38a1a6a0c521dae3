"""The byte-level tokenizer: every text comes back, whatever its characters."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("transformers")

from coterie.backends.models.loading import load_tokenizer
from coterie.backends.models.policy import TorchPolicy
from coterie.backends.models.tokenizers import bytes_tokenizer

pytestmark = pytest.mark.torch
TOKENIZER = bytes_tokenizer()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_has_an_id_per_byte_and_comes_back(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    if "<eos>" in text or "<pad>" in text:  # as a codec writes them, never as content
        return
    assert len(ids) == len(text.encode()) and TOKENIZER.decode(ids) == text


def test_code_keeps_its_white_space():
    code = "def f(x):\n\treturn [x,  x]   \n\n"
    assert TOKENIZER.decode(TOKENIZER.encode(code, add_special_tokens=False)) == code


def test_it_needs_no_words_of_the_environment():
    model = {"init": "qwen3", "hidden_size": 16, "layers": 1, "heads": 2, "head_dim": 8, "tokenizer": "bytes"}
    tokenizer = load_tokenizer(TorchPolicy(model=model), policy="main", vocabulary=())
    assert len(tokenizer) == 258 and (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
