from __future__ import annotations

import logging

import pytest

from coterie.backends.remote import secrets
from tests.backends.chat_models.support import KEY
from tests.backends.loopback import one_store_of_certificates


@pytest.fixture(scope="package", autouse=True)
def _one_store_of_certificates():
    with one_store_of_certificates():
        yield


@pytest.fixture(autouse=True)
def _fresh_secrets(monkeypatch):
    """Keys of one test are no keys of the next."""
    factory = logging.getLogRecordFactory()
    monkeypatch.setattr(secrets, "replacements", {})
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("A_KEY", KEY)
    yield
    logging.setLogRecordFactory(factory)
