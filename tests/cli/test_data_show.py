"""`coterie data show`: every role's prompt, of later turns too, and by which answers they were reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from coterie import PolicyFault
from coterie.cli.data_show import task_text
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import ROLE, EchoRole, NumberGame
from coterie.viewing.text import CONTROLS
from tests.cli.support import TABULAR, coterie

SPLITS = ("train", "val", "test")


def shown(*arguments: object) -> list[dict[str, Any]]:
    done = coterie("data", "show", *arguments, "--json")
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def places(row: dict[str, Any]) -> list[tuple[int, str]]:
    return [(prompt["turn"], prompt["role"]) for prompt in row.get("prompts", ())]


def recipe(folder: Path, **tables: Any) -> Path:
    """The tabular recipe with other tables, as a file."""
    table = {**yaml.safe_load(TABULAR.read_text()), **tables}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(table))
    return folder / "recipe.yaml"


def talking(folder: Path, turns: int = 3, **settings: Any) -> Path:
    """Two template roles that talk about a question of `team_task`, and remember what they said."""
    for split in SPLITS:
        line = json.dumps({"question": f"{split}?", "answer": "yes"})
        (folder / f"{split}.jsonl").write_text(line + "\n")
    prompt = "{{ question }} turn {{ turn }}, a: {{ actions.a }}, b: {{ actions.b }}"
    role = {"type": "template", "policy": "shared", "prompt": prompt}
    return recipe(
        folder,
        env={"type": "team_task", **{split: str(folder / f"{split}.jsonl") for split in SPLITS}, **settings},
        team={
            "order": ["a", "b"],
            "max_turns": turns,
            "roles": {"a": role, "b": {**role, "remembers": True}},
        },
    )


class Counting(NumberGame):
    """A game whose second stage can't be stepped for the text `lost`."""

    async def step(self, state: Any, actions: Any, ctx: Any) -> Any:
        if len(state) == 1 and "lost" in {action.text for action in actions.values()}:
            raise PolicyFault("lost its way")
        return await super().step(state, actions, ctx)


def numbers(folder: Path, turns: int = 2, **role: Any) -> Path:
    """Two roles of the toy game, which has no oracle."""
    table = {"type": ROLE, "policy": "shared", **role}
    team = {"order": ["one", "two"], "max_turns": turns, "roles": {"one": table, "two": table}}
    return recipe(folder, env={"type": f"{__name__}:Counting"}, team=team)


# ------------------------------------------------------------------------------------------------------ turns


def test_every_role_and_two_turns_are_shown_without_being_asked_for(tmp_path: Path):
    [row] = shown(talking(tmp_path))
    assert places(row) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    assert row["prompts"][0]["messages"] == [{"role": "user", "content": "test? turn 0, a: , b: "}]
    assert row["prompts"][2]["messages"][0]["content"] == "test? turn 1, a: <a's answer>, b: <b's answer>"
    text = coterie("data", "show", tmp_path / "recipe.yaml").stdout
    for role, turn in ("a", 1), ("b", 1), ("a", 2), ("b", 2):
        assert f"{role}, turn {turn}, user" in text
    assert "a's answer, a sample: <a's answer>" in text
    assert "end: turn 3 is left out: --turns 3 shows it" in text


def test_texts_of_tasks_and_answers_do_nothing_to_the_terminal():
    row = {
        "id": "1\x1b",
        "record": {"a": "\x9b"},
        "noise": 0.0,
        "end": "\u202e",
        "prompts": [
            {
                "role": "a",
                "turn": 0,
                "messages": [{"role": "user", "content": "\x1b[2J"}],
                "answer": "\x07",
                "by": "sample",
                "fault": "\x08",
            }
        ],
    }
    assert not CONTROLS.search(click.unstyle(task_text(row)))
    assert not CONTROLS.search(click.unstyle(task_text({"id": "1", "picture": "\x1b[2K"})))


@pytest.mark.parametrize("turns", [0, 1, 3, 9])
def test_as_many_turns_as_asked_for(turns: int, tmp_path: Path):
    [row] = shown(talking(tmp_path), "--turns", turns)
    assert places(row) == [(turn, role) for turn in range(min(turns, 3)) for role in "ab"]
    ends = {
        1: "turns 2 to 3 are left out",
        3: "the team's turns are used up",
        9: "the team's turns are used up",
    }
    assert turns == 0 or ends[turns] in row["end"]


def test_the_prompts_are_those_that_play_makes(tmp_path: Path):
    """Of a role that remembers too: its earlier prompts and answers come first."""
    answers = {"one": "3", "two": "stay"}
    for remembers in (False, True):
        rows = shown(
            numbers(tmp_path, remembers=remembers),
            "--tasks",
            "1",
            "--answer",
            "one=3",
            "--answer",
            "two=stay",
        )
        run = coterie_run(
            answers, order=["one", "two"], max_turns=2, sampler={"branches": 1, "chains": 2},
            algorithm="grpo", roles={role: {"remembers": remembers} for role in answers},
        )  # fmt: skip
        nodes = list(play_episode(run)[0][0].nodes())
        played = [
            (node.turn, role, list(decision.messages))
            for node in nodes
            for role, decision in node.decisions.items()
        ]
        assert [(p["turn"], p["role"], p["messages"]) for p in rows[0]["prompts"]] == played and len(
            played
        ) == 4
        assert [prompt["by"] for prompt in rows[0]["prompts"]] == ["given"] * 4


def test_games_are_played_by_their_oracle_and_later_turns_are_reached():
    [row] = shown(TABULAR, "--tasks", "1")
    assert places(row)[:2] == [(0, "planner"), (0, "executor")] and places(row)[-1][0] == 1
    assert {prompt["by"] for prompt in row["prompts"]} == {"oracle"}
    text = coterie("data", "show", TABULAR, "--tasks", "1").stdout
    assert "planner's answer, the oracle's" in text
    # A perfect oracle ends this game in its first turn, so its choices are random, and that is said.
    assert row["noise"] == 1.0 and "with noise 1" in text
    [first] = shown(TABULAR, "--tasks", "1", "--turns", "1")
    assert first["noise"] == 0.0 and places(first) == [(0, "planner"), (0, "executor")]


def test_feedback_is_shown_where_the_transition_mode_gives_it():
    settings = ("env.rendering=prose", "transition=diagnosis", "--tasks", "1", "--role", "solver")
    [row] = shown("sokoban_single", "--scale", "smoke", *settings)
    assert "ast turn" not in row["prompts"][0]["messages"][-1]["content"]
    assert "ast turn" in row["prompts"][1]["messages"][-1]["content"]


def test_one_role_is_shown_and_the_others_still_act(tmp_path: Path):
    [row] = shown(talking(tmp_path), "--role", "b", "--answer", "a=over to you")
    assert places(row) == [(0, "b"), (1, "b")]
    assert row["prompts"][0]["messages"][0]["content"] == "test? turn 0, a: over to you, b: "
    assert [message["role"] for message in row["prompts"][1]["messages"]] == ["user", "assistant", "user"]


def test_programs_of_a_tool_role_run_in_the_sandbox():
    [row] = shown("plan_path_tool", "env.size=4", "--tasks", "1", "--turns", "1")
    tool, plan = row["prompts"]
    assert tool["role"] == "tool" and "print" in tool["answer"]
    assert plan["role"] == "plan" and "print" in plan["messages"][-1]["content"]


def test_without_its_sandbox_nothing_is_played_and_first_prompts_are_shown():
    nowhere = "sandbox={type: sandbox_fusion, url: 'http://127.0.0.1:9', connect_seconds: 0.1}"
    rows = shown("plan_path_tool", "env.size=4", nowhere, "--tasks", "2")
    assert len(rows) == 2
    for row in rows:
        assert places(row) == [(0, "tool"), (0, "plan")] and not any(p["answer"] for p in row["prompts"])
        assert row["end"].startswith("nothing is played: ") and "127.0.0.1:9" in row["end"]


# ------------------------------------------------------------------------------------------------------- ends


def test_the_end_of_an_episode_is_said(tmp_path: Path):
    row = shown(numbers(tmp_path), "--tasks", "1", "--answer", "two=stop")[0]
    assert places(row) == [(0, "one"), (0, "two")]
    assert row["end"] == "the environment ended the episode in turn 1"


def test_a_step_that_fails_is_said_and_roles_that_were_not_reached_are_shown(tmp_path: Path):
    team = {"type": ROLE, "policy": "shared"}
    order = ["one", "two", "three"]
    table = {"order": order, "max_turns": 2, "roles": dict.fromkeys(order, team)}
    path = recipe(tmp_path, env={"type": f"{__name__}:Counting"}, team=table)
    row = shown(path, "--tasks", "1", "--answer", "two=lost")[0]
    assert places(row) == [(0, "one"), (0, "two"), (0, "three")]
    assert row["end"] == "the step failed in turn 1: lost its way"
    assert [prompt["answer"] for prompt in row["prompts"]] == ["<one's answer>", "lost", None]
    assert row["prompts"][2]["messages"][0]["content"] == "three turn0 one=<one's answer>"
    assert "three, turn 1, user (not reached" in coterie("data", "show", path, "--answer", "two=lost").stdout


def test_an_answer_that_its_role_cant_read_is_said(tmp_path: Path):
    arguments = (numbers(tmp_path), "--tasks", "1", "--answer", "one=bad")
    prompts = shown(*arguments)[0]["prompts"]
    assert [prompt["fault"] for prompt in prompts] == ["said bad", None, "said bad", None]
    assert "one's answer, given, can't be read (said bad): bad" in coterie("data", "show", *arguments).stdout


class Endless(NumberGame):
    """Its turns never end."""

    def acting_roles(self, state: Any) -> tuple[str, ...]:
        return ("one",)


def test_a_turn_that_never_ends_is_cut(tmp_path: Path):
    role = {"type": ROLE, "policy": "shared"}
    team = {"order": ["one"], "max_turns": 2, "roles": {"one": role}}
    row = shown(recipe(tmp_path, env={"type": f"{__name__}:Endless"}, team=team), "--tasks", "1")[0]
    assert len(row["prompts"]) == 100 and row["end"] == "100 prompts are shown, and turn 1 goes on"


class Stateful(EchoRole):
    """A role whose parser has a bug."""

    def parse(self, text: str, observation: Any) -> str:
        raise KeyError("answer")


def test_a_parser_with_a_bug_is_named_as_in_play(tmp_path: Path):
    prompts = shown(numbers(tmp_path, type=f"{__name__}:Stateful"), "--tasks", "1")[0]["prompts"]
    assert "parse raised KeyError" in prompts[0]["fault"] and "Stateful" in prompts[0]["fault"]


@pytest.mark.parametrize(("arguments", "message"), [
    (("--answer", "plannr=U"), "did you mean 'planner'"),
    (("--answer", "U"), "ROLE=TEXT"),
    (("--answer", "planner=U", "--answer", "planner=D"), "given two answers"),
    (("--role", "plannr"), "did you mean 'planner'"),
    (("--turns", "-1"), "not in the range"),
    (("--turns", "0", "--answer", "planner=U"), "nothing is played"),
    (("--turns", "0", "--role", "planner"), "nothing is played"),
])  # fmt: skip
def test_wrong_words_are_told(arguments: tuple[str, ...], message: str):
    done = coterie("data", "show", TABULAR, *arguments)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output


@pytest.mark.parametrize("option", [("--role", "a"), ("--turns", "1"), ("--answer", "a=b")])
def test_records_have_no_roles(option: tuple[str, str], tmp_path: Path):
    talking(tmp_path)
    done = coterie("data", "show", tmp_path / "test.jsonl", *option)
    assert done.exit_code == 2 and "it has no roles" in done.stderr and option[0] in done.stderr
