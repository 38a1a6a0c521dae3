"""Environment `code_tests`: its game, its forms of a team, what roles see, and what it reports."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace

import pytest

from coterie.core.errors import ConfigError, SystemFault
from coterie.core.types import Fault, RoleInput
from coterie.testing import build, check_environment, check_reward, check_role, play_episode
from coterie.testing.support.opening import opened
from tests.plugins.envs.code.problems import ADD, HALF, ROOT, SUM_LINES
from tests.plugins.envs.code.support import data_of, fenced, run
from tests.plugins.envs.code.warm import WARM
from tests.plugins.support import action, context

PAIR = [["coder", "tester"]]
RIGHT, WRONG = fenced(ADD["solution"]), fenced("def f(x, y):\n    return x + y\n")
TESTS = "```tests\nassert f(1, 2) == 5\nassert f(0, 3) == 9\nassert f(2, 2) == 8\n```"
FALSE = "```tests\nassert f(1, 2) == 3\nassert f(0, 3) == 9\nassert f(0, 1) == 1\n```"
BOTH = f"{RIGHT}\n{TESTS}"
ACT = [RIGHT, WRONG, TESTS, FALSE, BOTH, "nothing", fenced("def f(x, y):\n    return (\n")]
PROGRAM = {**SUM_LINES, "visible_cases": [["1\n2\n", "3\n"]]}


def made(folder, order=None, *, records=(), **settings):
    return build(
        "environment",
        {"type": "code_tests", **settings},
        order=order or PAIR,
        data=data_of(folder, *records),
        sandbox=WARM,
    )


def played(folder, answers, order=None, **settings):
    """(steps, outcome, environment) of joint actions, each with its turn: (turn, {role: text})."""

    async def go():
        env = made(folder, order, **settings)
        async with opened(env, None):
            task = env.tasks("train", 0)[0]
            state, steps = env.reset(task, 0), []
            for turn, texts in answers:
                step = await env.step(state, {r: action(t) for r, t in texts.items()}, context(task, turn))
                state = step.state
                steps.append(step)
            told = {role: await env.diagnose(state, role) for role in answers[-1][1]}
            return steps, env.outcome(state), told, env

    return asyncio.run(go())


@pytest.mark.parametrize("order", [PAIR, ["coder", "tester"], ["tester", "coder"], ["solver"]])
def test_the_environment_conforms(tmp_path, order):
    roles = ["solver"] if order == ["solver"] else ["coder", "tester"]
    shown = [{**ADD, "visible_tests": "assert f(1, 2) == 5\n"}]
    env = made(tmp_path, order, records=shown)
    check_environment(env, roles=roles, order=order, act=ACT, episodes=4, turns=2)


def test_programs_of_stdin_conform(tmp_path):
    env = made(tmp_path, records=[PROGRAM])
    texts = [fenced(SUM_LINES["solution"]), "```input\n1\n```\n```output\n1\n```", "print(1)"]
    check_environment(env, roles=["coder", "tester"], order=PAIR, act=texts, episodes=3, turns=2)


@pytest.mark.parametrize("source", ["test_quality", "golden_tests", "unit_tests", "code_structure"])
def test_reward_sources_conform(tmp_path, source):
    tables = {"data": data_of(tmp_path), "sandbox": WARM}
    reward = build("reward", {"type": source}, env={"type": "code_tests"}, order=PAIR, **tables)
    env = made(tmp_path, records=[{**ADD, "visible_tests": "assert f(1, 2) == 5\n"}])
    check_reward(reward, environment=env, roles=["coder", "tester"], order=PAIR, act=ACT, episodes=3)


@pytest.mark.parametrize("name", ["coder", "tester", "solver"])
def test_roles_conform(tmp_path, name):
    order = ["solver"] if name == "solver" else PAIR
    tables = {"data": data_of(tmp_path), "sandbox": WARM}
    env = made(tmp_path, order)
    role = build("role", f"code_tests_{name}", name=name, order=order, env={"type": "code_tests"}, **tables)
    seen = env.observe(env.reset(env.tasks("train", 0)[0], 0), name)
    check_role(role, observations=[seen], good=[BOTH], feedback=["Syntax: OK"], name=name)


def test_a_program_that_passes_its_tests_ends_the_episode(tmp_path):
    [step], outcome, told, env = played(tmp_path, [(0, {"coder": RIGHT, "tester": TESTS})])
    assert outcome == {
        "success": 1.0, "turns": 1.0, "syntax": 1.0, "pass_rate": 1.0, "valid_tests": 1.0, "agreed": 1.0
    }  # fmt: skip
    assert env.acting_roles(step.state) == () and told == {"coder": "", "tester": ""}
    assert (step.info["code"]["passed"], step.info["code"]["total"]) == (2, 2)
    assert step.info["tests"] == {"author": "tester", "count": 3, "valid": 1.0, "right": 1.0}
    assert json.loads(json.dumps(step.info)) == step.info, "plain data"


@pytest.mark.parametrize(
    "answer", ["I do not know", "```python\nprint(1)\n```", fenced("def f(x, y):\n    return (\n")]
)
def test_without_code_that_parses_nothing_builds(tmp_path, answer):
    [step], outcome, _, _ = played(tmp_path, [(0, {"coder": answer, "tester": TESTS})])
    assert outcome["syntax"] == 0.0 and step.info["code"]["builds"] is False


def test_agreement_is_not_success(tmp_path):
    """Wrong tests that fit a wrong program end the episode, and hidden tests decide."""
    tests = "```tests\nassert f(1, 2) == 3\nassert f(0, 3) == 3\nassert f(2, 2) == 4\n```"
    [step], outcome, _, env = played(tmp_path, [(0, {"coder": WRONG, "tester": tests})])
    assert env.acting_roles(step.state) == () and outcome["agreed"] == 1.0
    assert outcome["success"] == 0.0 and step.info["tests"]["right"] == 0.0


def test_an_episode_goes_on_where_agreement_does_not_end_it(tmp_path):
    answers = [(0, {"coder": RIGHT, "tester": TESTS})]
    [step], outcome, _, env = played(tmp_path, answers, end_when_passed=False)
    assert env.acting_roles(step.state) is None and outcome["agreed"] == 1.0


def test_without_tests_nothing_is_agreed(tmp_path):
    [step], outcome, _, env = played(tmp_path, [(0, {"coder": RIGHT, "tester": "none"})])
    assert env.acting_roles(step.state) is None and outcome["agreed"] == 0.0 and outcome["success"] == 1.0
    assert step.info["tests"] == {"author": "tester", "count": 0, "valid": 0.0, "right": 0.0}
    assert "no test that could be read" in env.observe(step.state, "coder").compared[0]


def test_the_next_turn_shows_where_program_and_tests_disagree(tmp_path):
    [step], _, told, env = played(tmp_path, [(0, {"coder": RIGHT, "tester": FALSE})])
    for role in ("coder", "tester"):
        seen = env.observe(step.state, role)
        assert seen.compared[0] == "Tests: 2/3 passed" and "assert f(1, 2) == 3" in seen.compared[1]
        assert told[role] == "", "the prompt shows it already"
    assert env.observe(step.state, "coder").code and not env.observe(step.state, "coder").tests
    assert env.observe(step.state, "tester").tests and not env.observe(step.state, "tester").code


def test_a_mode_tells_what_prompts_do_not_show(tmp_path):
    answers = [(0, {"coder": RIGHT, "tester": FALSE})]
    [step], _, told, env = played(tmp_path, answers, show_compared=False)
    assert env.observe(step.state, "coder").compared == () and "assert f(1, 2) == 3" in told["coder"]


def test_hidden_tests_are_never_shown(tmp_path):
    record = {**ADD, "tests": "assert f(77, 1) == 5930\n"}
    tables = {"data": data_of(tmp_path, record), "sandbox": WARM}
    answers = [(0, {"coder": WRONG, "tester": FALSE})]
    [step], _, told, env = played(tmp_path, answers, records=[record])
    for name in ("coder", "tester"):
        role = build(
            "role", f"code_tests_{name}", name=name, order=PAIR, env={"type": "code_tests"}, **tables
        )
        seen = env.observe(step.state, name)
        asked = RoleInput(observation=seen, history=(), feedback=(told[name],), role=name, turn=1)
        assert not any("77" in str(message["content"]) for message in role.render(asked))


def test_a_later_role_sees_what_was_written_in_its_turn(tmp_path):
    [step], _, _, env = played(tmp_path, [(0, {"coder": WRONG})], ["coder", "tester"])
    assert env.observe(step.state, "tester").code and "code" in step.info and "tests" not in step.info
    [step], _, _, env = played(tmp_path, [(0, {"tester": TESTS})], ["tester", "coder"])
    assert "assert f(1, 2) == 5" in env.observe(step.state, "coder").tests and "tests" in step.info


def test_what_an_earlier_turn_wrote_is_not_shown_to_the_other(tmp_path):
    answers = [(0, {"coder": WRONG}), (0, {"tester": TESTS})]
    steps, outcome, _, env = played(tmp_path, answers, ["coder", "tester"])
    assert not env.observe(steps[-1].state, "tester").code and outcome["turns"] == 1.0


def test_written_tests_are_those_of_the_turn(tmp_path):
    """A program of a later turn isn't measured by tests of an earlier one."""
    answers = [(0, {"coder": WRONG, "tester": TESTS}), (1, {"coder": RIGHT})]
    steps, _, _, env = played(tmp_path, answers, ["coder", "tester"])
    assert env.acting_roles(steps[-1].state) is None and steps[-1].state.compared == steps[0].state.compared


def test_a_program_that_does_not_parse_fails_every_test(tmp_path):
    [step], outcome, told, env = played(tmp_path, [(0, {"coder": ACT[-1], "tester": TESTS})])
    assert outcome["syntax"] == 0.0 and "Syntax: ERROR, line 2" in told["coder"]
    report = step.info["code"]
    assert (report["builds"], report["runs"], report["passed"]) == (False, False, 0)
    assert env.observe(step.state, "coder").compared[0] == "Tests: 0/3 passed"


def test_fewer_tests_than_asked_for_are_less_valid(tmp_path):
    one = "```tests\nassert f(1, 2) == 5\n```"
    for asked, valid in ((1, 1.0), (4, 0.25)):
        [step], _, _, _ = played(tmp_path, [(0, {"coder": RIGHT, "tester": one})], asked=asked)
        assert (step.info["tests"]["valid"], step.info["tests"]["right"]) == (valid, 1.0)


def test_tests_that_can_not_be_read_make_the_rest_less_valid(tmp_path):
    mixed = TESTS.replace("\n```", "\nassert True\nassert f\nassert f(1, 2) != 0\n```")
    [step], _, _, _ = played(tmp_path, [(0, {"coder": RIGHT, "tester": mixed})])
    assert (step.info["tests"]["count"], step.info["tests"]["valid"]) == (3, 0.5)


def test_a_problem_without_reference_has_no_right_tests(tmp_path):
    record = {key: value for key, value in ADD.items() if "solution" not in key}
    answers = [(0, {"coder": RIGHT, "tester": TESTS})]
    [step], _, _, env = played(tmp_path, answers, records=[record])
    assert step.info["tests"]["right"] is None and env.counted()["tests/no_reference"] == 1.0
    assert "tests/no_reference" not in env.counted(), "counted once"


def test_a_wrong_reference_checks_no_test_and_is_named(tmp_path, caplog):
    record = {**ADD, "solution": "def f(x, y):\n    return x\n"}
    with caplog.at_level(logging.WARNING, "coterie"):
        answers = [(0, {"coder": RIGHT, "tester": TESTS}), (1, {"coder": RIGHT, "tester": TESTS})]
        steps, _, _, env = played(tmp_path, answers, records=[record])
    assert [step.info["tests"]["right"] for step in steps] == [None, None]
    assert env.counted()["tests/wrong_reference"] == 2.0
    assert sum("the reference of a problem fails" in record.message for record in caplog.records) == 1


def test_a_written_test_can_not_end_the_judging(tmp_path):
    """What is more than a comparison is no test, and a test that runs for ever fails."""
    tests = "```tests\nassert f(1, 2) == exit()\nassert f(1, 2) == 5\nassert f(9 ** 9 ** 9, 0) == 1\n```"
    limits = {"cpu_seconds": 0.3}
    answers = [(0, {"coder": RIGHT, "tester": tests})]
    [step], outcome, _, _ = played(tmp_path, answers, limits=limits)
    assert step.info["tests"]["count"] == 2 and step.info["tests"]["right"] < 1.0
    assert outcome["agreed"] == 0.0 and outcome["success"] == 1.0


def test_a_solver_writes_both_alone(tmp_path):
    [step], outcome, _, env = played(tmp_path, [(0, {"solver": BOTH})], ["solver"])
    assert outcome["success"] == outcome["agreed"] == 1.0 and step.info["tests"]["author"] == "solver"
    wrong = f"{WRONG}\n{TESTS}"
    [step], outcome, _, env = played(tmp_path, [(0, {"solver": wrong})], ["solver"])
    seen = env.observe(step.state, "solver")
    assert outcome["agreed"] == 0.0 and seen.code and seen.tests and seen.compared


def test_programs_are_tested_by_input_and_output(tmp_path):
    tests = "```input\n1\n2\n```\n```output\n3\n```\n```input\n5\n```\n```output\n6\n```"
    answers = [(0, {"coder": fenced(SUM_LINES["solution"]), "tester": tests})]
    [step], outcome, _, env = played(tmp_path, answers, records=[PROGRAM], asked=2)
    assert outcome["success"] == 1.0 and outcome["agreed"] == 0.0
    assert step.info["tests"] == {"author": "tester", "count": 2, "valid": 1.0, "right": 0.5}
    assert "'5', not '6'" in env.observe(step.state, "tester").compared[1]
    assert step.info["code"]["visible_passed"] == 1


def test_a_program_that_no_case_ends_well_for_did_not_run(tmp_path):
    programs = ["print(1)", "raise ValueError", "exit(1)", "import no_such_module"]
    answers = [(turn, {"coder": fenced(code + "\n")}) for turn, code in enumerate(programs)]
    steps, _, _, _ = played(tmp_path, answers, records=[PROGRAM])
    found = [(step.info["code"]["builds"], step.info["code"]["runs"]) for step in steps]
    assert found == [(True, True), (True, False), (True, False), (True, False)]


def test_split_test_may_be_of_another_set(tmp_path):
    (tmp_path / "other").mkdir()
    other = data_of(tmp_path / "other", test=[PROGRAM])
    env = made(tmp_path, test=other)
    assert env.tasks("test", 0)[0].payload.prompt == SUM_LINES["prompt"]
    assert env.tasks("val", 0)[0].payload.prompt == ROOT["prompt"]
    assert made(tmp_path).tasks("test", 0)[0].payload.prompt == HALF["prompt"]


def test_demonstrations_are_references_and_visible_tests(tmp_path):
    import random

    record = {**ADD, "visible_tests": "assert f(1, 2) == 5\n"}
    env = made(tmp_path, records=[record])
    state = env.reset(env.tasks("train", 0)[0], 0)
    assert "x * x + y * y" in env.demonstrate(state, "coder", 0.0, random.Random(0))
    assert "assert f(1, 2) == 5" in env.demonstrate(state, "tester", 0.0, random.Random(0))
    assert "None" in env.demonstrate(state, "coder", 1.0, random.Random(0))
    with pytest.raises(ConfigError, match="no visible tests for role 'tester'"):
        bare = made(tmp_path, records=[ADD])
        bare.demonstrate(bare.reset(bare.tasks("train", 0)[0], 0), "tester", 0.0, random.Random(0))


@pytest.mark.parametrize(("order", "match"), [
    (["coder"], "coder are no team"), (["coder", "tester", "solver"], "are no team"),
    (["coder", "testers"], "no role 'testers'"),
])  # fmt: skip
def test_other_teams_are_refused(tmp_path, order, match):
    with pytest.raises(ConfigError, match=match):
        made(tmp_path, order)


def test_a_lost_action_is_no_answer(tmp_path):
    env = made(tmp_path)
    task = env.tasks("train", 0)[0]
    lost = replace(action(RIGHT), fault=Fault(kind="system", reason="aborted"))
    with pytest.raises(SystemFault):
        asyncio.run(env.step(env.reset(task, 0), {"coder": lost, "tester": action(TESTS)}, context(task)))


def test_each_role_earns_what_it_wrote(tmp_path):
    answers = {"coder": WRONG, "tester": TESTS}
    roles = {name: {"type": f"code_tests_{name}"} for name in answers}
    rewards = {"golden": {"type": "golden_tests"}, "quality": {"type": "test_quality"}}
    made_run = run(
        tmp_path, answers, PAIR, records=[ADD], env={"type": "code_tests"}, roles=roles, rewards=rewards
    )
    _, scores = play_episode(made_run)
    values = {(role, name): score.value for _, role, name, score in scores}
    share = values["team", "golden_tests"]
    assert 0.0 <= share < 1.0 and values["coder", "golden"] == share
    assert values["coder", "builds"] == values["coder", "runs"] == 1.0
    assert values["tester", "valid"] == values["tester", "right"] == 1.0
    assert not {("tester", "golden"), ("coder", "right")} & set(values)


def test_golden_tests_needs_a_role_of_the_team(tmp_path):
    tables = {"data": data_of(tmp_path), "sandbox": WARM}
    with pytest.raises(ConfigError, match="no role 'coder'") as refused:
        build("reward", "golden_tests", env={"type": "code_tests"}, order=["solver"], **tables)
    assert refused.value.path.endswith(".role") and "solver" in refused.value.fix
