# ruff: noqa: E402 (torch is asked for first)
"""Earlier weights that the trainer `torch` keeps for steps in play."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from tests.backends.trainers.tiny import opened, policy, samples, update

pytestmark = pytest.mark.torch


def values(trainer):
    return {name: value.detach().clone() for name, value in trainer.policies["p"].own_parameters().items()}


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("train", ["full", "lora"])
def test_a_kept_version_is_what_it_was_and_leaves_the_present_one(train):
    trainer = opened({"p": policy(train), "frozen": policy("none")})
    for name in ("p", "frozen", "p"):
        trainer.keep(name)
    before = values(trainer)
    update(trainer, {"p": samples("p")}, 0)
    present = values(trainer)
    assert not equal(before, present)
    with trainer.weights_at("p", 0) as weights:
        assert weights.version == 0 and equal(values(trainer), before)
    assert equal(values(trainer), present) and trainer.weights("p").version == 1
    trainer.keep("p")
    assert sorted(trainer.policies["p"].kept) == [0, 1]
    for _ in range(2):
        trainer.drop("p", 0)
    assert sorted(trainer.policies["p"].kept) == [1]
    assert not trainer.policies["frozen"].kept, "weights that never change are not copied"


def test_an_update_waits_while_a_kept_version_is_in_place():
    trainer = opened({"p": policy()})
    trainer.keep("p")
    before = values(trainer)
    update(trainer, {"p": samples("p")}, 0)
    later = threading.Thread(target=update, args=(trainer, {"p": samples("p")}, 1))
    with trainer.weights_at("p", 0):
        later.start()
        later.join(0.2)  # an update of this size takes less
        assert equal(values(trainer), before) and later.is_alive()
    later.join()
    assert trainer.weights("p").version == 2
