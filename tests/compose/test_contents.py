"""Which settings name files, and the digests of what they name."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from pydantic import Field, FilePath

from coterie import Plugin, PluginConfig
from coterie.compose import contents as module
from coterie.compose.contents import contents, module_file, sha256_of
from coterie.compose.named_files import DATASET, MODEL, NamedFile
from coterie.compose.settings import settings_of
from coterie.testing.support.runs import coterie_run

NAMES = {"format": "file-path"}


class Reader(Plugin):
    class Config(PluginConfig):
        several: list[str] = Field([], json_schema_extra=NAMES)
        by_split: str | dict[str, str] | None = Field(None, json_schema_extra=NAMES)
        checked: FilePath | None = None
        other: str = "a text"

    scope = "joint"
    components = {"read": "increment"}
    weights = {}
    policy_fault = 0.0

    async def score(self, view):
        return {}


def found(**settings):
    table = {"environment": {"type": "environment"}, "reader": {"type": f"{__name__}:Reader", **settings}}
    known = contents(settings_of(coterie_run(rewards=table).config))
    prefix = "rewards.reader."
    return {path.removeprefix(prefix): entry for path, entry in known.items() if path.startswith(prefix)}


def test_every_form_of_a_setting_that_names_files_is_found(tmp_path):
    files = [tmp_path / name for name in ("a", "b", "c", "d")]
    for file in files:
        file.write_text(file.name)
    a, b, c, d = map(str, files)
    known = found(several=[a, b], by_split={"test": c}, checked=d, other=a)
    assert list(known) == ["several.0", "several.1", "by_split.test", "checked", "type"]
    assert known["by_split.test"] == {"path": c, "sha256": sha256_of(c, "file-path")}
    assert found(by_split=str(tmp_path / "gone")).keys() == {"type"}


def test_the_file_of_a_plugin_that_is_named_by_its_module_is_one(tmp_path):
    assert found()["type"]["path"] == __file__


@pytest.mark.parametrize("change", ["content", "name", "added"])
@pytest.mark.parametrize("form", ["folder", "pattern"])
def test_a_folder_and_a_pattern_have_the_digest_of_their_files(tmp_path, form, change):
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    for name in ("a.jsonl", "b.jsonl", "inner/c.jsonl"):
        (folder / name).write_text(name)
    place = str(folder if form == "folder" else folder / "**" / "*.jsonl")
    before = sha256_of(place, DATASET)
    (folder / ".cache").write_text("hidden files don't count")
    assert sha256_of(place, DATASET) == before
    if change == "content":
        (folder / "inner" / "c.jsonl").write_text("other")
    elif change == "name":
        (folder / "a.jsonl").rename(folder / "z.jsonl")
    else:
        (folder / "d.jsonl").write_text("")
    assert sha256_of(place, DATASET) != before


def test_a_moved_folder_has_the_same_digest(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("{}")
    before = sha256_of(str(tmp_path / "data"), DATASET)
    (tmp_path / "data").rename(tmp_path / "moved")
    assert sha256_of(str(tmp_path / "moved"), DATASET) == before


def test_large_weights_are_sampled_and_large_data_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 8)
    monkeypatch.setattr(module, "BLOCKS", 4)
    model = tmp_path / "model"
    model.mkdir()
    weights = bytearray(1000)
    (model / "model.safetensors").write_bytes(weights)

    def digests(at: int | None = None):
        if at is not None:
            (model / "model.safetensors").write_bytes(weights[:at] + b"x" + weights[at + 1 :])
        return [sha256_of(str(model), form) for form in (MODEL, DATASET)]

    sampled, whole = digests()
    for at in (0, 335, 662, 999):  # in the four blocks, which are evenly spaced
        assert digests(at)[0] != sampled
    assert digests(100)[0] == sampled and digests(100)[1] != whole


def test_a_large_file_that_is_written_again_is_read_again(tmp_path):
    file = tmp_path / "large.jsonl"
    file.write_bytes(b"a" * (module.BLOCK + 1))
    before = sha256_of(str(file), "file-path")
    file.write_bytes(b"b" * (module.BLOCK + 1))
    os.utime(file, ns=(0, 0))  # whatever the clock's resolution is
    assert sha256_of(str(file), "file-path") != before


@pytest.mark.parametrize(
    ("env", "setting"),
    [
        ({"type": "team_task", "test": "FILE"}, "env.test"),
        ({"type": "team_task", "data": {"type": "jsonl", "path": "FILE"}}, "env.data.path"),
        ({"type": "team_task", "data": {"type": "parquet", "train": "FILE"}}, "env.data.train"),
        ({"type": "math", "val": {"set": "aime24", "file": "FILE"}}, "env.val.file"),
        ({"type": "code_collab", "data": {"type": "humaneval", "file": "FILE"}}, "env.data.file"),
        ({"type": "code_collab", "data": {"type": "mbpp", "file": {"test": "FILE"}}}, "env.data.file.test"),
    ],
)
def test_data_of_every_form_is_hashed(tmp_path, env, setting):
    file = tmp_path / "records.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"question": "?", "answer": 1}\n'))
    config = coterie_run().config
    table = json.loads(json.dumps(env).replace("FILE", str(file)))
    known = contents(settings_of(config.model_copy(update={"env": table})))
    assert known[setting]["path"] == str(file) and "sha256" in known[setting]


def test_what_a_hub_has_is_known_by_its_id_and_revision():
    data = {"type": "hub", "name": "some/records", "revision": "abc"}
    config = coterie_run().config.model_copy(update={"env": {"type": "team_task", "data": data}})
    assert contents(settings_of(config))["env.data.name"] == {"id": "some/records", "revision": "abc"}


def test_installed_code_is_known_by_its_version_alone():
    named = NamedFile(("a",), "numpy.linalg:norm", "function")
    assert module.place_of(named) is None
    assert module.place_of(NamedFile(("a",), "coterie.stats:Interval", "function")) is None
    assert module.place_of(NamedFile(("a",), f"{__name__}:Reader", "function")) == str(Path(__file__))


def test_a_module_in_folders_without_an_init_file_is_found(tmp_path):
    """A package may be one by its folder alone, and none of its folders is imported yet."""
    file = tmp_path / "outermost" / "inner" / "game.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert module_file("outermost.inner.game", [str(tmp_path)]) == file
    assert module_file("outermost.inner.other", [str(tmp_path)]) is None
