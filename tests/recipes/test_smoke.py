"""`--scale smoke` of recipes of code, data science and writing: a script writes most of their answers.

One of every environment, transition mode and algorithm runs from end to end; the rest compose.
"""

from __future__ import annotations

import json

import pytest

from coterie.api.train import train
from coterie.compose import compose
from coterie.recipes import load, recipes
from coterie.testing import play_episode
from coterie.testing.support import oracle_texts
from tests.backends.loopback import one_store_of_certificates
from tests.backends.remote.server import OpenAIServer
from tests.cli.support import coterie
from tests.plugins.envs.code.problems import ADD

ENVIRONMENTS = ("code_collab", "code_game", "code_tests", "data_science", "writing")
NAMES = [info.name for info in recipes() if load(info.name).config.env["type"] in ENVIRONMENTS]
RUN = [
    ("magrpo_humaneval", []), ("grpo_humaneval", []), ("code_at_grpo", []), ("code_single", []),
    ("magrpo_tldr", []), ("grpo_arxiv", []), ("magrpo_code_game", []), ("dsbench_coach", []),
    ("mt_magrpo_humaneval", ["transition=level_feedback"]),
    *(pytest.param("mt_magrpo_humaneval", [f"transition={mode}"], marks=pytest.mark.long)
      for mode in ("plain", "passed", "level_passed")),
]  # fmt: skip
"""One of every environment, mode and algorithm."""
PLANNED = ("mt_magrpo_humaneval", "magrpo_code_game", "code_at_grpo", "dsbench_coach", "magrpo_tldr")
"""One of every environment."""


def test_one_of_every_environment_is_run():
    here = {load(name).config.env["type"] for name in NAMES}
    played = {getattr(case, "values", case)[0] for case in RUN}
    for chosen in (played, PLANNED):
        assert {load(name).config.env["type"] for name in chosen} == here and len(NAMES) > len(chosen)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_composes(name):
    config = compose(load(name, scale="smoke")).config
    assert config.transition["type"] != "expert_edits", "no key is needed"


@pytest.mark.parametrize("name", PLANNED)
def test_a_recipe_of_every_environment_is_planned(name):
    done = coterie("plan", name, "--scale", "smoke")
    assert done.exit_code == 0, done.output


def trained(name, overrides, folder):
    """The rows of metrics of a run from end to end."""
    result = train(name, scale="smoke", overrides=overrides, out=folder)
    assert result.finished and result.step == 2
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("name", "overrides"), RUN, ids=lambda value: str(value) if value else "")
def test_it_runs_from_end_to_end(name, overrides, tmp_path):
    rows = trained(name, overrides, tmp_path / "run")
    assert all(row["loss/grad_norm"] >= 0 for row in rows if "loss/grad_norm" in row)
    if "humaneval" in name or name.startswith("code_"):  # the script's programs parse
        assert all(row["judging/programs"] >= 1 and 0 < row["judging/share"] <= 1 for row in rows)
        assert rows[0]["judging/share"] == pytest.approx(rows[0]["judging/seconds"] / rows[0]["time/step"])


@pytest.mark.parametrize("name", ["magrpo_humaneval", "code_at_grpo"])
def test_problems_that_the_script_does_not_know_are_answered_by_its_faults(name, tmp_path, caplog):
    oracle_texts.warn_of_unknown_problem.cache_clear()
    file = tmp_path / "mine.jsonl"
    file.write_text(
        "".join(
            json.dumps({**ADD, "id": f"p{n}", "prompt": f"# {n}\n{ADD['prompt']}"}) + "\n" for n in range(30)
        )
    )
    rows = trained(name, [f"data={{type: jsonl, path: {file}}}"], tmp_path / "run")
    assert len(rows) >= 2 and caplog.text.count("knows the solutions of data source 'cooperative' alone") == 1


def test_experts_run_from_end_to_end(tmp_path):
    """An expert behind an endpoint, which answers for both roles."""
    edits = json.dumps({"aux": "def aux(x):\n    return x\n", "main": "return aux(x)"})
    with one_store_of_certificates(), OpenAIServer(answer=lambda body: edits) as server:
        model = f"{{type: openai, model: tiny-1, base_url: '{server.url}', retries: 1}}"
        rows = trained(
            "mt_magrpo_humaneval", [f"transition={{type: expert_edits, model: {model}}}"], tmp_path / "run"
        )
        assert len(server.asked) >= 1
    assert any(value for row in rows for key, value in row.items() if "expert" in key or "edit" in key)


def test_every_level_of_the_reward_occurs():
    """The values of `code_structure`, worked out by hand from the levels of the paper."""
    run = compose(load("magrpo_humaneval", scale="smoke", overrides=["sampler.branches=8"]))
    _, scores = play_episode(run, tasks=12)
    values = {round(score.value, 6) for *_, name, score in scores if name == "code_structure"}
    # Nothing; aux alone; both or main alone, and no syntax; no test; all tests and what aux is worth.
    assert {0.0, 0.4, 1.0} <= values and 4.0 in values
    assert any(1.5 <= value < 2.5 for value in values), "a program that parses, without a test that passes"
    assert len(values) >= 8, sorted(values)


def test_every_level_of_writing_occurs():
    run = compose(load("magrpo_tldr", scale="smoke", overrides=["sampler.branches=8"]))
    _, scores = play_episode(run, tasks=12)
    for level in ("structure", "length", "vocabulary", "style"):
        values = {score.value for *_, name, score in scores if name == level}
        assert 0.0 in values and max(values) > 0.5, level
