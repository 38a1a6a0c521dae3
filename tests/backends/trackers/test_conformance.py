"""The trackers of libraries pass the kit's check; what they refuse, and what they never send."""

from __future__ import annotations

import json
import sys
from importlib import util
from types import SimpleNamespace

import pytest

from coterie import train
from coterie.api.episodes import action_rows, trees_of
from coterie.api.rollouts import read_rollouts
from coterie.api.train import drawn
from coterie.backends.trackers import common
from coterie.backends.trackers.common import configuration, flat, numbers_and_texts
from coterie.backends.trackers.tensorboard import escaped
from coterie.backends.trackers.wandb import WandbTracker
from coterie.compose import compose
from coterie.core.errors import MissingExtra
from coterie.core.storage.run_folder import RunFolder
from coterie.recipes import load
from coterie.testing import build, check_tracker
from tests.backends.trackers.servers import Bias, Traces, serving
from tests.backends.trackers.test_faults import scalars


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    tracker = build("tracker", {"type": "tensorboard", "log_episodes": 2})
    check_tracker(tracker, folder=tmp_path, read=lambda folder: sorted(scalars(folder / "tensorboard")))
    assert scalars(tmp_path / "tensorboard")[4]["loss"] == 2.0


def test_weave(tmp_path, monkeypatch):
    pytest.importorskip("weave")
    traces = Traces()
    with serving(traces) as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        table = {"type": "weave", "project": "team/small", "server": url, "log_episodes": 2}
        check_tracker(
            build("tracker", table),
            folder=tmp_path,
            read=lambda _: sorted(
                c["inputs"]["step"] for c in traces.calls.values() if c["op_name"] == "coterie.step"
            ),
        )


def test_wandb_online(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    bias = Bias()
    with serving(bias) as url:
        table = {"type": "wandb", "project": "small", "entity": "team", "base_url": url}
        check_tracker(build("tracker", table), folder=tmp_path)
    rows = [row for row in bias.rows if "loss" in row]
    assert [(row["_step"], row["loss"], row["missing"], row["odd"]) for row in rows[:3]] == [
        (step, 0.5 * step, None, None) for step in (1, 2, 3)
    ]


def test_what_wandb_has_not_taken_is_named(tmp_path, monkeypatch):
    class Run:
        dir = str(tmp_path / "wandb" / "run-1" / "files")

        def finish(self):
            raise TimeoutError("Timed out finishing run.")

    library = SimpleNamespace(Settings=dict, Table=None, init=lambda **_: Run())
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setattr(common, "find_spec", lambda package: library)
    (tmp_path / "config.yaml").write_text("{}")
    tracker = WandbTracker(WandbTracker.Config())
    tracker.open(tmp_path)
    with pytest.raises(TimeoutError, match=rf"in 10 s; `wandb sync {tmp_path}/wandb/run-1`"):
        tracker.close()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "weave"])
def test_a_missing_package_is_refused_before_a_model_is_loaded(name, monkeypatch):
    monkeypatch.setattr(
        common, "find_spec", lambda package: None if package == name else util.find_spec(package)
    )
    with pytest.raises(
        MissingExtra, match=rf"'{name}' is not installed \(needed by trackers.mine\)"
    ) as refused:
        compose(load("tests/recipes/tabular.yaml", overrides=[f"trackers.mine={{type: {name}}}"]))
    assert f"pip install 'coterie[{name}]'" in str(refused.value)


def test_a_tracker_is_made_without_its_library():
    """A configuration is checked, and a run planned, without their imports, which take a second each."""
    before = {*sys.modules}
    build("tracker", {"type": "tensorboard"})
    assert not {"tensorboard", "wandb", "mlflow", "weave"} & ({*sys.modules} - before)


def test_names_and_values_are_those_of_the_record():
    row = {
        "a": 1,
        "b": True,
        "c": [0.25, None],
        "d": {"x": float("inf"), "y": "text"},
        "e": float("nan"),
        "f": None,
    }
    expected = {"a": 1, "b": 1, "c/0": 0.25, "c/1": None, "d/x": None, "d/y": "text", "e": None, "f": None}
    assert dict(flat(row)) == expected
    numbers, texts = numbers_and_texts(row)
    assert texts == {"d/y": "text"} and {*numbers} == {*expected} - {"d/y"} and numbers["c/0"] == 0.25


def test_no_secret_is_in_the_configuration(tmp_path):
    (tmp_path / "config.yaml").write_text("""
chat_models: {judge: {api_key: "${GEMINI_KEY}", headers: {X-Own: "${OWN}", X-Literal: hush}}}
tools: {files: {type: mcp, env: {TOKEN: hush, HOME: "${HOME}"}}}
env: {type: matrix}
rewards: {mine: {password: hush, service_token: HUSH, api_key: hush}}
policies: {shared: {context: 64, tokenizer: words}}
sampler: {sampling: {max_new_tokens: 8}}
""")
    table, text = configuration(tmp_path)
    assert "hush" not in text.lower() and json.loads(text) == table
    assert table["chat_models"]["judge"]["api_key"] == "${GEMINI_KEY}", "the name of a variable is no secret"
    assert table["chat_models"]["judge"]["headers"]["X-Own"] == "${OWN}"
    assert table["env"] == {"type": "matrix"}, "the environment is no process's"
    assert table["policies"]["shared"] == {"context": 64, "tokenizer": "words"}
    assert table["sampler"]["sampling"]["max_new_tokens"] == 8


def test_hostile_text_is_shown_as_text():
    markdown = pytest.importorskip("tensorboard.plugin_util").markdown_to_safe_html
    hostile = "<img src=x onerror=alert(1)> | **b** [x](javascript:1) `c`\n# h\x1b[31m &lt;"
    table = f"| a | b |\n| --- | --- |\n| {escaped(hostile)} | 1 |"
    shown = markdown(table)
    assert shown.count("<td>") == 2 and not any(
        tag in shown for tag in ("<img", "<strong", "<a ", "<code", "<h1")
    )
    assert "onerror" in shown and "x1b" in shown


def test_the_draw_of_episodes_is_keyed_nested_and_even():
    counts = [3, 0, 1, 6]

    def places(chosen):
        return {(tree, index) for tree, of in chosen.items() for index in of}

    every = {(tree, index) for tree, count in enumerate(counts) for index in range(count)}
    assert places(drawn(counts, 1, 0, 99)) == every
    for number in range(10):
        smaller, larger = (places(drawn(counts, 4, 7, n)) for n in (number, number + 1))
        assert len(smaller) == number and smaller < larger <= every
        assert drawn(counts, 4, 7, number) == drawn(counts, 4, 7, number)
    seen = {place: 0 for place in every}
    for step in range(2000):
        for place in places(drawn(counts, step, 0, 2)):
            seen[place] += 1
    assert all(abs(times / 2000 - 2 / 10) < 0.04 for times in seen.values()), seen


def test_the_episodes_of_a_step_are_those_of_its_rollout_file(tmp_path):
    table = {"type": "tests.backends.trackers.plugins:Lines"}
    settings = ["schedule.steps=2", "schedule.evaluate_every=0", "schedule.tasks_per_step=3"]
    recipes = {"matrix": "sampler.expand=all", "tabular": "sampler.expand=best"}
    for name, expand in recipes.items():
        recipe = f"tests/recipes/{name}.yaml"
        folder = tmp_path / name
        train(recipe, overrides=[*settings, expand, f"trackers={{lines: {table!r}}}"], out=folder)
        rows = [json.loads(line) for line in (folder / "lines_episodes.jsonl").read_text().splitlines()]
        for step, path in enumerate(RunFolder(folder).rollout_files(), 1):
            every = [list(action_rows(e)) for tree in trees_of(read_rollouts(path)) for e in tree.episodes()]
            ours = [row for row in rows if row["step"] == step]
            chosen = [of for of in every if of[0] in ours]
            assert len(chosen) == 2 and [row for of in chosen for row in of] == ours
