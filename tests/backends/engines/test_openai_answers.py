"""The engine `openai` and odd answers of a server: each is an answer, or missing with its reason, in time."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from coterie.core.errors import SystemFault
from coterie.core.types import Call
from tests.backends.engines.test_openai import (  # noqa: F401
    _one_store_of_certificates,
    context,
    engine,
    generated,
    requests,
)
from tests.backends.remote.server import OpenAIServer


def choice(**fields):
    """An edit of the first choice."""

    def edit(table, number):
        table["choices"][0] |= fields
        return table

    return edit


def content(value):
    return choice(message={"role": "assistant", "content": value})


def top(**fields):
    return lambda table, number: {**table, **fields}


def as_bytes(change):
    return lambda table, number: change(json.dumps(table).encode())


TOOL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ANSWERED = {
    "model_int": top(model=5),
    "model_null": top(model=None),
    "model_rotates": lambda table, number: {**table, "model": f"m-{number}"},
    "usage_none": top(usage=None),
    "usage_text": top(usage={"prompt_tokens": "many", "completion_tokens": "x"}),
    "usage_float": top(usage={"prompt_tokens": 1.5, "completion_tokens": 2.5}),
    "usage_bool": top(usage={"prompt_tokens": True, "completion_tokens": True}),
    "usage_list": top(usage=[1]),
    "usage_huge": top(usage={"prompt_tokens": 10**30, "completion_tokens": 10**30}),
    "usage_negative": top(usage={"prompt_tokens": -1000, "completion_tokens": -500}),
    "usage_zero": top(usage={"prompt_tokens": 0, "completion_tokens": 0}),
    "finish_table": choice(finish_reason={"a": 1}),
    "finish_null": choice(finish_reason=None),
    "finish_other": choice(finish_reason="function_call"),
    "content_null": content(None),
    "content_empty": content(""),
    "content_long": content("R " * 20_000),
    "content_nul": content("R \x00"),
    "content_surrogate": content("\ud800 R"),
    "two_choices": lambda table, number: {**table, "choices": table["choices"] * 2},
    "tool_calls_beside_a_text": choice(message={"content": "R", "tool_calls": [TOOL]}),
    "bom": as_bytes(lambda raw: b"\xef\xbb\xbf" + raw),
}
MISSING = {
    "bad_utf8": (as_bytes(lambda raw: raw.replace(b"choices", b"\xff\xfe")), "no JSON"),
    "html": (as_bytes(lambda raw: b"<html>busy</html>"), "no JSON"),
    "nothing": (as_bytes(lambda raw: b""), "no JSON"),
    "null": (as_bytes(lambda raw: b"null"), "not a table"),
    "list": (as_bytes(lambda raw: b"[1, 2]"), "not a table"),
    "sse": (as_bytes(lambda raw: b"data: " + raw + b"\n\ndata: [DONE]\n\n"), "no JSON"),
    "deep": (as_bytes(lambda raw: b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "no JSON"),
    "digits": (as_bytes(lambda raw: raw.replace(b'"id"', b'"x": ' + b"9" * 5000 + b', "id"')), "no JSON"),
    "choices_null": (top(choices=None), "without a list of choices"),
    "choices_empty": (top(choices=[]), "without a candidate"),
    "choices_int": (top(choices=[1]), "first choice is 1"),
    "message_null": (choice(message=None), "message is None"),
    "content_int": (content(7), "content is an int"),
    "content_list": (content([{"type": "text", "text": "R"}]), "content is a list"),
    "tool_calls": (choice(message={"content": None, "tool_calls": [TOOL]}), "called a tool"),
    "filter": (choice(finish_reason="content_filter"), "safety filter"),
    "error_in_200": (lambda table, number: {"error": {"message": "overloaded"}}, "overloaded"),
}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with OpenAIServer(answer=lambda body: "R") as server:
        yield server


@pytest.mark.parametrize("name", ANSWERED)
def test_an_odd_answer_is_an_answer(name, server, tmp_path):
    server.edit, before = ANSWERED[name], len(server.asked)
    begin = time.monotonic()
    texts = generated(engine(server.url, tmp_path), 2)
    assert all(isinstance(text, str) for text in texts), texts
    server.edit = None
    assert generated(engine(server.url, tmp_path), 2) == texts, "they are kept"
    assert len(server.asked) == before + 2 and time.monotonic() - begin < 10


@pytest.mark.parametrize("name", MISSING)
def test_an_answer_of_another_form_is_missing(name, server, tmp_path):
    server.edit, reason = MISSING[name]
    before, begin = len(server.asked), time.monotonic()
    (fault,) = generated(engine(server.url, tmp_path))
    assert isinstance(fault, SystemFault) and reason in str(fault) and len(str(fault)) < 700
    assert len(server.asked) == before + 1, "another attempt would be paid too"
    usage = json.loads((tmp_path / "remote" / "usage-engine.json").read_text())
    assert usage["total"]["calls"] == 1 and usage["this_process"]["missing"] == 1
    assert time.monotonic() - begin < 10


def test_an_endpoint_that_goes_and_comes_back_over_many_steps():
    """Ten steps of four calls; steps 3 to 6 find no server. Each ends in time, and none pays twice."""

    async def go():
        with OpenAIServer() as first:
            port = first.port
            made = engine(first.url, retries=2, backoff=0.01, longest_wait=0.05)
            await made.open(context())
            asked, results = iter(requests(made, 40)), []

            async def step():
                four = [made.generate(next(asked)) for _ in range(4)]
                results.append(await asyncio.gather(*four, return_exceptions=True))

            for _ in range(3):
                await step()
        for _ in range(4):
            await step()
        with OpenAIServer(port=port) as second:
            for _ in range(3):
                await step()
            await made.close()
            assert len(first.asked) == 12 and len(second.asked) == 12
        return [[type(result) for result in row] for row in results]

    begin = time.monotonic()
    rows = asyncio.run(go())
    assert rows == [[Call] * 4] * 3 + [[SystemFault] * 4] * 4 + [[Call] * 4] * 3
    assert time.monotonic() - begin < 10
