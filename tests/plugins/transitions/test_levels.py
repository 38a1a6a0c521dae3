"""What plain, passed, level_passed and level_feedback tell each role, and which settings they refuse."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from coterie.core.errors import ConfigError, PluginError, SystemFault
from coterie.core.rollout.contracts import FEEDBACK_CHARACTERS, check_feedback
from coterie.core.types import Finding
from coterie.plugins.transitions.revision import REVISE, titled
from coterie.testing import build, check_transition, coterie_run, play_episode
from tests.plugins.support import wait
from tests.plugins.transitions.support import AUX, MAIN, SOLVER, TOYS, entry, mode, second_node, telling, told
from tests.plugins.transitions.toys import Work

OFFLINE = ("plain", "passed", "level_passed", "level_feedback")
EARLIER = "Your previous answer:"

# ------------------------------------------------------------------------------------------------ snapshots

SNAPSHOTS = {
    ("plain", "aux"): [EARLIER, AUX],
    ("plain", "main"): [EARLIER, MAIN],
    ("plain", "solver"): [EARLIER, SOLVER],
    ("passed", "aux"): [EARLIER, AUX, "Not all levels passed."],
    ("passed", "main"): [EARLIER, MAIN, "Not all levels passed."],
    ("passed", "solver"): [EARLIER, SOLVER, "All levels passed."],
    ("level_passed", "aux"): [
        EARLIER,
        AUX,
        "Results:",
        "Definition of aux: found",
        "Definition of add: found",
        "Tests: 1 of 3 passed",
    ],
    ("level_passed", "main"): [
        EARLIER,
        MAIN,
        "Results:",
        "Definition of add: found",
        "Definition of aux: found",
        "Tests: 1 of 3 passed",
        "Use of aux: called",
    ],
    ("level_passed", "solver"): [
        EARLIER,
        SOLVER,
        "Results:",
        "Definition of add: found",
        "Tests: 3 of 3 passed",
    ],
    ("level_feedback", "aux"): [
        "Your answer of turn 1:",
        AUX,
        "Results:",
        "Definition of aux: FOUND",
        "Definition of add: FOUND",
        "Tests: 1/3 passed",
        "  Failed: assert add(1, 1) == 2",
        "  Failed: assert add(0, 5) == 5",
    ],
    ("level_feedback", "main"): [
        "Your answer of turn 1:",
        MAIN,
        "Results:",
        "Definition of add: FOUND",
        "Definition of aux: FOUND",
        "Tests: 1/3 passed",
        "  Failed: assert add(1, 1) == 2",
        "  Failed: assert add(0, 5) == 5",
        "Use of aux: called",
        "Warning: the function does nothing but call aux",
    ],
    ("level_feedback", "solver"): [
        "Your answer of turn 1:",
        SOLVER,
        "Results:",
        "Definition of add: FOUND",
        "Tests: 3/3 passed",
    ],
}


@pytest.mark.parametrize(("name", "role"), SNAPSHOTS)
def test_what_a_role_is_told(name, role):
    team = "solver" if role == "solver" else "team"
    made = mode(name, team)
    assert told(made, role, team=team) == [*SNAPSHOTS[name, role], REVISE]


def test_level_feedback_shows_all_earlier_answers_by_turn_and_the_others_the_last_one():
    assert told(mode("level_feedback"), "aux", "one", "", "three")[:6] == [
        "Your answer of turn 1:",
        "one",
        "Your answer of turn 2 was empty.",
        "Your answer of turn 3:",
        "three",
        "Results:",
    ]
    for name in ("plain", "passed", "level_passed"):
        assert told(mode(name), "aux", "one", "two", "three")[:2] == [EARLIER, "three"]


@pytest.mark.parametrize("text", ["", " \n\t "])
def test_an_empty_answer_is_called_empty(text):
    assert told(mode("plain"), "aux", text) == ["Your previous answer was empty.", REVISE]


def test_nothing_is_told_before_the_first_answer():
    made = mode("level_feedback")
    assert wait(made.tell("aux", Work(), (), made.build.environment)) == ()


# ------------------------------------------------------------------------------------------- long answers

WORDS = st.lists(
    st.sampled_from(["\n", "    ", "x" * 900, "return", "é" * 399, "\n\n", "y" * 4100]), max_size=40
)


@given(WORDS.map("".join))
def test_a_long_answer_is_told_in_parts_that_are_the_answer_when_they_are_joined(text):
    title, *parts = titled("Yours", text)
    if not text.strip():
        assert (title, parts) == ("Yours was empty.", [])
        return
    assert title == "Yours:"
    assert "\n".join(parts) == text
    assert all(part.strip() for part in parts)
    # A blank line stays with its neighbours, and a long one stays whole.
    if all(line.strip() and len(line) <= FEEDBACK_CHARACTERS for line in text.split("\n")):
        assert all(len(part) <= FEEDBACK_CHARACTERS for part in parts)


def test_the_core_cuts_no_line_of_a_long_answer():
    text = "\n".join(f"    line_{number} = {number}" for number in range(900))
    sentences = told(mode("plain"), "aux", text)
    assert len(sentences) > 5
    assert check_feedback(object(), sentences) == sentences
    assert "\n".join(sentences[1:-1]) == text


# ---------------------------------------------------------------------------------------- the tests that run


@pytest.mark.parametrize(
    ("slice_", "line"),
    [
        (0, "Tests: 1 of 3 passed"),
        (None, "Tests: 1 of 3 passed"),
        ("all", "Tests: 1 of 3 passed"),
        (" ALL ", "Tests: 1 of 3 passed"),
        (1, "Tests: 0 of 1 passed"),
        (2, "Tests: 1 of 2 passed"),
        ("2", "Tests: 1 of 2 passed"),
        (-1, "Tests: 0 of 1 passed"),
        ("-2", "Tests: 1 of 2 passed"),
        (7, "Tests: 1 of 3 passed"),
    ],
)
def test_sandbox_slice_chooses_the_tests(slice_, line):
    assert line in told(mode("level_passed", sandbox_slice=slice_), "aux")


@pytest.mark.parametrize("slice_", ["first", "", "1.5", 1.0, True, [1], "--2", "1e3"])
@pytest.mark.parametrize("name", ["passed", "level_passed", "level_feedback"])
def test_a_wrong_sandbox_slice_is_refused(name, slice_):
    with pytest.raises(ConfigError, match="a whole number n") as caught:
        mode(name, sandbox_slice=slice_)
    assert caught.value.path == "transition.sandbox_slice"
    assert repr(slice_) in caught.value.why


@pytest.mark.parametrize("name", ["plain", "expert_edits"])
def test_a_mode_that_runs_no_tests_refuses_sandbox_slice_with_the_reason(name):
    with pytest.raises(ConfigError, match="unknown key 'sandbox_slice'") as caught:
        mode(name, sandbox_slice=1)
    assert caught.value.path == "transition.sandbox_slice"
    assert caught.value.why == "this mode runs no tests"
    assert "passed, level_passed, level_feedback" in caught.value.fix


# --------------------------------------------------------------------------------- other environments

TALKED = {
    "passed": (["Not all levels passed."], ["All levels passed."]),
    "level_passed": (["Results:", "Not all checks passed."], ["Results:", "All checks passed."]),
    "level_feedback": (["Results:", "aux wrote 5"], ["Results:", "All checks passed."]),
}


@pytest.mark.parametrize("name", TALKED)
def test_a_diagnosis_is_one_check_that_passed_where_it_is_empty(name):
    made, (wrong, right) = mode(name, env="Talker"), TALKED[name]
    assert told(made, "aux", "5", state=Work(latest=(("aux", "5"),)))[2:-1] == wrong
    assert told(made, "aux", "right", state=Work(latest=(("aux", "right"),)))[2:-1] == right


@pytest.mark.parametrize("name", TALKED)
def test_an_environment_without_findings_and_diagnosis_is_refused(name):
    with pytest.raises(ConfigError, match="can't say what came of an answer") as caught:
        build("transition", {"type": name})
    assert caught.value.path == "transition.type"
    assert "neither `findings" in caught.value.why
    assert "plain, expert_edits or none" in caught.value.fix


@pytest.mark.parametrize("slice_", [1, -2])
def test_without_findings_nothing_would_read_sandbox_slice(slice_):
    assert mode("passed", env="Talker", sandbox_slice="all")
    with pytest.raises(ConfigError, match="nothing reads this") as caught:
        mode("passed", env="Talker", sandbox_slice=slice_)
    assert caught.value.path == "transition.sandbox_slice"


def test_plain_runs_no_tests():
    made = mode("plain", env={"type": f"{TOYS}:CodeTeam", "broken": True})
    assert told(made, "aux") == [EARLIER, AUX, REVISE]


def test_a_sandbox_that_is_gone_is_a_fault_of_the_system():
    made = mode("passed", env={"type": f"{TOYS}:CodeTeam", "broken": True})
    with pytest.raises(SystemFault, match="the sandbox is gone"):
        told(made, "aux")


def test_an_environment_that_returns_no_findings_is_named():
    made = mode("passed", env={"type": f"{TOYS}:CodeTeam", "wrong": True})
    with pytest.raises(PluginError, match=r"findings returned \('all well',\)"):
        told(made, "aux")


def test_no_check_is_not_all_passed():
    async def remarked(state, role, tests):
        return (Finding(name="note", passed=None, summary=" ", details=("",)),)

    for name, rest in (("passed", ["Not all levels passed."]), ("level_passed", []), ("level_feedback", [])):
        made = mode(name)
        environment = SimpleNamespace(findings=remarked)
        sentences = wait(made.tell("aux", None, [entry("aux", "x")], environment))
        assert list(sentences[2:-1]) == rest


# ------------------------------------------------------------------------------------------ in a whole run


@pytest.mark.parametrize("name", OFFLINE)
@pytest.mark.parametrize("env", ["CodeTeam", "Talker"])
def test_the_kit_accepts_the_mode(name, env):
    made = mode(name, env=env)
    roles, act = ["aux", "main"], ["def aux", "right", "", "#1 aux(\n" * 900]
    check_transition(made, made.build.environment, roles=roles, order=[roles], act=act)


ROLE = {
    "type": "template",
    "prompt": "{{ task }}{% for note in notes %}\n{{ note }}{% endfor %}",
}


def prompts(**tables):
    """The prompts of each role, by turn, of one episode of two turns."""
    run = coterie_run(
        {"aux": "def aux(x):\n  return x ", "main": "<|im_end|>def add #1"},
        env={"type": f"{TOYS}:CodeTeam"},
        order=[["aux", "main"]],
        roles={"aux": ROLE, "main": ROLE},
        max_turns=2,
        sampler={"branches": 2},
        **tables,
    )
    trees, scores = play_episode(run, tasks=1)
    assert not [score for *_, score in scores if score.value is None]
    return [
        {role: decision.messages[-1]["content"] for role, decision in node.decisions.items()}
        for node in (trees[0].root, second_node(trees))
    ]


def test_the_prompts_of_a_run():
    first, second = prompts(transition={"type": "level_passed", "sandbox_slice": "-2"})
    assert first == {"aux": "Write add(x, y).", "main": "Write add(x, y)."}
    assert second["aux"].split("\n") == [
        "Write add(x, y).",
        EARLIER,
        "def aux(x):",
        "  return x ",
        "Results:",
        "Definition of aux: found",
        "Definition of add: found",
        "Tests: 1 of 2 passed",
        REVISE,
    ]
    assert second["main"].split("\n")[1:3] == [EARLIER, "<|im_end|>def add #1"]


def test_plain_in_a_run_of_records(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f'{{"question": "{n}+1?", "answer": "{n + 1}"}}\n' for n in range(12)))
    role = {"type": "template", "prompt": "{{ question }}{% for note in notes %} | {{ note }}{% endfor %}"}
    run = coterie_run(
        "five",
        env={"type": "team_task", "path": str(path)},
        order=["solver"],
        roles={"solver": role},
        max_turns=2,
        transition="plain",
    )
    trees, _ = play_episode(run, tasks=1)
    first = trees[0].root.decisions["solver"].messages[-1]["content"]
    child = second_node(trees)
    assert child.decisions["solver"].messages[-1]["content"] == f"{first} | {EARLIER} | five | {REVISE}"


def test_a_lost_sandbox_leaves_the_action_missing():
    run = coterie_run(
        "x",
        env={"type": f"{TOYS}:CodeTeam", "broken": True},
        order=["solver"],
        max_turns=2,
        transition="passed",
        schedule={"max_missing": 1.0},
    )
    trees, _ = play_episode(run, tasks=1)
    child = second_node(trees)
    (branch, *_) = child.decisions["solver"].branches
    assert branch.fault.kind == "system"
    assert "the sandbox is gone" in branch.fault.reason


@pytest.mark.parametrize("name", OFFLINE)
def test_leaving_the_task_out_needs_roles_that_can(name):
    tables = {"env": {"type": f"{TOYS}:CodeTeam"}, "order": ["solver"]}
    with pytest.raises(ConfigError, match="role 'solver' states the task in every turn") as caught:
        coterie_run("x", **tables, max_turns=2, transition={"type": name, "original_prompt": False})
    assert caught.value.path == "transition.original_prompt"
    assert coterie_run("x", **tables, max_turns=1, transition={"type": name, "original_prompt": False})
    role = {"type": f"{__name__}:Brief"}
    run = coterie_run(
        "x",
        **tables,
        roles={"solver": role},
        max_turns=2,
        transition={"type": name, "original_prompt": False},
    )
    trees, _ = play_episode(run, tasks=1)
    child = second_node(trees)
    assert trees[0].root.decisions["solver"].messages[-1]["content"].startswith("Write add(x, y).")
    assert child.decisions["solver"].messages[-1]["content"].startswith("Your ")


class Brief:
    """A role that leaves the task out where it may."""

    omits_task = True

    def __init__(self, config, build):
        pass

    def render(self, role_input):
        task = [role_input.observation["task"]] if role_input.shows_task else []
        return [{"role": "user", "content": "\n".join([*task, *role_input.feedback])}]

    def parse(self, text, observation):
        return text


@pytest.mark.parametrize("name", OFFLINE)
def test_the_words_of_a_mode_are_those_that_it_tells(name):
    """With `tokenizer: words` a word that nobody lists would be `<unk>`."""
    made = mode(name, env="Talker")
    words = set(made.vocabulary())
    for texts in (["right"], ["right", "right"], ["", "", "right"]):
        sentences = told(made, "aux", *texts, state=Work(latest=(("aux", texts[-1]),)))
        assert {word for text in sentences for word in text.split()} - {"right"} <= words


def test_only_the_modes_with_an_expert_log(caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        for name in OFFLINE:
            told(mode(name), "main")
    assert not caplog.records


def test_telling_twice_at_once_is_telling_twice():
    async def twice():
        made = mode("level_feedback")
        return await asyncio.gather(*(telling(made, role) for role in ("aux", "main") * 8))

    first, second, *others = asyncio.run(twice())
    assert others[::2] == [first] * 7
    assert others[1::2] == [second] * 7


@pytest.mark.parametrize("given", [None, ["wrong"], 3, b"wrong"])
@pytest.mark.parametrize("name", ["passed", "level_passed", "level_feedback", "diagnosis"])
def test_a_diagnosis_that_is_no_text_names_the_environment(name, given, monkeypatch):
    """None would be told as success by the modes with levels."""
    made = mode(name, env="Talker")
    monkeypatch.setattr(type(made.build.environment), "diagnose", lambda self, state, role: given)
    with pytest.raises(PluginError, match="Talker' of tests: diagnose returned "):
        told(made, "aux", "5", state=Work(latest=(("aux", "5"),)))
