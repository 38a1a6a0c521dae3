"""The model card of an export: what the run's folder has on record."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import coterie
from coterie.api.export import export
from tests.api.test_changed_files import RECIPE, SHA, records


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two roles, one of which has a system message."""
    project = tmp_path_factory.mktemp("project")
    records(project / "records.jsonl")
    table = YAML(typ="safe").load(RECIPE)
    table["env"]["path"] = str(project / "records.jsonl")
    table["team"]["order"] = ["solver", "checker"]
    table["team"]["roles"]["checker"] = {
        "type": "template",
        "policy": "shared",
        "system": "Check {{ role }}.",
        "prompt": "Is {{ actions.solver }} right?",
    }
    return coterie.train(table, out=project / "my-run").folder


def card(run: Path, out: Path) -> tuple[dict, str]:
    text = (export(run, "shared", out) / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    return YAML(typ="safe").load(front), body


def test_the_card_states_team_prompts_base_run_step_and_data(run, tmp_path):
    front, body = card(run, tmp_path / "out")
    assert front == {"tags": ["coterie", "reinforcement-learning", "grpo"]}, (
        "no licence, and no base of a hub"
    )
    assert "to step 1. It plays the roles `solver`, `checker`." in body
    assert "### Role checker, played by `shared`" in body and "Is {{ actions.solver }} right?" in body
    assert "```\nCheck checker.\n```" in body, "the system message as the role was shown it"
    assert (
        'The base has random initial weights: `{"init": "qwen3"' in body
        and "All weights were trained." in body
    )
    record = YAML(typ="safe").load((run / "resolved.yaml").read_text())
    digest = record["files"]["env.path"]["sha256"]
    assert SHA.fullmatch(digest) and f"| env.path | `records.jsonl sha256 {digest}` |" in body
    assert "| run | `my-run` |" in body and f"torch {record['versions']['torch']}" in body
    assert coterie.load(run).digest() in body


def test_the_card_of_a_run_without_a_record_states_no_versions(run, tmp_path):
    shutil.copytree(run, tmp_path / "old")
    (tmp_path / "old" / "resolved.yaml").unlink()
    _, body = card(tmp_path / "old", tmp_path / "out")
    assert "version not recorded" in body and "| versions |" not in body


def test_secrets_of_settings_are_not_on_the_card(run, tmp_path):
    yaml, copy = YAML(typ="safe"), Path(shutil.copytree(run, tmp_path / "copy"))
    table = yaml.load((copy / "config.yaml").read_text())
    table["team"]["roles"]["checker"]["prompt"] = "See https://me:hush@host/ there."
    yaml.dump(table, copy / "config.yaml")
    _, body = card(copy, tmp_path / "out")
    assert "hush" not in body and "See https://(hidden)@host/ there." in body


def test_a_base_on_a_hub_is_named_with_its_revision(run):
    from coterie.api.export import front_matter, origin_of_weights

    settings = {"model": "some/base", "revision": None, "train": "lora", "lora": {"rank": 4}}
    table = {"policies": {"shared": settings}, "algorithm": {"type": "grpo"}}
    assert front_matter(table, "shared", local=False)["base_model"] == "some/base"
    assert "`some/base`, no revision stated." in origin_of_weights(settings, None, "shared", local=False)
    settings["revision"] = "abc"
    assert "revision abc." in origin_of_weights(settings, None, "shared", local=False)
    assert 'A LoRA adapter was trained: `{"rank": 4}`.' in origin_of_weights(
        settings, None, "shared", local=False
    )
