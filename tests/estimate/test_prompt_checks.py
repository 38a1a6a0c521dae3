"""Records whose prompts outgrow the context, or hold words unknown to the tokenizer, are told at start."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("transformers")

import coterie
from coterie.backends.models.tokenizers import words_tokenizer
from coterie.core.errors import ConfigError
from tests.cli.support import coterie as command

pytestmark = pytest.mark.torch

LONG = "what " * 40


@pytest.fixture
def recipe(tmp_path):
    """Makes a recipe of records with these questions, for a model of known words and 32 tokens."""
    words_tokenizer(["what", "is", "it", "yes", "no"]).save_pretrained(tmp_path / "words")

    def make(*questions):
        rows = [json.dumps({"question": text, "answer": "yes"}) + "\n" for text in questions]
        for split in ("train", "val"):
            (tmp_path / f"{split}.jsonl").write_text("".join(rows if split == "train" else rows[:1]).replace(
                "what", "what" if split == "train" else "it what"))  # fmt: skip
        model = {"init": "qwen3", "hidden_size": 16, "tokenizer": str(tmp_path / "words")}
        role = {"type": "template", "policy": "shared", "prompt": "{{ question }}"}
        return {
            "summary": "Records.",
            "env": {"type": "team_task", **{s: str(tmp_path / f"{s}.jsonl") for s in ("train", "val")}},
            "team": {"order": ["a"], "max_turns": 1, "roles": {"a": role}},
            "policies": {"shared": {"model": model, "train": "full", "dtype": "float32", "context": 32}},
            "sampler": {"chains": 2, "branches": 1, "sampling": {"max_new_tokens": 2}},
            "algorithm": "grpo",
            "chat": {"type": "plain"},
            "schedule": {"steps": 1, "tasks_per_step": 1, "max_missing": 1.0},
        }

    return make


def test_records_that_outgrow_the_context_are_counted_and_placed(recipe, tmp_path, caplog):
    coterie.train(recipe("what is it", LONG, f"is {LONG}"), out=tmp_path / "run")
    (told,) = [text for text in caplog.messages if "leave no room" in text]
    assert "2 of 3 first prompts of role 'a'" in told and "32 tokens, the longest 41" in told
    assert f"{tmp_path}/train.jsonl:2, {tmp_path}/train.jsonl:3" in told


def test_words_that_the_tokenizer_does_not_know_are_counted_and_placed(recipe, tmp_path, caplog):
    coterie.train(recipe("what is it", "what is rain", "rain or snow"), out=tmp_path / "run")
    (told,) = [text for text in caplog.messages if "to unknown" in text]
    assert "4 words" in told and "3 different, such as 'rain'" in told and "in 2 of 3 records" in told
    assert told.endswith(f"{tmp_path}/train.jsonl:2, {tmp_path}/train.jsonl:3")
    caplog.clear()
    coterie.evaluate(tmp_path / "run", split="val")
    assert "to unknown" not in caplog.text


def test_records_that_the_model_can_read_are_taken_in_silence(recipe, tmp_path, caplog):
    coterie.train(recipe("what is it", "is it what"), out=tmp_path / "run")
    assert "first prompts" not in caplog.text


def test_a_role_that_can_never_answer_ends_the_start(recipe, tmp_path):
    with pytest.raises(ConfigError, match="every first prompt of role 'a' outgrows the context") as caught:
        coterie.train(recipe(LONG, f"is {LONG}"), out=tmp_path / "run")
    assert caught.value.path == "policies.shared" and "32 tokens" in caught.value.why


def test_problems_of_mathematics_are_checked_too(recipe, tmp_path, caplog):
    table, files = recipe("what"), {}
    for split, texts in {"train": ("what is it", LONG * 20), "val": ("it",)}.items():
        files[split] = {"file": str(tmp_path / f"{split}.json")}
        rows = [{"problem": text, "answer": "1"} for text in texts]
        (tmp_path / f"{split}.json").write_text(json.dumps(rows))
    table["env"] = {"type": "math", "verify": "numbers", **files}
    table["policies"]["shared"]["context"] = 500
    solver = {"type": "math_solver", "policy": "shared"}
    table["team"] = {"order": ["solver"], "max_turns": 1, "roles": {"solver": solver}}
    coterie.train(table, out=tmp_path / "run")
    assert "1 of 2 first prompts of role 'solver' leave no room" in caplog.text
    place = re.search(r"team.overflow says what becomes of them: (\S+)", caplog.text)[1]
    assert place.startswith(f"{tmp_path}/train.json:")


def test_a_plan_says_the_same(recipe, tmp_path):
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe("what is it", f"rain {LONG}")))
    done = command("plan", tmp_path / "recipe.yaml", "--json")
    notes = " ".join(json.loads(done.stdout)["notes"])
    assert "1 of 2 first prompts of role 'a' leave no room" in notes
    assert "maps 1 words of first prompts to unknown" in notes and f"{tmp_path}/train.jsonl:2" in notes


def test_config_says_what_a_run_would_of_the_files_that_are_here(recipe, tmp_path):
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe("what is it")))
    assert command("config", tmp_path / "recipe.yaml").exit_code == 0
    (tmp_path / "train.jsonl").write_text('{"question": "x", "answer": ["3"]}\n')
    for name in ("config", "plan", "run"):
        done = command(name, tmp_path / "recipe.yaml")
        assert done.exit_code == 2 and "train.jsonl, line 1, field 'answer'" in done.stderr, name
    (tmp_path / "train.jsonl").unlink()
    assert command("config", tmp_path / "recipe.yaml").exit_code == 0  # as of a run from another machine


def test_a_plan_refuses_what_a_run_refuses(recipe, tmp_path):
    path = tmp_path / "recipe.json"  # YAML reads JSON
    path.write_text(json.dumps(recipe(LONG, f"is {LONG}")))
    done = command("plan", path)
    assert done.exit_code == 2 and "every first prompt of role 'a' outgrows" in done.stderr, done.output
    path.write_text(json.dumps(recipe(LONG, "is it")))
    done = command("plan", path)
    assert done.exit_code == 0 and "1 of 2 first prompts of role 'a'" in done.stdout, done.output


@pytest.mark.parametrize("absent", ["nowhere.jsonl", "."])
def test_a_plan_without_its_records_is_an_error(recipe, tmp_path, absent):
    table = recipe("what is it")
    table["env"]["train"] = str(tmp_path / absent)
    (tmp_path / "recipe.json").write_text(json.dumps(table))
    done = command("plan", tmp_path / "recipe.json")
    assert done.exit_code == 2 and "env.train" in done.stderr and str(tmp_path) in done.stderr, done.output


def test_a_plan_says_how_the_prompts_of_a_role_that_remembers_add_up(recipe, tmp_path):
    table = recipe("what is it")
    table["team"]["max_turns"] = 3
    for remembers, text in ((False, "16 tasks: a 3;"), (True, "a 13 (its last of 3 turns: 3 a turn and ")):
        table["team"]["roles"]["a"]["remembers"] = remembers
        (tmp_path / "recipe.json").write_text(json.dumps(table))
        done = command("plan", tmp_path / "recipe.json")
        assert done.exit_code == 0 and text in " ".join(done.stdout.split()), done.output
