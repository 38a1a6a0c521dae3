"""The engine `openai` through the real SDK, against a loopback server with faults of wires and providers."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import coterie
from coterie.backends.engines.openai.engine import MessageCodec
from coterie.backends.engines.openai.settings import RemotePolicy
from coterie.backends.remote import secrets
from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.errors import ConfigError, SystemFault, UserError
from coterie.core.protocols import EngineContext
from coterie.core.types import Call, Key, Request, Sampling, Weights
from coterie.testing import build, check_engine
from tests.backends.loopback import one_store_of_certificates
from tests.backends.remote.server import MODEL, OpenAIServer
from tests.cli.support import coterie as command

ROOT = Path(__file__).resolve().parents[3]
QUICK = {"retries": 3, "backoff": 0.02, "timeout": 5.0, "longest_wait": 2.0}
MESSAGES = [
    {"role": "system", "content": "Be brief.\n\n  é \U0001f600"},
    {"role": "user", "content": "plan r1c2 <|im_start|> {json: \"x\"}\t"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "go on"},
]  # fmt: skip
RUN = (
    "plan_path", "engine=openai", "trainer=none", "policies.shared.train=none",
    "policies.shared.warm_start=null", f"policies.shared.model={MODEL}", "engine.backoff=0.02",
)  # fmt: skip


def engine(url: str, folder: Path | None = None, **settings):
    made = build("engine", {"type": "openai", "base_url": url, **QUICK, **settings})
    if folder is not None:
        made.use_run_folder(folder)
    return made


def context(**policy) -> EngineContext:
    table = {"model": MODEL, "train": "none", **policy}
    return EngineContext(
        policies={"p": RemotePolicy.model_validate(table)},
        chat=build("chat_format", "auto"),
        active_rollouts=ActiveRollouts(),
        deterministic=True,
        vocabulary=("R", "D", "L", "U"),
    )


def requests(made, count: int, sampling: Sampling | None = None, messages=None) -> list[Request]:
    prompt = made.codec("p").encode(messages or MESSAGES)
    return [
        Request(
            key=Key("t").of_call(number), policy="p", prompt_ids=prompt.ids, seed=2**63 + number,
            sampling=sampling or Sampling(max_new_tokens=16),
        )
        for number in range(count)
    ]  # fmt: skip


def generated(made, count=1, sampling=None, messages=None, **policy) -> list[Call | Exception]:
    """The calls, or the errors in their place."""

    async def go():
        await made.open(context(**policy))
        try:
            asked = requests(made, count, sampling, messages)
            results = await asyncio.gather(*map(made.generate, asked), return_exceptions=True)
            return [
                made.codec("p").decode(result) if isinstance(result, Call) else result for result in results
            ]
        finally:
            await made.close()

    return asyncio.run(go())


# ------------------------------------------------------------------------------------------ the protocol


@pytest.mark.parametrize("settings", [{}, {"limit_field": "max_completion_tokens"}])
def test_it_conforms(settings):
    with OpenAIServer() as server:
        check_engine(engine(server.url, **settings), model=MODEL)
        assert {asked.path for asked in server.asked} == {"/v1/chat/completions"}


def test_messages_and_sampling_reach_the_endpoint_untouched():
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, max_new_tokens=12, stop=("\n\n", "END"))
    with OpenAIServer() as server:
        generated(engine(server.url, fields={"reasoning_effort": "low"}), sampling=sampling)
        (asked,) = server.asked
    assert asked.body == {
        "model": MODEL, "messages": MESSAGES, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "max_tokens": 12,
        "stop": ["\n\n", "END"], "seed": 0, "n": 1, "reasoning_effort": "low",
    }  # fmt: skip


def test_fields_that_a_model_refuses_are_left_out_and_samples_stay_different():
    with OpenAIServer(answer=lambda body: "R") as server:
        made = engine(server.url, omit=["seed", "temperature", "n"])
        generated(made, 3)
        bodies = [asked.body for asked in server.asked]
    assert len(bodies) == 3, "equal bodies with different seeds are different samples"
    assert bodies[0] == bodies[1] == {"model": MODEL, "messages": MESSAGES, "max_tokens": 16}


def test_equal_greedy_requests_are_sent_once():
    with OpenAIServer(delay=0.05) as server:
        generated(engine(server.url), 5, Sampling(temperature=0.0, max_new_tokens=4))
        assert len(server.asked) == 1 and "seed" not in server.asked[0].body


def test_the_result_of_a_tool_is_sent_as_the_users():
    """OpenAI refuses role `tool` without the id of a structured call."""
    messages = [*MESSAGES[:2], {"role": "assistant", "content": "```python\n1\n```"}]
    with OpenAIServer() as server:
        generated(engine(server.url), messages=[*messages, {"role": "tool", "content": "exit code 0"}])
        sent = server.asked[0].body["messages"]
    assert sent == [*messages, {"role": "user", "content": "exit code 0"}]


def test_a_call_counts_tokens_as_the_server_does():
    text = "Ünïcode \U0001f600 and a_very_long_word_that_is_one_token_to_this_server " * 3

    async def go(server):
        made = engine(server.url)
        await made.open(context())
        await made.load_weights(Weights(policy="p", version=0))
        (request,) = requests(made, 1, Sampling(max_new_tokens=64))
        call = await made.generate(request)
        await made.close()
        return made, call

    with OpenAIServer(answer=lambda body: text) as server:
        made, call = asyncio.run(go(server))
    assert made.codec("p").decode(call) == text
    assert len(call.token_ids) == len(text.split()) + 1 == len(call.logprobs)


def test_the_codec_restores_every_conversation():
    codec = MessageCodec()
    for messages in (MESSAGES, [{"role": "tool", "content": "\ud800 \x00"}], []):
        assert codec.messages(codec.encode(messages).ids) == messages
    ids = codec.encode(MESSAGES).ids
    assert codec.encode([dict(message) for message in MESSAGES]).ids == ids
    assert not codec.encode(MESSAGES, None, MESSAGES[:1]).continues
    size = sum(len(message["content"].encode()) for message in MESSAGES)
    assert size / 4 <= len(ids) <= size / 4 + 2 * len(MESSAGES), "an estimate of four bytes a token"
    assert all(0 < index < 2**63 for index in ids)


REFUSED = [
    ({"fields": {"max_tokens": 100_000}}, "fields.max_tokens", "sampler.sampling.max_new_tokens"),
    ({"fields": {"max_completion_tokens": 9}}, "fields.max_completion_tokens", "engine.limit_field"),
    ({"fields": {"n": 5}}, "fields.n", "sampler.branches"),
    ({"fields": {"best_of": 5}}, "fields.best_of", "sampler.branches"),
    ({"fields": {"model": "gpt-other"}}, "fields.model", "policies.NAME.model"),
    ({"fields": {"messages": []}}, "fields.messages", "team.roles"),
    ({"fields": {"prompt": []}}, "fields.prompt", "team.roles"),
    ({"fields": {"temperature": 2}}, "fields.temperature", "sampler.sampling.temperature"),
    ({"fields": {"top_p": 1}}, "fields.top_p", "sampler.sampling.top_p"),
    ({"fields": {"stop": ["x"]}}, "fields.stop", "sampler.sampling.stop"),
    ({"fields": {"seed": 1}}, "fields.seed", "set seed"),
    ({"fields": {"stream": True}}, "fields.stream", "a whole answer"),
    ({"fields": {"logprobs": True}}, "fields.logprobs", "engine.api=completions"),
    ({"fields": {"return_token_ids": True}}, "fields.return_token_ids", "engine.api=completions"),
    ({"fields": {"api_key": "hunter2"}}, "fields.api_key", "set api_key: ${NAME}"),
    ({"fields": {"x": {"password": "hunter2"}}}, "fields.x", "set api_key: ${NAME}"),
    ({"fields": {"x": ["sk-pl4nted0123456789abcdefXYZ"]}}, "fields.x", "set api_key: ${NAME}"),
    ({"fields": "sk-pl4nted0123456789abcdefXYZ"}, "fields", "not repeated"),
    ({"omit": ["model"]}, "omit", "remove model"),
    ({"omit": ["messages"]}, "omit", "remove messages"),
    ({"omit": ["prompt"]}, "omit", "remove prompt"),
    ({"omit": ["max_tokens"]}, "omit", "engine.limit_field"),
]


@pytest.mark.parametrize(("settings", "path", "words"), REFUSED)
def test_fields_that_the_engine_sets_are_refused_with_the_setting_that_is_meant(settings, path, words):
    with pytest.raises(ConfigError) as caught:
        engine("http://127.0.0.1:9/v1", **settings)
    assert caught.value.path == f"engine.{path}" and words in str(caught.value)
    assert "pl4nted" not in str(caught.value) and "hunter2" not in str(caught.value)


def test_other_fields_are_sent():
    fields = {"reasoning_effort": "low", "user": "123e4567-e89b-12d3-a456-426614174000", "min_p": 0.1}
    with OpenAIServer() as server:
        generated(engine(server.url, fields=fields))
        assert server.asked[0].body.items() >= fields.items()


def test_a_request_that_the_sdk_refuses_is_not_charged(tmp_path):
    """The text of a lone surrogate has no UTF-8, so nothing is sent."""
    with OpenAIServer() as server:
        (fault,) = generated(engine(server.url, tmp_path), messages=[{"role": "user", "content": "\ud800"}])
        assert server.asked == [] and "nothing was sent" in str(fault)
    usage = json.loads((tmp_path / "remote" / "usage-engine.json").read_text())
    assert usage["total"]["calls"] == 0


@pytest.mark.parametrize(("fault", "attempts"), [("reset", 2), ("429", 0), ("gone", 0)])
def test_an_attempt_counts_unless_it_certainly_was_not_paid(fault, attempts, tmp_path):
    """A connection that is lost after the request may have been paid; one that was never made was not."""
    with OpenAIServer(always=fault, retry_after=0.05) as server:
        url = server.url if fault != "gone" else "http://127.0.0.1:9/v1"
        (result,) = generated(engine(url, tmp_path, retries=1))
    assert isinstance(result, SystemFault)
    usage = json.loads((tmp_path / "remote" / "usage-engine.json").read_text())
    assert usage["this_process"]["sent"] == 2 and usage["total"]["calls"] == attempts


# --------------------------------------------------------------------------------------------- token ids


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    pytest.importorskip("transformers")
    from coterie.backends.models.tokenizers import words_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    words_tokenizer(("R", "D", "L", "U")).save_pretrained(folder)
    return str(folder)


@pytest.mark.torch
def test_token_ids_go_out_and_come_back_where_the_server_has_them(tokenizer):
    async def go(server):
        made = engine(server.url)
        await made.open(context(tokenizer=tokenizer))
        (request,) = requests(made, 1, messages=[{"role": "user", "content": "R D U"}])
        call = await made.generate(request)
        text = made.codec("p").decode(call)
        await made.close()
        return request, call, text

    with OpenAIServer(answer=lambda body: "R D") as server:
        request, call, _ = asyncio.run(go(server))
        (asked,) = server.asked
    assert asked.path == "/v1/completions" and asked.body["prompt"] == list(request.prompt_ids)
    assert asked.body["return_token_ids"] is True and asked.body["logprobs"] == 0
    assert call.token_ids == (3, 4) and call.logprobs == (-0.5, -0.5) and call.finish == "stop"


@pytest.mark.torch
def test_a_server_without_token_ids_is_missing_with_the_reason(tokenizer, monkeypatch):
    answer = OpenAIServer.body_for

    def plain(self, asked):
        table = answer(self, asked)
        table["choices"][0].pop("token_ids")
        return table

    monkeypatch.setattr(OpenAIServer, "body_for", plain)
    with OpenAIServer() as server:
        (fault,) = generated(
            engine(server.url, api="completions"),
            messages=[{"role": "user", "content": "R"}], tokenizer=tokenizer,
        )  # fmt: skip
    assert isinstance(fault, SystemFault) and "returns no token ids" in str(fault)


# ------------------------------------------------------------------------------------------------ faults

STOPS = {
    "401": "the endpoint refuses the key",
    "403": "the endpoint denies this key access",
    "unknown_model": f"does not have the model '{MODEL}'",
    "quota": "the provider's quota is spent",
}
REPAIRED = ("408", "429", "429_after", "429_date", "500", "503", "reset", "torn", "hang", "drip")
ENDLESS = {"hang": {"timeout": 0.6}, "drip": {"timeout": 0.6}}
MISSING = {
    "truncated": "no JSON", "empty": "without a candidate", "safety": "safety filter",
    "type": "without a list of choices",
    "400": "answered 400",
}  # fmt: skip


@pytest.mark.parametrize("fault", STOPS)
def test_a_setup_that_cannot_work_stops_at_once(fault):
    with OpenAIServer(always=fault) as server:
        results = generated(engine(server.url, concurrency=1), 8)
        assert len(server.asked) == 1
    assert all(isinstance(result, UserError) and STOPS[fault] in str(result) for result in results)
    error = results[0]
    assert error.fix and error.path in ("engine.api_key", "policies.p.model", "engine")


@pytest.mark.parametrize("fault", REPAIRED)
def test_a_temporary_fault_is_repaired(fault):
    times = 1 if fault in ENDLESS else 2
    with OpenAIServer(faults=(fault,) * times) as server:
        begin = time.monotonic()
        (text,) = generated(engine(server.url, **ENDLESS.get(fault, {})))
        seconds = time.monotonic() - begin
        assert re.fullmatch(r"[RDLU]( [RDLU])*", text) and len(server.asked) == times + 1
    assert seconds < 10
    if fault == "429_after":
        assert seconds >= 2 * server.retry_after


@pytest.mark.parametrize("fault", REPAIRED)
def test_a_fault_that_stays_is_missing_in_time(fault):
    with OpenAIServer(always=fault, retry_after=0.05) as server:
        begin = time.monotonic()
        (result,) = generated(engine(server.url, **{"retries": 1, **ENDLESS.get(fault, {})}))
        assert isinstance(result, SystemFault) and "the last of 2 attempts" in str(result)
        assert server.url in str(result) and len(server.asked) == 2
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("fault", MISSING)
def test_an_answer_that_cannot_be_used_is_missing_and_not_kept(fault, tmp_path):
    with OpenAIServer(faults=(fault,)) as server:
        (result,) = generated(engine(server.url, tmp_path))
        assert isinstance(result, SystemFault) and MISSING[fault] in str(result)
        assert len(server.asked) == 1, "another attempt would repeat it, and be paid"
        (text,) = generated(engine(server.url, tmp_path))
        assert isinstance(text, str) and len(server.asked) == 2


def test_a_refusal_of_the_model_is_its_answer(monkeypatch):
    answer = OpenAIServer.body_for

    def refusing(self, asked):
        table = answer(self, asked)
        table["choices"][0]["message"] = {"content": None, "refusal": "I won't"}
        return table

    monkeypatch.setattr(OpenAIServer, "body_for", refusing)
    with OpenAIServer() as server:
        assert generated(engine(server.url)) == ["I won't"]


def test_a_server_that_is_gone_and_comes_back():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    (gone,) = generated(engine(url, retries=1))
    assert isinstance(gone, SystemFault) and "onnect" in str(gone)

    async def go():
        made = engine(url, retries=50, backoff=0.1, longest_wait=0.1)
        await made.open(context())
        waiting = asyncio.create_task(made.generate(requests(made, 1)[0]))
        await asyncio.sleep(0.3)
        with OpenAIServer(port=port) as server:
            await waiting
            assert len(server.asked) == 1
        with OpenAIServer(port=port):  # restarted: pooled connections are dead
            await made.generate(requests(made, 2)[1])
        await made.close()
        return made

    asyncio.run(go())


def test_two_hundred_calls_at_once_keep_the_limits():
    with OpenAIServer(delay=0.02) as server:
        results = generated(engine(server.url, concurrency=10, timeout=5.0, requests_per_minute=6_000), 200)
        assert all(isinstance(text, str) for text in results) and len(server.asked) == 200
        assert server.at_once <= 10
        times = [asked.at for asked in server.asked]
    assert max(times) - min(times) >= 0.9, "100 at once, 100 in a second (test_limits.py has windows)"


# ------------------------------------------------------------------------------------- policies, secrets


@pytest.mark.parametrize(
    ("policy", "engine_table", "path", "words"),
    [
        ({"train": "full"}, {}, "policies.p.train", "without token ids"),
        ({"train": "lora", "tokenizer": "t"}, {}, "policies.p.train", "no update could reach it"),
        ({"train": "full"}, {"api": "completions"}, "policies.p.train", "no update could reach it"),
        ({"model": {"init": "qwen3"}}, {}, "policies.p.model", "a name that the endpoint knows"),
        ({"from": "runs/x"}, {}, "policies.p.from", "can't be loaded"),
    ],
)
def test_a_policy_that_an_endpoint_cannot_play_is_refused_at_open(policy, engine_table, path, words):
    with pytest.raises(ConfigError) as caught:
        asyncio.run(engine("http://127.0.0.1:9/v1", **engine_table).open(context(**policy)))
    assert caught.value.path == path and words in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (["policies.shared.train=full", "trainer=torch"], "policies.shared.train"),
        (["trainer=torch"], "trainer.type"),
        (["engine.api_key=sk-abcdefghijklmnop123456"], "engine.api_key"),
        (["engine.api_key=${NO_SUCH_KEY_HERE}"], "engine.api_key"),
        (["policies.shared.remote=true"], "policies.*.remote"),
        (["engine.base_url=http://[::1/v1"], "engine.base_url"),
    ],
)
def test_a_run_that_cannot_work_says_so_before_it_begins(settings, path, tmp_path):
    url = "engine.base_url=http://127.0.0.1:9/v1"
    done = command("run", *RUN, url, "--scale", "smoke", *settings, "--out", tmp_path / "run")
    assert done.exit_code == 2 and f"Error: {path}: " in done.stderr, done.output
    assert "abcdefghijklmnop" not in done.output and "Traceback" not in done.output
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_openais_own_address_needs_its_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        asyncio.run(build("engine", {"type": "openai"}).open(context()))


def test_an_empty_key_is_a_warning(caplog):
    with OpenAIServer() as server:
        generated(engine(server.url, api_key=None))
        assert "engine.api_key is empty: no key is sent" in caplog.text


def test_a_variable_in_the_path_of_the_address_is_a_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCOUNT", "0123pl4nted4567")
    with OpenAIServer(always="400") as server:
        made = engine(server.url.replace("/v1", "/${ACCOUNT}/v1"), tmp_path)
        (fault,) = generated(made)
        assert server.asked[0].path == "/0123pl4nted4567/v1/chat/completions"
    assert "pl4nted" not in str(fault) and "${ACCOUNT}" in str(fault)


def run_command(folder: Path, url: str, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "coterie", "run", *RUN, f"engine.base_url={url}", "--scale", "smoke",
        "schedule.steps=2", "--out", str(folder), *more,
    ]  # fmt: skip


def test_a_planted_key_is_nowhere(tmp_path, monkeypatch):
    """Faults whose bodies repeat the key, answers that do, debug logs of the SDK, and a cache."""
    key = "sk-pl4nted0123456789abcdefXYZ"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MY_KEY": key, "OPENAI_LOG": "debug"}
    faults = ("500", "429", "400", "type", "truncated", "500", "reset") * 3
    answers = {"answer": lambda body: f"R {key}", "version": f"m-{key}"}
    with OpenAIServer(faults=faults, echo_key=True, **answers) as server:
        line = run_command(tmp_path / "run", server.url, "engine.api_key=${MY_KEY}", "schedule.max_missing=1")
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        assert server.asked[0].headers["authorization"] == f"Bearer {key}", "it was sent"
        server.always = "401"
        monkeypatch.setenv("MY_KEY", key)
        refused = command(*run_command(tmp_path / "other", server.url, "engine.api_key=${MY_KEY}")[3:])
    assert refused.exit_code == 2 and "refuses the key" in refused.stderr
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.name == "engine.sqlite" for file in files)
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "${MY_KEY}" in config
    raw = [file.read_bytes() for file in files]
    written = b"".join(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data for data in raw)
    assert b"answered 400" in written, "faults that repeated the key are in the record"
    texts = [written, done.stdout, done.stderr, refused.stdout, refused.stderr]
    assert "HTTP" in done.stderr + written.decode("latin-1"), "the SDK logged"
    for text in texts:
        assert "pl4nted" not in (text if isinstance(text, str) else text.decode("latin-1"))


# ------------------------------------------------------------------------------------------------- runs


def test_a_run_and_its_evaluation(tmp_path):
    with OpenAIServer() as server:
        url = f"engine.base_url={server.url}"
        prices = f"engine.prices={{{MODEL}: {{input: 1.0, output: 2.0}}}}"
        done = command(
            "run", *RUN, url, prices, "--scale", "smoke", "schedule.steps=2", "--out", tmp_path / "run"
        )
        assert done.exit_code == 0, done.output
        assert re.search(r"info: engine: \d+ calls: .* tokens, cost", done.stderr)
        usage = json.loads((tmp_path / "run" / "remote" / "usage-engine.json").read_text())
        assert usage["total"]["calls"] == len(server.asked) and usage["total"]["money"] > 0
        again = command(
            "run", *RUN, url, "--scale", "smoke", "schedule.steps=2", "--out", tmp_path / "second",
            f"engine.cache={tmp_path / 'run' / 'remote' / 'engine.sqlite'}",
        )  # fmt: skip
        assert again.exit_code == 0 and len(server.asked) == usage["total"]["calls"], "all from the cache"
        result = coterie.evaluate(tmp_path / "run", tasks=3)
        assert len(result.per_task) == 3 and len(server.asked) > usage["total"]["calls"]
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 2
    first, second = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("run", "second")
    )
    for row, other in zip(first, second, strict=True):
        assert all(row[name] == other[name] for name in row if not name.startswith("time/"))


def test_a_spent_budget_is_a_clean_stop_and_a_larger_one_goes_on(tmp_path):
    folder = tmp_path / "run"
    with OpenAIServer() as server:
        url = f"engine.base_url={server.url}"
        done = command(
            "run", *RUN, url, "--scale", "smoke", "schedule.steps=2", "engine.budget={calls: 25}",
            "--out", folder,
        )  # fmt: skip
        assert done.exit_code == 2 and "Error: engine.budget: the budget is spent: 25 calls" in done.stderr
        assert len(server.asked) == 25 and "Traceback" not in done.output
        resumed = command("run", "--resume", folder, "engine.budget={calls: 1000}")
        assert resumed.exit_code == 0, resumed.output
        assert len(server.paid) == len(set(server.paid)), "nothing is paid twice"


def test_a_killed_run_pays_nothing_twice(tmp_path):
    """The server holds its answers from the 25th request on; then the run is killed, and resumed."""
    folder, environment = tmp_path / "run", {**os.environ, "PYTHONPATH": str(ROOT)}
    with OpenAIServer(hold_after=24) as server:
        line = run_command(folder, server.url, "engine.concurrency=4")
        running = subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL)
        # Up to four are under way then: fewer where the next turns wait for what is held.
        begin, asked = time.monotonic(), 0
        while (asked <= 24 or asked < len(server.asked)) and time.monotonic() - begin < 120:
            asked = len(server.asked)
            time.sleep(1)
        running.send_signal(signal.SIGKILL)
        running.wait()
        server.release()
        time.sleep(0.2)
        under_way = len(server.asked) - 24
        assert len(server.paid) == 24 and 0 < under_way <= 4
        resumed = command("run", "--resume", folder)
        assert resumed.exit_code == 0, resumed.output
        assert len(server.paid) == len(set(server.paid)) > 24
        assert len(server.asked) == len(server.paid) + under_way, (
            "those under way at the kill were sent again"
        )
    usage = json.loads((folder / "remote" / "usage-engine.json").read_text())
    assert usage["this_process"]["cached"] == 24
    assert usage["total"]["calls"] == len(server.asked), "a call under way at the kill counts"


def test_an_evaluation_needs_no_run(caplog):
    with OpenAIServer() as server, caplog.at_level(logging.INFO, logger="coterie.usage"):
        settings = [*RUN[1:], f"engine.base_url={server.url}"]
        result = coterie.evaluate("plan_path", scale="smoke", overrides=settings, tasks=4, greedy=True)
        assert len(result.per_task) == 4
        assert {asked.body["temperature"] for asked in server.asked} == {0.0}


def test_a_plan_asks_no_hub_for_a_remote_model():
    done = command("plan", *RUN, "engine.base_url=http://127.0.0.1:9/v1", "--scale", "smoke")
    assert done.exit_code == 0 and "hub" not in done.output and "can't be fetched" not in done.output


@pytest.fixture(scope="module", autouse=True)
def _one_store_of_certificates():
    with one_store_of_certificates():
        yield


@pytest.fixture(autouse=True)
def _fresh_secrets(monkeypatch):
    """Keys of one test are no keys of the next."""
    factory = logging.getLogRecordFactory()
    monkeypatch.setattr(secrets, "replacements", {})
    yield
    logging.setLogRecordFactory(factory)
