"""Models of real sizes with random weights, made on the spot: speed, memory and exactness need no others.

    python benchmarks/real_models.py smollm2-135m FOLDER

A folder has what a model's has on a hub: config.json, weights, a tokenizer with a chat template. The
tokenizer is a byte-level BPE, trained on the repository's own texts and filled up to the model's vocabulary.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ("README.md", "CHANGELOG.md", "docs/**/*.md", "coterie/**/*.py", "coterie/**/*.yaml", "tests/**/*.py")
MOST_LEARNT = 40_000
"""Most tokens that the texts are asked for."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's architecture, by the fields of its config.json."""

    hub_id: str
    """The model that has this shape."""
    config: dict[str, Any]


SHAPES = {
    "smollm2-135m": Shape(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        {
            "model_type": "llama",
            "vocab_size": 49_152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "max_position_embeddings": 8192,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-0.6b": Shape(
        "Qwen/Qwen3-0.6B",
        {
            "model_type": "qwen3",
            "vocab_size": 151_936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40_960,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "tie_word_embeddings": True,
        },
    ),
}


def make(
    name: str, folder: Path, *, seed: int = 0, layers: int | None = None, dtype: str = "bfloat16"
) -> Path:
    """Write a model of random weights and its tokenizer; a folder that has one already is left as it is.

    Args:
        name: of `SHAPES`.
        layers: fewer than the shape has, for tests that need its width and vocabulary alone.
        dtype: of the stored weights: hubs store them in bfloat16.

    Returns:
        the folder.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if (folder / "model.safetensors").is_file():
        return folder
    values = dict(SHAPES[name].config)
    if layers is not None:
        values["num_hidden_layers"] = layers
    tokenizer = make_tokenizer(values["vocab_size"])
    config = AutoConfig.for_model(
        **values, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        # Logits then deviate by about 2, as a trained model's do: with 1 every token would be as likely.
        model.model.norm.weight.fill_(4.0)
    tokenizer.save_pretrained(folder)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def make_tokenizer(size: int, chat_template: str | None = CHATML) -> Any:
    """A byte-level BPE of exactly `size` tokens, with ChatML's control tokens.

    The tokens behind the learnt ones are two learnt ones joined. No merge leads to them, so that no text is
    encoded with one, and each has a text when it is drawn.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    learning = Tokenizer(models.BPE())
    learning.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=min(size, MOST_LEARNT),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learning.train_from_iterator(texts(), trainer)
    learnt = json.loads(learning.to_str())["model"]
    vocabulary: dict[str, int] = dict(learnt["vocab"])
    for joined in _joined([token for token in vocabulary if token not in SPECIAL], vocabulary):
        if len(vocabulary) == size:
            break
        vocabulary[joined] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in learnt["merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = chat_template
    return made


def texts() -> Iterator[str]:
    """The repository's own texts, in the order of their paths."""
    for pattern in TEXTS:
        for path in sorted(ROOT.glob(pattern)):
            yield path.read_text(encoding="utf-8")


def _joined(tokens: list[str], taken: dict[str, int]) -> Iterator[str]:
    """Pairs of tokens as one text each, none of which is taken."""
    seen = set(taken)
    for first, second in itertools.product(tokens, repeat=2):
        if (joined := first + second) not in seen:
            seen.add(joined)
            yield joined


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(make(options.shape, options.folder, seed=options.seed))


if __name__ == "__main__":
    main()
