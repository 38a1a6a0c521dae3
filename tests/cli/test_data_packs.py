"""`coterie data make ds-pack` and `coterie data mix`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coterie.testing import build, coterie_run
from tests.cli.support import TABULAR, coterie


def output(*arguments: object) -> Any:
    done = coterie("data", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_pack_is_made_printed_read_by_what_was_printed_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "pack"
    done = coterie("data", "make", "ds-pack", "-o", folder, "--tasks", 9, "--seed", 3, "--split", "train")
    assert done.exit_code == 0, done.output
    assert "train  9      data_type  classification 5, regression 4" in done.stdout
    assert "baseline" not in done.stdout, "a measure is no class"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert list(manifest["splits"]) == ["train"] and manifest["splits"]["train"]["records"] == 9
    assert manifest["made_by"] == "coterie data make ds-pack" and manifest["seed"] == 3
    made = output("make", "ds-pack", "-o", folder, "--tasks", 1, "--force")
    assert list(made["splits"]) == ["train", "val", "test"] and made["seed"] == 0
    for split in ("train", "val", "test"):
        [record] = build("data_source", made["paste"]["data"]).records(split)
        assert record["metadata"]["task_id"] == f"{split}-000-binary"
    shown = output("show", folder, "--tasks", 1)
    assert shown[0]["record"]["metadata"]["metric"] == "accuracy"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("ds-pack", "seed=4"), "ds-pack takes no settings"),
        (("ds-pack", "--scale", "smoke"), "ds-pack takes no --scale"),
        (("ds-pack", "--format", "parquet"), "ds-pack takes no --format parquet"),
        ((TABULAR, "--seed", "4"), "fix: write seed=4"),
    ],
)
def test_options_of_the_other_kind_are_refused(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    done = coterie("data", "make", *arguments, "-o", tmp_path / "out")
    assert done.exit_code != 0 and text in done.output and not (tmp_path / "out").exists()


def test_the_mix_of_records_is_by_every_class_or_by_what_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    metadata = [
        {"task_id": f"t{n}", "data_type": "ab"[n > 3], "hard": n < 2, "score": n / 7} for n in range(6)
    ]
    records = [{"level": n % 2, "metadata": each} for n, each in enumerate(metadata)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    expected = {"data_type": {"a": 4, "b": 2}, "hard": {"false": 4, "true": 2}}
    assert output("mix", file) == {"splits": {"tasks.json": {"tasks": 6, "mix": expected}}, "notes": []}
    assert output("mix", file, "--by", "level")["splits"]["tasks.json"]["mix"] == {"level": {"0": 3, "1": 3}}
    text = coterie("data", "mix", file).stdout
    assert "tasks.json  6      data_type  a 4, b 2" in text and "hard       false 4, true 2" in text
    refused = coterie("data", "mix", file, "--by", "data_typ")
    assert refused.exit_code != 0 and "did you mean 'data_type'?" in refused.output


def test_the_mix_of_a_recipes_tasks_has_their_strata(tmp_path: Path) -> None:
    records = [{"question": f"{n}?", "kind": "ab"[n > 3], "metadata": {"hard": n < 2}} for n in range(6)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    env = {"type": "team_task", "train": str(tmp_path / "train.jsonl"), "fields": ["question"]}
    env |= {"answer_field": None, "stratum_field": "kind", "success": "tests.cli.test_data_packs:right"}
    (tmp_path / "recipe.yaml").write_text(coterie_run(env=env, order=["one"]).resolved.text())
    counted = output("mix", tmp_path / "recipe.yaml")["splits"]
    assert counted == {
        "train": {"tasks": 6, "mix": {"hard": {"false": 4, "true": 2}, "stratum": {"a": 4, "b": 2}}}
    }


def right(record: Any, transcript: Any) -> float:
    return 1.0


def test_of_a_generator_the_first_tasks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.cli.commands.data.GENERATED", 20)
    counted = output("mix", "plan_path")
    assert counted["splits"]["train"] == {"tasks": 20, "mix": {}}
    assert counted["notes"][0] == "of train the first 20 of 1,000,000 tasks are counted"
