"""Scale `laptop`: which recipes have it, what all of them have in common, and what `coterie plan` says."""

from __future__ import annotations

import json
import re

import laptop
import pytest

from coterie.compose import prepare
from coterie.recipes import load
from tests.cli.support import coterie
from tests.recipes.support import listed

NAMES = ("magrpo_tldr", "grpo_tldr", "magrpo_arxiv", "team_task", "mathchat_coach", "plan_path")
INHERITED = {"grpo_arxiv": "grpo_tldr", "magrpo": "plan_path", "magrpo_v1": "plan_path"}
"""Recipes that extend one of them and have its scale too."""
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.mark.xdist_group("listed recipes")
def test_these_recipes_have_the_scale_and_the_benchmark_measures_them():
    scaled = {name for name, info in listed().items() if "laptop" in info.scales}
    assert scaled == {*NAMES, *INHERITED} and laptop.RECIPES == NAMES


@pytest.mark.parametrize("name", [*NAMES, *INHERITED])
def test_each_role_has_an_adapter_of_the_small_model(name):
    config = load(name, scale="laptop").config
    assert {role: settings["policy"] for role, settings in config.team.roles.items()} == {
        role: role for role in config.team.roles
    }
    assert set(config.policies) == set(config.team.roles)
    for policy in config.policies.values():
        assert (policy.model, policy.train, policy.dtype) == (MODEL, "lora", "auto")
        assert policy.context <= 1536, "so that `coterie plan` knows a bound without a tokenizer"
    assert (config.engine["type"], config.trainer["type"]) == ("hf", "torch")
    schedule = config.schedule
    assert schedule.epochs is None and 0 < schedule.evaluate_every <= schedule.steps <= 100
    assert schedule.checkpoint_every <= 10, "an interrupt loses little"


@pytest.mark.parametrize("name", NAMES)
def test_without_a_hub_the_plan_fits_4_gb_and_says_what_it_assumes(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = coterie("plan", name, "--scale", "laptop", "--json")
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert 1e9 < plan["memory"]["peak"] < laptop.MEMORY
    assert any(MODEL in note for note in plan["notes"])


@pytest.mark.parametrize("name", ["mathchat_coach", "plan_path", "team_task"])
def test_these_need_no_data_of_the_hub(name):
    config = load(name, scale="laptop").config
    assert "hub" not in json.dumps([config.env, config.data])
    environment = prepare(load(name, scale="laptop")).side.environment
    assert all(environment.tasks(split, 0)[0].id for split in ("train", "val", "test"))


def test_the_coach_asks_no_model_and_its_rules_are_for_the_words_of_prose():
    config = load("mathchat_coach", scale="laptop").config
    assert config.chat_models["coach"]["type"] == "heuristic"
    assert "rendering" not in config.env
    other = load(
        "mathchat_coach",
        scale="laptop",
        overrides=["chat_models.coach={type: openai, vendor: ollama, model: m}"],
    )
    assert "rules" not in other.config.chat_models["coach"]


def test_records_of_a_file_take_the_place_of_the_sums(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"question": f"q {n}", "answer": n}) + "\n" for n in range(60)))
    config = load("team_task", scale="laptop", overrides=[f"env.path={file}"]).config
    assert config.env["path"] == str(file) and config.env.get("data") is None


def test_the_sums_are_right_and_each_is_there_once():
    from coterie.backends.data.shipped import Sums

    source = Sums(Sums.Config(), None)
    records = [record for split in ("train", "val", "test") for record in source.records(split)]
    assert len({record["question"] for record in records}) == len(records) == 350
    for record in records:
        numbers = [int(number) for number in re.findall(r"\d+", record["question"])]
        signs = 1 if re.search(r"\+|get on|more|buys", record["question"]) else -1
        value = numbers[0] + signs * numbers[1] - sum(numbers[2:])
        assert value == record["answer"] and len(numbers) == {"two": 2, "three": 3}[record["kind"]]


# ---------------------------------------------------------------------------------------- what is measured


def row(recipe: str, **changed) -> dict:
    seconds = {"start": 20.0, "step": 24.6, "evaluation": 31.2}
    measured = {
        "generated_tokens": 3072,
        "prompt_tokens": 12784,
        "trained_tokens": 3072,
        "peak_bytes": 2.86e9,
    }
    schedule = {"steps": 60, "evaluations": 3, "whole_seconds": 1590.0, "met": True}
    how = {"threads": 2, "clock": "wall", "seconds": seconds}
    return {"recipe": recipe, **measured, **schedule, **how, **changed}


def test_the_page_has_what_is_stored():
    stored = json.loads(laptop.RESULTS.read_text(encoding="utf-8"))
    page = laptop.PAGE.read_text(encoding="utf-8")
    assert f"{laptop.BEGIN}\n\n{laptop.part(stored)}\n\n{laptop.END}" in page
    for measured in stored["rows"]:
        schedule = load(measured["recipe"], scale="laptop").config.schedule
        assert measured["met"] and measured["steps"] == schedule.steps
        assert measured["peak_bytes"] <= laptop.MEMORY and measured["whole_seconds"] <= laptop.SECONDS
        assert measured["trained_tokens"] > 0.9 * measured["generated_tokens"], "actions are trained on"


def test_a_page_is_written_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{laptop.BEGIN}\nold\n{laptop.END}\n\n- rest\n")
    stored = {"machine": {"processor": "P", "torch": "2", "transformers": "5"}, "rows": [row("plan_path")]}
    for _ in range(2):
        laptop.write_page(stored, page)
    text = page.read_text()
    assert text.startswith("# Page\n") and text.endswith("\n\n- rest\n") and "old" not in text
    assert "| `plan_path` | 60 | 12,784 | 3,072 | 25 s | 31 s | 26 min | 2.9 GB |" in text
    assert "P, 2 threads, seconds that passed; PyTorch 2, transformers 5." in text


def test_the_parts_of_a_run_are_told_apart(monkeypatch):
    now = iter([0.0, 50.0, 90.0, 115.0])
    monkeypatch.setattr(laptop.time, "perf_counter", lambda: next(now))
    watch = laptop.Watch("wall")
    for done in (1, 2, 3):
        watch(done, 3)
    assert watch.seconds() == {"start": 25.0, "step": 25.0, "evaluation": 15.0}


def test_made_sources_are_as_long_as_those_of_the_hub_and_differ():
    for kind, (least, most) in laptop.WORDS.items():
        made = [record["prompt"] for record in laptop.sources(kind)]
        lengths = [len(text.split()) for text in made]
        assert len(set(made)) == laptop.SOURCES and least <= min(lengths) <= max(lengths) <= most
        assert max(lengths) - min(lengths) > 0.9 * (most - least)
