"""The engine `mixed`: a trained policy beside one behind an endpoint."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

import coterie
from coterie.backends.engines.mixed import MixedEngine
from coterie.core.protocols import EngineContext
from tests.backends.remote.server import MODEL, OpenAIServer
from tests.cli.support import coterie as command

pytestmark = pytest.mark.torch

POLICIES = (
    "team.roles.planner.policy=partner",
    f"policies.partner={{model: {MODEL}, train: none, remote: true}}",
)  # fmt: skip


def run(folder, url, *more):
    return command(
        "run", "plan_path", "--scale", "smoke", *POLICIES,
        f"engine={{type: mixed, remote: {{type: openai, base_url: '{url}', backoff: 0.02}}}}",
        "schedule.steps=2", *more, "--out", folder,
    )  # fmt: skip


def test_a_policy_is_trained_beside_a_remote_partner(tmp_path):
    with OpenAIServer() as server:
        done = run(tmp_path / "run", server.url)
        assert done.exit_code == 0, done.output
        asked = len(server.asked)
        prompts = [json.dumps(arrival.body["messages"]) for arrival in server.asked]
        assert prompts and all("planner" in prompt for prompt in prompts)
        rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert len(rows) == 2 and rows[-1]["policy/shared/samples"] > 0
        assert not any(name.startswith("policy/partner") for name in rows[-1])
        longer = command("run", "--resume", tmp_path / "run", "schedule.steps=3")
        assert longer.exit_code == 0, longer.output
        result = coterie.evaluate(tmp_path / "run", tasks=2)
        assert len(result.per_task) == 2 and len(server.asked) > asked
    assert (tmp_path / "run" / "remote" / "engine.sqlite").is_file()


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (["policies.partner.train=full"], "policies.partner.train"),
        (["policies.shared.model=no/such/folder/here"], "policies.shared.model"),
        (["trainer=deepspeed"], "trainer.type"),
        (["engine.remote.api_key=sk-abcdefghijklmnop1234"], "engine.remote.api_key"),
    ],
)
def test_what_cannot_be_is_refused(settings, path, tmp_path):
    done = run(tmp_path / "run", "http://127.0.0.1:9/v1", *settings)
    assert done.exit_code == 2 and f"Error: {path}: " in done.stderr, done.output
    assert "abcdefghijklmnop" not in done.output


def test_a_plan_counts_the_local_weights_alone():
    done = command(
        "plan", "plan_path", "--scale", "smoke", *POLICIES,
        "engine={type: mixed, remote: {type: openai, base_url: 'http://127.0.0.1:9/v1'}}",
    )  # fmt: skip
    assert done.exit_code == 0 and "can't be fetched" not in done.output, done.output


def test_an_engine_without_policies_is_neither_opened_nor_closed():
    class Noting:
        def __init__(self):
            self.seen = []

        async def open(self, ctx):
            self.seen += sorted(ctx.policies)

        async def close(self):
            self.seen.append("closed")

    async def go():
        local, remote = Noting(), Noting()
        engine = MixedEngine(SimpleNamespace(local=local, remote=remote))
        policies = {name: SimpleNamespace(remote=True) for name in ("a", "b")}
        await engine.open(
            EngineContext(
                policies=policies, chat=None, active_rollouts=None, deterministic=True, vocabulary=None
            )
        )
        await engine.close()
        return local.seen, remote.seen

    assert asyncio.run(go()) == ([], ["a", "b", "closed"])
