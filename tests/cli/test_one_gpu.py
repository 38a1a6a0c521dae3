"""The overlays for one GPU: what `coterie plan` says of them is what docs/levels.md says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.backends.chat_formats.qwen3 import QWEN3
from tests.cli.support import coterie

PAGE = (Path(__file__).parents[2] / "docs" / "levels.md").read_text(encoding="utf-8")
SIZES = {"Qwen3-1.7B": (2048, 6144), "Qwen3-0.6B": (1024, 3072)}
"""Hidden and MLP size; the rest of the two models' configurations is the same."""
PARAMETERS = {"Qwen3-1.7B": 1_720_574_976, "Qwen3-0.6B": 596_049_920}
pytestmark = pytest.mark.torch


def model_folder(folder: Path, name: str) -> Path:
    """A configuration as the hub has it, no weights, and a tokenizer that makes a token of every byte.

    No byte-level BPE needs more tokens than a text has bytes, so what is planned with it is a bound.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    hidden, mlp = SIZES[name]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    whole.chat_template = QWEN3
    whole.save_pretrained(folder)
    return folder


SIZED = [
    ("plan_path_split", "per_role,l1,one_gpu", "Qwen3-1.7B", 24),
    ("plan_path_split", "per_role,l1,one_gpu", "Qwen3-0.6B", 24),
    ("plan_path_split", "per_role,l1,gpu_80gb", "Qwen3-1.7B", 80),
    ("plan_path_split", "per_role,l2,gpu_80gb", "Qwen3-1.7B", 80),
    ("plan_path_tool", "l2,gpu_80gb", "Qwen3-1.7B", 80),
]


@pytest.mark.parametrize(("recipe", "overlays", "name", "gigabytes"), SIZED)
def test_it_fits_and_the_page_says_how(recipe, overlays, name, gigabytes, tmp_path):
    pytest.importorskip("torch")
    folder, gpu = model_folder(tmp_path, name), gigabytes * 1e9
    done = coterie(
        *("plan", recipe, "--with", overlays, f"policies.*.model={folder}"),
        *("--gpu-memory", gigabytes, "--json"),
    )
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert plan["fit"]["one"] and plan["memory"]["peak"] == max(plan["memory"]["phases"].values())
    room = 0.8 if gigabytes == 24 else 0.9  # 5 GB and 8 GB
    assert plan["memory"]["peak"] <= room * gpu, "room for what isn't counted"
    first, *others = plan["policies"].values()
    assert first["parameters"] == PARAMETERS[name] and first["memory"]["weights"] == 2 * PARAMETERS[name]
    full = "l2" in overlays
    assert first["trained_share"] == (1 if full else pytest.approx(0.0100, abs=0.007))
    for other in others:
        assert other["memory"]["weights"] == (first["memory"]["weights"] if full else 0), "one frozen base"
    assert not any("fill the context" in note for note in plan["notes"]), "the prompts were measured"
    phases = plan["memory"]["phases"]
    weights = sum(policy["memory"]["weights"] for policy in plan["policies"].values())
    numbers = [weights, plan["memory"]["cache"], phases["generation"], phases["update"]]
    cells = [f"`{recipe} --with {overlays}`", name, *(f"{number / 1e9:.1f}" for number in numbers)]
    row = f"| {' | '.join(cells)} | {plan['memory']['peak'] / gpu:.0%} |".replace("%", " %")
    assert row in PAGE, f"in docs/levels.md, put this:\n{row}"


def test_the_overlay_of_24_gb_has_two_names():
    from coterie.recipes import load

    one, two = (load("plan_path_split", overlays=[name]) for name in ("one_gpu", "gpu_24gb"))
    assert one.digest() == two.digest()


def test_the_models_are_those_of_the_overlay():
    from coterie.recipes import load

    for game in ("plan_path", "sudoku", "sokoban"):
        for scale, model in ((None, "Qwen/Qwen3-1.7B"), ("small", "Qwen/Qwen3-0.6B")):
            config = load(f"{game}_split", overlays=["per_role", "l1", "one_gpu"], scale=scale).config
            assert {policy.model for policy in config.policies.values()} == {model}
            assert {policy.lora.rank for policy in config.policies.values()} == {16}
