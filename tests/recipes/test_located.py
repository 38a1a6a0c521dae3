"""Relative paths of a configuration, and the digest that reads contents in place of paths."""

from __future__ import annotations

import shutil

import pytest

from coterie.recipes import load
from tests.api.test_changed_files import RECIPE, records


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a recipe and its records; the working folder is another one."""
    monkeypatch.chdir(tmp_path)
    records(tmp_path / "project" / "records.jsonl")
    (tmp_path / "project" / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "project"


def path(source, *overrides, **layers):
    return load(source, overrides=overrides, **layers).table["env"].get("path")


def test_a_path_is_of_the_file_that_names_it(project, tmp_path):
    (tmp_path / "further").mkdir()
    extending = tmp_path / "further" / "child.yaml"
    extending.write_text("extends: ../project/recipe.yaml\n")
    overlay = tmp_path / "further" / "overlay.yaml"
    overlay.write_text("env: {path: mine.jsonl}\n")
    mine = records(tmp_path / "further" / "mine.jsonl")
    scaled = project / "scaled.yaml"
    scaled.write_text("extends: recipe.yaml\nscales: {cpu: {env: {path: small.jsonl}}}\n")
    small = records(project / "small.jsonl")
    assert path(project / "recipe.yaml") == str(project / "records.jsonl")
    assert path(extending) == str(project / "records.jsonl"), "the base names it"
    assert path(project / "recipe.yaml", overlays=[str(overlay)]) == str(mine)
    assert path(scaled, scale="cpu") == str(small)


def test_a_path_of_the_working_folder_is_taken_where_the_files_folder_has_none(project, tmp_path, caplog):
    (project / "records.jsonl").rename(tmp_path / "records.jsonl")
    assert path("project/recipe.yaml") == str(tmp_path / "records.jsonl")
    assert not caplog.records


def test_of_two_files_that_of_the_recipes_folder_is_taken_and_it_is_said(project, tmp_path, caplog):
    records(tmp_path / "records.jsonl", more=1)
    assert path("project/recipe.yaml") == str(project / "records.jsonl")
    assert (
        f"env.path: records.jsonl is taken from the folder of the file that names it, {project}"
        in caplog.text
    )


def test_a_path_of_an_override_or_of_python_is_of_the_working_folder(project, tmp_path):
    here = records(tmp_path / "here.jsonl")
    assert path("project/recipe.yaml", "env.path=here.jsonl") == str(here)
    table = load("project/recipe.yaml").table
    assert path({**table, "env": {**table["env"], "path": "here.jsonl"}}) == str(here)


def test_a_path_of_nothing_stays_as_it_is_written(project):
    assert path("project/recipe.yaml", "env.path=gone.jsonl") == "gone.jsonl"


@pytest.mark.parametrize(
    ("setting", "name", "made"),
    [
        ("policies.shared.model", "tiny", "folder"),
        ("policies.shared.model", "some/model", None),
        ("policies.shared.model.tokenizer", "words", "folder"),
        ("policies.shared.from", "other@3:shared", "folder"),
        ("env.stop_when", "agree", "file"),
    ],
)
def test_words_and_hub_ids_are_no_paths(project, tmp_path, setting, name, made):
    if made == "folder":
        (tmp_path / name.partition("@")[0]).mkdir()
    elif made == "file":
        (tmp_path / name).write_text("")
    value = load("project/recipe.yaml", overrides=[f"{setting}={name}"]).table
    for key in setting.split("."):
        value = value[key]
    moved = made == "folder" and name != "words"
    assert value == (f"{tmp_path}/{name}" if moved else name)


def test_the_digest_is_of_the_content_and_not_of_the_place(project, tmp_path):
    digest = load(project / "recipe.yaml").digest()
    shutil.copytree(project, tmp_path / "copy")
    assert load(tmp_path / "copy" / "recipe.yaml").digest() == digest
    records(tmp_path / "copy" / "records.jsonl", more=1)
    assert load(tmp_path / "copy" / "recipe.yaml").digest() != digest
