"""The tool `search` against a loopback server and its faults."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from coterie.core.errors import ConfigError, SystemFault
from coterie.testing import build
from tests.backends.tools.support import native, served, used

FOUND = {
    "results": [{"title": f"T{n}", "url": f"http://{n}", "snippet": "s" * n, "rank": n} for n in range(4)]
}
QUERY = native("search", query="wall street")


def search(url: str, **settings):
    return build("tool", {"type": "search", "url": url, "pause": 0.001, **settings}, name="search")


def searched(*answers, query=QUERY, **settings):
    """(result, requests) of a query; the server gives these answers in turn and then repeats the last one."""
    requests = []

    def answer(request, body):
        requests.append((request.command, urlsplit(request.path).query, body, request.headers))
        reply = answers[min(len(requests), len(answers)) - 1]
        if callable(reply):
            reply(request)
        else:
            request.say(*reply)

    with served(answer) as url:
        return used(search(url, **settings), query)[0], requests


def test_the_first_results_are_shown():
    result, ((method, query, _, _),) = searched((200, FOUND), top_k=2)
    assert result == "[1] T0\nhttp://0\n\n[2] T1\nhttp://1\ns"
    assert method == "GET" and parse_qs(query) == {"q": ["wall street"]}


def test_fields_and_keys_are_sent(monkeypatch):
    monkeypatch.setenv("SEARCH_KEY", "secret")
    _, ((method, _, body, headers),) = searched(
        (200, FOUND), method="POST", query_field="query", top_k_field="n", top_k=3, fields={"lang": "en"},
        headers={"X-Key": "Bearer ${SEARCH_KEY}"},
    )  # fmt: skip
    assert method == "POST" and headers["X-Key"] == "Bearer secret"
    assert json.loads(body) == {"query": "wall street", "n": 3, "lang": "en"}


def test_a_key_that_is_not_set_is_an_error_that_names_it():
    with pytest.raises(ConfigError, match="NO_SUCH_KEY") as caught:
        searched((200, FOUND), headers={"X-Key": "${NO_SUCH_KEY}"})
    assert caught.value.path.endswith("headers.X-Key")


@pytest.mark.parametrize(("answer", "settings", "result"), [
    ({"web": {"hits": [{"page": {"name": "A"}}]}}, {"results": "web.hits", "show": ["page.name"]}, "[1] A"),
    (["one", "two"], {"results": ""}, "[1] one\n\n[2] two"),
    ({"results": []}, {}, "no results"),
    (["a" * 60], {"results": "", "result_chars": 50}, "[1] " + "a" * 50 + "\n[10 characters left out]"),
])  # fmt: skip
def test_results_are_found_where_the_configuration_says(answer, settings, result):
    assert searched((200, answer), **settings)[0] == result


def test_a_fenced_block_may_be_a_call():
    result, ((_, query, _, _),) = searched(
        (200, FOUND), calls="fenced", query="```search\n a b \n```", top_k=1
    )
    assert result == "[1] T0\nhttp://0" and parse_qs(query) == {"q": ["a b"]}
    assert search("http://x", calls="fenced").schemas == ()


def hang_up(request):
    request.connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("fault", [(500, "oh"), (503, ""), (429, "slowly"), hang_up])
def test_a_fault_that_passes_costs_attempts_only(fault):
    result, requests = searched(fault, fault, (200, FOUND), top_k=1)
    assert result.startswith("[1] T0") and len(requests) == 3


@pytest.mark.parametrize("fault", [(500, "oh"), (429, "slowly"), hang_up])
def test_a_fault_that_stays_is_the_systems(fault):
    with pytest.raises(SystemFault, match="in each of 3 attempts"):
        searched(fault, attempts=3)


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
        with pytest.raises(SystemFault, match="ConnectError"):
            used(search(url, attempts=2), QUERY)


def drip(request):
    request.send_response(200)
    request.send_header("content-length", "1000000")
    request.end_headers()
    try:
        for _ in range(600):
            request.wfile.write(b" ")
            request.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass  # the tool has hung up, as it should


def test_an_answer_that_drips_ends_within_its_time():
    begin = time.monotonic()
    with pytest.raises(SystemFault, match="did not answer"):
        searched(drip, timeout=0.3, attempts=2)
    assert time.monotonic() - begin < 15, "it would drip for 30 s"


@pytest.mark.parametrize("answer", [
    (200, "<html>"), (200, {"other": []}), (200, {"results": {"a": 1}}), (401, "key?"), (404, "")
])  # fmt: skip
def test_an_answer_that_is_not_as_configured_is_the_systems(answer):
    with pytest.raises(SystemFault):
        searched(answer)


@pytest.mark.parametrize("status", [400, 422])
def test_a_query_that_is_refused_gives_the_model_a_result(status):
    result, requests = searched((status, "query too long"))
    assert result == f"the search refused the query: {status} query too long" and len(requests) == 1


@pytest.mark.parametrize("query", [native("search"), native("search", query=3), native("search", query=" ")])
def test_a_bad_call_sends_no_request(query):
    result, requests = searched((200, FOUND), query=query)
    assert result.startswith("not searched: ") and not requests
