"""A Llama of 135 M random weights (the shape of SmolLM-135M), and a tokenizer of one word a token."""

from __future__ import annotations

from pathlib import Path

WORDS = 49_152
"""Tokens of the vocabulary: three special ones, then the words w0, w1, ..."""


def make_model(folder: Path) -> None:
    """Write a Llama of random weights, and a tokenizer of as many words as it has tokens."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ("<pad>", "<eos>", "<unk>")
    names = [*special, *(f"w{index}" for index in range(WORDS - len(special)))]
    words = Tokenizer(WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
