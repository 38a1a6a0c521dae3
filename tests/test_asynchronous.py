"""Runs with steps in play: stopped, killed, resumed and failing, they lose and count nothing twice."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

import coterie
from coterie.api.checkpoints import CheckpointStore
from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.engines.vllm.engine import VLLMEngine
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.core.errors import UserError
from coterie.recipes import load
from tests.core.training.steps_ahead import asynchronous, oracle
from tests.core.training.test_curriculum import curriculum, table
from tests.core.training.test_in_flight import table as rounds
from tests.test_resume import MATRIX, command, rows, run, same

pytestmark = pytest.mark.resume

TINY = ["schedule.tasks_per_step=2", "schedule.checkpoint_every=1", "schedule.evaluate_every=3",
        "schedule.evaluate_tasks=2", "loss.entropy=0.3"]  # fmt: skip
GAMES = {
    "tabular": (MATRIX, {}, ["schedule.checkpoint_every=1"]),
    "torch": ("plan_path", {"scale": "smoke"}, TINY),
    "lora": ("plan_path", {"scale": "smoke", "overlays": ["l1", "per_role"]}, TINY),
}


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("game", GAMES)
def test_n_steps_are_k_steps_and_resume(tmp_path, game, ahead):
    source, named, settings = GAMES[game]
    settings = [*settings, f"schedule.max_staleness={ahead}"]
    coterie.train(source, **named, overrides=[*settings, "schedule.steps=6"], out=tmp_path / "whole")
    coterie.train(source, **named, overrides=[*settings, "schedule.steps=2"], out=tmp_path / "part")
    coterie.train(resume=tmp_path / "part", overrides=["schedule.steps=3"])
    coterie.train(resume=tmp_path / "part", overrides=["schedule.steps=6"])
    same(tmp_path / "whole", tmp_path / "part")
    meta = CheckpointStore(tmp_path / "part" / "checkpoints", keep=9).latest().meta
    assert [int(step) for step in meta["in_play"]] == list(range(7, 7 + ahead))
    assert {pin["versions"][policy] for pin in meta["in_play"].values() for policy in pin["versions"]} == set(
        range(6 - ahead, 6)
    )


def test_several_steps_of_one_older_version_are_resumed(tmp_path):
    """A version of a policy that few steps train is leased by each step that is pinned to it."""
    source = {**rounds("tabular", 0), "engine": "tabular"}
    settings = ["schedule.max_staleness=3", "schedule.play=pinned"]
    coterie.train(source, overrides=[*settings, "schedule.steps=12"], out=tmp_path / "whole")
    coterie.train(source, overrides=[*settings, "schedule.steps=8"], out=tmp_path / "part")
    meta = CheckpointStore(tmp_path / "part" / "checkpoints", keep=9).latest().meta
    assert [pin["versions"]["seldom"] for pin in meta["in_play"].values()] == [2, 2, 2]
    assert {pin["versions"]["frozen"] for pin in meta["in_play"].values()} == {0}
    coterie.train(resume=tmp_path / "part", overrides=["schedule.steps=12"])
    same(tmp_path / "whole", tmp_path / "part")


def test_a_run_in_flight_goes_on_with_the_steps_that_were_in_play(tmp_path):
    """Its samples differ, and its tasks don't: none is skipped, none is played twice."""
    settings = ["schedule.max_staleness=2", "schedule.play=in_flight"]
    coterie.train(MATRIX, overrides=[*settings, "schedule.steps=6"], out=tmp_path / "whole")
    coterie.train(MATRIX, overrides=[*settings, "schedule.steps=2"], out=tmp_path / "part")
    coterie.train(resume=tmp_path / "part", overrides=["schedule.steps=6"])
    played = [
        [(path.name, row["task_id"], row["epoch"], row["node"])
         for path in sorted((tmp_path / name / "rollouts").iterdir())
         for row in coterie.read_rollouts(path) if "task_id" in row]
        for name in ("whole", "part")
    ]  # fmt: skip
    assert played[0] == played[1] and len(played[0]) >= 6 * 4
    assert all(0 <= row["policy/row/staleness/max"] <= 2 for row in rows(tmp_path / "part"))


def test_an_evaluation_of_such_a_run_plays_nothing_ahead(tmp_path, monkeypatch):
    """Nothing trains then, so an engine needs room for one version."""
    coterie.train(MATRIX, overrides=["schedule.max_staleness=2", "schedule.steps=2"], out=tmp_path / "run")
    opened = []
    plain = TabularEngine.open

    async def noted(self, ctx):
        opened.append(ctx)
        await plain(self, ctx)

    monkeypatch.setattr(TabularEngine, "open", noted)
    evaluated = coterie.evaluate(tmp_path / "run", tasks=2)
    assert [ctx.ahead for ctx in opened] == [0]
    digest = json.loads((tmp_path / "run" / "checkpoints" / "step-000002" / "manifest.json").read_text())
    assert evaluated.config_digest == digest["meta"]["config_digest"]


@pytest.mark.torch
def test_an_evaluation_may_have_an_engine_with_one_version(tmp_path, monkeypatch):
    """vLLM holds one version of a whole model, and an evaluation plays no other."""
    pytest.importorskip("torch")
    pinned = [*TINY, "schedule.max_staleness=2", "schedule.play=pinned", "schedule.steps=2"]
    coterie.train("plan_path", scale="smoke", overrides=pinned, out=tmp_path / "run")
    opened = []

    async def noted(self, ctx):
        opened.append(ctx.ahead)
        raise UserError("this test needs no vLLM")

    monkeypatch.setattr(VLLMConfig, "check_packages", lambda: None)
    monkeypatch.setattr(VLLMEngine, "open", noted)
    with pytest.raises(UserError, match="this test needs no vLLM"):
        coterie.evaluate(tmp_path / "run", tasks=2, overrides=["engine.type=vllm"])
    assert opened == [0]


def test_a_resume_with_another_bound_is_refused(tmp_path):
    coterie.train(MATRIX, overrides=["schedule.max_staleness=1", "schedule.steps=2"], out=tmp_path / "run")
    for change in ("schedule.max_staleness=2", "schedule.max_staleness=0", "schedule.play=in_flight"):
        with pytest.raises(UserError, match="can't change its configuration") as refused:
            coterie.train(resume=tmp_path / "run", overrides=[change, "schedule.steps=3"], allow_change=True)
        assert change.split("=")[0] in str(refused.value)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    settings = [*TINY, "schedule.steps=8", "schedule.max_staleness=2"]
    began = time.perf_counter()
    run(folder, "run", "plan_path", "--scale", "smoke", *settings, "--out", str(folder))
    return folder, settings, time.perf_counter() - began


def stopped_and_resumed(folder: Path, arguments: list[str], most: float, seed: int, sent: int) -> None:
    """Stop a run at a random moment, at most so many seconds after its folder is there, and resume it."""
    process = command("run", *arguments, "--out", str(folder))
    while not (folder / "config.yaml").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0.0, most))
    process.send_signal(sent)
    _, said = process.communicate(timeout=120)
    assert "never retrieved" not in said and "Traceback" not in said, said
    run(folder, "run", "--resume", str(folder))


def stopped_and_the_same(tmp_path, uninterrupted, seed: int, sent: signal.Signals) -> None:
    whole, settings, seconds = uninterrupted
    arguments = ["plan_path", "--scale", "smoke", *settings]
    stopped_and_resumed(tmp_path / "run", arguments, max(0.5, seconds / 3), seed, sent)
    same(whole, tmp_path / "run")


@pytest.mark.xdist_group("asynchronous")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_run_that_was_stopped_resumes_to_the_same_end(tmp_path, uninterrupted, seed, sent):
    stopped_and_the_same(tmp_path, uninterrupted, seed, sent)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_twenty_runs_that_were_stopped_resume_to_the_same_end(tmp_path, uninterrupted, seed, sent):
    stopped_and_the_same(tmp_path, uninterrupted, seed, sent)


IN_FLIGHT = {
    "tabular": (3, 20, [MATRIX, "schedule.checkpoint_every=1", "env.pause=0.01"]),
    "torch": (2, 8, ["plan_path", "--scale", "smoke", *TINY]),
}
"""By game: N, the steps, and what `coterie run` is told."""


def planned(folder: Path) -> list[list[tuple[str, int]]]:
    """By step, the (task, epoch) of its trees, in their order."""
    steps = []
    for path in sorted((folder / "rollouts").glob("step-*.gz")):
        trees = [(row["task_id"], row["epoch"]) for row in coterie.read_rollouts(path) if "task_id" in row]
        steps.append(list(dict.fromkeys(trees)))
    return steps


def drawn_versions(path: Path) -> set[int]:
    """The versions that drew the tokens of a step."""
    branches = [row for row in coterie.read_rollouts(path) if row["kind"] == "branch"]
    runs = [run for row in branches for call in row["calls"] for run in call.get("version_runs", ())]
    return {row["version"] for row in branches} | {version for version, _ in runs}


@pytest.fixture(scope="module")
def in_flight(request, tmp_path_factory):
    """(arguments of a run in flight, N, the plan of a run without steps ahead, seconds in its folder)."""
    ahead, steps, arguments = IN_FLIGHT[request.param]
    arguments = [*arguments, f"schedule.steps={steps}"]
    folder = tmp_path_factory.mktemp("plain") / "run"
    run(folder, "run", *arguments, "--out", str(folder))
    seconds = (folder / "metrics.jsonl").stat().st_mtime - (folder / "config.yaml").stat().st_mtime
    plan = planned(folder)
    assert len(plan) == steps
    return [*arguments, f"schedule.max_staleness={ahead}", "schedule.play=in_flight"], ahead, plan, seconds


def stopped_and_finished(tmp_path, in_flight, seed: int, sent: signal.Signals) -> None:
    """In flight there is no same end: but all steps are made, each task of the plan is trained once and in
    its order, and no token is too old."""
    arguments, ahead, plan, seconds = in_flight
    folder = tmp_path / "run"
    stopped_and_resumed(folder, arguments, seconds / 2, seed, sent)
    made = rows(folder)
    assert [row["step"] for row in made] == list(range(1, len(plan) + 1))
    assert planned(folder) == plan
    trained = [tree for step in plan for tree in step]
    assert len(trained) == len(set(trained))
    for row, path in zip(made, sorted((folder / "rollouts").glob("step-*.gz")), strict=True):
        ages = {name: value for name, value in row.items() if name.endswith("/staleness/max")}
        assert ages and all(0 <= age <= ahead for age in ages.values())
        drawn = {
            row["step"] - 1 - version for version in drawn_versions(path)
        }  # every update changes weights
        assert max(drawn) == max(ages.values()) and min(drawn) >= 0
    assert sent == signal.SIGKILL or not list(folder.rglob(".tmp-*")), "half a file"


@pytest.mark.xdist_group("asynchronous")
@pytest.mark.parametrize("in_flight", ["tabular"], indirect=True)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_run_in_flight_that_was_stopped_trains_each_task_once(tmp_path, in_flight, sent):
    stopped_and_finished(tmp_path, in_flight, 1, sent)


@pytest.mark.long
@pytest.mark.parametrize("in_flight", IN_FLIGHT, indirect=True)
@pytest.mark.parametrize("seed", range(100, 113))
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_fifty_runs_in_flight_that_were_stopped_train_each_task_once(tmp_path, in_flight, seed, sent):
    stopped_and_finished(tmp_path, in_flight, seed, sent)


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_curriculum_is_settled_ahead_and_equals_the_oracle(tmp_path, ahead):
    source = table("tabular", curriculum=curriculum(2, 3, 4, promote_at=0.5, window=4))
    expected = oracle(source, ahead, tmp_path / "weights", "schedule.steps=12")
    asynchronous(source, ahead, 5, "schedule.steps=12").same(expected)
    levels = [row["curriculum/level"] for row in expected.rows]
    assert levels[0] == 0 and levels[-1] > 0, "nothing was promoted"
    coterie.train(
        source, overrides=["schedule.steps=12", f"schedule.max_staleness={ahead}"], out=tmp_path / "whole"
    )
    coterie.train(
        source, overrides=["schedule.steps=4", f"schedule.max_staleness={ahead}"], out=tmp_path / "part"
    )
    coterie.train(resume=tmp_path / "part", overrides=["schedule.steps=12"])
    same(tmp_path / "whole", tmp_path / "part")


def test_a_coach_scores_steps_ahead_as_the_oracle_has_it(tmp_path):
    settings = ["schedule.steps=4", "schedule.tasks_per_step=2", "schedule.evaluate_every=2",
                "schedule.evaluate_tasks=2"]  # fmt: skip
    expected = oracle("mathchat_coach", 2, tmp_path, *settings, scale="smoke")
    asynchronous("mathchat_coach", 2, 3, *settings, scale="smoke").same(expected)


def test_what_is_in_play_at_the_end_is_not_counted(tmp_path):
    """A token budget ends the run after the step that spends it, though later ones were played."""
    plain = coterie.train(MATRIX, overrides=["schedule.steps=9"], out=tmp_path / "plain")
    tokens = [row["tokens/total"] for row in rows(tmp_path / "plain")]
    budget = ["schedule.steps=9", f"schedule.tokens={tokens[3]}", "schedule.max_staleness=3"]
    ended = coterie.train(MATRIX, overrides=budget, out=tmp_path / "ended")
    assert plain.step == 9 and ended.step == 4 and ended.tokens == tokens[3]
    assert [row["step"] for row in rows(tmp_path / "ended")] == [1, 2, 3, 4]
    assert len(list((tmp_path / "ended" / "rollouts").iterdir())) == 4
    assert not list(Path(tmp_path / "ended").rglob(".tmp-*"))


NAMES = ["speaker@3", "../up", "a/b", "with space", "ä%40"]


@pytest.mark.parametrize("name", NAMES)
def test_policies_of_any_name_are_resumed_with_their_versions(tmp_path, name):
    """`speaker@3` beside `speaker`: the third version of one policy, and another policy."""
    source = load(MATRIX).table
    source["policies"] = {each: source["policies"]["row"] for each in (name, "speaker")}
    source["team"]["roles"]["row"]["policy"], source["team"]["roles"]["column"]["policy"] = name, "speaker"
    settings = ["schedule.max_staleness=2", "schedule.checkpoint_every=1"]
    coterie.train(source, overrides=[*settings, "schedule.steps=8"], out=tmp_path / "whole")
    coterie.train(source, overrides=[*settings, "schedule.steps=5"], out=tmp_path / "part" / "run")
    assert [path.name for path in (tmp_path / "part").iterdir()] == ["run"]
    coterie.train(resume=tmp_path / "part" / "run", overrides=["schedule.steps=8"])
    same(tmp_path / "whole", tmp_path / "part" / "run")


@pytest.mark.parametrize("change", ["schedule.tasks_per_step=2", "schedule.stratify=true"])
def test_what_the_next_tasks_are_found_by_never_changes(tmp_path, change):
    coterie.train(MATRIX, overrides=["schedule.steps=2"], out=tmp_path / "run")
    with pytest.raises(UserError, match=change.partition("=")[0]) as error:
        coterie.train(resume=tmp_path / "run", overrides=[change, "schedule.steps=3"], allow_change=True)
    assert "--allow-change" not in error.value.fix
