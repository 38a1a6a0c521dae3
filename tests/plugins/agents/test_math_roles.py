"""The roles of environment `math`: their prompts and what they read."""

from __future__ import annotations

import pytest

from coterie.core.errors import ConfigError
from coterie.testing import check_role
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
    program,
    role_of,
)
from tests.plugins.support import Build, make, read, role_input

ROLES = [*PAIR[0], *CHAIN, *SOLO]


def order_of(role: str):
    return next(order for order in FORMS.values() if role in (order[0] if order == PAIR else order))


def first_seen(role: str, **settings):
    env = env_of(order_of(role), **settings)
    return env.observe(env.reset(TASK, 0), role)


def text_of(role: str, observation, **more) -> str:
    return "\n".join(
        message["content"] for message in role_of(role).render(role_input(observation, role, **more))
    )


@pytest.mark.parametrize("name", ROLES)
def test_a_role_passes_the_kit(name):
    check_role(
        role_of(name),
        observations=[first_seen(name)],
        good=[program("print(9)") if name in ("tool", "code_executor") else box(9)],
    )


@pytest.mark.parametrize("name", ROLES)
def test_a_prompt_has_the_problem_and_what_to_write(name):
    system, user = role_of(name).render(role_input(first_seen(name), name))
    assert system["role"] == "system" and user["role"] == "user"
    assert user["content"].startswith("Problem:\nWhat is 7 + 5 - 3?\n\n")
    wanted = "```python" if name in ("tool", "code_executor") else r"\boxed{}"
    assert wanted in user["content"].splitlines()[-1]


@pytest.mark.parametrize("name", ROLES)
def test_no_prompt_shows_the_reference(name):
    env = env_of(order_of(name))
    import dataclasses

    state = env.reset(dataclasses.replace(TASK, answer="731"), 0)
    assert "731" not in text_of(name, env.observe(state, name))


def test_the_chain_s_prompts_hold_all_that_was_written_and_printed():
    env = env_of(CHAIN)
    steps = chained(env, box(8), program("print('nine', 9)"), box(9), box(9))
    shown = text_of("code_executor", env.observe(steps[1].state, "code_executor"))
    assert shown.index("The problem solver wrote:") < shown.index("You wrote:") < shown.index("nine 9")
    assert "Your program was run.\nIt printed:\n```\nnine 9\n```" in shown
    shown = text_of("verifier", env.observe(steps[2].state, "verifier"))
    for part in (box(8), "print('nine', 9)", "nine 9", box(9), "Its program was run."):
        assert part in shown


def test_a_program_that_did_not_finish_is_shown_with_its_end():
    env = env_of(PAIR)
    step = act(env, env.reset(TASK, 0), reasoner=box(8), tool=program("print('before'); 1 / 0"))
    for role in PAIR[0]:
        shown = text_of(role, env.observe(step.state, role))
        assert "before" in shown and "It did not finish: exit code 1: ZeroDivisionError" in shown


def test_a_repair_is_asked_for_and_a_last_try_that_failed_is_named_to_the_verifier():
    env = env_of(CHAIN)
    steps = chained(env, box(8), program("1 / 0"), program("print('half'); 2 / 0"))
    shown = text_of("code_executor", env.observe(steps[1].state, "code_executor"))
    last = shown.splitlines()[-1]
    assert last.startswith("Your program did not finish: repair it") and "```python" in last
    assert "\\boxed" not in last and "ZeroDivisionError" in shown
    shown = text_of("verifier", env.observe(steps[2].state, "verifier"))
    named = (
        "The code executor's last program did not finish (exit code 1: ZeroDivisionError: division by zero)"
    )
    assert shown.index("half") < shown.index(named) < shown.index("Write the final answer")
    assert "confirmed" not in text_of("verifier", env.observe(chained(
        env, box(8), program("1 / 0"), program("print(9)"))[-1].state, "verifier"))  # fmt: skip


def test_output_cannot_close_its_own_fence():
    env = env_of(PAIR)
    step = act(env, env.reset(TASK, 0), reasoner=box(8), tool=program("print('``' + '`' + 'python')"))
    assert "````\n```python\n````" in text_of("reasoner", env.observe(step.state, "reasoner"))


def test_feedback_of_a_transition_mode_is_shown_in_prose_and_refused_in_words():
    assert "Try again." in text_of("solver", first_seen("solver"), feedback=("Try again.",))
    with pytest.raises(ConfigError, match="can't show"):
        text_of("solver", first_seen("solver", rendering="compact"), feedback=("Try again.",))


def test_prompts_can_be_one_s_own():
    role = role_of("solver", system="", ask="Only the number, please.")
    [user] = role.render(role_input(first_seen("solver"), "solver"))
    assert user["content"].endswith("\n\nOnly the number, please.")


def test_compact_prompts_are_a_few_words():
    assert text_of("problem_solver", first_seen("problem_solver", rendering="compact")) == (
        "problem_solver has 7 gets 5 loses 3 :"
    )
    env = env_of(CHAIN, rendering="compact")
    steps = chained(env, "7 + 5 - 3", "1 2 - 3", "9", "9")
    assert text_of("code_executor", env.observe(steps[0].state, "code_executor")) == (
        "code_executor then 7 + 5 - 3 :"
    )
    assert text_of("code_executor", env.observe(steps[1].state, "code_executor")) == (
        "code_executor then 1 2 - 3 :"
    )
    assert text_of("verifier", env.observe(steps[2].state, "verifier")) == "verifier then 9 :"
    alone = env_of(SOLO, rendering="compact")
    after = act(alone, alone.reset(TASK, 0), solver="8")
    assert text_of("solver", alone.observe(after.state, "solver")) == "solver has 7 gets 5 loses 3 then 8 :"


@pytest.mark.parametrize(
    ("name", "text", "parsed"),
    [
        ("problem_solver", "1 2 + 5 - 3", "12 + 5 - 3"),
        ("problem_solver", "7 + ", None),
        ("solver", "1 2", "12"),
        ("solver", "7 + 5", None),
        ("solver", "", None),
        ("verifier", "<unk>", None),
    ],
)
def test_what_is_read_in_words(name, text, parsed):
    read(role_of(name), text, first_seen(name, rendering="compact"), parsed)


@pytest.mark.parametrize(
    ("name", "text", "parsed"),
    [
        ("reasoner", box(r"\frac{1}{2}"), r"\frac{1}{2}"),
        ("reasoner", "no", None),
        ("tool", program("print(1)"), "print(1)\n"),
        ("tool", box(1), None),
        ("code_executor", program("print(1)"), "print(1)\n"),
    ],
)
def test_what_is_read_in_prose(name, text, parsed):
    read(role_of(name), text, first_seen(name), parsed)


def test_a_role_has_to_have_its_own_name():
    from coterie.plugins.agents.math import MathVerifier

    with pytest.raises(ConfigError, match="'judge' can't have the type") as caught:
        make(MathVerifier, Build(name="judge", path="team.roles.judge"))
    assert caught.value.path == "team.roles.judge.type" and caught.value.fix == "name the role 'verifier'"
    with pytest.raises(ConfigError, match="or give it type math_solver"):
        make(MathVerifier, Build(name="solver", path="team.roles.solver"))
