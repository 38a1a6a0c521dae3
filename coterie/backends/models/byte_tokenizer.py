"""The byte-level tokenizer of newly initialised models: one id per byte, for any text without a download."""

from __future__ import annotations

from typing import Any

from coterie.backends.models.word_tokenizer import EOS, PAD


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
