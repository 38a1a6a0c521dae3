"""The engine around the decoders: batches, contexts, stops, versions and errors."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.chat_formats.formats import PlainChat  # noqa: E402
from coterie.backends.engines import hf  # noqa: E402
from coterie.backends.engines.batches import BatchBound, split  # noqa: E402
from coterie.backends.engines.hf import HFEngine  # noqa: E402
from coterie.backends.engines.rows import BatchRow  # noqa: E402
from coterie.backends.models.loading import load_model  # noqa: E402
from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.core.errors import ConfigError, SystemFault  # noqa: E402
from coterie.core.types import Weights  # noqa: E402
from tests.backends.engines.support import awave, context, request, tiny, wait, wave  # noqa: E402

pytestmark = pytest.mark.torch

WORDS = tuple(f"w{index}" for index in range(30))
POLICY = TorchPolicy(
    model={
        "init": "qwen3",
        "hidden_size": 32,
        "layers": 2,
        "heads": 2,
        "head_dim": 16,
        "mlp_size": 48,
        "context": 48,
    }
)


class Opened:
    """An engine with weights, its context and its model."""

    def __init__(self, config=None, policies=None, deterministic=True, **settings):
        self.ctx = context(policies or {"p": config or POLICY}, PlainChat(), WORDS, deterministic)
        self.engine = HFEngine(HFEngine.Config(**settings))
        wait(self.engine.open(self.ctx))
        for name, policy in self.ctx.policies.items():
            loaded = load_model(policy, policy=name, seed=3, vocabulary=WORDS)
            with torch.no_grad():
                for parameter in loaded.module.parameters():
                    if parameter.dim() == 2:
                        parameter.mul_(4.0)
            self.module, self.tokenizer = loaded.module, loaded.tokenizer
            self.load(0, name)

    def load(self, version, policy="p", **more):
        weights = {"module": self.module, "tokenizer": self.tokenizer} | more
        wait(self.engine.load_weights(Weights(policy=policy, version=version, **weights)))

    def __call__(self, *requests):
        return wave(self.ctx, self.engine, requests)


def many(count=24, **sampling):
    """Requests of decisions with 4 branches each."""
    return [
        request(
            [5 + index // 4, 6, 7], seed=index * 7919, branch=index % 4, task=f"t{index // 4}", **sampling
        )
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def opened():
    return Opened()


@pytest.mark.parametrize(
    ("wanted", "device", "expected"),
    [("auto", "cpu", True), ("auto", "cuda", False), (True, "cuda", True), (False, "cpu", False)],
)
def test_auto_waits_for_all_rollouts_on_a_cpu_alone(monkeypatch, wanted, device, expected):
    known = hf.is_deterministic
    monkeypatch.setattr(hf, "is_deterministic", lambda wanted, _: known(wanted, torch.device(device)))
    assert Opened(deterministic=wanted).engine.batcher.deterministic is expected


def test_the_policys_context_bounds_prompt_and_answer():
    opened = Opened(POLICY.model_copy(update={"context": 10}))
    assert opened.engine.codec("p").context == 10
    (call,) = opened(request([5, 6, 7], max_new_tokens=40))
    assert len(call.token_ids) <= 7
    (call,) = opened(request([5] * 9, max_new_tokens=40))
    assert len(call.token_ids) == 1
    with pytest.raises(ConfigError, match="10 tokens does not fit the context of 10 tokens"):
        opened(request([5] * 10))
    with pytest.raises(ConfigError, match="49 tokens is longer than the model's of 48"):
        Opened(POLICY.model_copy(update={"context": 49}))


@pytest.mark.parametrize("decoder", ["lean", "transformers"])
def test_calls_carry_what_was_drawn_and_the_models_logprobs(decoder):
    opened = Opened(decoder=decoder)
    requests = many(max_new_tokens=8, temperature=0.9)
    for sent, call in zip(requests, opened(*requests), strict=True):
        assert call.prompt_ids == sent.prompt_ids
        ids = torch.tensor([call.prompt_ids + call.token_ids])
        with torch.no_grad():
            logits = opened.module(ids).logits[0, len(call.prompt_ids) - 1 : -1]
        expected = torch.log_softmax(logits / 0.9, -1).gather(1, torch.tensor(call.token_ids)[:, None])[:, 0]
        assert call.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
        assert (call.finish == "stop") == (call.token_ids[-1] == 1)


def test_all_that_waits_is_one_batch_and_each_prompt_is_prefilled_once(opened):
    before = opened.engine.counts("p").prompts
    batches = opened.engine.batcher.batches
    opened(*many(max_new_tokens=4))
    assert opened.engine.batcher.batches == batches + 1
    assert opened.engine.counts("p").prompts == before + 6


def test_tokens_do_not_depend_on_who_else_is_in_the_batch(opened):
    requests = many(max_new_tokens=12)
    together = opened(*requests)
    assert [opened(alone)[0].token_ids for alone in requests] == [call.token_ids for call in together]
    assert opened(*requests[::-1]) == together[::-1]  # bit for bit: rows are in key order anyway


def test_large_batches_are_split_with_siblings_together(opened):
    small = Opened(max_batch=6)
    requests = many(max_new_tokens=6)
    assert [call.token_ids for call in small(*requests)] == [call.token_ids for call in opened(*requests)]
    assert small.engine.counts("p").prompts == 6

    def parts(most):
        rows = [BatchRow(prompt_ids=sent.prompt_ids, seed=0, limit=6, stops=()) for sent in requests]
        return split(requests, rows, BatchBound(most))

    assert [len(part) for part in parts(6)] == [4] * 6
    assert [len(part) for part in parts(9)] == [8] * 3
    assert [len(part) for part in parts(3)] == [3, 1] * 6
    assert [index for part in parts(9) for index in part] == list(range(len(requests)))


def test_greedy_calls_repeat_and_differ_from_sampled_ones(opened):
    requests = many(max_new_tokens=10, temperature=0.0)
    other = [sent.__class__(**{**_fields(sent), "seed": sent.seed + 1}) for sent in requests]
    assert [call.token_ids for call in opened(*requests)] == [call.token_ids for call in opened(*other)]
    assert opened(*many(max_new_tokens=10)) != opened(*requests)


def _fields(request_):
    return {name: getattr(request_, name) for name in request_.__dataclass_fields__}


def test_a_call_ends_at_its_limit_or_at_a_stop(opened):
    for call in opened(*many(max_new_tokens=5)):
        assert len(call.token_ids) == 5 or call.finish == "stop"
    word = opened.tokenizer.convert_ids_to_tokens([10])[0]
    calls = opened(*many(60, max_new_tokens=40, stop=(word,)))
    ended = [call for call in calls if call.token_ids[-1] == 10]
    assert ended and all(call.finish == "stop" and 10 not in call.token_ids[:-1] for call in ended)
    assert all(word not in opened.engine.codec("p").decode(call).split() for call in calls)


@pytest.mark.parametrize("stop", ["w1 w2", "never heard of"])
def test_a_stop_string_that_is_not_one_token_is_refused(opened, stop):
    with pytest.raises(ConfigError, match="not one token") as caught:
        opened(request([5], stop=(stop,)))
    assert caught.value.path == "sampler.sampling.stop"


def test_new_tokens_are_clipped_to_the_context(opened):
    (call,) = opened(request(range(2, 30), max_new_tokens=1000, seed=5, temperature=5.0))
    assert len(call.token_ids) <= 48 - 28
    (call,) = opened(request([5] * 47, max_new_tokens=1000))
    assert len(call.token_ids) == 1


@pytest.mark.parametrize("length", [48, 60])
def test_a_prompt_that_does_not_fit_is_refused(opened, length):
    with pytest.raises(ConfigError) as caught:
        opened(request([5] * length))
    assert caught.value.what == f"prompt of {length} tokens does not fit the context of 48 tokens"
    assert "team.roles.solver" in str(caught.value) and "fix" in str(caught.value)


def test_an_empty_prompt_is_refused(opened):
    with pytest.raises(ConfigError, match="empty"):
        opened(request([]))


def test_a_wrong_request_fails_alone(opened):
    async def both():
        good = awave(opened.ctx, opened.engine, [request([5], max_new_tokens=3)])
        with pytest.raises(ConfigError):
            await awave(opened.ctx, opened.engine, [request([5] * 60)])
        return await good

    assert wait(both())[0].token_ids


def test_calls_name_the_version_that_drew_them():
    opened = Opened()
    requests = many(max_new_tokens=6)
    old = opened(*requests)
    with torch.no_grad():
        for parameter in opened.module.parameters():
            parameter.mul_(1.05)
    assert opened(*requests) == old  # not before they are loaded
    opened.load(7)
    new = opened(*requests)
    assert {call.version for call in old} == {0} and {call.version for call in new} == {7}
    assert [call.logprobs for call in new] != [call.logprobs for call in old]


def test_policies_are_kept_apart():
    opened = Opened(policies={"p": POLICY, "q": POLICY})
    with torch.no_grad():
        opened.module.lm_head.weight.mul_(0.5)
    opened.load(4, "q")
    p, q = (many(max_new_tokens=6, policy=name) for name in "pq")
    assert {call.version for call in opened(*p)} == {0}
    assert {call.version for call in opened(*q)} == {4}
    assert [call.logprobs for call in opened(*p)] != [call.logprobs for call in opened(*q)]
    assert opened(*p, *q) == opened(*p) + opened(*q)


def test_a_policy_without_weights_is_a_system_fault():
    ctx = context({"p": POLICY}, PlainChat(), WORDS)
    engine = HFEngine()
    wait(engine.open(ctx))
    assert engine.codec("p").encode([{"role": "user", "content": "w1 w2"}]).ids  # but text can be encoded
    with pytest.raises(SystemFault, match="no weights"):
        wave(ctx, engine, [request([5])])


def test_weights_come_from_folders_too(tmp_path):
    opened = Opened()
    opened.module.save_pretrained(tmp_path / "full")
    opened.tokenizer.save_pretrained(tmp_path / "full")
    requests = many(max_new_tokens=6)
    before = opened(*requests)
    opened.load(1, module=None, tokenizer=None, folder=str(tmp_path / "full"))
    assert [call.token_ids for call in opened(*requests)] == [call.token_ids for call in before]

    peft = pytest.importorskip("peft")
    base = str(tmp_path / "full")
    from transformers import AutoModelForCausalLM

    model = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(r=2, target_modules="all-linear")
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    model.save_pretrained(tmp_path / "adapter")
    opened.load(2, module=None, tokenizer=None, folder=str(tmp_path / "adapter"))
    from_folder = opened(*requests)
    opened.load(3, module=model, adapter="default")
    for call, other in zip(from_folder, opened(*requests), strict=True):
        assert call.token_ids == other.token_ids
        assert call.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_without_a_trainers_module_the_configured_model_is_loaded(tmp_path):
    opened = Opened()
    opened.module.save_pretrained(tmp_path)
    opened.tokenizer.save_pretrained(tmp_path)
    alone = Opened(TorchPolicy(model=str(tmp_path), train="none"))
    alone.engine.served.clear()
    alone.load(0, module=None, tokenizer=None)
    requests = many(max_new_tokens=6)
    alone_again = Opened(TorchPolicy(model=str(tmp_path), train="none"))
    assert [c.token_ids for c in alone(*requests)] != [
        c.token_ids for c in alone_again(*requests)
    ]  # scaled by Opened
    assert [c.token_ids for c in alone(*requests)] == [c.token_ids for c in opened(*requests)]


def test_an_unknown_architecture_falls_back_and_says_so(caplog):
    model = tiny("gpt2", scale=2.0)
    opened = Opened()
    opened.engine.served.clear()
    with caplog.at_level(logging.WARNING, logger="coterie"):
        opened.load(0, module=model)
    assert "GPT2LMHeadModel" in caplog.text
    assert opened(*many(max_new_tokens=4))


def test_lean_on_an_unknown_architecture_is_refused():
    opened = Opened(decoder="lean")
    opened.engine.served.clear()
    with pytest.raises(ConfigError, match=r"engine\.decoder"):
        opened.load(0, module=tiny("gpt2"))


def test_bfloat16_policies_are_decoded_in_bfloat16():
    opened = Opened(POLICY.model_copy(update={"dtype": "bfloat16"}))
    assert opened.engine.served.at("p").decoder.weights.dtype == torch.bfloat16
    assert all(logprob <= 0 for call in opened(*many(max_new_tokens=4)) for logprob in call.logprobs)
