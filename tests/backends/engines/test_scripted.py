"""The scripted engine answers with a function, at almost no cost."""

from __future__ import annotations

import sys
import time
import types

import pytest

from coterie.backends.engines.scripted import ScriptedEngine
from coterie.core.errors import ConfigError, SystemFault
from coterie.core.types import Key, Request, Sampling, Weights
from coterie.discovery.validation import validate

USER = [{"role": "user", "content": "plan r1c2:\n  def f(x):\n\treturn x"}]


def engine(play):
    return ScriptedEngine(validate(ScriptedEngine.Config, {"play": play}, "engine"))


def ask(scripted, messages=USER, **more):
    import asyncio

    prompt = scripted.codec("p").encode(messages, *more.pop("previous", ()))
    request = Request(
        key=Key("t").of_call(0),
        policy="p",
        prompt_ids=prompt.ids,
        sampling=Sampling(),
        seed=1,
        continues=prompt.continues,
    )
    return asyncio.run(scripted.generate(request))


def test_the_function_sees_the_text_and_its_answer_comes_back_whole():
    seen = []

    def play(request, text):
        seen.append((request.key.task, text))
        return "U  R\n\n```python\nx = 1\n```\n"

    scripted = engine(play)
    call = ask(scripted)
    assert seen == [("t", USER[0]["content"])]
    assert scripted.codec("p").decode(call) == "U  R\n\n```python\nx = 1\n```\n"
    assert call.finish == "stop" and call.token_ids[-1] == 0
    assert call.logprobs == (0.0,) * len(call.token_ids)


def test_it_may_be_asynchronous_and_may_fail_as_a_system():
    async def play(request, text):
        return text.upper()

    scripted = engine(play)
    assert scripted.codec("p").decode(ask(scripted)) == USER[0]["content"].upper()

    def broken(request, text):
        raise SystemFault("the wire is cut")

    with pytest.raises(SystemFault):
        ask(engine(broken))


def test_a_tool_loop_continues_token_exactly():
    scripted = engine(lambda request, text: "look it up" if "Tool:" not in text else "42")
    first = ask(scripted)
    messages = [*USER, {"role": "assistant", "content": "look it up"}, {"role": "tool", "content": "found"}]
    prompt = scripted.codec("p").encode(messages, first, USER)
    assert prompt.continues and prompt.ids[: len(first.prompt_ids) + len(first.token_ids)] == (
        first.prompt_ids + first.token_ids
    )
    second = ask(scripted, messages, previous=(first, USER))
    assert second.continues and scripted.codec("p").decode(second) == "42"


def test_calls_name_the_loaded_version():
    import asyncio

    scripted = engine(lambda request, text: "x")
    asyncio.run(scripted.load_weights(Weights(policy="p", version=3)))
    assert ask(scripted).version == 3


def test_a_function_can_be_named(monkeypatch):
    module = types.ModuleType("a_script")
    module.play = lambda request, text: "named"
    monkeypatch.setitem(sys.modules, "a_script", module)
    scripted = engine("a_script:play")
    assert scripted.codec("p").decode(ask(scripted)) == "named"


@pytest.mark.parametrize("play", ["nowhere:play", "json:play", "json", ":", "json:__name__", 7])
def test_a_function_that_is_not_there_is_refused(play):
    with pytest.raises(ConfigError) as caught:
        engine(play)
    assert caught.value.path == "engine.play"


def test_an_answer_that_is_no_text_is_refused():
    for answer, what in ((3, "an int, not a string"), (None, "None, not a string")):
        with pytest.raises(ConfigError, match=f"returned {what}"):
            ask(engine(lambda request, text, answer=answer: answer))


def test_torch_is_not_imported():
    import subprocess

    code = (
        "import sys, coterie.backends.engines.scripted, coterie.backends.engines.tabular; "
        "import coterie.backends.trainers.tabular; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_call_costs_next_to_nothing():
    import asyncio

    scripted = engine(lambda request, text: "U R R")
    codec = scripted.codec("p")

    async def calls(count):
        begin = time.perf_counter()
        for index in range(count):
            prompt = codec.encode([{"role": "user", "content": f"plan r1c2 G+2-1 #+0+1 : {index % 50}"}])
            call = await scripted.generate(
                Request(
                    key=Key("t").of_call(index),
                    policy="p",
                    prompt_ids=prompt.ids,
                    sampling=Sampling(),
                    seed=index,
                )
            )
            codec.decode(call)
        return (time.perf_counter() - begin) / count

    best = min(asyncio.run(calls(1000)) for _ in range(5))
    assert best < 100e-6, f"{best * 1e6:.0f} microseconds"  # 15 on an idle core
