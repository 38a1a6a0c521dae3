"""What is sent to providers, the kit on each chat model, vendors, and settings that can't work."""

from __future__ import annotations

import asyncio
import json

import pytest

from coterie import ConfigError, SystemFault
from coterie.backends.chat_models.openai import OpenAIChat
from coterie.backends.chat_models.remote import RemoteChatModel
from coterie.backends.remote.vendors import VENDORS, Vendor, vendor_of
from coterie.core.errors import PluginError
from coterie.core.protocols import ChatAnswer, ChatRequest
from coterie.testing import build, check_chat_model
from coterie.testing.checks.chat_model import SCHEMA
from tests.backends.chat_models.support import KEY, PROVIDERS, answers, model, request, server

pytest.importorskip("google.genai")
pytest.importorskip("openai")
TALK = (
    {"role": "system", "content": "Judge."}, {"role": "user", "content": "é\n\n\U0001f600"},
    {"role": "assistant", "content": "7"}, {"role": "tool", "content": "exit code 0"},
)  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
def test_it_conforms(provider):
    with server(provider) as loopback:
        check_chat_model(model(provider, loopback.url))
        assert loopback.asked


def test_what_gemini_is_sent():
    with server("gemini") as loopback:
        made = model("gemini", loopback.url, thinking_budget=128, headers={"X-Team": "research"})
        answers(made, request(messages=TALK, temperature=0.5, sample=3))
        (asked,) = loopback.asked
    assert asked.path == "/v1/models/tiny-1:generateContent" and asked.headers["x-goog-api-key"] == KEY
    assert asked.headers["x-team"] == "research"
    assert asked.body == {
        "systemInstruction": {"parts": [{"text": "Judge."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "é\n\n\U0001f600"}]},
            {"role": "model", "parts": [{"text": "7"}]},
            {"role": "user", "parts": [{"text": "exit code 0"}]},
        ],
        "generationConfig": {
            "temperature": 0.5, "maxOutputTokens": 64 + 128, "seed": 3,
            "responseMimeType": "application/json", "responseJsonSchema": SCHEMA,
            "thinkingConfig": {"thinking_budget": 128},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "limit"),
    [({}, 64 + 8192), ({"thinking_budget": -1}, 64 + 8192), ({"thinking_budget": 0}, 64),
     ({"thinking_budget": 512}, 64 + 512), ({"thinking_budget": 512, "thought_tokens": 700}, 64 + 700)],
)  # fmt: skip
def test_thoughts_of_gemini_have_room_beside_the_answer(settings, limit):
    made = model("gemini", "http://127.0.0.1:9", **settings)
    assert made.limit(request()) == limit


def test_a_prompt_of_system_messages_alone_is_the_users():
    with server("gemini") as loopback:
        answers(model("gemini", loopback.url), request(messages=TALK[:1], schema=None))
        assert loopback.asked[0].body["contents"] == [{"role": "user", "parts": [{"text": "Judge."}]}]


def test_what_the_sdk_cannot_encode_is_missing():
    """The text of a lone surrogate has no UTF-8."""
    for provider in PROVIDERS:
        with server(provider) as loopback:
            (fault,) = answers(
                model(provider, loopback.url), request(messages=({"role": "user", "content": "\ud800"},))
            )
            assert isinstance(fault, (SystemFault, ChatAnswer)), fault


def test_the_environment_does_not_choose_vertex(monkeypatch):
    for name, value in (("GOOGLE_GENAI_USE_VERTEXAI", "true"), ("GOOGLE_CLOUD_PROJECT", "other")):
        monkeypatch.setenv(name, value)
    with server("gemini") as loopback:
        (answer,) = answers(model("gemini", loopback.url), request())
        assert isinstance(answer, ChatAnswer) and loopback.asked[0].path.startswith("/v1/models/")


@pytest.mark.parametrize(
    ("names", "used"), [(("GOOGLE_API_KEY",), 0), (("GOOGLE_API_KEY", "GEMINI_API_KEY"), 1)]
)
def test_the_key_of_gemini_has_two_usual_variables(names, used, monkeypatch):
    for name in names:
        monkeypatch.setenv(name, f"value-of-{name}")
    with server("gemini") as loopback:
        answers(model("gemini", loopback.url, api_key=None), request())
        assert loopback.asked[0].headers["x-goog-api-key"] == f"value-of-{names[used]}"


# ---------------------------------------------------------------------------------------------- Vertex AI


@pytest.fixture(scope="module")
def private_key():
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    from cryptography.hazmat.primitives import serialization

    key = rsa.generate_private_key(65537, 2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


@pytest.mark.coach
def test_vertex_takes_a_credentials_file(private_key, tmp_path, monkeypatch):
    with server("gemini") as loopback:
        account = {
            "type": "service_account", "project_id": "other", "private_key_id": "1",
            "private_key": private_key, "client_email": "a@b.iam.gserviceaccount.com", "client_id": "1",
            "token_uri": f"{loopback.url}/token",
        }  # fmt: skip
        (tmp_path / "account.json").write_text(json.dumps(account))
        monkeypatch.setenv("VERTEX_PROJECT", "my-project")
        monkeypatch.setenv("MY_CREDENTIALS", str(tmp_path / "account.json"))
        vertex = {"location": "europe-west4", "credentials": "${MY_CREDENTIALS}"}
        made = model("gemini", loopback.url, tmp_path / "run", api_key=None, vertex=vertex)
        results = answers(made, *map(request, range(3)))
        assert all(isinstance(result, ChatAnswer) for result in results), results
        asked = [asked for asked in loopback.asked if not asked.path.endswith("/token")]
        place = "projects/my-project/locations/europe-west4/publishers/google/models/tiny-1:generateContent"
        assert {asked.path for asked in asked} == {f"/v1beta1/{place}"}
        assert asked[0].headers["authorization"] == "Bearer ya29.t0ken-of-the-loopback"
        loopback.always = "403"
        (stop,) = answers(model("gemini", loopback.url, api_key=None, vertex=vertex), request())
    assert isinstance(stop, ConfigError) and stop.path == "chat_models.judge.vertex"
    written = b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert b"t0ken-of" not in written and b"PRIVATE" not in written


@pytest.mark.parametrize(
    "content", [None, "{}", "no JSON", '{"type": "service_account", "private_key": "pl4nted"}']
)
def test_a_file_without_credentials_is_named_and_not_repeated(content, tmp_path, monkeypatch):
    file = tmp_path / "account.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("MY_CREDENTIALS", str(file))
    vertex = {"project": "p", "credentials": "${MY_CREDENTIALS}"}
    made = model("gemini", "http://127.0.0.1:9", api_key=None, vertex=vertex)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(made.open())
    assert caught.value.path == "chat_models.judge.vertex.credentials" and "pl4nted" not in str(caught.value)


# ------------------------------------------------------------------------------------------------- OpenAI


def test_what_an_endpoint_of_openai_is_sent():
    with server("openai") as loopback:
        made = model("openai", loopback.url, fields={"reasoning_effort": "low"}, thought_tokens=100)
        answers(made, request(messages=TALK, temperature=0.5, sample=3))
        (asked,) = loopback.asked
    form = {"name": "answer", "schema": {**SCHEMA, "additionalProperties": False}, "strict": True}
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body == {
        "model": "tiny-1", "messages": [*TALK[:3], {"role": "user", "content": "exit code 0"}],
        "max_tokens": 164, "temperature": 0.5, "seed": 3, "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": form},
    }  # fmt: skip


def refusing(*forms):
    """An endpoint that answers 400 to these forms of JSON."""

    def edit(table, number):
        return table

    loopback = server("openai", edit=edit)
    respond = loopback._respond

    async def responds(asked, writer):
        form = asked.body.get("response_format", {}).get("type")
        if form in forms:
            loopback.left.appendleft("400")
            loopback.error_table = lambda *_: {
                "error": {"message": f"response_format {form} is not supported"}
            }
        return await respond(asked, writer)

    loopback._respond = responds
    return loopback


@pytest.mark.parametrize(
    ("forms", "sent"),
    [
        (("json_schema",), ["json_schema", "json_object"]),
        (("json_schema", "json_object"), ["json_schema", "json_object", None]),
    ],
)
def test_an_endpoint_without_schemas_is_asked_in_another_form_visibly(forms, sent, caplog, tmp_path):
    with refusing(*forms) as loopback:
        made = model("openai", loopback.url, tmp_path)
        results = answers(made, request(1))
        assert isinstance(results[0], ChatAnswer), results
        asked = [asked.body.get("response_format", {}).get("type") for asked in loopback.asked]
        assert asked == sent and json.dumps(SCHEMA) in loopback.asked[-1].body["messages"][-1]["content"]
        assert caplog.text.count("the endpoint refuses JSON by") == len(sent) - 1
        again = answers(model("openai", loopback.url, tmp_path), request(1))
        assert again == results and len(loopback.asked) == len(sent), (
            "the cache knows the request in any form"
        )


def test_another_refusal_is_no_reason_to_change_the_form(caplog):
    with server("openai", always="400") as loopback:
        (fault,) = answers(model("openai", loopback.url), request())
        assert (
            isinstance(fault, SystemFault) and len(loopback.asked) == 1 and "refuses JSON" not in caplog.text
        )
    with refusing("json_schema") as loopback:
        (fault,) = answers(model("openai", loopback.url, json="schema"), request())
        assert isinstance(fault, SystemFault) and len(loopback.asked) == 1, "a form that is set stays"


def test_json_off_asks_for_none():
    with server("openai") as loopback:
        made = model("openai", loopback.url, json="off")
        assert made.structured is False
        answers(made, request())
        assert "response_format" not in loopback.asked[0].body
        assert loopback.asked[0].body["messages"] == list(request().messages)


def test_an_answer_of_thoughts_alone_is_missing():
    with server("openai", answer=lambda body: "") as loopback:
        (fault,) = answers(model("openai", loopback.url), request())
        assert isinstance(fault, SystemFault) and "an answer without text" in str(fault)


@pytest.mark.parametrize("name", sorted(VENDORS))
def test_a_vendor_has_an_address_and_the_variable_of_its_key(name, monkeypatch):
    row = VENDORS[name]
    assert row.base_url.startswith("https://" if row.key else "http://localhost:")
    made = build("chat_model", {"type": "openai", "vendor": name, "model": "m"})
    if row.key:
        monkeypatch.delenv(row.key, raising=False)
        with pytest.raises(ConfigError, match=f"{row.key} is not set"):
            asyncio.run(made.open())


BY_MODEL = {
    "anthropic": ["claude-3-5-sonnet-20241022", "claude-opus-4-1"],
    "dashscope": ["qwen3-coder", "qwen-max", "qwq-plus", "Qwen2.5-72b-instruct"],
    "deepseek": ["deepseek-coder", "deepseek-chat", "deepseek-reasoner"],
    "gemini": ["gemini-2.5-flash"],
    "mistral": ["codestral-latest", "mistral-large-latest", "open-mixtral-8x22b", "devstral-small-2507"],
    "moonshot": ["kimi-k2-0711-preview", "moonshot-v1-8k"],
    "openai": ["gpt-4o", "chatgpt-4o-latest", "o1", "o3-mini", "o4-mini", "ft:gpt-4o-mini:me::x"],
    "perplexity": ["sonar", "sonar-pro"],
    "xai": ["grok-4"],
    "zhipu": ["glm-4.6"],
    None: [
        "",
        "llama-3-70b",
        "gpt-oss-120b",
        "deepseek-ai/DeepSeek-V3",
        "Qwen/Qwen3-32B",
        "my-gpt-4o",
        "other",
    ],
}


@pytest.mark.parametrize("vendor", BY_MODEL)
def test_the_vendor_of_a_models_name(vendor):
    assert {name: vendor_of(name) for name in BY_MODEL[vendor]} == dict.fromkeys(BY_MODEL[vendor], vendor)
    assert vendor is None or vendor in VENDORS


def test_vendor_auto_is_the_vendor_of_the_models_name(monkeypatch):
    monkeypatch.setenv("DEEPSEEK_API_KEY", "value-of-deepseek")
    table = {"type": "openai", "vendor": "auto", "model": "deepseek-coder"}
    assert asyncio.run(build("chat_model", table).connect()) == "https://api.deepseek.com/v1"
    with pytest.raises(ConfigError, match="no vendor is known for the model 'mystery'") as caught:
        build("chat_model", {**table, "model": "mystery"}, name="judge")
    assert caught.value.path == "chat_models.judge.vendor"
    with server("openai") as loopback:
        answers(model("openai", loopback.url, vendor="auto", model="deepseek-coder", api_key=None), request())
        (asked,) = loopback.asked
    assert asked.headers["authorization"] == "Bearer none", "an address of one's own gets no vendor's key"


def test_what_else_can_be_done_without_a_key_is_in_the_fix(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    made = build("chat_model", {"type": "openai", "model": "m"})
    made.instead = "ask nobody"
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set") as caught:
        asyncio.run(made.open())
    assert caught.value.fix == "export OPENAI_API_KEY=YOUR_KEY; or ask nobody"


def test_a_vendor_behind_another_address_keeps_its_key(monkeypatch):
    monkeypatch.setenv("DEEPSEEK_API_KEY", "value-of-deepseek")
    with server("openai") as loopback:
        made = model("openai", loopback.url, vendor="deepseek", api_key=None)
        answers(made, request())
        (asked,) = loopback.asked
    assert asked.headers["authorization"] == "Bearer value-of-deepseek"
    assert asked.body["response_format"] == {"type": "json_object"}, "deepseek has no schemas"


def test_an_endpoint_of_ones_own_gets_no_key_of_openai(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "value-of-openai")
    with server("openai") as loopback:
        answers(model("openai", loopback.url, api_key=None), request())
        assert loopback.asked[0].headers["authorization"] == "Bearer none"


class Acme(OpenAIChat):
    row = Vendor("http://127.0.0.1:9/v1", "ACME_KEY", omit=("temperature",))


def test_a_plugin_adds_a_vendor_by_a_class(monkeypatch):
    monkeypatch.setenv("ACME_KEY", "value-of-acme")
    table = {"type": f"{__name__}:Acme", "model": "m"}
    with server("openai") as loopback:
        made = build("chat_model", {**table, "base_url": loopback.url})
        answers(made, request())
        assert loopback.asked[0].headers["authorization"] == "Bearer value-of-acme"
        assert "temperature" not in loopback.asked[0].body
    assert asyncio.run(build("chat_model", table).connect()) == "http://127.0.0.1:9/v1"


REFUSED = [
    ("openai", {"vendor": "opnai"}, "vendor", "did you mean 'openai'?"),
    ("openai", {"fields": {"response_format": {}}}, "fields.response_format", "set json"),
    ("openai", {"fields": {"max_tokens": 9}}, "fields.max_tokens", "sets the limit"),
    ("openai", {"omit": ["messages"]}, "omit", "remove messages"),
    ("openai", {"omit": ["max_tokens"]}, "omit", "limit_field"),
    ("openai", {"api_key": "sk-pl4nted0123456789abcdef"}, "api_key", "export"),
    ("openai", {"model": ""}, "model", ""),
    ("gemini", {"vertex": {"project": "p"}}, "vertex", "remove api_key, or vertex"),
    ("gemini", {"thinking_budget": -2}, "thinking_budget", ""),
    ("gemini", {"vertex": {"credentials": "pl4nted.json"}}, "vertex.credentials", "export"),
]


@pytest.mark.parametrize(("provider", "settings", "path", "words"), REFUSED)
def test_settings_that_cannot_work_are_refused(provider, settings, path, words):
    with pytest.raises(ConfigError) as caught:
        model(provider, "http://127.0.0.1:9/v1", **settings)
    assert caught.value.path == f"chat_models.judge.{path}" and words in str(caught.value)
    assert "pl4nted" not in str(caught.value)


def test_no_key_names_both_variables():
    made = build("chat_model", {"type": "gemini", "model": "m"})
    with pytest.raises(ConfigError, match="neither GEMINI_API_KEY nor GOOGLE_API_KEY is set"):
        asyncio.run(made.open())


def test_files_of_a_chat_model_have_its_name_and_lie_in_the_runs_folder(tmp_path):
    with pytest.raises(ConfigError, match="can't be called 'engine'"):
        model("openai", "http://127.0.0.1:9/v1", name="engine")
    with server("openai") as loopback:
        answers(model("openai", loopback.url, tmp_path / "run", name="a b/../c"), request(1))
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files and {file.parent.parent for file in files} == {tmp_path / "run"}
    assert all("a_b_.._c" in file.name for file in files), files


def test_a_model_that_is_not_open_says_so():
    made = model("openai", "http://127.0.0.1:9/v1")
    with pytest.raises(RuntimeError, match="not open"):
        asyncio.run(made.answer(ChatRequest(messages=())))


class Half(RemoteChatModel):
    """A provider without `limit` and `text`."""

    async def connect(self):
        return "http://127.0.0.1:9"

    async def disconnect(self):
        """There is no client."""

    def table(self, request):
        return {"model": self.config.model}

    async def send(self, request):
        raise SystemFault("there is no server")


def test_a_provider_that_lacks_a_method_is_refused_before_the_run():
    with pytest.raises(PluginError, match="can't be made") as caught:
        build("chat_model", {"type": f"{__name__}:Half", "model": "m"})
    assert all(name in caught.value.why for name in ("abstract", "limit", "text"))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("reason", "finish"), [("MAX_TOKENS", "length"), ("STOP", "stop")])
def test_an_answer_says_whether_its_limit_cut_it(provider, reason, finish, tmp_path):
    """Also one that comes from the cache."""

    def edit(table, number):
        if provider == "gemini":
            table["candidates"][0]["finishReason"] = reason
        else:
            table["choices"][0]["finish_reason"] = finish
        return table

    with server(provider, edit=edit) as loopback:
        for _ in range(2):
            (answer,) = answers(model(provider, loopback.url, tmp_path), request())
            assert answer.finish == finish
        assert len(loopback.asked) == 1
