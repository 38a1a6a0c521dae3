"""What is hidden in configurations that are shown or sent."""

from __future__ import annotations

import pytest

from coterie.secret_settings import HIDDEN, without_secrets

SECRET = [
    {"api_key": "TOKSECRET456"},
    {"aws_access_key": "AKIAIOSFODNN7EXAMPLE"},
    {"my_token": "TOKSECRET456"},
    {"password": "hush"},
    {"password": 1234},
    {"passphrase": "hush"},
    {"apiKey": "hush"},
    {"apikey": "hush"},
    {"X-Api-Key": "hush"},
    {"api_keys": ["hush", "hush"]},
    {"credentials": {"user": "hush", "id": 3}},
    {"api_key_env": "sk-hush-hush"},
    {"headers": {"X-Own": "hush"}},
    {"tools": {"files": {"env": {"HOME": "hush"}}}},
    {"url": "https://user:hush@host/x"},
    {"url": "https://hush@host"},
    {"url": "postgres://user:p@hush@host/x"},
    {"url": "https://host/x?a=1&api_key=hush"},
    {"url": "https://host/x?X-Amz-Signature=hush#access_token=hush"},
    {"env": {"type": "mine", "token": "hush"}},
    {"rewards": [{"secret": "hush"}]},
]
SHOWN = [
    {"api_key": "${OPENAI_API_KEY}"},
    {"api_key_env": "OPENAI_API_KEY"},
    {"token_var": "HF_TOKEN"},
    {"headers": {"X-Own": "${OWN}"}},
    {"variables": ["HF_TOKEN"]},
    {"url": "https://host:80/x?a=b&tokens=x"},
    {"url": "https://${USER}:${PASSWORD}@host/${KEY}/v1?api_key=${KEY}"},
    {"env": {"type": "plan_path", "size": 5}},
    {"evaluate": {"sets": {"hard": {"env": {"size": "big"}}}}},
    {"tokenizer": "words", "max_new_tokens": 8, "tokens": 200, "token": 5, "password": None},
    {"summary": "mail me@example.org, or what? a=1"},
]


@pytest.mark.parametrize("table", SECRET, ids=str)
def test_secrets_are_hidden(table):
    text = str(without_secrets(table))
    assert HIDDEN in text
    assert not any(word in text for word in ("hush", "TOKSECRET", "AKIA", "1234", "'id': 3"))


@pytest.mark.parametrize("table", SHOWN, ids=str)
def test_names_of_variables_and_other_settings_are_shown(table):
    assert without_secrets(table) == table


def test_a_value_alone_is_judged_by_its_path():
    assert without_secrets("X", ("trackers", "mine", "headers", "Own")) == HIDDEN
    assert without_secrets("X", ("env", "level")) == "X"
    assert without_secrets("https://a:b@host") == f"https://{HIDDEN}@host"
