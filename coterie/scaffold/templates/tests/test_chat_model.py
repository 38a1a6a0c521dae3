"""The chat model: what every one promises, and its grades."""

import asyncio

import pytest

from coterie import ChatRequest
from coterie.testing import build


def test_it_keeps_the_promises_of_a_chat_model(coterie_check):
    coterie_check("example_name", kind="chat_model")


@pytest.mark.parametrize(("wrote", "score"), [("", 0), ("one", 3), ("one two three four", 10)])
def test_more_words_get_a_better_grade(wrote, score):
    prompt = f"Grade this.\n<wrote>\n{wrote}\n</wrote>\nGive a score."
    request = ChatRequest(messages=({"role": "user", "content": prompt},))
    answer = asyncio.run(build("chat_model", "example_name").answer(request))
    assert answer.text.endswith(f"PROCESS_SCORE: {score}")
