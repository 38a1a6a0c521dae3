"""The engine: what every one promises, and that it draws from the table."""

import asyncio

import numpy as np
from example_module.engine import word_id

from coterie import Key, Request, Sampling, Weights
from coterie.testing import build


def test_it_keeps_the_promises_of_an_engine(coterie_check):
    coterie_check("example_name", kind="engine")


def test_a_context_with_one_likely_word_gives_this_word():
    engine = build("engine", "example_name")
    tokens = sorted([0, word_id("yes"), word_id("no")])
    row = np.where(np.array(tokens) == word_id("yes"), 50.0, 0.0)

    async def drawn():
        engine.tokens, engine.loaded = tokens, {}
        await engine.load_weights(Weights(policy="p", version=1, module={(7,): row}))
        limit = Sampling(max_new_tokens=1)
        return await engine.generate(
            Request(key=Key("t"), policy="p", prompt_ids=(7,), sampling=limit, seed=3)
        )

    call = asyncio.run(drawn())
    assert call.token_ids == (word_id("yes"),) and call.finish == "length"
