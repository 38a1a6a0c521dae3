"""The tokenizers of newly initialised models: one id per word, or one per byte, without a download."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coterie.core.errors import ConfigError

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
SPECIAL: tuple[str, ...] = (PAD, EOS, UNK)
"""Ids 0, 1 and 2; the words follow in sorted order."""


def sorted_words(vocabulary: Iterable[str]) -> list[str]:
    """The distinct words, sorted.

    Raises:
        ConfigError: a word is empty or contains white space, so that decoding could not restore it.
    """
    words = set(vocabulary) - set(SPECIAL)
    for word in words:
        if not word or word.split() != [word]:
            raise ConfigError(
                f"{word!r} can't be a word of the vocabulary",
                path="env",
                why="white space separates words, so a word has at least one character and no white space",
                fix="split it in the environment's or the role's `vocabulary()`",
            )
    return sorted(words)


def check_vocabulary(vocabulary: Iterable[str], path: str) -> None:
    """Check the words of a tokenizer before it is made.

    Raises:
        ConfigError: there are none (`path` is the setting of the tokenizer), or one can't be a word.
    """
    if not sorted_words(vocabulary):
        raise ConfigError(
            "`tokenizer: words` needs the words of the environment, and there are none",
            path=path,
            fix="give the environment a `vocabulary()`, set tokenizer=bytes, or name a tokenizer's hub id or "
            "folder",
        )


def words_tokenizer(vocabulary: Iterable[str]) -> Any:
    """A `PreTrainedTokenizerFast` with one id per word; only white space separates words.

    Decoding joins words with single spaces. Unknown words become `<unk>`. It has no chat template.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = (*SPECIAL, *sorted_words(vocabulary))
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
    )


def bytes_tokenizer() -> Any:
    """A `PreTrainedTokenizerFast` of 258 ids: `<pad>`, `<eos>` and the bytes of UTF-8.

    Every text is encoded and decoded exactly. It has no chat template.
    """
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((PAD, EOS, *alphabet))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )
