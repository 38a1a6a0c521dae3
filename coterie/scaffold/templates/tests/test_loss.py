"""The loss: what every one promises, and where it is least."""

import numpy as np

from coterie import TokenBatch
from coterie.testing import build


def test_it_keeps_the_promises_of_a_loss(coterie_check):
    coterie_check("example_name", kind="loss")


def test_a_ratio_of_one_plus_clip_is_best_for_a_good_token():
    loss, ratio = build("loss", {"type": "example_name", "clip": 0.2}), np.array([1.0, 1.2, 1.4])
    tokens = TokenBatch(logprobs=np.log(ratio), behaviour=np.zeros(3), advantages=np.ones(3))
    gradient = loss(np, tokens).grad
    assert gradient[0] < 0 < gradient[2] and abs(gradient[1]) < 1e-9
