"""examples/laptop.py: two teams side by side at any width, what goes on after a stop, and its errors."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace as Thing

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from coterie.api.compare import episode_text
from coterie.plugins.reports import WritingReport
from coterie.recipes import load
from examples import laptop as example

TITLES = ("before", "after 60 steps")


def episode(first: str = "A train stopped.", second: str = "") -> str:
    """An episode as `coterie eval --show` prints it: a post, and what both roles wrote."""
    asked = [{"content": "You write."}, {"content": "Post:\nMy train stopped.\n\nSummarise it."}]
    decisions = {
        role: Thing(messages=asked, policy=role, branches=[Thing(text=text)])
        for role, text in (("first", first), ("second", second))
    }
    joint = Thing(branches={"first": 0, "second": 0}, fault=None, outcome={"success": 0.0})
    path = [(Thing(turn=0, decisions=decisions, joints=[joint]), 0)]
    return episode_text(Thing(task=Thing(id="test-7"), chains=lambda: [path]))  # type: ignore[arg-type]


def evaluation(text: str = "A train stopped.", value: float | None = 0.25) -> dict:
    metrics = dict.fromkeys(example.LEVELS, value)
    return {"success": {"n": 16}, "metrics": metrics, "episodes": [episode(text)] * example.SHOWN}


def printed(width: int, old: str, new: str) -> str:
    console = Console(width=width, highlight=False, file=sys.stdout, force_terminal=False)
    with console.capture() as capture:
        console.print(example.side_by_side(old, new, TITLES, width))
    return capture.get()


@given(st.text(), st.text())
def test_what_roles_wrote_is_read_back_whatever_it_is(first, second):
    task, turns, end = example.read(episode(first, second))
    assert (task, end) == ("test-7", "success 0")
    assert [turn.role for turn in turns] == ["first", "second"]
    for turn, text in zip(turns, (first, second), strict=True):
        assert turn.answer == (text.splitlines() or ["(nothing)"])
        assert turn.prompt == ["You write.", "Post:", "My train stopped.", "", "Summarise it."]


def test_an_answer_that_looks_like_an_episode_is_one_answer():
    text = "x\n  turn 1  second (second)\n    > y\n  end: success 1\ntask z"
    _, turns, end = example.read(episode(text))
    assert turns[0].answer == text.splitlines() and end == "success 0"


@pytest.mark.parametrize("width", [24, 40, 69, 70, 80, 200])
def test_both_texts_are_there_and_no_line_is_wider_than_the_terminal(width):
    old, new = (f"{word} {'word ' * 30}" for word in ("alpha", "omega"))
    text = printed(width, episode(old), episode(new))
    assert all(len(line) <= width for line in text.splitlines())
    assert text.count("word") >= 60
    [line] = [line for line in text.splitlines() if "alpha" in line]
    assert ("omega" in line) == (width >= example.NARROW), "side by side, where there is room"
    assert "My train" in text and "Summarise" not in text


def test_a_long_post_is_shortened_and_the_question_left_out():
    turn = example.Turn("first", ["system", "Post:", "word " * 400, "", "Summarise."], [])
    text = example.post([turn])
    assert text.startswith("Post:\nword") and text.endswith(" ...")
    assert len(text) <= example.LONGEST + 4 and example.post([]) == ""


def test_a_text_can_do_nothing_to_the_terminal():
    shown = printed(80, episode("\x1b[2Jred [bold]b[/bold] :smile: \u202egnp"), episode("\x07\x9b2J"))
    assert not set(shown) & set("\x1b\x07\x9b\u202e")
    assert "[bold]b[/bold]" in shown and ":smile:" in shown


def test_levels_of_both_are_compared_and_an_unknown_one_is_a_dash(capsys):
    example.show(evaluation(value=0.25), evaluation("Later.", None), 60)
    text = capsys.readouterr().out
    assert text.count("0.25") == len(example.LEVELS) and "after 60 steps" in text and "Later." in text
    assert "16 posts" in text


def test_the_metrics_are_those_of_an_evaluation():
    names = {name.removeprefix("outcome/") for name in example.LEVELS}
    assert names == {"success", *WritingReport.__annotations__}


# ------------------------------------------------------------------------------------- what it calls


@pytest.fixture
def called(monkeypatch, tmp_path):
    """The commands that are called, in a folder of their own; `called.stop` ends the next run with a code."""
    record = Thing(words=[], stop=0)

    def coterie(*words: str, shown: bool = False) -> str:
        record.words.append(words)
        if words[0] == "eval":
            return json.dumps(evaluation())
        folder = tmp_path / "out" / "run"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text("{}")
        if record.stop:
            raise example.StoppedError(record.stop)
        (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step": 60}\n')
        return ""

    monkeypatch.setattr(example, "coterie", coterie)
    monkeypatch.chdir(tmp_path)
    return record


def call(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["laptop.py", "--out", "out", *words])
    return example.main()


def test_an_interrupted_call_goes_on_and_a_finished_one_only_prints(called, monkeypatch, capsys):
    called.stop = 130
    assert call(monkeypatch) == 130 and "goes on from here" in capsys.readouterr().err
    called.stop = 0
    assert call(monkeypatch, "--steps", "80") == 0
    evaluated, stopped, resumed, after = called.words
    assert evaluated[:4] == ("eval", *example.RECIPE) and stopped[:4] == ("run", *example.RECIPE)
    assert resumed == ("run", "--resume", "out/run", "schedule.steps=80")
    assert after[1] == "out/run@latest" and after[2:] == evaluated[4:], "the same tasks"
    called.words.clear()
    assert call(monkeypatch) == 0 and called.words == [("run", "--resume", "out/run")], (
        "it says that it is over"
    )
    assert call(monkeypatch, "--steps", "60") == 0 and len(called.words) == 1, "it has as many"


def test_settings_with_spaces_reach_the_recipe(called, monkeypatch, tmp_path):
    (tmp_path / "my model").mkdir()
    file = tmp_path / "my posts: #1.jsonl"
    assert call(monkeypatch, "--model", "my model", "--data", file.name) == 0
    config = load("magrpo_tldr", scale="laptop", overrides=called.words[0][4:6]).config
    assert {policy.model for policy in config.policies.values()} == {str(tmp_path / "my model")}
    assert config.data == {"type": "jsonl", "path": str(file), **config.data}


def test_a_home_folder_is_found_and_an_id_stays_an_id(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for words, wanted in (("~/m", str(tmp_path / "m")), ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"), ("", ""),
                          ("./a/b", str(tmp_path / "a/b")), ("m", str(tmp_path / "m"))):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["laptop.py", "--model", words])
        assert example.arguments().model == wanted
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert not example.is_id("a/b"), "a folder that is there"


def test_another_model_needs_another_folder(called, monkeypatch, capsys, tmp_path):
    assert call(monkeypatch) == 0
    assert call(monkeypatch, "--model", str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert "other settings" in error and "OUT=" in error and str(tmp_path) in error


def test_a_failure_names_the_way_without_the_hub(called, monkeypatch, capsys):
    called.stop = 2
    assert call(monkeypatch, "--data", "posts.jsonl") == 2
    error = capsys.readouterr().err
    assert "MODEL=FOLDER" in error and "DATA=" not in error


@pytest.mark.parametrize("steps", ["0", "-3", "many", "1.5", "\u0663"])
def test_a_number_of_steps_that_is_none_is_refused(monkeypatch, capsys, steps):
    with pytest.raises(SystemExit):
        call(monkeypatch, f"--steps={steps}")
    assert "STEPS=20" in capsys.readouterr().err


def test_a_disk_that_is_full_is_an_error_with_a_way_out(called, monkeypatch, capsys):
    monkeypatch.setattr(example, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    assert call(monkeypatch) == 2
    assert "No space left" in capsys.readouterr().err and not called.words


def test_a_command_s_exit_code_and_output_are_those_of_the_command(capfd):
    assert example.coterie("--version").startswith("coterie ")
    with pytest.raises(example.StoppedError) as stopped:
        example.coterie("run", "no_such_recipe")
    assert stopped.value.code == 2
    printed = capfd.readouterr()
    assert "$ coterie run no_such_recipe" in printed.out and "unknown recipe" in printed.err
