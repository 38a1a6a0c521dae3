"""The coach's server goes away while a run trains: it comes back, or the run stops and is resumed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from types import SimpleNamespace

import httpx
import pytest
from coach_relay import RuleCoach, parts_of, relay_table

import coterie
from coterie import ChatAnswer, Plugin, PluginConfig, SystemFault
from coterie.api.rollouts import read_rollouts
from coterie.core.errors import TooManyMissing
from coterie.discovery import plugins
from tests.backends.remote.server import MODEL, OpenAIServer

RULES = RuleCoach(RuleCoach.Config(), SimpleNamespace())
JSON = RuleCoach(RuleCoach.Config(structured=True), SimpleNamespace())


class HttpModel(Plugin):
    """Posts to /chat/completions; equal requests are sent once."""

    class Config(PluginConfig):
        base_url: str
        model: str
        retries: int = 40
        backoff: float = 0.05

    structured = False

    async def open(self):
        self._client, self._asked = httpx.AsyncClient(timeout=5, trust_env=False), {}

    async def close(self):
        await self._client.aclose()

    async def answer(self, request):
        body = json.dumps({"model": self.config.model, "messages": list(request.messages)})
        if body not in self._asked:
            self._asked[body] = asyncio.ensure_future(self._sent(body))
        return await asyncio.shield(self._asked[body])

    async def _sent(self, body):
        for _ in range(self.config.retries + 1):
            try:
                response = await self._client.post(f"{self.config.base_url}/chat/completions", content=body)
                table = response.json()
                text = table["choices"][0]["message"]["content"]
                return ChatAnswer(text=text, version=table["model"])
            except (httpx.HTTPError, ValueError):
                await asyncio.sleep(self.config.backoff)
        self._asked.pop(body)
        raise SystemFault("the coach's server can't be reached")


@dataclass
class CoachServer(OpenAIServer):
    """Scores by rule; goes away after `gone_after` answers, for `back_after` seconds or for good."""

    gone_after: int | None = None
    back_after: float | None = None

    def __post_init__(self):
        super().__post_init__()
        self.answer = self._scored
        self.outages, self._returns = 0, []

    def _scored(self, body):
        prompt = body["messages"][0]["content"]
        judged = [RULES.score(parts) for parts in parts_of(prompt)]
        return (JSON if "Answer in JSON" in prompt else RULES).written(judged, several=False)

    async def _respond(self, asked, writer):
        if writer.transport.is_closing():
            return False
        if self.gone_after is None or len(self.paid) < self.gone_after:
            return await super()._respond(asked, writer)
        self.gone_after = None
        self.outages += 1
        self.hang_up()  # the requests under way are not answered
        if self.back_after is not None:
            self._returns.append(asyncio.ensure_future(self._return(self.back_after)))
        return False

    async def _return(self, seconds):
        await asyncio.sleep(seconds)
        await self.listen()

    def come_back(self):
        asyncio.run_coroutine_threadsafe(self.listen(), self._loop).result(10)


REAL = "openai" in plugins().registry.names("chat_model")
CLIENTS = [pytest.param({"type": f"{__name__}:HttpModel"}, id="http")]
if REAL:
    model = {"type": "openai", "api_key": None}
    CLIENTS.append(pytest.param(model, id="openai", marks=pytest.mark.coach))


def train(client, server, folder, steps=3, **settings):
    table = relay_table()
    model = {**client, "base_url": server.url, "model": MODEL, "backoff": 0.05, **settings}
    return coterie.train(
        {
            **table,
            "policies": {"shared": {"model": {"init": "tabular"}}},
            "rewards": {
                "environment": {"type": "environment", "weights": {"right": 0.0}},
                "coach": {"type": "coach", "model": "coach", "concurrency": 4},
            },
            "chat_models": {"coach": model},
            "sampler": {"sampling": {"max_new_tokens": 1}},
            "algorithm": {"type": "reinforce_pp", "beta": 0.0, "truncated": "keep"},
            "engine": "tabular",
            "trainer": {"type": "tabular", "learning_rate": 0.5},
            "schedule": {"steps": steps, "tasks_per_step": 8, "max_missing": 0.2, "checkpoint_every": 1},
        },
        out=folder,
    )


def check_scores(folder, steps):
    """Every action of every step has the score that the rule gives it, once."""
    files = sorted((folder / "rollouts").glob("*.jsonl.gz"))
    assert len(files) == steps
    for file in files:
        rows = read_rollouts(file)
        seen = {(row["node"], row["role"]): row["prompt"] for row in rows if row["kind"] == "node"}
        branches = [row for row in rows if row["kind"] == "branch"]
        assert len(branches) == 8 * 3
        for row in branches:
            prompt = seen[row["node"], row["role"]].partition("[user]\n")[2]
            parts = {"role": f"{row['role']}, turn 1", "seen": prompt, "wrote": row["completion"]}
            score, reason = RULES.score(parts)
            assert row["own_scores"] == {f"{row['role']}.process": score / 10}
            assert row["comments"]["process"].startswith(reason)


def training_steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_comes_back_is_waited_for(client, tmp_path):
    with CoachServer(gone_after=5, back_after=0.4) as server:
        train(client, server, tmp_path / "run", retries=40)
        assert server.outages == 1
        assert len(server.paid) == len(set(server.paid)), "nothing is scored twice"
    check_scores(tmp_path / "run", 3)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_is_gone_stops_the_run_which_is_resumed(client, tmp_path):
    folder = tmp_path / "run"
    with CoachServer(gone_after=12) as server:
        with pytest.raises(TooManyMissing, match="coach") as caught:
            train(client, server, folder, steps=4, retries=1)
        assert "max_missing" in str(caught.value) and server.outages == 1
        reached = training_steps(folder) if (folder / "metrics.jsonl").exists() else []
        server.come_back()
        coterie.train(resume=folder)
    assert training_steps(folder) == [1, 2, 3, 4] and len(reached) < 4
    check_scores(folder, 4)
