"""The transition mode expert_edits in a configuration and in a run: settings, servers, counts."""

from __future__ import annotations

import json
import logging

import pytest

from coterie.api.train import train
from coterie.core.errors import ConfigError, UserError
from coterie.estimate.cost import count
from coterie.plugins.transitions.expert_edits import NO_EDIT, question
from coterie.testing import check_transition, coterie_run, play_episode
from tests.backends.loopback import one_store_of_certificates
from tests.backends.remote.server import OpenAIServer
from tests.plugins.support import wait
from tests.plugins.transitions.support import (
    EDITS,
    TOYS,
    entry,
    expert,
    mode,
    second_node,
)

# ------------------------------------------------------------------------------------------- settings


def test_an_expert_is_needed_and_the_modes_without_one_are_named():
    with pytest.raises(ConfigError, match="there is no expert") as caught:
        mode("expert_edits")
    assert caught.value.path == "transition.expert_model"
    assert "expert_model=deepseek-coder" in caught.value.fix
    assert "asks no expert: plain, passed, level_passed, level_feedback" in caught.value.fix


@pytest.mark.parametrize(
    ("key", "value"), [("expert_model", "gpt-4o"), ("base_url", "http://h/v1"), ("api_key", "${K}")]
)
def test_a_second_expert_is_refused(key, value):
    with pytest.raises(ConfigError, match="nothing reads this") as caught:
        mode("expert_edits", model={"type": f"{TOYS}:Expert"}, **{key: value})
    assert caught.value.path == f"transition.{key}"


@pytest.mark.parametrize(
    ("name", "url", "key"),
    [
        ("deepseek-coder", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        ("claude-3-5-sonnet-20241022", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
        ("qwen3-coder", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
        ("gpt-4o-mini", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    ],
)
def test_the_name_of_a_model_decides_the_address_and_the_key(name, url, key, monkeypatch):
    monkeypatch.delenv(key, raising=False)
    made = mode("expert_edits", expert_model=name)
    model = made.config.model.model
    with pytest.raises(ConfigError, match=f"the environment variable {key} is not set") as caught:
        wait(model.open())
    assert caught.value.path == "transition.api_key"
    assert f"export {key}=YOUR_KEY" in caught.value.fix
    assert "asks no expert: plain, passed, level_passed, level_feedback" in caught.value.fix
    monkeypatch.setenv(key, "pl4nted-k3y-0123456789")
    with one_store_of_certificates():
        assert wait(model.connect()) == url
        wait(model.disconnect())


@pytest.mark.parametrize("name", ["mystery-7b", "Qwen/Qwen2.5-Coder-7B-Instruct", "gpt-oss-20b"])
def test_an_unknown_model_asks_for_an_address(name):
    with pytest.raises(ConfigError, match=f"no vendor is known for the model '{name}'") as caught:
        mode("expert_edits", expert_model=name)
    assert caught.value.path == "transition.expert_model"
    assert "set transition.base_url, and transition.api_key=${NAME}" in caught.value.fix
    assert f"transition.model={{type: openai, model: {name}, vendor: NAME}}" in caught.value.fix
    table = {"type": "openai", "model": name, "vendor": "deepseek"}
    assert mode("expert_edits", model=table).config.model
    assert mode("expert_edits", expert_model=name, base_url="http://localhost:8000/v1")


def test_a_key_itself_is_refused_and_not_repeated():
    key = "sk-abcdefghijklmnop1234567890"
    with pytest.raises(ConfigError, match="holds a secret key itself") as caught:
        mode("expert_edits", expert_model="deepseek-coder", api_key=key)
    assert caught.value.path == "transition.api_key"
    assert key not in str(caught.value)


# ------------------------------------------------------------------------------------------ in a whole run

ROLE = {"type": "template", "prompt": "{{ task }}{% for note in notes %}\n{{ note }}{% endfor %}"}


def team_run(**transition):
    return coterie_run(
        {"aux": "def aux", "main": "def add"},
        env={"type": f"{TOYS}:CodeTeam"},
        order=[["aux", "main"]],
        roles={"aux": ROLE, "main": ROLE},
        max_turns=2,
        sampler={"branches": 2},
        transition={"type": "expert_edits", **transition},
    )


def second_prompts(trees):
    return {
        role: decision.messages[-1]["content"].split("\n")[-2]
        for role, decision in second_node(trees).decisions.items()
    }


QUICK = {"retries": 1, "backoff": 0.01, "timeout": 10.0}


def server_model(server, **settings):
    return {"type": "openai", "model": "tiny-1", "base_url": server.url, **QUICK, **settings}


def test_an_expert_behind_an_endpoint():
    with one_store_of_certificates(), OpenAIServer(answer=lambda body: EDITS) as server:
        trees, scores = play_episode(team_run(model=server_model(server)), tasks=1)
    assert second_prompts(trees) == {"aux": "return x", "main": "call aux"}
    assert len(server.asked) == 1
    assert server.asked[0].body["response_format"]["type"] == "json_schema"
    assert all(score.value is not None for *_, score in scores)


@pytest.mark.parametrize("fault", ["500", "empty", "truncated"])
def test_a_server_that_fails_for_good_touches_no_score(fault, caplog):
    with one_store_of_certificates(), OpenAIServer(always=fault) as server:
        run = team_run(model=server_model(server))
        with caplog.at_level(logging.WARNING, "coterie"):
            trees, scores = play_episode(run, tasks=2)
    assert second_prompts(trees) == {"aux": NO_EDIT, "main": NO_EDIT}
    assert all(score.value is not None for *_, score in scores)
    actions = [action for d in second_node(trees).decisions.values() for action in d.branches]
    assert actions
    assert all(action.fault is None for action in actions)
    assert sum("a call failed" in record.getMessage() for record in caplog.records) == 1


def test_the_counts_are_metrics_of_the_step(tmp_path):
    with one_store_of_certificates(), OpenAIServer(answer=lambda body: "no JSON") as server:
        run = team_run(model=server_model(server))
        train(run.resolved.table, overrides=["schedule.tasks_per_step=1"], out=tmp_path / "run")
    (row,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    # One state is asked about, for two roles, and again after the malformed answer.
    counts = {name: row[f"expert/{name}"] for name in ("edits", "none", "malformed", "failed")}
    assert counts == {"edits": 0, "none": 2, "malformed": 2, "failed": 0}


@pytest.mark.parametrize(("env", "shared"), [("CodeTeam", 1), ("Talker", 2)])
def test_a_plan_counts_the_calls_that_a_step_makes(env, shared):
    run = coterie_run(
        lambda request, prompt: f"{request.key} {request.key.branch}",
        env={"type": f"{TOYS}:{env}"},
        order=[["aux", "main"]],
        max_turns=3,
        sampler={"branches": 2, "expand": "all"},
        transition={"type": "expert_edits", "model": {"type": f"{TOYS}:Expert"}},
    )
    counts = count(run)
    play_episode(run, tasks=2)
    model = run.team.transition.config.model.model
    assert counts.outside_calls == {"transition": len(model.asked)} == {"transition": 2 * (2 + 4) * shared}
    assert any(note.startswith("the outside calls of transition leave out") for note in counts.notes)
    assert count(team_run(model={"type": f"{TOYS}:Expert"})).outside_calls == {"transition": 2}
    assert count(coterie_run(max_turns=2)).outside_calls == {}


def test_a_missing_key_stops_the_run_before_the_first_step(monkeypatch):
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    run = team_run(expert_model="deepseek-coder")
    with pytest.raises(UserError, match="DEEPSEEK_API_KEY is not set") as caught:
        play_episode(run, tasks=1)
    assert caught.value.path == "transition.api_key"
    assert "plain, passed, level_passed, level_feedback" in caught.value.fix


def test_an_expert_of_the_table_chat_models_has_its_own_path(monkeypatch):
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    run = coterie_run(
        "x",
        env={"type": f"{TOYS}:CodeTeam"},
        order=["solver"],
        max_turns=2,
        transition={"type": "expert_edits", "model": "reviewer"},
        chat_models={"reviewer": {"type": "openai", "vendor": "deepseek", "model": "deepseek-coder"}},
    )
    with pytest.raises(UserError, match="DEEPSEEK_API_KEY is not set") as caught:
        play_episode(run, tasks=1)
    assert caught.value.path == "chat_models.reviewer.api_key"
    assert "asks no expert" in caught.value.fix


@pytest.mark.parametrize("env", ["CodeTeam", "Talker"])
def test_the_kit_accepts_the_mode(env):
    made, _ = expert(EDITS, "no JSON", "FAULT", '{"aux": 1}', env=env)
    roles = ["aux", "main"]
    check_transition(
        made,
        made.build.environment,
        roles=roles,
        order=[roles],
        act=["def aux", "", "x\n" * 3000],
        repeats=False,
    )


def test_a_frozen_policy_is_an_expert_too():
    run = coterie_run(
        lambda request, prompt: '{"solver": "think"}' if "You are an expert" in prompt else "x",
        env={"type": f"{TOYS}:CodeTeam"},
        order=["solver"],
        roles={"solver": ROLE},
        max_turns=2,
        transition={"type": "expert_edits", "model": {"type": "policy", "policy": "p"}},
    )
    trees, _ = play_episode(run, tasks=2)
    assert second_prompts(trees) == {"solver": "think"}


def test_the_question_names_each_role_once():
    text = question(entry("aux", "").messages, "aux", {"aux": "1", "main": "2"})
    assert text.count('<answer role="aux">') == text.count('<answer role="main">') == 1
