"""The tabular trainer: the loss's slope by hand, exact state, and a bandit that it learns."""

import asyncio

import numpy as np
import pytest

from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.models.table import log_softmax
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.batching import token_coefficients
from coterie.core.config import PolicyConfig
from coterie.core.errors import ConfigError, RunFolderError
from coterie.core.gathering import Strands
from coterie.core.protocols import EngineContext, Surrogate, TrainerContext
from coterie.core.types import Key, Request, Sample, Sampling, Span

WORDS = ("left", "right")


class Loss:
    """Policy gradient with an importance ratio, and a square so that value and slope differ in shape."""

    needs = ()
    length = "sequence_mean"

    def __init__(self, entropy=0.0, length="sequence_mean"):
        self.entropy, self.length = entropy, length

    def __call__(self, xp, tokens):
        ratio = xp.exp(tokens.logprobs - tokens.behaviour)
        pull = tokens.logprobs if tokens.ref_logprobs is None else tokens.logprobs - tokens.ref_logprobs
        return Surrogate(
            value=-ratio * tokens.advantages + 0.05 * pull**2,
            slope=-ratio * tokens.advantages + 0.1 * pull,
            metrics={"ratio": ratio},
        )


def wait(work):
    return asyncio.run(work)


def opened(loss=None, train="full", policies=("p",), vocabulary=WORDS, seed=1, **settings):
    trainer = TabularTrainer(TabularTrainer.Config(**settings))
    config = PolicyConfig(model={"init": "tabular"}, train=train)
    wait(
        trainer.open(
            TrainerContext(
                policies=dict.fromkeys(policies, config),
                loss=loss or Loss(),
                chat=None,
                seed=seed,
                deterministic=True,
                vocabulary=vocabulary,
            )
        )
    )
    return trainer


def sample(
    trainer, prompt, words, advantage, *, index=0, policy="p", temperature=1.0, shift=0.0, extras=None
):
    table = trainer.weights(policy).module
    ids = [*prompt, *(int(table.ids[1 + table.words.index(word)]) if word else 0 for word in words)]
    mask = np.arange(len(ids)) >= len(prompt)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    for at in range(len(prompt), len(ids)):
        own = log_softmax(table.logits(tuple(ids[:at])) / temperature)
        logprobs[at] = own[table.columns[ids[at]]] + shift
    key = Key("t").of_branch("solver", index)
    return Sample(
        key=key,
        policy=policy,
        token_ids=np.array(ids),
        loss_mask=mask,
        logprobs=logprobs,
        advantages=np.where(mask, advantage, 0).astype(np.float32),
        spans=(Span(len(prompt), len(ids), key, 1.0),),
        version=0,
        temperature=temperature,
        prompt_tokens=len(prompt),
        extras=extras or {},
    )


def mixed(trainer):
    return [
        sample(trainer, (7, 8), ("left", "right", ""), 1.0, index=0, shift=0.1),
        sample(trainer, (7, 8), ("right", ""), -0.5, index=1, temperature=0.7),
        sample(trainer, (9,), ("left", "left"), 0.3, index=2, shift=-0.2),
    ]


def loss_of(table, samples, loss):
    """The loss as a function of the table, without any derivative."""
    total = 0.0
    for one, row in zip(samples, token_coefficients(samples, loss.length), strict=True):
        ids = one.token_ids.tolist()
        for at in np.flatnonzero(one.loss_mask):
            logprobs = log_softmax(table.logits(tuple(ids[:at])) / one.temperature)
            ratio = np.exp(logprobs[table.columns[ids[at]]] - one.logprobs[at])
            value = -ratio * one.advantages[at] + 0.05 * logprobs[table.columns[ids[at]]] ** 2
            total += row[at] * (value + loss.entropy * (np.exp(logprobs) * logprobs).sum())
    return total


@pytest.mark.parametrize("length", ["token_mean", "sequence_mean", "sequence_sum"])
@pytest.mark.parametrize("entropy", [0.0, 0.3])
def test_a_step_goes_down_the_gradient_of_the_loss(length, entropy):
    loss = Loss(entropy, length)
    trainer = opened(loss, learning_rate=0.5)
    wait(trainer.update({"p": mixed(trainer)}, 1))  # away from the uniform start
    samples = mixed(trainer)
    before = trainer.weights("p").module
    metrics = wait(trainer.update({"p": samples}, 2))
    after = trainer.weights("p").module
    assert metrics["p"]["loss"] == pytest.approx(loss_of(before, samples, loss), rel=1e-6)
    for context in after.rows:
        for column in range(3):
            shifted = []
            for step in (1e-5, -1e-5):
                table = before.snapshot()
                table.rows[context] = table.logits(context) + step * np.eye(3)[column]
                shifted.append(loss_of(table, samples, loss))
            slope = (shifted[0] - shifted[1]) / 2e-5
            moved = after.logits(context)[column] - before.logits(context)[column]
            assert moved == pytest.approx(-0.5 * slope, abs=1e-7)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam", "learning_rate": 0.2}, {"minibatch_size": 8}])
def test_a_bandit_is_learnt(settings):
    """Two arms; the right one pays. Group means are the baseline; tokens come from the engine."""
    trainer, engine, strands = opened(**settings), TabularEngine(), Strands()
    policies = {"p": PolicyConfig(model={"init": "tabular"})}
    wait(
        engine.open(
            EngineContext(policies=policies, chat=None, strands=strands, deterministic=True, vocabulary=WORDS)
        )
    )
    prompt = engine.codec("p").encode([{"role": "user", "content": "which way?"}])

    async def play(step):
        await engine.load_weights(trainer.weights("p"))

        async def one(branch):
            strands.start()
            try:
                return await engine.generate(
                    Request(
                        key=Key("t").of_branch("solver", branch),
                        policy="p",
                        prompt_ids=prompt.ids,
                        sampling=Sampling(max_new_tokens=1),
                        seed=1000 * step + branch,
                    )
                )
            finally:
                strands.stop()

        calls = await asyncio.gather(*[one(branch) for branch in range(16)])
        rewards = np.array([float(engine.codec("p").text(call.token_ids) == "right") for call in calls])
        samples = []
        for branch, (call, reward) in enumerate(zip(calls, rewards, strict=True)):
            key = Key("t").of_branch("solver", branch)
            count = len(call.prompt_ids)
            samples.append(
                Sample(
                    key=key,
                    policy="p",
                    token_ids=np.array(call.prompt_ids + call.token_ids),
                    loss_mask=np.arange(count + 1) >= count,
                    spans=(Span(count, count + 1, key, 1.0),),
                    logprobs=np.array([0.0] * count + list(call.logprobs), dtype=np.float32),
                    advantages=np.array([0.0] * count + [reward - rewards.mean()], dtype=np.float32),
                    version=call.version,
                    prompt_tokens=count,
                )
            )
        await trainer.update({"p": samples}, step)
        return rewards.mean()

    async def learn():
        return [await play(step) for step in range(1, 61)]

    rewards = wait(learn())
    assert np.mean(rewards[:3]) < 0.6
    assert np.mean(rewards[-5:]) > 0.9


def test_training_one_policy_leaves_the_others_alone():
    trainer = opened(policies=("p", "q"))
    before = trainer.digest()
    wait(trainer.update({"p": mixed(trainer)}, 1))
    after = trainer.digest()
    assert after["q"] == before["q"] and after["p"] != before["p"]
    assert trainer.weights("p").version == 1 and trainer.weights("q").version == 0


def test_weights_that_were_handed_out_do_not_change():
    trainer = opened()
    wait(trainer.update({"p": mixed(trainer)}, 1))
    handed = trainer.weights("p").module
    digest = handed.digest()
    wait(trainer.update({"p": mixed(trainer)}, 2))
    assert handed.digest() == digest != trainer.digest()["p"]


def test_a_frozen_policy_is_not_trained():
    trainer = opened(train="none")
    before = trainer.digest()
    assert wait(trainer.update({"p": mixed(trainer)}, 1)) == {}
    assert trainer.digest() == before


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path, optimizer):
    settings = {"optimizer": optimizer, "epochs": 2, "minibatch_size": 2}
    one = opened(**settings)
    for step in (1, 2):
        wait(one.update({"p": mixed(one)}, step))
    one.save(tmp_path)
    other = opened(**settings)
    other.load(tmp_path)
    assert other.digest() == one.digest()
    for step in (3, 4):
        for trainer in (one, other):
            wait(trainer.update({"p": mixed(trainer)}, step))
    assert other.digest() == one.digest()
    assert other.weights("p").version == 4
    rows = one.weights("p").module.rows
    assert all((rows[context] == row).all() for context, row in other.weights("p").module.rows.items())


def test_an_untrained_state_is_saved_too(tmp_path):
    opened().save(tmp_path)
    other = opened()
    other.load(tmp_path)
    assert other.digest() == opened().digest()


def test_a_state_of_other_words_or_none_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="can't be read"):
        opened().load(tmp_path)
    opened(vocabulary=("x", "y")).save(tmp_path)
    with pytest.raises(RunFolderError, match="other words"):
        opened().load(tmp_path)


def test_the_reference_is_uniform_and_annotations_are_by_sample():
    trainer = opened()
    wait(trainer.update({"p": mixed(trainer)}, 1))
    samples = mixed(trainer)
    found = wait(trainer.annotate(samples, "ref_logprobs"))
    assert set(found) == {one.key for one in samples}
    for one in samples:
        assert found[one.key] == pytest.approx([-np.log(3)] * int(one.loss_mask.sum()))
    now = wait(trainer.annotate(samples, "logprobs"))
    assert now[samples[1].key] == pytest.approx(samples[1].logprobs[samples[1].loss_mask])
    with pytest.raises(ConfigError, match="no values"):
        wait(trainer.annotate(samples, "values"))


def test_reference_logprobs_reach_the_loss():
    trainer = opened()
    plain = wait(trainer.update({"p": mixed(trainer)}, 1))["p"]["loss"]
    other = opened()
    samples = [
        sample(other, (7,), ("left",), 0.0, extras={"ref_logprobs": np.full(2, -np.log(3), np.float32)})
    ]
    assert wait(other.update({"p": samples}, 1))["p"]["loss"] == pytest.approx(0.0, abs=1e-6)
    assert plain != 0.0


def test_the_table_is_exported(tmp_path):
    trainer = opened()
    wait(trainer.update({"p": mixed(trainer)}, 1))
    trainer.export("p", tmp_path / "out")
    with np.load(tmp_path / "out" / "table.npz") as file:
        assert file["words"].tolist() == list(WORDS)
        assert len(file["logits.rows"]) == len(trainer.weights("p").module.rows)


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ({"model": {"init": "qwen3"}}, "policies.p.model"),
        ({"model": "some/model"}, "policies.p.model"),
        ({"model": {"init": "tabular"}, "train": "lora"}, "policies.p.train"),
        ({"model": {"init": "tabular"}, "optimizer": {"learning_rate": 0.1}}, "policies.p.optimizer"),
    ],
)
def test_settings_that_nothing_would_read_are_refused(policy, path):
    trainer = TabularTrainer()
    with pytest.raises(ConfigError) as caught:
        wait(
            trainer.open(
                TrainerContext(
                    policies={"p": PolicyConfig(**policy)},
                    loss=Loss(),
                    chat=None,
                    seed=0,
                    deterministic=True,
                    vocabulary=WORDS,
                )
            )
        )
    assert caught.value.path == path
