"""The tabular trainer: the loss's gradient by hand, exact state, and a bandit that it learns."""

import asyncio
import dataclasses

import numpy as np
import pytest

from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.models.minibatches import token_coefficients
from coterie.backends.models.policy import TabularPolicy
from coterie.backends.models.table import log_softmax, write_rows
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.errors import ConfigError, RunFolderError, UserError
from coterie.core.protocols import EngineContext, Surrogate, TrainerContext
from coterie.core.types import Key, Request, Sample, Sampling, Span

WORDS = ("left", "right")


class Loss:
    """Policy gradient with an importance ratio, and a square so that value and gradient differ in shape."""

    needs = ()
    length = "sequence_mean"

    def __init__(self, entropy=0.0, length="sequence_mean"):
        self.entropy, self.length = entropy, length
        self.length_constant = 7.0 if length == "constant" else None

    def __call__(self, xp, tokens):
        self.seen = tokens
        ratio = xp.exp(tokens.logprobs - tokens.behaviour)
        pull = tokens.logprobs if tokens.ref_logprobs is None else tokens.logprobs - tokens.ref_logprobs
        return Surrogate(
            value=-ratio * tokens.advantages + 0.05 * pull**2,
            grad=-ratio * tokens.advantages + 0.1 * pull,
            metrics={"ratio": ratio},
        )


def wait(work):
    return asyncio.run(work)


def opened(loss=None, train="full", policies=("p",), vocabulary=WORDS, seed=1, needs=(), **settings):
    trainer = TabularTrainer(TabularTrainer.Config(**settings))
    config = TabularPolicy(model={"init": "tabular"}, train=train)
    wait(
        trainer.open(
            TrainerContext(
                policies=dict.fromkeys(policies, config),
                loss=loss or Loss(),
                chat=None,
                seed=seed,
                deterministic=True,
                vocabulary=vocabulary,
                needs=needs,
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
        present = log_softmax(table.logits(tuple(ids[:at])) / temperature)
        logprobs[at] = present[table.columns[ids[at]]] + shift
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
    rows = token_coefficients(samples, loss.length, loss.length_constant)
    for sampled, coefficients in zip(samples, rows, strict=True):
        ids = sampled.token_ids.tolist()
        for at in np.flatnonzero(sampled.loss_mask):
            logprobs = log_softmax(table.logits(tuple(ids[:at])) / sampled.temperature)
            ratio = np.exp(logprobs[table.columns[ids[at]]] - sampled.logprobs[at])
            value = -ratio * sampled.advantages[at] + 0.05 * logprobs[table.columns[ids[at]]] ** 2
            total += coefficients[at] * (value + loss.entropy * (np.exp(logprobs) * logprobs).sum())
    return total


class Broken(Loss):
    """A loss whose value or gradient is not finite from some update on."""

    def __init__(self, value=0.0, grad=0.0):
        super().__init__()
        self.added = value, grad

    def __call__(self, xp, tokens):
        surrogate = super().__call__(xp, tokens)
        value, grad = self.added
        return dataclasses.replace(surrogate, value=surrogate.value + value, grad=surrogate.grad + grad)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_logits_that_are_not_finite_end_the_run_with_policy_and_step():
    trainer = opened(Broken(grad=1e308), policies=("p", "q"), learning_rate=1e10)
    with pytest.raises(UserError, match="policy 'p', step 4: the weights are not finite") as caught:
        wait(trainer.update({"p": mixed(trainer)}, 3))
    assert caught.value.path == "trainer.learning_rate" and caught.value.fix


def test_values_that_are_not_finite_end_the_run_too():
    trainer = opened(needs=("values",))
    sampled = mixed(trainer)[0]
    sampled = dataclasses.replace(sampled, extras={"targets": np.where(sampled.loss_mask, np.inf, 0.0)})
    with pytest.raises(UserError, match="policy 'p', step 1") as caught:
        wait(trainer.update({"p": [sampled]}, 0))
    assert caught.value.path == "trainer.value_learning_rate"


def test_a_loss_that_is_not_finite_is_told(caplog):
    trainer = opened(Broken(value=np.inf))
    assert wait(trainer.update({"p": mixed(trainer)}, 3))["p"]["loss"] == np.inf
    assert "policy 'p', step 4: the loss is inf" in caplog.text


def test_a_rate_that_makes_tables_deterministic_is_warned_about(caplog):
    opened(learning_rate=200.0)
    assert caplog.text == ""
    opened(learning_rate=1e6)
    assert "trainer.learning_rate: 1e+06 is far above" in caplog.text


@pytest.mark.parametrize("length", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
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
            grad = (shifted[0] - shifted[1]) / 2e-5
            moved = after.logits(context)[column] - before.logits(context)[column]
            assert moved == pytest.approx(-0.5 * grad, abs=1e-7)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam", "learning_rate": 0.2}, {"minibatch_size": 8}])
def test_a_bandit_is_learnt(settings):
    """Two arms; the right one pays. Group means are the baseline; tokens come from the engine."""
    trainer, engine, active_rollouts = opened(**settings), TabularEngine(), ActiveRollouts()
    policies = {"p": TabularPolicy(model={"init": "tabular"})}
    wait(
        engine.open(
            EngineContext(
                policies=policies,
                chat=None,
                active_rollouts=active_rollouts,
                deterministic=True,
                vocabulary=WORDS,
            )
        )
    )
    prompt = engine.codec("p").encode([{"role": "user", "content": "which way?"}])

    async def play(step):
        await engine.load_weights(trainer.weights("p"))

        async def draw(branch):
            active_rollouts.start()
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
                active_rollouts.stop()

        calls = await asyncio.gather(*[draw(branch) for branch in range(16)])
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


def test_each_pass_and_each_minibatch_is_an_optimiser_step():
    trainer = opened(epochs=3, minibatch_size=1)
    samples = [
        dataclasses.replace(row, key=Key(f"t{index}").of_branch("solver", 0))
        for index, row in enumerate(mixed(trainer))
    ]
    metrics = wait(trainer.update({"p": samples}, 1))["p"]
    assert (metrics["optimizer_steps"], metrics["samples"]) == (9.0, 3.0)
    whole = wait(opened(epochs=2).update({"p": mixed(trainer)}, 1))["p"]
    assert whole["optimizer_steps"] == 2.0


def test_adam_by_hand():
    """Adam's first step has the learning rate's length, whatever the gradient's; the second has momentum."""
    trainer = opened(optimizer="adam", learning_rate=0.2)
    grads, logits = [], [np.zeros(3)]
    for step in (1, 2):
        row = sample(trainer, (7,), ("left",), 1.0)
        share = np.exp(log_softmax(logits[-1]))
        grads.append(share - np.eye(3)[1] + 0.1 * logits_pull(row) * (np.eye(3)[1] - share))
        wait(trainer.update({"p": [row]}, step))
        logits.append(trainer.weights("p").module.logits((7,)))
    assert logits[1] == pytest.approx(-0.2 * np.sign(grads[0]), abs=1e-6)
    first = (0.9 * 0.1 * grads[0] + 0.1 * grads[1]) / (1 - 0.9**2)
    second = (0.999 * 0.001 * grads[0] ** 2 + 0.001 * grads[1] ** 2) / (1 - 0.999**2)
    assert logits[2] - logits[1] == pytest.approx(-0.2 * first / np.sqrt(second), abs=1e-6)


def logits_pull(row):
    """The argument of the loss's square: the log-prob itself, since there is no reference."""
    return float(row.logprobs[row.loss_mask][0])


def test_training_one_policy_leaves_the_others_alone():
    trainer = opened(policies=("p", "q"))
    before = trainer.digest()
    wait(trainer.update({"p": mixed(trainer)}, 1))
    after = trainer.digest()
    assert after["q"] == before["q"] and after["p"] != before["p"]
    assert trainer.weights("p").version == 1 and trainer.weights("q").version == 0


def test_an_update_without_samples_changes_neither_weights_nor_version():
    trainer = opened()
    wait(trainer.update({"p": mixed(trainer)}, 1))
    before = trainer.digest()
    wait(trainer.update({"p": []}, 2))
    assert trainer.digest() == before and trainer.weights("p").version == 1


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
    settings = {"optimizer": optimizer, "epochs": 2, "minibatch_size": 2, "needs": ("values",)}
    first = opened(**settings)
    for step in (1, 2):
        wait(first.update({"p": with_targets(mixed(first))}, step))
    first.save(tmp_path)
    other = opened(**settings)
    other.load(tmp_path)
    assert other.digest() == first.digest()
    for step in (3, 4):
        for trainer in (first, other):
            wait(trainer.update({"p": with_targets(mixed(trainer))}, step))
    assert other.digest() == first.digest()
    assert other.weights("p").version == 4
    rows = first.weights("p").module.rows
    assert all((rows[context] == row).all() for context, row in other.weights("p").module.rows.items())
    for samples in (mixed(first), mixed(other)):
        mine, theirs = (wait(trainer.annotate(samples, "values")) for trainer in (first, other))
        assert all((mine[key] == theirs[key]).all() and mine[key].any() for key in mine)


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


def test_tables_of_another_version_are_refused(tmp_path):
    trainer = opened()
    trainer.save(tmp_path)
    table = trainer.weights("p").module
    write_rows(tmp_path / "p.npz", table.words, logits=table.rows)
    with pytest.raises(RunFolderError, match="lack first, second, steps, value_first"):
        opened().load(tmp_path)


def test_the_reference_is_uniform_and_annotations_are_by_sample():
    trainer = opened()
    wait(trainer.update({"p": mixed(trainer)}, 1))
    samples = mixed(trainer)
    annotations = wait(trainer.annotate(samples, "ref_logprobs"))
    assert set(annotations) == {row.key for row in samples}
    for row in samples:
        assert annotations[row.key] == pytest.approx([-np.log(3)] * int(row.loss_mask.sum()))
    for what in ("logprobs", "old_logprobs"):
        now = wait(trainer.annotate(samples, what))
        assert now[samples[1].key] == pytest.approx(samples[1].logprobs[samples[1].loss_mask])
    with pytest.raises(ConfigError, match="no attention"):
        wait(trainer.annotate(samples, "attention"))


def test_reference_logprobs_reach_the_loss():
    trainer = opened()
    plain = wait(trainer.update({"p": mixed(trainer)}, 1))["p"]["loss"]
    other = opened()
    samples = [
        sample(other, (7,), ("left",), 0.0, extras={"ref_logprobs": np.full(2, -np.log(3), np.float32)})
    ]
    assert wait(other.update({"p": samples}, 1))["p"]["loss"] == pytest.approx(0.0, abs=1e-6)
    assert plain != 0.0


def test_old_logprobs_and_sequences_reach_the_loss():
    loss = Loss()
    trainer = opened(loss)
    samples = mixed(trainer)
    wait(trainer.update({"p": samples}, 1))
    assert loss.seen.old is None
    assert loss.seen.sequence.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert loss.seen.sequences == 3
    old = wait(trainer.annotate(samples, "old_logprobs"))
    noted = [with_annotation(row, "old_logprobs", old[row.key]) for row in samples]
    wait(trainer.update({"p": noted}, 2))
    assert loss.seen.old.tolist() == np.concatenate([old[row.key] for row in samples]).tolist()


# --------------------------------------------------------------------------------------------------- values


def with_annotation(row, name, numbers):
    values = np.zeros(len(row.token_ids), np.float32)
    values[row.loss_mask] = numbers
    return dataclasses.replace(row, extras={**row.extras, name: values})


def with_targets(samples):
    """1, 2, ... along each answer."""
    return [with_annotation(row, "targets", 1 + np.arange(row.loss_mask.sum())) for row in samples]


def test_values_descend_their_squared_error_by_hand():
    """Two answers share their first context: its value goes half of the way to both of its targets."""
    trainer = opened(Loss(length="token_mean"), needs=("values",), value_learning_rate=0.8)
    left = with_annotation(sample(trainer, (7,), ("left", ""), 1.0), "targets", [1.0, 4.0])
    right = with_annotation(sample(trainer, (7,), ("right", ""), 1.0, index=1), "targets", [3.0, -1.0])
    start = wait(trainer.annotate([left], "values"))
    assert start[left.key].tolist() == [0.0, 0.0]
    metrics = wait(trainer.update({"p": [left, right]}, 1))["p"]
    assert metrics["value_loss"] == pytest.approx((1 + 16 + 9 + 1) / 2 / 4)
    annotations = wait(trainer.annotate([left, right], "values"))
    assert annotations[left.key] == pytest.approx([0.8 * (1 + 3) / 4, 0.8 * 4 / 4])
    assert annotations[right.key] == pytest.approx([0.8 * (1 + 3) / 4, 0.8 * -1 / 4])
    again = wait(trainer.update({"p": [left, right]}, 2))["p"]
    errors = [0.8 - 1, 0.8 - 4, 0.8 - 3, -0.2 + 1]
    assert again["value_loss"] == pytest.approx(sum(error**2 for error in errors) / 2 / 4)


def test_values_move_at_a_rate_of_their_own_and_leave_the_logits_alone():
    plain, valued, slow = (
        opened(needs=("values",), **settings) for settings in ({}, {}, {"value_learning_rate": 0.5})
    )
    samples = mixed(plain)
    metrics = wait(plain.update({"p": samples}, 1))["p"]
    assert "value_loss" not in metrics
    for trainer in (valued, slow):
        wait(trainer.update({"p": with_targets(samples)}, 1))
    digests = [trainer.weights("p").module.digest() for trainer in (plain, valued, slow)]
    assert len(set(digests)) == 1
    assert len({trainer.digest()["p"] for trainer in (plain, valued, slow)}) == 3
    fast = wait(valued.annotate(samples, "values"))
    half = wait(slow.annotate(samples, "values"))
    for row in samples:
        assert half[row.key] == pytest.approx(fast[row.key] / 2) and fast[row.key].all()


def test_values_are_moved_by_adam_too():
    trainer = opened(needs=("values",), optimizer="adam", value_learning_rate=0.3)
    (row,) = with_targets([sample(trainer, (7,), ("left", ""), 1.0)])
    wait(trainer.update({"p": [row]}, 1))
    assert wait(trainer.annotate([row], "values"))[row.key] == pytest.approx([0.3, 0.3])


def test_samples_without_targets_and_frozen_policies_have_no_value_to_learn():
    trainer = opened(needs=("values",))
    row, other, _ = mixed(trainer)
    wait(trainer.update({"p": [*with_targets([row]), other]}, 1))
    annotations = wait(trainer.annotate([row, other], "values"))
    assert annotations[row.key].all() and annotations[other.key].tolist()[1] == 0.0
    frozen = opened(train="none", needs=("values",))
    wait(frozen.update({"p": with_targets(mixed(frozen))}, 1))
    assert not any(row.any() for row in wait(frozen.annotate(mixed(frozen), "values")).values())


def test_a_rate_for_values_that_nothing_needs_is_refused():
    with pytest.raises(ConfigError, match="this setting has no effect") as caught:
        opened(value_learning_rate=0.5)
    assert caught.value.path == "trainer.value_learning_rate"


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
                    policies={"p": TabularPolicy(**policy)},
                    loss=Loss(),
                    chat=None,
                    seed=0,
                    deterministic=True,
                    vocabulary=WORDS,
                )
            )
        )
    assert caught.value.path == path
