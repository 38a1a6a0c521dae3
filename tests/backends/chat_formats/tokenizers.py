"""Tokenizers and templates made on the spot, small but with the habits of real ones."""

from __future__ import annotations

from functools import cache
from typing import Any

CORPUS = [
    "the planner tells the executor where to go and the executor goes there",
    "hello hello hello world, what is 2 + 2? the answer is 4 and 10 and 100 and 1000",
    "<think>\nlet me think about the wall\n</think>\n\nUP UP RIGHT",
    "User: hi\nAssistant: hello\nTool: found\nSystem: be brief",
] * 5

KEEPS = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- if enable_thinking is defined and not
enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"""
"""As Qwen2's: every turn stays as it was."""

DROPS = """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- set content = m.content %}
{%- if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if m.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response><|im_end|>\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
"""As Qwen3's: thoughts before the last user message are dropped, tool results are no user message."""

TRIMS = """{{- bos_token }}{%- for m in messages %}{%- if m.role == 'system' %}
{{- raise_exception('System role not supported') }}{%- endif %}
{{- '<start>' + m.role + '\n' + m.content | trim + '<end>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<start>assistant\n' }}{%- endif %}"""
"""As Gemma's: it trims, starts with a token of its own and refuses system messages."""


@cache
def _bpe(vocabulary: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<start>", "<end>", "<bos>"],
            show_progress=False,
        ),
    )
    return tokenizer.to_str()


def bpe(template: str | None = None, *, eos: str = "<|im_end|>", thoughts: bool = True, **more: Any) -> Any:
    """A byte-level BPE tokenizer; `<think>` is an added token that is not special, as Qwen3's."""
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_bpe(420)),
        eos_token=eos,
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        **more,
    )
    if thoughts:
        tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>")])
    tokenizer.chat_template = template
    return tokenizer


def metaspace(template: str | None = None) -> Any:
    """As Llama-2's: a word begins with its space, and the first one of a text is given one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<unk>", "</s>", "[INST]", "[/INST]"], show_progress=False
        ),
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    made.chat_template = template
    return made
