"""The forms of a team: who acts when, when an episode ends, and what is scored."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.core.errors import ConfigError, PolicyFault, SystemFault
from coterie.core.types import TEAM, Action, Fault
from coterie.plugins.envs.common.code import ToolRun
from coterie.plugins.envs.math import env as env_module
from coterie.plugins.envs.math.state import Problem
from coterie.testing import check_environment
from tests.plugins.envs.math.players import (
    CHAIN,
    FORMS,
    PAIR,
    SOLO,
    TASK,
    act,
    box,
    chained,
    env_of,
    play,
    program,
    role_of,
)
from tests.plugins.support import context, wait

# ---- the conformance kit

WRITTEN = [
    box(9),
    box(8),
    program("print(9)"),
    program("print(8)"),
    "no answer",
    program("1 +"),
    r"\boxed{9",
    "",
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_prose_passes_the_kit(form):
    order = FORMS[form]
    roles = [role for stage in order for role in ([stage] if isinstance(stage, str) else stage)]
    check_environment(
        env_of(order, level=5, train_tasks=8, val_tasks=4, test_tasks=4),
        roles=roles,
        order=order,
        act=WRITTEN,
        role_plugins={role: role_of(role) for role in roles},
        episodes=3,
        disjoint="content",
    )


@pytest.mark.parametrize(("order", "level"), [(CHAIN, 1), (CHAIN, 4), (SOLO, 2), (["reasoner"], 3)])
def test_every_form_in_words_passes_the_kit(order, level):
    check_environment(
        env_of(order, rendering="compact", level=level, train_tasks=8, val_tasks=4, test_tasks=4),
        roles=order,
        act=["9", "1 2 - 3", "7 + 5 - 3", "( 1 9 - 4 ) / 3", "7 +", ""],
        role_plugins={role: role_of(role) for role in order},
        episodes=3,
        disjoint="content",
    )


# ---- reasoner and tool


def test_the_pair_acts_at_once_and_ends_when_it_agrees():
    env = env_of(PAIR)
    state = env.reset(TASK, 0)
    assert env.acting_roles(state) is None
    first = act(env, state, reasoner=box(8), tool=program("print(7 + 5 - 3)"))
    assert env.acting_roles(first.state) is None and env.outcome(first.state)["success"] == 0
    second = act(env, first.state, 1, reasoner=box("9.0"), tool=program("print('so'); print(9)"))
    assert env.acting_roles(second.state) == ()
    assert env.outcome(second.state) == {"success": 1, "turns": 2, "actions": 4, "answered": 1}


def test_agreement_is_not_correctness():
    env = env_of(PAIR)
    step = play(env, {"reasoner": box(8), "tool": program("print(8)")})
    assert env.acting_roles(step.state) == () and env.outcome(step.state)["success"] == 0
    assert step.scores[TEAM, "correct"] == 0


def test_the_reasoner_s_answer_is_the_team_s():
    for reasoner, tool, success in ((9, 8, 1), (8, 9, 0)):
        step = play(env_of(PAIR), {"reasoner": box(reasoner), "tool": program(f"print({tool})")})
        assert step.scores[TEAM, "correct"] == success


def reward(env, step, role):
    """The role's own reward, by the default weights."""
    return sum(env.weights[name] * value for (who, name), value in step.scores.items() if who == role)


@pytest.mark.parametrize(
    ("reasoner", "tool", "expected"),
    [
        (box(9), program("print(9)"), (1.0, 1.0)),
        (box(8), program("print(8)"), (0.2, 0.2)),
        ("it is 9", program("print(9) or 1 / 0"), (0.0, 0.9)),
        (r"\boxed{}", program("print(9"), (0.0, 0.0)),
        ("The answer is 9.", "print(9)", (1.0, 0.0)),
        (box(9), program("print('total'); print('so 9 apples are left')"), (1.0, 0.2)),
    ],
)
def test_the_local_rewards_are_the_paper_s(reasoner, tool, expected):
    """Reasoner: .2 format, .8 right. Tool: .1 builds, .1 runs, .8 the right number."""
    env = env_of(PAIR)
    step = play(env, {"reasoner": reasoner, "tool": tool})
    assert (reward(env, step, "reasoner"), reward(env, step, "tool")) == pytest.approx(expected)


def test_later_turns_show_both_histories():
    env = env_of(PAIR)
    step = play(env, {"reasoner": box(8), "tool": program("print(9)")})
    for role in PAIR[0]:
        seen = env.observe(step.state, role)
        assert [(one.role, one.answer) for one in seen.transcript] == [("reasoner", "8"), ("tool", "9")]
    assert "the tool 9: you don't agree" in env.diagnose(step.state, "reasoner")
    assert "9" not in env.diagnose(play(env, {"reasoner": box(8), "tool": "none"}).state, "reasoner")


# ---- the chain


def test_the_executor_acts_twice_and_each_role_sees_all_before_it():
    env = env_of(CHAIN)
    steps = chained(env, box(9), program("print(7 + 5 - 3)"), box(9), box(9))
    assert [one.role for one in steps[-1].state.transcript] == [*CHAIN[:2], "code_executor", "verifier"]
    assert env.acting_roles(steps[-1].state) == ()
    for count, step in enumerate(steps, 1):
        assert len(env.observe(step.state, "verifier").transcript) == count
    run = steps[1].state.transcript[1].run
    assert run == ToolRun(code="print(7 + 5 - 3)\n", output="9\n")
    first, second = (env.observe(step.state, "code_executor") for step in steps[:2])
    assert (first.writes, first.last, second.writes, second.last) == ("program", False, "answer", True)
    assert env.outcome(steps[-1].state) == {"success": 1, "turns": 1, "actions": 4, "answered": 1}


def test_an_executor_without_a_program_has_handed_over():
    env = env_of(CHAIN)
    steps = chained(env, box(9), "no program is needed", box(9))
    assert [one.role for one in steps[-1].state.transcript] == CHAIN and env.acting_roles(
        steps[-1].state
    ) == ()


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (program("1 / 0"), "exit code 1: ZeroDivisionError: division by zero"),
        (program("print(9)  # slow"), "more than 5 s of CPU time"),
        (program("print(9)  # killer"), "a program ended its worker twice"),
        (program("print("), "exit code 1: SyntaxError"),
    ],
    ids=["error", "limit", "killed sandbox", "syntax"],
)
def test_after_a_program_that_failed_the_last_turn_asks_for_a_repair(first, problem):
    env = env_of(CHAIN)
    steps = chained(env, box(8), first)
    seen = env.observe(steps[-1].state, "code_executor")
    assert (seen.writes, seen.last, seen.repairs) == ("program", True, True)
    assert problem in seen.transcript[-1].run.problem
    repaired = act(env, steps[-1].state, code_executor=program("print(9)"))
    assert repaired.scores["code_executor", "format"] == repaired.scores["code_executor", "runs"] == 1
    assert (
        env.acting_roles(repaired.state) == ("verifier",)
        and repaired.state.transcript[-1].run.output == "9\n"
    )
    with pytest.raises(PolicyFault, match="no closed block of Python"):
        role_of("code_executor").parse(box(9), seen)


@pytest.mark.parametrize("first", [program("print(9)"), program("print()"), "no program", ""])
def test_what_did_not_fail_is_not_repaired(first):
    """Not a program that printed nothing either, and not a message without one: that hands over."""
    env = env_of(CHAIN)
    state = chained(env, box(8), first)[-1].state
    seen = env.observe(state, env.acting_roles(state)[0])
    assert (seen.writes, seen.repairs) == ("answer", False)
    assert seen.role == ("code_executor" if "```" in first else "verifier")


def test_repairs_go_on_as_long_as_there_are_turns_and_only_of_the_last_program():
    env = env_of(CHAIN, executor_turns=4)
    steps = chained(env, box(8), *map(program, ("1 / 0", "2 / 0", "print(9)")))
    seen = [env.observe(step.state, "code_executor") for step in steps]
    assert [one.repairs for one in seen] == [False, True, True, False]
    assert [one.writes for one in seen] == ["program", "program", "program", "answer"]


def test_an_executor_that_answers_for_the_team_has_its_last_words_after_a_failure_too():
    env = env_of(CHAIN[:2])
    steps = chained(env, box(8), program("1 / 0"))
    seen = env.observe(steps[-1].state, "code_executor")
    assert (seen.writes, seen.last, seen.repairs) == ("answer", True, False)
    assert act(env, steps[-1].state, code_executor=box(9)).scores[TEAM, "correct"] == 1


@pytest.mark.parametrize("turns", [1, 3])
def test_the_number_of_the_executor_s_turns_is_set(turns):
    env = env_of(CHAIN, executor_turns=turns)
    steps = chained(env, box(9), *[program("print(9)")] * turns, box(9))
    assert env.acting_roles(steps[-1].state) == ()


def test_the_last_role_s_answer_alone_decides():
    for texts, success in (((9, 9, 8), 0), ((8, 8, 9), 1)):
        solver, executor, verifier = map(box, texts)
        steps = chained(env_of(CHAIN), solver, program("print(1)"), executor, verifier)
        assert [step.scores[TEAM, "correct"] for step in steps] == [0, 0, 0, success]
    assert steps[0].scores["problem_solver", "right"] == 0 and steps[-1].scores["verifier", "right"] == 1


def test_a_chain_without_an_executor_is_one_of_two():
    env = env_of(["problem_solver", "verifier"], sandbox=None)
    assert env.acting_roles(chained(env, box(1), box(9))[-1].state) == ()


# ---- alone


def test_one_alone_ends_when_it_repeats_its_answer():
    env = env_of(SOLO)
    state = play(env, {"solver": box(8)}, {"solver": program("print(9)")}, {"solver": box(8)}).state
    assert env.acting_roles(state) is None, "the answers before and after a program don't count as one"
    step = act(env, state, 3, solver=box("8.0"))
    assert env.acting_roles(step.state) == () and env.outcome(step.state)["turns"] == 4
    assert state.transcript[1].run is not None and state.transcript[1].run.output == "9\n"


# ---- in words


def test_each_role_sees_only_the_message_before_it_and_one_fault_is_one_role_s():
    env = env_of(CHAIN, rendering="compact")
    steps = chained(env, "7 + 5 - 3", "1 3 - 3", "1 0", "1 0")
    seen = [env.observe(state, role) for state, role in zip(
        (env.reset(TASK, 0), *(step.state for step in steps)),
        ("problem_solver", "code_executor", "code_executor", "verifier"),
        strict=False,
    )]  # fmt: skip
    assert [(one.problem, one.shown, one.writes) for one in seen] == [
        ("has 7 gets 5 loses 3", "", "work"),
        ("", "7 + 5 - 3", "work"),
        ("", "1 3 - 3", "answer"),
        ("", "1 0", "answer"),
    ]
    own = [(step.state.transcript[-1].role, step.info) for step in steps]
    assert [info[role]["sound"] for role, info in own] == [True, False, True, True]
    assert [info[role]["right"] for role, info in own] == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "sound"),
    [
        ("1 2 - 3", True),
        ("9", True),
        ("7 + 5 - 3", False),
        ("1 + 8 + 0", False),
        ("8", False),
        ("7 +", False),
    ],
)
def test_an_executor_has_to_bring_the_expression_further(text, sound):
    steps = chained(env_of(CHAIN, rendering="compact"), "7 + 5 - 3", text)
    assert steps[-1].scores["code_executor", "sound"] == sound


def test_an_expression_is_no_answer_of_the_last_role():
    steps = chained(env_of(CHAIN, rendering="compact"), "7 + 5 - 3", "1 2 - 3", "9", "1 2 - 3")
    assert steps[-1].scores[TEAM, "correct"] == 0 and steps[-1].scores["verifier", "format"] == 0


@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("order", [CHAIN, SOLO])
def test_the_oracle_is_right_at_every_level_in_words_that_the_vocabulary_has(order, level):
    import numpy as np

    env, rng = env_of(order, rendering="compact", level=level), np.random.default_rng(0)
    vocabulary, source = set(env.vocabulary()), env.tasks("train", 0)
    for index in range(4):
        task = source[index]
        state, turn = env.reset(task, 0), 0
        while (roles := env.acting_roles(state)) != () and turn < 4:
            [role] = roles or order
            seen = env.observe(state, role)
            from coterie.plugins.envs.math.compact import prompt

            text = env.demonstrate(state, role, 0.0, rng)
            assert {*text.split(), *prompt(seen).split()} <= vocabulary
            assert len(prompt(seen).split()) + len(text.split()) <= 36, "it fits a context of 64"
            noisy = env.demonstrate(state, role, 1.0, rng)
            assert role_of(role).parse(noisy, seen)
            actions = {role: Action(calls=(), text=text, parsed=role_of(role).parse(text, seen))}
            step = wait(env.step(state, actions, context(task, turn)))
            assert step.scores[role, "sound"] == 1
            state, turn = step.state, turn + (role == "solver")
        assert env.outcome(state)["success"] == 1


# ---- faults


def test_a_lost_action_is_the_system_s_fault():
    env = env_of(PAIR)
    lost = Action(calls=(), text="", fault=Fault(kind="system", reason="aborted"))
    with pytest.raises(SystemFault):
        wait(env.step(env.reset(TASK, 0), {"reasoner": lost, "tool": lost}, context(TASK)))


def test_a_lost_sandbox_is_the_system_s_fault_and_a_killed_one_the_program_s():
    env = env_of(PAIR)
    with pytest.raises(SystemFault):
        play(env, {"reasoner": box(9), "tool": program("# lost")})
    step = play(env, {"reasoner": box(9), "tool": program("print(9)  # killer")})
    assert reward(env, step, "tool") == pytest.approx(0.1) and step.scores["tool", "right"] == 0


class Verdicts:
    """A verifier that fails as it is told."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    async def equal(self, answer: str, reference: str) -> bool:
        raise self.failure

    def close(self) -> None:
        pass


def test_an_answer_that_breaks_the_verifier_is_wrong_and_a_lost_verifier_is_missing(monkeypatch):
    def env_with(failure: Exception) -> Any:
        monkeypatch.setattr(env_module, "Verifier", lambda **_: Verdicts(failure))
        return env_of(["reasoner"], sandbox=None, verify="math_verify")

    step = play(env_with(PolicyFault("more than 5 s")), {"reasoner": box("99999999!")})
    assert step.scores[TEAM, "correct"] == 0 and step.scores["reasoner", "format"] == 1
    with pytest.raises(SystemFault):
        play(env_with(SystemFault("lost")), {"reasoner": box(9)})


# ---- settings


@pytest.mark.parametrize(
    ("order", "settings", "path"),
    [
        (["reasoner", "verifier"], {}, "team.order"),
        (["solver", "tool"], {}, "team.order"),
        (["verifier", "problem_solver"], {}, "team.order"),
        ([["problem_solver", "verifier"]], {}, "team.order"),
        (["solver", "solver"], {}, "team.order"),
        (PAIR, {"sandbox": None}, "env.sandbox"),
        (CHAIN, {"sandbox": None}, "env.sandbox"),
        (["reasoner"], {}, "env.sandbox"),
        (PAIR, {"rendering": "compact"}, "env.rendering"),
        (PAIR, {"executor_loop": True}, "env.executor_loop"),
    ],
)
def test_a_team_that_cannot_work_is_refused(order, settings, path):
    with pytest.raises(ConfigError) as caught:
        env_of(order, **settings)
    assert caught.value.path == path and caught.value.fix


@pytest.mark.parametrize("others", [[], ["reasoner"]])
def test_a_role_that_does_not_exist_is_named_with_the_nearest(others):
    with pytest.raises(ConfigError, match="has no role 'solvr'") as caught:
        env_of([*others, "solvr"])
    assert caught.value.path == "team.roles.solvr"
    assert caught.value.fix.startswith("did you mean 'solver'? A team has reasoner and tool; or ")


def test_the_oracle_of_a_user_s_problem_writes_the_reference():
    import dataclasses

    import numpy as np

    env, rng = env_of(PAIR), np.random.default_rng(0)
    task = dataclasses.replace(TASK, payload=Problem(text="What is half of one?"), answer=r"\frac{1}{2}")
    state = env.reset(task, 0)
    assert env.demonstrate(state, "reasoner", 0.0, rng) == r"\boxed{\frac{1}{2}}"
    assert env.demonstrate(state, "tool", 0.0, rng) == "```python\nprint('\\\\frac{1}{2}')\n```"
    assert env.demonstrate(state, "reasoner", 1.0, rng) != r"\boxed{\frac{1}{2}}"


@pytest.mark.parametrize("order", [PAIR, CHAIN, SOLO])
def test_the_oracle_in_prose_is_right(order):
    import numpy as np

    env, rng = env_of(order), np.random.default_rng(0)
    state = env.reset(TASK, 0)
    for _ in range(4):
        roles = env.acting_roles(state)
        if roles == ():
            break
        acting = roles or (order[0] if isinstance(order[0], list) else order)
        state = act(env, state, **{role: env.demonstrate(state, role, 0.0, rng) for role in acting}).state
    assert env.outcome(state)["success"] == 1
