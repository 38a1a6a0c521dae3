"""The report's file: its numbers are the run's, its texts are text, and what can't be read is said."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import coterie
from coterie.api.rollouts import read_rollouts, write_rollouts
from coterie.core.errors import MissingExtra, RunFolderError, UserError
from coterie.viewing.report import blocks, page, report
from coterie.viewing.report.blocks import PackedRun, PackedTree
from coterie.viewing.report.reading import read_run
from coterie.viewing.text import CONTROLS, MOST_MARKS
from tests.cli.support import coterie as command
from tests.viewing.report_numbers import check_numbers, embedded
from tests.viewing.runs import made, rows_of, with_coach


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of a run of two turns with a tree, and one with a coach."""
    folder = tmp_path_factory.mktemp("runs")
    tree = ("env.team=potential", "algorithm={type: magrpo}", "sampler.expand=all", "sampler.branches=2")
    every = ("schedule.record_every=1", "schedule.evaluate_every=1", "schedule.evaluate_tasks=4")
    return {
        "tree": made(folder / "tree", *tree, *every),
        "seed": made(folder / "seed", *tree, *every, "seed=1"),
        "best": made(folder / "best", *every),
        "coach": made(folder / "coach", "schedule.record_every=1", source=with_coach()),
    }


@pytest.mark.parametrize("kind", ["tree", "best", "coach"])
def test_every_number_is_the_runs(kind, runs, tmp_path):
    check_numbers(runs[kind], report(runs[kind], tmp_path / "out.html"))


def test_the_episodes_are_those_of_the_rollouts(runs, tmp_path):
    from coterie.api.episodes import trees_of
    from coterie.viewing.episode_fields import fields_of

    folder = runs["tree"]
    index = embedded(report(folder, tmp_path / "out.html"))["episodes"]["runs"][0]
    every = [
        episode
        for file in sorted((folder / "rollouts").iterdir())
        for tree in trees_of(read_rollouts(file))
        for episode in tree.episodes()
    ]
    assert index["count"] == len(every)
    for row, episode in enumerate(every):
        fields = {name: of[row] for name, of in index["columns"].items()}
        assert fields["key"] == episode.key
        for name, value in fields_of(episode).items():
            assert fields[name] == value, name


def test_seeds_of_one_configuration_are_drawn_together(runs, tmp_path):
    data = embedded(report([runs["tree"], runs["seed"], runs["best"]], tmp_path / "out.html"))["main"]
    assert [group["runs"] for group in data["groups"]] == [[0, 1], [2]]
    band = data["groups"][0]["bands"]["success"]
    values = [[row["success"] for row in rows_of(runs[name])] for name in ("tree", "seed")]
    assert band["mean"] == pytest.approx([sum(pair) / 2 for pair in zip(*values, strict=True)])
    assert all(
        low <= mean <= high
        for low, mean, high in zip(band["low"], band["mean"], band["high"], strict=True)
        if low is not None
    )
    assert data["groups"][1]["bands"] is None


def test_a_copy_of_a_run_is_no_seed_and_named(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs["tree"], copy)
    path = report([runs["tree"], copy, runs["best"]], tmp_path / "out.html")
    groups = embedded(path)["main"]["groups"]
    assert [(group["runs"], group["copies"], group["bands"]) for group in groups] == [
        ([0], [1], None),
        ([2], [], None),
    ]
    text = path.read_text(encoding="utf-8")
    assert f"{copy} is left out of curves: {runs['tree']} has its configuration and its seed, 0" in text
    dots = re.findall(r'class="dot run-(\d)"', text)
    assert dots == ["0", "0", "1"], "a configuration's colour, as in the charts"


def test_the_page_says_what_the_run_is_and_what_differs(runs, tmp_path):
    text = report([runs["tree"], runs["best"]], tmp_path / "out.html").read_text(encoding="utf-8")
    assert "magrpo" in text and "at_grpo" in text
    assert "In what the runs differ" in text and "sampler.expand" in text
    assert "default-src" in text and "http://" not in re.sub(
        r"http://www\.w3\.org/2000/svg", "", without_script(text)
    )


def without_script(text):
    return re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_texts_of_models_are_no_markup(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs["best"], folder)
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!-- \u2028 \x1b[0m \ud800"
    for file in (folder / "rollouts").iterdir():
        rows = read_rollouts(file)
        for row in rows:
            if row["kind"] == "branch":
                row["completion"], row["fault"] = bad, {"kind": "policy", "reason": bad}
        write_rollouts(file, rows)
    path = report(folder, tmp_path / "out.html")
    text = path.read_text(encoding="utf-8")
    assert "alert(1)" not in text and "onerror" not in text and "\x1b" not in text and "\u2028" not in text
    branches = [
        branch
        for name, of in embedded(path).items()
        if name.startswith("block-")
        for tree in of["trees"]
        for node in tree["nodes"]
        for decision in node["decisions"]
        for branch in decision["branches"]
    ]
    assert {branch["completion"] for branch in branches} == {bad}


def test_secrets_of_settings_are_in_no_report(runs, tmp_path):
    yaml = YAML(typ="safe")
    folders = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folders.append(Path(shutil.copytree(runs["tree"], folder)))
        for file in (folder / "config.yaml", folder / "resolved.yaml"):
            table = yaml.load(file.read_text())
            settings = table.get("settings", table)
            settings["env"] |= {"token": f"HUSH{name}", "at": f"https://me:hush-{name}@host/"}
            settings["rewards"]["environment"]["headers"] = {"X-Own": f"hush-{name}"}
            if "settings" in table:
                table["changes"] = [{"step": 1, "settings": {"env.token": ["HUSH1", "HUSH2"]}}]
            yaml.dump(table, file)
    text = report(folders, tmp_path / "out.html").read_text(encoding="utf-8")
    assert "hush" not in text.lower() and "https://(hidden)@host/" in text
    read = [read_run(folder) for folder in folders]
    assert {row["path"]: row["values"] for row in page.differing(read)} == {
        "env.token": ["(hidden)", "(hidden)"],
        "env.at": ["https://(hidden)@host/"] * 2,
        "rewards.environment.headers.X-Own": ["(hidden)"] * 2,
    }
    changed = {"step": 1, "path": "env.token", "before": "(hidden)", "after": "(hidden)"}
    assert changed in page.changes(read[0])


def test_characters_that_nobody_sees_are_shown():
    assert (
        page.visible("a\x00\x1b\x7f\x85\u202e\u200b\n\tb\u2028")
        == "a␀␛␡⟨U+0085⟩⟨U+202E⟩⟨U+200B⟩\n\tb⟨U+2028⟩"
    )
    assert page.visible("é😀❤️") == "é😀❤️"
    assert page.visible("\u3164\u2800\ue000\U000e0041") == "⟨U+3164⟩⟨U+2800⟩⟨U+E000⟩⟨U+E0041⟩"
    assert page.visible("a" + "\u0301" * 100 + "b") == "a" + "\u0301" * 8 + "⟨combining characters: 92 more⟩b"


def test_the_script_shows_the_same_characters():
    script = page.asset("text.js")
    of_script = re.search(r"INVISIBLE =\s*/(\[.*\])/gu;", script)[1]
    of_script = re.sub(r"\\u\{(\w+)\}", lambda match: f"\\U{match[1]:0>8}", of_script)
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert re.findall(of_script, every) == CONTROLS.findall(every)
    assert f"MOST_MARKS = {MOST_MARKS};" in script and "⟨combining characters: ${" in script


@pytest.mark.parametrize("digits", [blocks.EXACT_BYTES, 0], ids=["exact", "rounded"])
def test_numbers_of_tokens_are_exact_until_the_file_would_be_large(digits, runs, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "EXACT_BYTES", digits)
    data = embedded(report(runs["best"], tmp_path / "out.html"))
    scale = 1 if digits else 10 ** data["main"]["digits"]
    rows = [row for file in sorted((runs["best"] / "rollouts").iterdir()) for row in read_rollouts(file)]
    known = {
        (row["node"], row["role"], row["branch"], row["version"]): row["calls"][0]["logprobs"]
        for row in rows
        if row["kind"] == "branch"
    }
    for name, of in data.items():
        for tree in of["trees"] if name.startswith("block-") else ():
            for node in tree["nodes"]:
                for decision in node["decisions"]:
                    for branch in decision["branches"]:
                        place = node["key"], decision["role"], branch["branch"], branch["version"]
                        shown = [value / scale for value in branch["calls"][0]["logprobs"]]
                        assert shown == pytest.approx(known[place], abs=0 if digits else 0.5 / scale)


def packed(steps=4, trees=30, size=100):
    of = PackedRun()
    for step in range(steps):
        for tree in range(trees):
            reward = ((tree * 7) % trees) / trees
            of.trees.append(PackedTree(step, b"x" * size, [{"reward": reward, "block": 0}]))
    of.all_trees = len(of.trees)
    return of


def test_a_run_that_fits_is_whole():
    trees, rule = blocks.kept(packed(), 10**6)
    assert len(trees) == 120 and rule == ""


@pytest.mark.parametrize(("budget", "steps"), [(5_000, 4), (1_000, 4), (700, 2), (150, 1)])
def test_of_a_run_that_is_too_large_the_worst_and_best_of_each_step_stay(budget, steps):
    every = packed()
    trees, rule = blocks.kept(every, budget)
    assert sum(len(tree.text) for tree in trees) <= budget
    assert len({tree.step for tree in trees}) == steps and max(tree.step for tree in trees) == 3
    if budget > 150:
        for step in {tree.step for tree in trees}:
            rewards = [tree.reward for tree in every.trees if tree.step == step]
            here = [tree.reward for tree in trees if tree.step == step]
            assert min(here) == min(rewards) and max(here) == max(rewards)
    assert f"Of 120 recorded trees {len(trees)} are" in rule


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="is not a run folder"):
        report(tmp_path, tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_what_cannot_be_written_is_refused_before_it_is_read(runs, tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        report(runs["best"], tmp_path)
    with pytest.raises(UserError, match="no name of a report") as raised:
        report(runs["best"], tmp_path / "out.pdf")
    assert str(raised.value.fix).endswith("out.html")
    with pytest.raises(UserError, match="named twice"):
        report([runs["best"], runs["best"]], tmp_path / "out.html")
    with pytest.raises(UserError, match="no run"):
        report([], tmp_path / "out.html")
    assert report(runs["best"], tmp_path / "new" / "folder" / "out.html").is_file()


def test_a_damaged_rollout_file_is_said_and_left_out(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs["best"], folder)
    file = folder / "rollouts" / "step-000001.jsonl.gz"
    file.write_bytes(file.read_bytes()[:200])
    text = report(folder, tmp_path / "out.html").read_text(encoding="utf-8")
    assert "step-000001.jsonl.gz is damaged" in text
    assert embedded(tmp_path / "out.html")["episodes"]["runs"][0]["columns"]["step"][0] == 2


def test_a_run_without_rollouts_or_evaluations_has_its_curves(tmp_path):
    folder = made(tmp_path / "run", "schedule.record_every=0", "schedule.evaluate_every=0")
    path = report(folder, tmp_path / "out.html")
    assert "The run has recorded none" in path.read_text(encoding="utf-8")
    data = embedded(path)
    assert data["main"]["charts"] and data["episodes"]["runs"] == [{"count": 0, "trees": 0, "columns": {}}]


def test_a_run_that_goes_on_is_said(runs, tmp_path):
    from coterie.core.storage.atomic import locked

    with locked(runs["best"]):
        text = report(runs["best"], tmp_path / "out.html").read_text(encoding="utf-8")
    assert "The run goes on" in text
    assert not read_run(runs["best"]).live


def test_a_run_that_nobody_trains_is_said_with_how_to_go_on(runs, tmp_path):
    folder = tmp_path / "killed"
    shutil.copytree(runs["best"], folder)
    rows = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(rows[:1]))
    text = report(folder, tmp_path / "out.html").read_text(encoding="utf-8")
    assert re.search(r"No process( of this machine)? trains the run", text)
    assert f"It ended at step 1 of {len(rows)}. Go on with: coterie run --resume {folder}" in text
    whole = report(runs["best"], tmp_path / "whole.html").read_text(encoding="utf-8")
    assert "--resume" not in without_script(whole)


def test_a_folder_of_runs_is_taken(runs, tmp_path):
    folder = tmp_path / "seeds"
    for name in ("tree", "seed"):
        shutil.copytree(runs[name], folder / name)
    done = command("report", str(folder), "-o", str(tmp_path / "new" / "out.html"))
    assert done.exit_code == 0 and "new: a new folder" in done.stderr
    assert [of["label"] for of in embedded(tmp_path / "new" / "out.html")["main"]["runs"]] == ["seed", "tree"]
    done = command("episodes", str(folder), "--step", "1", "-n", "1000")
    assert done.exit_code == 0 and "seed  step 1" in done.stdout and "tree  step 1" in done.stdout
    shutil.rmtree(folder / "seed" / "rollouts")
    done = command("episodes", str(folder), "--json")
    assert done.exit_code == 0 and "seed has no recorded episodes" in done.output
    assert '"run": "tree"' in done.stdout


def test_runs_of_different_environments_are_said(runs, tmp_path):
    text = report([runs["best"], runs["coach"]], tmp_path / "out.html").read_text(encoding="utf-8")
    assert "These runs play different environments" in text


def test_the_missing_package_is_named(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match="jinja2") as raised:
        report(runs["best"], tmp_path / "out.html")
    assert "coterie[report]" in str(raised.value.fix)


def test_the_command_writes_the_file_and_says_where(runs, tmp_path):
    done = command("report", str(runs["best"]), "-o", str(tmp_path / "out.html"))
    assert done.exit_code == 0 and "out.html" in done.stdout and "MB" in done.stdout
    done = command("report", str(tmp_path / "nothing"))
    assert done.exit_code != 0 and "is not a run folder" in done.stderr and "Traceback" not in done.output
    assert coterie.report is report


def test_what_is_no_regular_file_is_named_and_left_out(runs, tmp_path):
    folder = shutil.copytree(runs["best"], tmp_path / "run")
    os.mkfifo(folder / "rollouts" / "step-000009.jsonl.gz")
    (folder / "rollouts" / "step-000008.jsonl.gz").symlink_to("/dev/zero")
    (folder / "rollouts" / "step-000007.jsonl.gz").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "eval" / "step-000009.json")
    text = report(folder, tmp_path / "out.html").read_text(encoding="utf-8")
    for name in ("step-000009.jsonl.gz", "step-000008.jsonl.gz", "step-000007.jsonl.gz", "step-000009.json "):
        assert name in text
    assert text.count("is no regular file") == 3
    assert embedded(tmp_path / "out.html")["episodes"]["runs"][0]["count"]
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    with pytest.raises(RunFolderError, match="is no regular file"):
        report(folder, tmp_path / "out.html")
