"""One id per word, whatever the order of the words."""

import pytest

pytest.importorskip("transformers")

from hypothesis import given, strategies as st

from coterie.backends.models.tokenizers import SPECIAL, words_tokenizer
from coterie.core.errors import ConfigError

pytestmark = pytest.mark.torch

WORDS = ("U", "D", "plan", ":", "r1c2", "G+2-1", "#-1+0")
TOKENIZER = words_tokenizer(WORDS)


def test_ids_are_those_of_the_sorted_words_after_the_special_ones():
    assert TOKENIZER.get_vocab() == {word: index for index, word in enumerate((*SPECIAL, *sorted(WORDS)))}
    assert words_tokenizer((*reversed(WORDS), "U", "<eos>")).get_vocab() == TOKENIZER.get_vocab()
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.unk_token_id) == (0, 1, 2)
    assert TOKENIZER.chat_template is None


@given(st.lists(st.sampled_from(WORDS)), st.sampled_from([" ", "\n", "\t ", "  "]))
def test_text_comes_back_with_single_spaces(words, space):
    ids = TOKENIZER.encode(space.join(words), add_special_tokens=False)
    assert len(ids) == len(words)
    assert TOKENIZER.decode(ids) == " ".join(words)


def test_unknown_words_have_an_id_and_special_ones_can_be_left_out():
    ids = TOKENIZER.encode("U nowhere D", add_special_tokens=False)
    assert ids[1] == 2
    assert TOKENIZER.decode([*ids, 1, 0], skip_special_tokens=True) == "U D"
    assert TOKENIZER.decode([*ids, 1]) == "U <unk> D <eos>"


def test_it_survives_saving(tmp_path):
    from transformers import AutoTokenizer

    TOKENIZER.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == TOKENIZER.get_vocab()
    text = "plan r1c2 G+2-1 : U D"
    assert again.encode(text) == TOKENIZER.encode(text)
    assert again.decode(again.encode(text)) == text
    assert (again.pad_token_id, again.eos_token_id, again.unk_token_id) == (0, 1, 2)


@pytest.mark.parametrize("word", ["", "two words", "line\n"])
def test_what_could_not_be_read_back_is_refused(word):
    with pytest.raises(ConfigError, match="can't be a word"):
        words_tokenizer(["U", word])
