"""Keys: only names of variables are stored, and no text that leaves the process holds a value."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback

import pytest

from coterie.backends.remote import secrets
from coterie.backends.remote.answers import Answer
from coterie.backends.remote.faults import Again, Refused, of_status, shown
from coterie.core.errors import ConfigError, SystemFault
from tests.backends.remote.support import calls, expects, opened, request, settings

PLANTED = 'pl4nted/key+with "quotes" 0123456789'


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setattr(secrets, "replacements", {})
    factory = logging.getLogRecordFactory()
    monkeypatch.setenv("A_KEY", PLANTED)
    yield secrets.key_of("${A_KEY}", "coach.api_key")
    logging.setLogRecordFactory(factory)


@pytest.mark.parametrize(
    "literal",
    [
        "sk-proj-abcdefghijklmnop1234", "AIzaSyA-1234567890abcdefghijklmnop", "a" * 20 + "1b2c3d4e5f6g7h",
        "Bearer sk-abcdefghijklmnop", "short-key", "$SOME_KEY", "${A}${B}", "x ${A_KEY}", 7, ["${A_KEY}"],
    ],
)  # fmt: skip
def test_a_literal_key_is_refused_and_not_repeated(literal):
    with pytest.raises(ConfigError) as caught:
        settings(api_key=literal)
    error = caught.value
    assert error.path == "coach.api_key" and "${OPENAI_API_KEY}" in error.fix
    shown = f"{error.what} {error.why} {error.path}"
    assert str(literal) not in shown and (isinstance(literal, list) or str(literal) not in error.fix)
    assert ("looks like a key" in str(error)) == (isinstance(literal, str) and len(literal) > 16)


def test_a_key_in_headers_or_in_the_address_is_refused():
    literal = "AIzaSyA-1234567890abcdefghijklmnop"
    for table, path in (
        ({"headers": {"X-Key": literal}}, "coach.headers.X-Key"),
        ({"base_url": f"https://user:{literal}@host/v1"}, "coach.base_url"),
        ({"base_url": f"https://host/v1?key={literal}"}, "coach.base_url"),
    ):
        with pytest.raises(ConfigError) as caught:
            settings(**table)
        assert caught.value.path == path and literal not in str(caught.value)
    assert settings(headers={"X-Key": "Bearer ${A_KEY}", "X-Team": "research"})


KEYS = {
    "base_url": [
        "https://host/sk-pl4nted0123456789abcdefXYZ/v1", "https://host/v1?sig=pl4nted", "https://host/v1#pl4nted",
        "https://host/aB3dE5fG7hI9jK1lM3nO5pl4nted/v1", "https://pl4nted@host/v1", "pl4nted.example/v1",
        "http://[::1/pl4nted", "http://", "http:///pl4nted", "http://host:99999/pl4nted", "http://host:0/v1",
        "http://host:/v1", "http://host:pl4nted/v1", "http://ho st/v1", "http://ho$t/v1", "http://-x/v1",
        "http://${A_KEY}/v1", "http://host/${A_KEY/v1", "http://[1::2::3]/v1", 7,
    ],
    "headers": [
        {"Authorization": "Bearer sk-pl4nted0123456789 ${A_KEY}"}, {"Authorization": "pl4nted ${A_KEY} x"},
        {"Authorization": "pl4nted"}, {"X-Api-Key": "pl4nted"}, {"X-Foo": "aB3dE5fG7hI9jK1lM3nO5pl4nted9uV1"},
        {"X-Foo": "${A_KEY}aB3dE5fG7hI9jK1lM3nO5pl4nted9uV1"}, {"X-Foo": "é pl4nted"}, {"X-Foo": "a\r\nb"},
        {"X Foo": "a"}, {"": "a"}, {"X-Foo\n": "a"}, {"X-Foo": 5}, {"Authorization": ["pl4nted"]}, "pl4nted",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in KEYS for value in KEYS[name]])
def test_what_holds_a_key_or_cannot_be_sent_is_refused_and_not_repeated(name, value):
    with pytest.raises(ConfigError) as caught:
        settings(**{name: value})
    error = caught.value
    assert error.path.startswith(f"coach.{name}") and "pl4nted" not in str(error) and error.fix + error.why


def test_addresses_and_headers_without_keys_are_taken():
    for url in (
        "http://localhost:8000/v1/", "https://my-resource-eastus2.openai.azure.com/openai/deployments/gpt-4o-mini",
        "http://[::1]:8000/v1", "http://10.0.0.1", "https://api.example/accounts/${ACCOUNT}/v1", "https://bücher.de/v1",
        "https://host/models/meta-llama-3-1-70b-instruct-2024-08-06", "http://my_service:80/v1",
    ):  # fmt: skip
        assert settings(base_url=url).base_url == url.rstrip("/")
    assert settings(
        headers={
            "Authorization": "Bearer ${A_KEY}", "X-Api-Key": "${A_KEY}", "Cookie": "session=${A_KEY}",
            "OpenAI-Organization": "org-a1B2c3D4e5F6g7H8i9J0k1L2", "User-Agent": "lab/1.0 (2026; x86_64)",
        }
    )  # fmt: skip


@pytest.mark.parametrize("value", ["", " ", "é", "a\nb"])
def test_a_variable_that_is_empty_or_cannot_be_sent_is_named(value, monkeypatch):
    monkeypatch.setenv("ODD_KEY", value)
    for read, path in (
        (lambda: secrets.key_of("${ODD_KEY}", "coach.api_key"), "coach.api_key"),
        (lambda: secrets.secrets_in({"X-Foo": "a ${ODD_KEY}"}, "coach.headers"), "coach.headers.X-Foo"),
    ):
        with pytest.raises(ConfigError, match="the environment variable ODD_KEY") as caught:
            read()
        assert caught.value.path == path


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(ConfigError, match="environment variable NO_KEY is not set") as caught:
        secrets.key_of("${NO_KEY}", "coach.api_key")
    assert caught.value.path == "coach.api_key"


def test_every_form_of_a_used_key_is_redacted(key):
    text = f"{key} and {json.dumps(key)} and pl4nted%2Fkey%2Bwith%20%22quotes%22%200123456789"
    assert "pl4nted" not in secrets.redacted(text)
    assert secrets.redacted(f"key={key}.") == "key=${A_KEY}."
    assert "pl4nted" not in shown(text) and secrets.redacted("sk-abcdefghijklmnop1234 x").endswith("key] x")


def test_errors_do_not_repeat_a_key_that_the_server_echoes(key):
    for status in (400, 401, 403, 404, 429, 500):
        fault = of_status(
            status, f"wrong key {key}", {}, url="https://x", model="m", path="e", model_path="p"
        )
        assert "pl4nted" not in str(fault) and "${A_KEY}" in str(fault)
    assert "pl4nted" not in f"{Again(key)} {Refused(key)!r}"


def test_logs_of_every_library_are_redacted(key, caplog):
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("httpx2").debug("headers: %s", {"Authorization": f"Bearer {key}"})
        logging.getLogger("some.library").warning(key)
        try:
            raise ValueError(key)
        except ValueError:
            logging.getLogger("another").exception("failed")
    formatted = [logging.Formatter().format(record) for record in caplog.records]
    assert len(formatted) == 3 and "pl4nted" not in "".join(formatted)
    assert "ValueError: ${A_KEY}" in formatted[-1]


def test_an_exception_that_holds_a_key_leaves_none_in_the_traceback(key):
    async def leaking():
        raise RuntimeError(f"could not send {key}")

    async def go():
        remote = await opened(calls())
        try:
            await remote.call(request(1), leaking, expects())
        finally:
            await remote.close()

    with pytest.raises(SystemFault) as caught:
        asyncio.run(go())
    assert "pl4nted" not in "".join(traceback.format_exception(caught.value))
    assert "could not send ${A_KEY}" in str(caught.value)


def test_an_answer_that_repeats_the_key_is_stored_without_it(key, tmp_path):
    async def echo():
        return Answer({"text": f"your key is {key}", "list": [key]}, None, f"m-{key}")

    async def go():
        remote = await opened(calls(tmp_path))
        answer = await remote.call(request(1), echo, expects())
        await remote.close()
        return answer

    answer = asyncio.run(go())
    assert answer.body == {"text": "your key is ${A_KEY}", "list": ["${A_KEY}"]}
    assert answer.version == "m-${A_KEY}", "the model's version is a column of the cache"
    assert all(b"pl4nted" not in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
