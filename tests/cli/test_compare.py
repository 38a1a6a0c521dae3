"""`coterie compare`, and `coterie eval` of several runs and of k samples, on runs of two recipes."""

from __future__ import annotations

import json

import pytest

from tests.cli.support import TABULAR, coterie
from tests.cli.test_wrong_input import refused

MATRIX = TABULAR.parent / "matrix.yaml"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two configurations of two seeds each."""
    folder = tmp_path_factory.mktemp("compared")
    for name, rate in (("slow", "0.1"), ("fast", "0.9")):
        done = coterie("run", MATRIX, "env.tasks=32", f"trainer.learning_rate={rate}", "--seeds", "0,1",
                       "--out", folder / name)  # fmt: skip
        assert done.exit_code == 0, done.output
    return folder


def evaluated(*arguments):
    done = coterie(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_runs_are_evaluated_on_the_same_tasks_and_compared_as_seeds(runs, tmp_path):
    report = evaluated(
        "compare", runs / "slow", f"quick={runs / 'fast'}", "--samples", "2", "-o", tmp_path / "r.json"
    )
    assert {name: side["seeds"] for name, side in report["sides"].items()} == {"slow": 2, "quick": 2}
    assert report["tasks"] == 32 and report["split"] == "test" and report["notes"] == []
    # The files of `coterie eval` with the seed of the first run say the same.
    files = []
    for name in ("slow", "fast"):
        for seed in (0, 1):
            files.append(tmp_path / f"{name}-{seed}.json")
            evaluated("eval", runs / name / f"seed-{seed}", "seed=0", "--samples", "2", "-o", files[-1])
    again = evaluated("compare", f"slow={files[0]},{files[1]}", f"quick={files[2]},{files[3]}")
    assert again["comparisons"] == report["comparisons"]
    assert json.loads((tmp_path / "r.json").read_text())["comparisons"] == report["comparisons"]
    assert json.loads(files[1].read_text())["run_seed"] == 1, "not the seed of its evaluation"


def test_what_is_printed(runs, tmp_path):
    done = coterie("compare", runs / "slow" / "seed-0", runs / "fast" / "seed-1@latest", "--tasks", "16")
    assert done.exit_code == 0, done.output
    assert "success on 16 test tasks" in done.stdout and "seed-1@latest - seed-0" in done.stdout
    assert "can show no difference" in done.stdout and "p (Holm)" in done.stdout
    assert "each side is one run" in done.stderr


def test_options_of_runs_are_those_of_the_file_that_they_are_compared_with(runs, tmp_path):
    file = tmp_path / "a.json"
    evaluated(
        "eval", runs / "slow" / "seed-1", "--samples", "2", "--tasks", "8", "--split", "val", "-o", file
    )
    report = evaluated("compare", file, runs / "fast" / "seed-0")
    assert report["tasks"] == 8 and report["split"] == "val"
    refused(
        coterie("compare", file, runs / "fast" / "seed-0", "--split", "test"), "different splits", "--split"
    )
    refused(
        coterie("compare", file, runs / "fast" / "seed-0", "--tasks", "12"), "different tasks", "--common"
    )


def test_wrong_input_comes_before_the_evaluation(runs, tmp_path):
    (tmp_path / "there.json").write_text("{}")
    pair = (runs / "slow" / "seed-0", runs / "fast" / "seed-0")
    refused(coterie("compare", *pair, "-o", tmp_path / "there.json"), "there.json exists", "--overwrite")
    refused(coterie("compare", *pair, "-o", tmp_path / "none" / "x.json"), "there is no folder")
    refused(coterie("compare", pair[0]), "one side only")
    refused(coterie("compare", pair[0], "plan_pat"), "unknown recipe 'plan_pat'")
    refused(coterie("compare", tmp_path / "there.json", pair[0]), "it has no entry `success`", "coterie eval")
    refused(
        coterie("compare", f"A={pair[0]},{pair[1]}", f"B={runs / 'slow' / 'seed-1'}"), "two runs of one seed"
    )


# ---------------------------------------------------------------------------------------------- coterie eval


def test_several_runs_are_one_table_of_what_each_says_alone(runs, tmp_path):
    pair = (runs / "slow" / "seed-0", runs / "fast" / "seed-0")
    options = ("--tasks", "8", "--samples", "4", "--k", "1,3")
    together = evaluated("eval", *pair, *options, "-o", tmp_path / "both.json")["evaluations"]
    alone = [evaluated("eval", run, *options) for run in pair]
    assert [{k: v for k, v in each.items() if k != "source"} for each in together] == alone
    assert [each["source"] for each in together] == [str(run) for run in pair]
    done = coterie("eval", *pair, *options)
    assert done.stdout.splitlines()[2].split() == ["source", "tasks", "success", "avg@4", "pass@1", "pass@3"]
    report = evaluated("compare", tmp_path / "both.json")
    assert report["tasks"] == 8 and len(report["sides"]) == 2


def test_seeds_of_one_setting_play_the_same_tasks(runs):
    pair = (TABULAR, runs / "fast" / "seed-1")
    assert "not on the same tasks" in coterie("eval", *pair, "--tasks", "2").stderr
    assert "not on the same" not in coterie("eval", runs / "fast" / "seed-1", MATRIX, "--tasks", "2").stderr


def test_what_is_of_one_source_is_refused_for_several(runs):
    pair = (runs / "slow" / "seed-0", runs / "fast" / "seed-0")
    refused(coterie("eval", *pair, "--null", "row"), "--null", "one at a time")
    refused(coterie("eval", *pair, "--show", "1"), "--show")
    refused(coterie("eval", pair[0], pair[0]), "named twice")
    refused(coterie("eval", "seed=1"), "is a setting")
    refused(coterie("eval", pair[0], "seed=1", pair[1]), "is no override")
    refused(coterie("eval", pair[0], "--k", "4", "--samples", "2"), "--k", "--samples 4")
    assert coterie("eval", pair[0], "--k", "a").exit_code == 2


def test_one_sample_says_what_it_said(runs):
    result = evaluated("eval", runs / "slow" / "seed-0", "--tasks", "8")
    assert "at_k" not in result and "by_category" not in result
    assert evaluated("eval", runs / "slow" / "seed-0", "--tasks", "8", "--k", "1")["at_k"]["pass@1"]["n"] == 8


def test_votes_and_categories_of_a_users_records(tmp_path):
    records = [{"question": f"{n}", "answer": n % 2, "level": "odd" if n % 2 else "even"} for n in range(12)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "recipe.yaml").write_text(
        f"""env: {{type: team_task, test: {tmp_path}/tasks.jsonl, train: {tmp_path}/train.jsonl,
  fields: [question], stratum_field: level}}
team:
  order: [one]
  roles: {{one: {{type: template, policy: p, prompt: "{{{{question}}}}", parser: number}}}}
policies: {{p: {{model: {{init: none}}, train: none}}}}
sampler: {{branches: 2}}
algorithm: at_grpo
engine: {{type: scripted, play: 'tests.cli.test_compare:guesses'}}
trainer: none
schedule: {{steps: 1}}
"""
    )
    (tmp_path / "train.jsonl").write_text('{"question": "x", "answer": 0, "level": "even"}\n')
    file = tmp_path / "e.json"
    result = evaluated("eval", tmp_path / "recipe.yaml", "--samples", "4", "--k", "1,3,4", "-o", file)
    # Of four samples three say 1: right for odd tasks.
    assert result["at_k"]["pass@1"]["mean"] == pytest.approx(0.5)
    odd, even = result["by_category"]["odd"], result["by_category"]["even"]
    assert (odd["success"]["mean"], even["success"]["mean"], odd["success"]["n"]) == (0.75, 0.25, 6)
    assert odd["majority@3"]["mean"] == odd["majority@4"]["mean"] == 1.0 and even["majority@3"]["mean"] == 0.0
    assert even["pass@3"]["mean"] == 0.75 and odd["pass@4"]["mean"] == 1.0
    written = json.loads(file.read_text())
    assert sorted(next(iter(written["answers"].values()))) == ["0", "1", "1", "1"]
    assert set(written["strata"].values()) == {"odd", "even"} and len(set(written["contents"].values())) == 12
    shown = coterie("eval", tmp_path / "recipe.yaml", "--samples", "4").stdout
    assert "majority@4" in shown and shown.index("category") < shown.index("odd")


def guesses(request, prompt):
    return "0" if request.key.chain == 3 else "1"
