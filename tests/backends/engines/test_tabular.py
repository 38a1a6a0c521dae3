"""The tabular engine draws from its table's distributions."""

import numpy as np
import pytest

from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.models.policy import TablePolicy
from coterie.backends.models.table import LogitTable, log_softmax, table_words, uniforms
from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.errors import ConfigError, SystemFault
from coterie.core.protocols import EngineContext
from coterie.core.types import Key, Request, Sampling, Weights

WORDS = ("U", "D", "L", "R")
PROMPT = [{"role": "user", "content": "plan r1c2 :"}]


def opened(table=None, vocabulary=WORDS, model=None):
    engine = TabularEngine()
    ctx = EngineContext(
        policies={"p": TablePolicy(model=model or {"init": "tabular"})},
        chat=None,
        active_rollouts=ActiveRollouts(),
        deterministic=True,
        vocabulary=vocabulary,
    )
    wait(engine.open(ctx))
    if table is not None:
        wait(engine.load_weights(Weights(policy="p", version=2, module=table)))
    return engine, ctx


def wait(work):
    import asyncio

    return asyncio.run(work)


def drawn(opened, count=1, seeds=None, **sampling):
    import asyncio

    engine, ctx = opened
    prompt = engine.codec("p").encode(PROMPT)

    async def play(branch, seed):
        ctx.active_rollouts.start()
        try:
            return await engine.generate(
                Request(
                    key=Key("t").of_branch("solver", branch),
                    policy="p",
                    prompt_ids=prompt.ids,
                    sampling=Sampling(**sampling),
                    seed=seed,
                )
            )
        finally:
            ctx.active_rollouts.stop()

    async def every():
        return await asyncio.gather(
            *[play(branch, seed) for branch, seed in enumerate(seeds or range(count))]
        )

    return wait(every())


def table_with(**first):
    """A table in which the first word after the prompt has these logits."""
    table = LogitTable(table_words(WORDS))
    context = opened()[0].codec("p").encode(PROMPT).ids
    row = np.zeros(len(table.ids))
    for word, logit in first.items():
        row[0 if word == "eos" else 1 + table.words.index(word)] = logit
    table.rows[context] = row
    return table


def test_unseen_contexts_are_uniform_over_words_and_the_end():
    call, *_ = drawn(opened(LogitTable(table_words(WORDS))), max_new_tokens=7, seeds=[3])
    assert call.logprobs == pytest.approx([-np.log(5)] * len(call.token_ids))
    assert call.version == 2
    assert (call.finish == "stop") == (call.token_ids[-1] == 0)


def test_draws_are_keyed_and_follow_the_distribution():
    table = table_with(U=2.0, D=-1.0, eos=0.5)
    engine = opened(table)
    calls = drawn(engine, 4000, max_new_tokens=1, temperature=0.8)
    (row,) = table.rows.values()
    logprobs = log_softmax(row / 0.8)
    summed = np.exp(logprobs).cumsum()
    columns = np.searchsorted(summed, uniforms(np.arange(4000, dtype=np.uint64), 0), side="right")
    assert [call.token_ids[0] for call in calls] == table.ids[columns].tolist()
    assert [call.logprobs[0] for call in calls] == pytest.approx(logprobs[columns])
    assert np.abs(np.bincount(columns, minlength=5) / 4000 - np.exp(logprobs)).max() < 0.03


def test_greedy_and_filtered_calls():
    engine = opened(table_with(U=2.0, D=1.5, L=-3.0))
    text = engine[0].codec("p").decode
    assert {text(call) for call in drawn(engine, 50, max_new_tokens=1, temperature=0.0)} == {"U"}
    assert {text(call) for call in drawn(engine, 300, max_new_tokens=1, top_k=2)} == {"U", "D"}
    calls = drawn(engine, 300, max_new_tokens=1, top_p=0.7)
    assert {text(call) for call in calls} == {"U", "D"}
    logits = np.array([0, 1.5, -3.0, 0, 2.0])
    assert {round(call.logprobs[0], 6) for call in calls} == set(np.round(log_softmax(logits)[[4, 1]], 6))


def test_a_stop_word_ends_a_call():
    engine = opened(LogitTable(table_words(WORDS)))
    calls = drawn(engine, 100, max_new_tokens=50, stop=("R",))
    texts = [engine[0].codec("p").decode(call) for call in calls]
    assert not any("R" in text for text in texts)
    assert any(call.token_ids[-1] != 0 for call in calls) and all(call.finish == "stop" for call in calls)
    with pytest.raises(ConfigError, match="not one token"):
        drawn(engine, stop=("never",))


def test_wrong_set_ups_are_refused():
    with pytest.raises(ConfigError, match="can't play the model"):
        opened(model={"init": "qwen3"})
    with pytest.raises(ConfigError, match="needs words"):
        opened(vocabulary=())
    with pytest.raises(ConfigError, match="other words"):
        opened(LogitTable(("x",)))
    with pytest.raises(SystemFault, match="no weights"):
        drawn(opened())
