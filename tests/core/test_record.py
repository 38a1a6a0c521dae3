"""The run folder, the metrics log under kills and full disks, rows that suffice, and a step's metrics."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.backends.trackers.jsonl import JsonlTracker
from coterie.core.errors import RunFolderError
from coterie.core.record import (
    MetricsLog,
    RunFolder,
    read_metrics,
    read_rollouts,
    rollout_rows,
    step_metrics,
    to_json,
    write_rollouts,
)
from coterie.core.scoring import Mix
from coterie.core.summary import episodes
from coterie.core.types import (
    TEAM,
    Action,
    Call,
    Credit,
    Decision,
    Fault,
    Joint,
    Key,
    Node,
    Score,
    Scores,
    Task,
    Tree,
)

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals, locks and file limits of POSIX")


# ------------------------------------------------------------------------------------------------ the folder


def test_a_run_folder_is_made_once_and_opened_again(tmp_path):
    folder = RunFolder.create(tmp_path / "deep" / "run", "seed: 1\n")
    again = RunFolder.open(tmp_path / "deep" / "run")
    assert again == folder and again.config.read_text() == "seed: 1\n"
    assert folder.rollouts.is_dir() and folder.checkpoints.is_dir() and folder.eval.is_dir()
    assert folder.metrics.name == "metrics.jsonl" and folder.rollout_file(7).name == "step-000007.jsonl"


def test_a_folder_that_holds_a_run_is_refused_with_how_to_resume(tmp_path):
    RunFolder.create(tmp_path, "seed: 1\n")
    with pytest.raises(RunFolderError, match="holds a run already") as caught:
        RunFolder.create(tmp_path, "seed: 2\n")
    assert "resume" in caught.value.mend and caught.value.why
    assert (tmp_path / "config.yaml").read_text() == "seed: 1\n"


def test_a_folder_with_other_things_may_become_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    RunFolder.create(tmp_path, "")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    RunFolder.create(tmp_path / "good", "")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="not a run folder") as caught:
        RunFolder.open(tmp_path / "empty")
    assert "config.yaml" in caught.value.why and "good" in caught.value.mend
    with pytest.raises(RunFolderError, match="no such folder"):
        RunFolder.open(tmp_path / "absent")


def test_a_folder_that_cannot_be_written_says_why_and_how_to_mend_it(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFolderError, match="can't be written") as caught:
        RunFolder.create(tmp_path / "file" / "run", "")
    assert "Not a directory" in caught.value.why and caught.value.mend


@posix
def test_two_processes_cannot_train_in_one_folder(tmp_path):
    folder = RunFolder.create(tmp_path, "")
    script = "from coterie.core.record import *; from pathlib import Path; import sys\n" \
             "with RunFolder.open(Path(sys.argv[1])).claimed(): print('in')"  # fmt: skip
    with folder.claimed():
        other = subprocess.run(
            [sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True
        )
        assert "another process is training" in other.stderr and other.stdout == ""
    other = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert other.stdout == "in\n", other.stderr


def test_rollouts_of_later_steps_are_cut(tmp_path):
    folder = RunFolder.create(tmp_path, "")
    for step in (1, 2, 3):
        write_rollouts(folder.rollout_file(step), [{"kind": "node"}])
    folder.truncate_rollouts(1)
    assert [path.name for path in folder.rollouts.iterdir()] == ["step-000001.jsonl"]


# --------------------------------------------------------------------------------------------------- metrics


def test_rows_come_back_and_what_is_not_finite_is_null_with_its_key(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.append(
        1, {"loss": 0.1 + 0.2, "nan": math.nan, "up": math.inf, "np": np.float32(0.5), "n": np.int64(3)}
    )
    log.append(2, {"eval": {"success": {"mean": -math.inf, "ci95": [None, 1.0]}}, "text": "\ud800 é"})
    log.close()
    first, second = read_metrics(path)
    assert first == {"step": 1, "loss": 0.1 + 0.2, "nan": None, "up": None, "np": 0.5, "n": 3}
    assert second["eval"] == {"success": {"mean": None, "ci95": [None, 1.0]}}
    assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()
    with pytest.raises(ValueError, match="closed"):
        log.append(3, {})


@given(st.dictionaries(st.text(max_size=4), st.floats(), max_size=4), st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_json_is_strict_one_line_and_exact(numbers, text):
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = to_json({"numbers": numbers, "text": text})
    assert "\n" not in line and "\r" not in line
    back = json.loads(line.encode(), parse_constant=refuse)
    assert back["text"] == text
    for key, value in numbers.items():
        assert back["numbers"][key] == (value if math.isfinite(value) else None)


def test_what_cannot_be_written_is_an_error_and_leaves_no_half_row(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(1, {"a": 1})
    with pytest.raises(TypeError, match="object"):
        log.append(2, {"a": object()})
    with pytest.raises(ValueError, match="own key"):
        log.append(2, {"step": 7})
    log.append(2, {"a": 2})
    assert read_metrics(log.path) == [{"step": 1, "a": 1}, {"step": 2, "a": 2}]


@given(st.integers(0, 200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_torn_anywhere_gives_its_whole_rows_and_goes_on(tmp_path, cut):
    path = tmp_path / "metrics.jsonl"
    path.unlink(missing_ok=True)
    log = MetricsLog(path)
    for step in range(1, 6):
        log.append(step, {"loss": 1 / step})
    log.close()
    raw = path.read_bytes()
    path.write_bytes(raw[: min(cut, len(raw))])
    whole = raw[: min(cut, len(raw))].count(b"\n")
    assert [row["step"] for row in read_metrics(path)] == list(range(1, whole + 1))
    log = MetricsLog(path)
    log.append(9, {"loss": 0.0})
    log.close()
    assert [row["step"] for row in read_metrics(path)] == [*range(1, whole + 1), 9]


def test_rows_after_the_restored_checkpoint_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(1, 6):
        log.append(step, {"loss": step / 3})
    before = path.read_bytes().splitlines(keepends=True)
    with open(path, "ab") as file:
        file.write(b'{"step": 6, "lo')
    assert log.truncate_after(3) == 3, "two rows and the torn line"
    assert path.read_bytes() == b"".join(before[:3]), "kept rows stay as they were, byte for byte"
    assert log.truncate_after(3) == 0
    log.append(4, {"again": True})
    log.close()
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4]


def test_a_line_damaged_in_the_middle_is_no_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st#p": 2}\n{"step": 3}\n')
    with pytest.raises(RunFolderError, match="line 2 is damaged"):
        read_metrics(path)
    with pytest.raises(RunFolderError, match="doesn't exist"):
        read_metrics(tmp_path / "absent")


@posix
def test_kill_9_while_appending_tears_one_line_at_most(tmp_path):
    script = """
        import sys
        from pathlib import Path
        from coterie.core.record import MetricsLog, read_metrics
        path = Path(sys.argv[1])
        log = MetricsLog(path)
        step = len(read_metrics(path))
        while True:
            step += 1
            log.append(step, {f"metric/{i}": step / 7 for i in range(300)})
            print(step, flush=True)
        """
    path, clock, promised = tmp_path / "metrics.jsonl", random.Random(3), 0
    for _ in range(6):
        command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(clock.uniform(0.0, 0.04))
            process.send_signal(signal.SIGKILL)
            promised = max(promised, *map(int, (first + process.stdout.read()).split()))
        rows = read_metrics(path)
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
        assert len(rows) in (promised, promised + 1) and len(rows[-1]) == 301


@posix
def test_a_full_disk_leaves_no_half_row(tmp_path):
    """RLIMIT_FSIZE lets a part of the row through (a short write), and then fails: EFBIG."""
    script = """
        import resource, signal, sys
        from pathlib import Path
        from coterie.core.record import MetricsLog
        log = MetricsLog(Path(sys.argv[1]))
        log.append(1, {"text": "x" * 3000})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
        try:
            log.append(2, {"text": "y" * 3000})
        except OSError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        log.append(2, {"text": "z"})
        """
    path = tmp_path / "metrics.jsonl"
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stdout and not done.stderr, done.stderr
    assert [(row["step"], row["text"][0]) for row in read_metrics(path)] == [(1, "x"), (2, "z")]


def test_the_jsonl_tracker_is_the_metrics_log(tmp_path):
    folder = RunFolder.create(tmp_path, "")
    tracker = JsonlTracker()
    with pytest.raises(RuntimeError, match="before `open`"):
        tracker.track(1, {})
    tracker.open(tmp_path)
    for step in (1, 2, 3):
        tracker.track(step, {"loss": step})
    tracker.truncate(1)
    tracker.track(2, {"loss": 20})
    tracker.close()
    tracker.close()
    assert read_metrics(folder.metrics) == [{"step": 1, "loss": 1}, {"step": 2, "loss": 20}]


# ------------------------------------------------------------------------------------------------- toy trees


def action(
    tokens: int, *, text: str = "go", finish: str = "stop", fault: Fault | None = None, prompt: int = 3
) -> Action:
    calls = (
        Call(prompt_ids=tuple(range(prompt)), token_ids=tuple(range(tokens)),
             logprobs=tuple(-1 / (3 + i) for i in range(tokens)), version=5, finish=finish),  # type: ignore[arg-type]
    ) if tokens else ()  # fmt: skip
    return Action(calls=calls, text=text, fault=fault)


def decision(role: str, *branches: Action) -> Decision:
    messages = ({"role": "system", "content": f"You are the {role}."}, {"role": "user", "content": "Go on."})
    return Decision(role=role, policy=f"p_{role}", observation=None, messages=messages, prompt_ids=(1, 2, 3),
                    prompt_sha256="abc", branches=branches)  # fmt: skip


def leaf(pick: Mapping[str, int], success: float | None, **more: object) -> Joint:
    outcome = None if success is None else {"success": success, "quality": success / 2}
    return Joint(pick=pick, state_digest="end", terminal=True, outcome=outcome, **more)  # type: ignore[arg-type]


def toy() -> tuple[Tree, Scores, Credit, Mix]:
    """Planner and coder act at once, two branches each, `best` commits joint 1; then the planner ends it."""
    root, late = Key("train-7"), Key("train-7").child(1)
    end = Node(key=late, turn=1, stage=0, state_digest="s1", decisions={"planner": decision("planner", action(2))},
               joints=(leaf({"planner": 0}, 1.0),), expanded=(0,), rule="only")  # fmt: skip
    start = Node(
        key=root, turn=0, stage=0, state_digest="s0", rule="best", expanded=(1,),
        decisions={"planner": decision("planner", action(4), action(5, finish="length")),
                   "coder": decision("coder", action(1, text=" "),
                                     action(3, fault=Fault(kind="policy", reason="unparsable")))},
        joints=(Joint(pick={"planner": 0, "coder": 0}, state_digest="s0a"),
                Joint(pick={"planner": 1, "coder": 1}, state_digest="s1", child=end),
                Joint(pick={"planner": 0, "coder": 1}, state_digest="s2", recombined=True)),
    )  # fmt: skip
    scores = Scores()
    for joint, team in ((0, 0.25), (1, 1 / 3), (2, 9.0)):
        scores.add(root.of_joint(joint), TEAM, "progress", Score(team, "", "environment"))
        scores.add(root.of_joint(joint), "coder", "tests", Score(float(joint), "", "environment"))
    scores.add(root.of_branch("planner", 0), "planner", "format", Score(1.0, "", "format"))
    scores.add(root.of_branch("planner", 1), "planner", "format", Score(None, "503 from the judge", "format"))
    scores.add(late.of_joint(0), TEAM, "progress", Score(1.0, "", "environment"))
    credit = Credit(
        advantage={root.of_branch("planner", 0): 0.1 + 0.2, root.of_branch("coder", 0): -1.0,
                   root.of_branch("coder", 1): np.array([0.5, 1.5, 1.0])},
        weight={root.of_branch("coder", 0): 0.5},
        returns={root.of_branch("planner", 0): 1.25, root.of_branch("coder", 0): 0.25},
        metrics={"groups/coder/zero_variance": 0.0},
    )  # fmt: skip
    tree = Tree(task=Task(id="train-7"), chain=0, epoch=0, root=start, step=3)
    return tree, scores, credit, Mix(weights={"format": 0.5}, alpha=2.0)


def written(tmp_path: Path, **more: object) -> dict[str, list[dict]]:
    tree, scores, credit, mix = toy()
    path = tmp_path / "rollouts" / "step-000003.jsonl"
    write_rollouts(path, rollout_rows([tree], scores, credit, mix, **more))  # type: ignore[arg-type]
    rows: dict[str, list[dict]] = {"node": [], "branch": [], "joint": []}
    for row in read_rollouts(path):
        rows[row["kind"]].append(row)
    return rows


# ------------------------------------------------------------------------------------------------------ rows


def test_rows_name_every_prompt_branch_and_joint(tmp_path):
    rows = written(tmp_path)
    assert [(r["node"], r["role"], r["turn"]) for r in rows["node"]] == [
        ("train-7/e0/c0/n", "planner", 0), ("train-7/e0/c0/n", "coder", 0), ("train-7/e0/c0/n1", "planner", 1),
    ]  # fmt: skip
    node = rows["node"][0]
    assert node["prompt"] == "[system]\nYou are the planner.\n\n[user]\nGo on."
    assert (node["state_digest"], node["policy"], node["prompt_sha256"]) == ("s0", "p_planner", "abc")
    assert len(rows["branch"]) == 5 and len(rows["joint"]) == 4
    assert all(r["task_id"] == "train-7" and r["chain"] == 0 for kind in rows.values() for r in kind)
    joint = rows["joint"][1]
    assert joint["pick"] == {"planner": 1, "coder": 1} and joint["child"] == "train-7/e0/c0/n1"
    assert (
        joint["expanded"] and joint["rule"] == "best" and not joint["terminal"] and joint["outcome"] is None
    )
    assert joint["scores"] == {"team.progress": 1 / 3, "coder.tests": 1.0}
    end = rows["joint"][3]
    assert end["terminal"] and end["child"] is None and end["outcome"] == {"success": 1.0, "quality": 0.5}
    assert [r["recombined"] for r in rows["joint"]] == [False, False, True, False]


def test_branch_rows_hold_own_and_joint_scores_and_leave_recombined_joints_out(tmp_path):
    rows = {(r["node"][-2:], r["role"], r["branch"]): r for r in written(tmp_path)["branch"]}
    planner, missing = rows["/n", "planner", 0], rows["/n", "planner", 1]
    assert planner["scores"] == {"format": 1.0, "team.progress": 0.25}
    assert planner["reward"] == 0.5 * 1.0 + 2.0 * 0.25
    assert missing["scores"] == {"format": None, "team.progress": 1 / 3} and missing["reward"] is None
    assert missing["reasons"] == {"format": "503 from the judge"}
    coder = rows["/n", "coder", 1]
    assert coder["scores"] == {"tests": 1.0, "team.progress": 1 / 3}, "joint 2 is outside every baseline"
    assert coder["fault"] == {"kind": "policy", "reason": "unparsable"}


def test_a_cross_pairing_gives_a_branch_the_mean_over_its_joints():
    scores, key = Scores(), Key("t")
    picks = [{"a": a, "b": b} for a in range(2) for b in range(2)]
    for index, value in enumerate((1.0, 2.0, 5.0, None)):
        scores.add(key.of_joint(index), TEAM, "team", Score(value, "" if value else "lost"))
    node = Node(key=key, turn=0, stage=0, joints=tuple(leaf(pick, 1.0) for pick in picks), expanded=(0, 1, 2, 3),
                rule="all", decisions={role: decision(role, action(1), action(1)) for role in "ab"})  # fmt: skip
    tree = Tree(task=Task(id="t"), chain=0, epoch=0, root=node)
    rows = [r for r in rollout_rows([tree], scores, None, Mix()) if r["kind"] == "branch"]
    assert [r["scores"]["team.team"] for r in rows] == [1.5, None, 3.0, None]
    assert all(r["advantage"] is None and r["return"] is None for r in rows)


def test_floats_come_back_bit_for_bit(tmp_path):
    tree, _, credit, _ = toy()
    rows = {(r["role"], r["branch"]): r for r in written(tmp_path)["branch"] if r["node"].endswith("/n")}
    for (role, branch), row in rows.items():
        (call,) = tree.root.decisions[role].branches[branch].calls
        assert row["calls"] == [{"token_ids": list(call.token_ids), "logprobs": list(call.logprobs),
                                 "finish": call.finish}]  # fmt: skip
        assert row["version"] == 5
    assert rows["planner", 0]["advantage"] == 0.1 + 0.2 and rows["planner", 0]["weight"] == 1.0
    assert rows["coder", 0]["weight"] == 0.5 and rows["coder", 0]["return"] == 0.25
    assert rows["coder", 1]["advantage"] == [0.5, 1.5, 1.0], "per token"
    assert rows["planner", 1]["advantage"] is None, "an absent key is not trained"


def test_decode_and_notes_are_added_on_request(tmp_path):
    key = Key("train-7").of_branch("coder", 0)
    rows = written(tmp_path, decode=lambda policy, call: f"{policy}:{len(call.token_ids)}",
                   notes={"ref_logprobs": {key: np.array([-0.125])}})  # fmt: skip
    row = next(r for r in rows["branch"] if r["role"] == "coder")
    assert row["calls"][0]["text"] == "p_coder:1" and row["notes"] == {"ref_logprobs": [-0.125]}


def test_advantages_can_be_computed_again_from_the_file_alone(tmp_path):
    """At-GRPO's group: the branches of one decision; advantage = (return - mean) / population deviation."""
    scores, key, credit = Scores(), Key("t"), Credit(advantage={})
    values = (0.1, 0.7, 0.25, None)
    for index, value in enumerate(values):
        scores.add(key.of_joint(index), TEAM, "progress", Score(value))
    present = [value for value in values if value is not None]
    for index, value in enumerate(present):
        branch = key.of_branch("a", index)
        credit.returns[branch] = value
        credit.advantage[branch] = (value - statistics.fmean(present)) / statistics.pstdev(present)
    node = Node(key=key, turn=0, stage=0, joints=tuple(leaf({"a": i}, 0.0) for i in range(4)), expanded=(1,), rule="best",
                decisions={"a": decision("a", *[action(2)] * 4)})  # fmt: skip
    path = tmp_path / "step-000001.jsonl"
    write_rollouts(
        path, rollout_rows([Tree(task=Task(id="t"), chain=0, epoch=0, root=node)], scores, credit, Mix())
    )
    rows = [r for r in read_rollouts(path) if r["kind"] == "branch"]
    for source in ("return", "reward"):
        found = [r[source] for r in rows if r[source] is not None]
        again = [(x - statistics.fmean(found)) / statistics.pstdev(found) for x in found]
        assert again == [r["advantage"] for r in rows if r["advantage"] is not None] and len(again) == 3


def test_a_rollout_file_is_whole_or_absent(tmp_path):
    def rows():
        yield {"kind": "node"}
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError):
        write_rollouts(tmp_path / "rollouts" / "step-000001.jsonl", rows())
    assert os.listdir(tmp_path / "rollouts") == []


# ---------------------------------------------------------------------------------------------- step metrics


def test_the_best_of_several_is_never_reported_as_success():
    tree, scores, credit, mix = toy()
    metrics = step_metrics([tree], scores, credit, mix)
    assert metrics["success_committed"] == 1.0 and "success" not in metrics
    assert metrics["outcome_committed/quality"] == 0.5 and "outcome/quality" not in metrics
    assert metrics["turns_to_success"] == 2.0 and metrics["episodes/missing"] == 0.0


def test_rewards_scores_and_what_is_missing():
    tree, scores, credit, mix = toy()
    metrics = step_metrics([tree], scores, credit, mix)
    assert metrics["reward/planner"] == pytest.approx((1.0 + 2.0) / 2), "the missing one is left out"
    assert metrics["reward/coder"] == pytest.approx((0.0 + 2 * 0.25 + 1.0 + 2 / 3) / 2)
    assert metrics["score/team/progress"] == pytest.approx((0.25 + 1 / 3 + 9 + 1) / 4)
    assert metrics["score/planner/format"] == 1.0
    assert metrics["missing/format"] == 0.5 and metrics["missing/progress"] == 0.0
    assert metrics["missing/share"] == pytest.approx(1 / 9)


def test_advantages_lengths_faults_and_tokens():
    tree, scores, credit, mix = toy()
    metrics = step_metrics([tree], scores, credit, mix)
    assert metrics["advantage/planner/mean"] == 0.1 + 0.2 and metrics["advantage/planner/std"] == 0.0
    assert metrics["advantage/coder/mean"] == pytest.approx(0.5) and metrics["advantage/coder/abs"] == 1.0
    assert metrics["groups/coder/zero_variance"] == 0.0, "the estimator's own are passed through"
    assert metrics["length/planner"] == pytest.approx((4 + 5 + 2) / 3) and metrics["length/coder"] == 2.0
    assert metrics["finish_length/planner"] == pytest.approx(1 / 3) and metrics["empty/coder"] == 0.5
    assert (metrics["faults/policy"], metrics["faults/system"]) == (1.0, 0.0)
    assert (metrics["tokens/generated"], metrics["tokens/prompt"]) == (15.0, 15.0)
    assert metrics["selection/uniform"] == 0.0


def chain(task: str, success: float | None, rule: str = "sampled", *, fault: Fault | None = None) -> Tree:
    """One stage, one branch."""
    joint = leaf({"a": 0}, success, fault=fault)
    node = Node(key=Key(task), turn=0, stage=0, joints=(joint,), expanded=() if fault else (0,), rule=rule,
                decisions={"a": decision("a", action(0 if fault else 2, text="", fault=fault))})  # fmt: skip
    return Tree(task=Task(id=task), chain=0, epoch=0, root=node)


def test_sampled_paths_are_success_and_lost_episodes_are_counted_and_left_out():
    lost = Fault(kind="system", reason="the worker died")
    trees = [chain("a", 1.0), chain("b", 0.0), chain("c", 1.0), chain("d", None, "only", fault=lost)]
    metrics = step_metrics(trees, Scores(), None, Mix())
    assert metrics["success"] == pytest.approx(2 / 3) and "success_committed" not in metrics
    assert metrics["episodes/missing"] == 0.25 and metrics["turns_to_success"] == 1.0
    assert metrics["faults/system"] == 1.0, "the joint's fault is its action's"
    assert metrics["length/a"] == 2.0, "what the system aborted has no length"
    assert metrics["missing/share"] == 0.0


def test_one_chosen_path_makes_the_whole_step_committed():
    metrics = step_metrics([chain("a", 1.0), chain("b", 0.0, "uniform (all missing)")], Scores(), None, Mix())
    assert (
        metrics["success_committed"] == 0.5
        and "success" not in metrics
        and metrics["selection/uniform"] == 1.0
    )


def test_an_episode_that_is_a_joint_fault_is_counted_once():
    tree = chain("a", None)
    joint = Joint(
        pick={"a": 0}, state_digest="", cut=True, fault=Fault(kind="system", reason="the sandbox is gone")
    )
    node = Node(key=Key("a"), turn=0, stage=0, joints=(joint,), rule="only", decisions=tree.root.decisions)
    metrics = step_metrics([Tree(task=tree.task, chain=0, epoch=0, root=node)], Scores(), None, Mix())
    assert metrics["faults/system"] == 1.0 and math.isnan(metrics["success"]) and metrics["length/a"] == 2.0


def bushy(success_by_leaf: Mapping[tuple[int, ...], float], path: tuple[int, ...] = ()) -> Node:
    """`expand: all` with two joints everywhere; a leaf where the table has one."""
    joints = []
    for index in range(2):
        place = (*path, index)
        if place in success_by_leaf:
            joints.append(leaf({"a": index}, success_by_leaf[place]))
        else:
            joints.append(Joint(pick={"a": index}, state_digest="", child=bushy(success_by_leaf, place)))
    return Node(key=Key("t", path=path), turn=len(path), stage=0, joints=tuple(joints), expanded=(0, 1), rule="all",
                decisions={"a": decision("a", action(1), action(1))})  # fmt: skip


def test_leaves_of_a_bushy_side_do_not_outvote_the_others():
    """The policy succeeds at once half of the time, and never later: 1/2, though 1 of 3 leaves is solved."""
    tree = Tree(task=Task(id="t"), chain=0, epoch=0, root=bushy({(0,): 1.0, (1, 0): 0.0, (1, 1): 0.0}))
    assert [(e.share, e.turns) for e in episodes(tree)] == [(0.5, 1), (0.25, 2), (0.25, 2)]
    assert step_metrics([tree], Scores(), None, Mix())["success"] == 0.5


def test_a_step_without_anything_is_no_number_but_has_its_keys():
    team = SimpleNamespace(roles={"planner": None})
    metrics = step_metrics([], Scores(), Credit(advantage={}), Mix(), team)  # type: ignore[arg-type]
    assert math.isnan(metrics["success"]) and math.isnan(metrics["reward/planner"])
    assert all(isinstance(value, float) for value in metrics.values())
    assert json.loads(to_json(metrics))["success"] is None
