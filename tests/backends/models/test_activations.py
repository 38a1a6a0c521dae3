"""Activations: the derived bytes are what autograd keeps, within 10 % together with the KV cache."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from dataclasses import replace  # noqa: E402

from coterie.backends.models.memory import (  # noqa: E402  # noqa: E402
    FP32,
    Activations,
    Forward,
    cache_bytes,
    largest_forward,
    most_logits,
)
from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.backends.models.sizes import adapted_layers, size_of  # noqa: E402
from coterie.backends.trainers.forward import TokenScorer  # noqa: E402
from coterie.backends.trainers.packing import (  # noqa: E402
    Probe,
    pack,
    pad,
    plan,
)

pytestmark = pytest.mark.torch

_SIZES = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
SHAPES = {
    "grouped": dict(zip(_SIZES, (64, 4, 2, 160), strict=True)),
    "wide": dict(zip(_SIZES, (96, 3, 3, 400), strict=True)),
    "one group": dict(zip(_SIZES, (128, 8, 1, 96), strict=True)),
}
TRAINED = {
    "full": {"train": "full"},
    "lora": {"train": "lora", "lora": {"rank": 8}},
    "lora with dropout": {"train": "lora", "lora": {"rank": 4, "dropout": 0.1}},
    "lora on attention": {"train": "lora", "lora": {"rank": 8, "target_modules": ["q_proj", "v_proj"]}},
}


def model(shape, dtype, train, layers=3, kind="Qwen3"):
    """A model with its policy and its size."""
    torch.manual_seed(0)
    sizes = {"head_dim": 32, "num_hidden_layers": layers, "vocab_size": 128, "max_position_embeddings": 512}
    config = getattr(transformers, f"{kind}Config")(**SHAPES[shape], **sizes, attn_implementation="sdpa")
    network = getattr(transformers, f"{kind}ForCausalLM")(config).to(getattr(torch, dtype)).eval()
    policy = TorchPolicy.model_validate({"model": {"init": "qwen3"}, "dtype": dtype, **TRAINED[train]})
    size = size_of(network, None)
    if policy.lora is not None:
        network.requires_grad_(False)
        settings = peft.LoraConfig(
            r=policy.lora.rank,
            lora_dropout=policy.lora.dropout,
            target_modules=policy.lora.target_modules,
            task_type="CAUSAL_LM",
        )
        peft.get_peft_model(network, settings)
        size = replace(size, adapted={"p": adapted_layers(network, "default")})
        for module in network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.training = True
    return network, policy, size


def groups(prompts, siblings, prompt, answer):
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(prompts):
        shared = rng.integers(0, 100, prompt)
        ids = [np.concatenate([shared, rng.integers(0, 100, answer)]) for _ in range(siblings)]
        rows += [Probe(row, np.arange(len(row)) >= prompt) for row in ids]
    return rows


def kept_by(network, forward):
    """Bytes that autograd saves in a forward, without the model's own tensors; each storage once."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    kept = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = forward()
    assert scores.logprobs.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


def measured(network, rows, packing):
    scorer = TokenScorer(network, packing=packing, budget=10**6, name="p")
    assert scorer.mode.packed == packing
    with scorer.session():
        return kept_by(network, lambda: scorer(rows))


CASES = [
    *itertools.product(["grouped"], TRAINED, ["bfloat16"], [True, False]),
    *itertools.product(["grouped"], ["full", "lora"], ["float32"], [True]),
    *itertools.product(["wide", "one group"], ["full", "lora"], ["bfloat16"], [False]),
]


@pytest.mark.parametrize(("shape", "train", "dtype", "packing"), CASES)
def test_kept_bytes_are_what_autograd_saves(shape, train, dtype, packing):
    network, policy, size = model(shape, dtype, train)
    lengths = (4, 4, 48, 20)
    kept = measured(network, groups(*lengths), packing)
    forward = largest_forward(4, 16, 48, 20, budget=None, packing=packing)
    # The masks of equally long prompts are one; the plan counts one for each completion.
    if packing:
        forward = forward._replace(masked=19 * (48 + 19))
    # Counted and not kept: masks of one byte, and the first layer's keys, no function of adapters of q and v.
    exact = train in ("full", "lora")
    assert Activations(size, policy, "p").kept(forward) == pytest.approx(kept, rel=0.01 if exact else 0.1)


@pytest.mark.parametrize("train", ["full", "lora"])
@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
def test_the_plans_bytes_with_the_cache_are_within_a_tenth(train, packing):
    """In bfloat16, of prompts of different lengths, which the plan counts as long as the longest."""
    network, policy, size = model("grouped", "bfloat16", train, layers=4)
    rng = np.random.default_rng(1)
    rows = [row for length in (44, 46, 47, 48) for row in groups(1, 4, length, 20)]
    kept = measured(network, rows, packing)
    ids = torch.from_numpy(rng.integers(0, 100, (16, 68)))
    with torch.no_grad():
        cache = network(ids, use_cache=True).past_key_values
    kept += sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    forward = largest_forward(4, 16, 48, 20, budget=None, packing=packing)
    planned = Activations(size, policy, "p").kept(forward)
    planned += cache_bytes(size, "bfloat16", prompts=16, prompt=48, rows=16, answer=20)
    assert planned == pytest.approx(kept, rel=0.1)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_models_without_norms_of_heads_keep_less(kind):
    network, policy, size = model("grouped", "bfloat16", "full", kind=kind)
    assert not size.normed_heads
    forward = largest_forward(4, 16, 48, 20, budget=None, packing=False)
    kept = measured(network, groups(4, 4, 48, 20), False)
    assert Activations(size, policy, "p").kept(forward) == pytest.approx(kept, rel=0.03)


@pytest.mark.parametrize("train", ["full", "lora"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_checkpointing_keeps_a_vector_a_layer(train, dtype):
    """Counted are the bytes of tensors that live between the passes."""
    from tests.backends.trainers.test_checkpointing import Held

    network, policy, size = model("grouped", dtype, train, layers=6)
    network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in network.model.layers:
        layer.training = True
    scorer = TokenScorer(network, packing=True, budget=10**6, name="p")
    rows = groups(4, 4, 48, 20)
    forward = largest_forward(4, 16, 48, 20, budget=None, packing=True)._replace(masked=19 * (48 + 19))
    with scorer.session(), Held() as held:
        scores = scorer(rows)
        between = held.now
        del scores
    planned = Activations(size, policy, "p", checkpointing=True).kept(forward)
    one_layer = Activations(size, policy, "p").layer(forward)
    assert planned - one_layer == pytest.approx(between, rel=0.1)


def test_bytes_of_a_layer_by_hand():
    """bfloat16, all weights trained, padded: 16 n + 10 q + 10 k + 8 m and 12 numbers per token."""
    one, (n, q, k, m) = Forward(1, 1), (64, 128, 64, 160)
    small = FP32 * (2 + 4 + 2 + 4)  # a number for each norm, and one for each head of the kernel
    _, policy, size = model("grouped", "bfloat16", "full")
    assert Activations(size, policy, "p").layer(one) == 16 * n + 10 * q + 10 * k + 8 * m + small
    _, policy, size = model("grouped", "bfloat16", "lora")
    on_cpu, on_gpu, divided = (
        Activations(size, policy, "p", **where) for where in ({}, {"gpu": 80e9}, {"divided": True})
    )
    assert on_cpu.layer(one) == 12 * n + 8 * q + 8 * k + 8 * m + 7 * 2 * 8 + small
    assert on_gpu.layer(one) == divided.layer(one) == 28 * n + 12 * q + 8 * k + 10 * m + 7 * FP32 * 8 + small
    more = on_gpu.kept(one) - on_cpu.kept(one)
    assert more == divided.kept(one) - on_cpu.kept(one) == 3 * (on_gpu.layer(one) - on_cpu.layer(one))


def test_a_head_of_few_logits_is_counted_three_times():
    _, policy, size = model("grouped", "bfloat16", "full")
    few, planned = Forward(100, 50), Activations(size, policy, "p")
    assert planned.most(few) - planned.kept(few) == 2 * FP32 * 50 * 128


def test_the_head_of_a_divided_model_is_counted_three_times_in_its_largest_chunk():
    _, policy, size = model("grouped", "bfloat16", "full")
    many = Forward(100, 10**6)
    on_cpu, on_gpu = (
        Activations(size, policy, "p", gpu=gpu, divided=True).most(many) for gpu in (None, 80e9)
    )
    assert on_gpu - on_cpu == 3 * FP32 * (min(128 * 10**6, most_logits(80e9)) - most_logits(None))


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("budget", [60, 150, 700, 10_000])
def test_the_largest_forward_is_that_of_the_packing(packing, budget):
    """No micro-batch of the trainer's division is larger, and the largest is about as large."""
    for prompts, siblings, prompt, answer in itertools.product((1, 5), (1, 4), (10, 90), (2, 30)):
        rows = groups(prompts, siblings, prompt, answer)
        packed = [
            (pack if packing else pad)([rows[index] for index in indices])
            for indices in plan(rows, budget, packing)
        ]
        forward = largest_forward(prompts, prompts * siblings, prompt, answer, budget=budget, packing=packing)
        largest = max(row.ids.size for row in packed)
        assert largest <= forward.tokens * 1.25 and forward.tokens <= largest * 1.01
        assert forward.trained == max(len(row.targets) for row in packed) or forward.trained >= 0.75 * largest
