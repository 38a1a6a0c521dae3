"""`coterie episodes`: which episodes are printed, what of them, and that their text does nothing."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest

from coterie.api.episodes import trees_of
from coterie.api.rollouts import read_rollouts, write_rollouts
from coterie.viewing.episode_fields import fields_of
from coterie.viewing.text import CONTROLS, harmless, harmless_json, message, one_line, shortened
from tests.cli.support import coterie
from tests.viewing.runs import CHAINS, made

HOSTILE = "\x1b[31mred\x1b]0;title\x07 [bold]markup[/bold] \u202egnp.exe\r\x9b2J\u200b\nsecond\ttab <script>"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made(tmp_path_factory.mktemp("run") / "run", "schedule.steps=4", "schedule.record_every=2")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A run of 64 episodes that differ."""
    grpo = (*CHAINS, "algorithm={type: grpo}", "sampler.sampling={max_new_tokens: 2}", "schedule.steps=4")
    return made(tmp_path_factory.mktemp("many") / "run", *grpo, "schedule.record_every=2")


@pytest.fixture
def planted(run, tmp_path):
    """A copy of the run: step 2 has hostile text, a fault, a missing score, a tool result and thoughts."""
    copy = shutil.copytree(run, tmp_path / "planted")
    path = copy / "rollouts" / "step-000002.jsonl.gz"
    rows = read_rollouts(path)
    joint = next(row for row in rows if row["kind"] == "joint" and row["expanded"])
    role, index = next(iter(joint["branches"].items()))
    branch = next(
        row
        for row in rows
        if row["kind"] == "branch"
        and (row["node"], row["role"], row["branch"]) == (joint["node"], role, index)
    )
    branch |= {
        "completion": HOSTILE,
        "thought": "think\n" * 30,
        "tool_results": ["result " + HOSTILE],
        "fault": {"kind": "policy", "reason": "broken " + HOSTILE},
        "reasons": {"judged": HOSTILE},
        "comments": {"team.judged": "a comment"},
    }
    branch["scores"] |= {"judged": None}
    joint["scores"] |= {f"{role}.judged": None}
    write_rollouts(path, [{"format": 3, **row} for row in rows])
    return copy


def keys(*arguments):
    done = coterie("episodes", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return [(each["fields"]["step"], each["key"]) for each in json.loads(done.stdout)]


def every(run):
    """All recorded episodes with their fields, the newest step first."""
    found = []
    for step in (4, 2):
        for tree in trees_of(read_rollouts(run / "rollouts" / f"step-{step:06d}.jsonl.gz")):
            found += [(episode, fields_of(episode)) for episode in tree.episodes()]
    return found


def test_conditions_steps_and_orders_choose_what_a_loop_chooses(many):
    run, episodes = many, every(many)
    assert len(episodes) == 64
    assert keys(run, "-n", 1000) == [(fields["step"], episode.key) for episode, fields in episodes]
    matching = [(f["step"], e.key) for e, f in episodes if f["faults.executor"] < 2 and f["tokens"] > 6]
    assert (
        0 < len(matching) < 60
        and keys(run, "-n", 1000, "--where", "faults.executor < 2 and tokens > 6") == matching
    )
    in_step = [(f["step"], e.key) for e, f in episodes if f["step"] == 2]
    assert keys(run, "--step", 2, "-n", 1000) == in_step
    by_tokens = sorted(episodes, key=lambda pair: (-pair[1]["tokens"], pair[1]["reward"]))
    expected = [(f["step"], e.key) for e, f in by_tokens][:7]
    assert keys(run, "--sort", "-tokens, reward", "-n", 7) == expected
    assert len(keys(run)) == 5


def test_without_an_order_only_as_many_files_are_read_as_are_needed(run):
    done = coterie("episodes", run, "-n", 2)
    assert (
        done.exit_code == 0
        and "2 shown, the newest first, from step 4; earlier steps were not read" in done.stderr
    )
    assert set(re.findall(r"^step (\d+)", done.stdout, re.MULTILINE)) == {"4"}
    done = coterie("episodes", run, "-n", 2, "--sort", "reward")
    assert (
        f"2 of {len(every(run))} that match, among {len(every(run))} episodes of 2 recorded steps"
        in done.stderr
    )
    done = coterie("episodes", run, "--where", "turns > 99")
    assert done.exit_code == 0 and done.stdout == "" and "none of the " in done.stderr


def test_an_episode_is_printed_with_all_that_was_said_and_scored(run):
    (episode, fields), *_ = every(run)
    done = coterie("episodes", run, "-n", 1)
    lines = done.stdout.splitlines()
    assert lines[0] == f"step 4  {episode.key}  (chosen by reward: the best of several)"
    assert f"success {fields['success']:g}  turns {fields['turns']}  reward " in lines[1]
    actions = list(episode.actions)
    heads = [line for line in lines if line.startswith("  turn ")]
    assert len(heads) == len(actions)
    for head, action in zip(heads, actions, strict=True):
        assert head.startswith(
            f"  turn {action.node.turn + 1}  {action.role} (shared)  reward {action.reward:.4g}"
        )
        assert f"branch {action.branch['branch']} of 4" in head
        assert f"    > {action.branch['completion'] or '(nothing)'}" in lines
    assert any(line.startswith("    | ") and "planner" in line for line in lines)
    assert any(line.startswith("    scores: ") and "team.goal 0" in line for line in lines)
    assert lines[-1].startswith(f"  end: success {episode.success:g}")


def test_of_a_role_its_actions_alone_are_printed(run):
    done = coterie("episodes", run, "-n", 1, "--role", "executor")
    heads = [line for line in done.stdout.splitlines() if line.startswith("  turn ")]
    assert heads and all("executor" in head for head in heads) and "actions of other roles)" in done.stdout
    done = coterie("episodes", run, "-n", 1, "--role", "executor", "--json")
    assert {action["role"] for action in json.loads(done.stdout)[0]["actions"]} == {"executor"}


def test_hostile_text_is_shown_and_does_nothing(planted):
    done = coterie("episodes", planted, "--where", "missing > 0 and faults > 0", "-n", 1)
    assert done.exit_code == 0 and done.stdout, done.output
    text = done.stdout
    assert not CONTROLS.search(text)
    assert r"    > \x1b[31mred\x1b]0;title\x07 [bold]markup[/bold] \u202egnp.exe\x0d\x9b2J\u200b" in text
    assert "    > second" in text and "<script>" in text
    assert r"! not readable: broken \x1b[31mred" in text and r"= result \x1b[31m" in text
    assert "judged missing" in text and "      team.judged: a comment" in text
    assert "    ~ ... 25 lines left out" in text
    full = coterie("episodes", planted, "--where", "missing > 0 and faults > 0", "-n", 1, "--full").stdout
    assert full.count("    ~ think") == 30 and "left out" not in full
    raw = coterie("episodes", planted, "--where", "missing > 0 and faults > 0", "-n", 1, "--json").stdout
    assert not CONTROLS.search(raw)
    assert HOSTILE in [action["completion"] for action in json.loads(raw)[0]["actions"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--where", "sucess == 0"), "did you mean success"),
        (("--where", "reward.plannr > 0"), "did you mean reward.planner"),
        (("--where", "score.team.gaol > 0"), "did you mean score.team.goal"),
        (("--sort", "-advntage"), "did you mean advantage"),
        (("--where", "open('x')"), "it calls something"),
        (("--where", "task > 1"), "by size"),
        (("--step", "3"), "the episodes of step 3 were not recorded"),
        (("--role", "plannr"), "did you mean 'planner'?"),
    ],
)
def test_what_cannot_be_found_is_told(run, arguments, says):
    done = coterie("episodes", run, *arguments)
    assert done.exit_code == 2 and says in done.stderr and not done.stdout, done.output


def test_a_step_without_a_file_names_those_that_have_one_and_why(run, tmp_path):
    done = coterie("episodes", run, "--step", 1)
    assert "recorded are 2, 4" in done.stderr and "evaluations are never recorded" in done.stderr
    bare = made(tmp_path / "bare", "schedule.record_every=0")
    done = coterie("episodes", bare)
    assert done.exit_code == 2 and "schedule.record_every is 0" in done.stderr
    assert coterie("episodes", tmp_path).exit_code == 2


def test_the_fields_are_listed(run):
    done = coterie("episodes", run, "--fields")
    assert "success " in done.stdout and "of one role, as in reward.planner: " in done.stdout


def test_what_is_seen_as_nothing_is_written_out_and_rows_of_marks_are_cut():
    assert harmless("a\u115f\u3164\uffa0\u2800\u180e\ue000\U0010fffd") == (
        r"a\u115f\u3164\uffa0\u2800\u180e\ue000\U0010fffd"
    )
    kept = "नमस्ते, e\u0301, ❤️, 漢字, " + "a" + "\u0301" * 8
    assert harmless(kept) == kept
    flood = "x" + "\u0301\u0489" * 50_000 + "y漢字かなカナ한국어漢字z" + "\u0301" * 9
    marks = "\u0301\u0489" * 4
    assert harmless(flood) == (
        f"x{marks}⟨combining characters: 99992 more⟩y漢字かなカナ한국어漢字z"
        + "\u0301" * 8
        + "⟨combining characters: 1 more⟩"
    )


def test_a_message_is_harmless_and_of_a_length():
    assert message("a\x1b]52;c;x\x07\u202e\n\tb") == "a\\x1b]52;c;x\\x07\\u202e\n\tb"
    text = message("begin" + "x" * 10_000_000 + "end")
    assert text.startswith("beginx") and text.endswith("xend") and len(text) < 2100
    assert "(9,998,008 characters left out)" in text
    assert len(message("\x1b" * 1999)) < 2100 and len(message("\x1b" * 1_000_000)) < 2100


def test_text_is_made_harmless_shortened_and_kept_in_json():
    assert harmless("a\r\nb\tc") == "a\nb\tc" and harmless("\r\x85\U000e0001") == r"\x0d\x85\U000e0001"
    assert one_line("a\n b\x1b" + "c" * 300, 20) == r"a b\x1bcccccccccc..."
    assert shortened("\n".join("abcdefg"), first=2, last=1, width=9) == [
        "a",
        "b",
        "... 4 lines left out",
        "g",
    ]
    assert shortened("abc", first=1, last=1, width=2) == ["ab ... 1 more"]
    value = {"x": "\x9b\u202e\U000e0001\x1f é"}
    text = harmless_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(text) == value and not CONTROLS.search(text.replace("\n", ""))


def test_on_a_narrow_terminal_lines_are_wrapped_below_their_beginning(run):
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60", "LINES": "40"}
    command = [
        sys.executable,
        "-c",
        "from coterie.cli.main import main; main()",
        "episodes",
        str(run),
        "-n",
        "1",
    ]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.PIPE, env=environment)
    os.close(slave)
    text = b""
    with suppress(OSError):  # the other end is closed
        while data := os.read(master, 65536):
            text += data
    os.close(master)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0 and b"shown" in stderr
    plain = re.sub(r"\x1b\[[\d;]*m", "", text.decode()).replace("\r\n", "\n").rstrip("\n").split("\n")
    assert "\x1b[1m" in text.decode() and all(len(line.rstrip()) <= 60 for line in plain)
    scores = next(at for at, line in enumerate(plain) if line.startswith("    scores: "))
    assert re.match(r"    \S", plain[scores + 1])
