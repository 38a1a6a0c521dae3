"""Environment `code_collab`: its game, its forms of a team, what it reports and tells."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from coterie.core.errors import ConfigError, DataError, PluginError, SystemFault
from coterie.core.types import Fault, all_passed
from coterie.plugins.envs.code.collab import CodeCollab
from coterie.plugins.envs.code.problem import Tests
from coterie.testing import build, check_environment, check_reward, check_role, play_episode
from coterie.testing.support.opening import opened
from tests.plugins.envs.code.problems import ADD, ROOT, SHIFT, SUM_LINES
from tests.plugins.envs.code.support import TEAM, data_of, environment, fenced, run
from tests.plugins.support import action, context

AUX, MAIN, ALONE = (fenced(ADD[key]) for key in ("aux_solution", "main_solution", "solution"))
ACT = [
    AUX,
    MAIN,
    ALONE,
    "no code here",
    fenced("def f(x, y):\n    return (\n"),
    fenced("def aux(x):\n    pass\n"),
]


def played(folder, answers, order=None, **settings):
    """(steps, outcome, environment) of turns in which the roles answer so."""

    async def go():
        env = environment(folder, order, **settings)
        async with opened(env, None):
            task = env.tasks("train", 0)[0]
            state, steps = env.reset(task, 0), []
            for turn, texts in enumerate(answers):
                step = await env.step(state, {r: action(t) for r, t in texts.items()}, context(task, turn))
                state = step.state
                steps.append(step)
            roles = answers[-1]
            told = {role: await env.findings(state, role, 0) for role in roles}
            return steps, env.outcome(state), told, env

    return asyncio.run(go())


@pytest.mark.parametrize("order", [TEAM, ["aux", "main"], ["solver"]])
def test_the_environment_conforms(tmp_path, order):
    roles = ["solver"] if order == ["solver"] else ["aux", "main"]
    env = environment(tmp_path, order)
    check_environment(env, roles=roles, order=order, act=ACT, episodes=4, turns=2, disjoint="content")


@pytest.mark.parametrize("source", ["code_structure", "unit_tests", "golden_tests"])
def test_reward_sources_conform(tmp_path, source):
    env = environment(tmp_path)
    tables = {"data": data_of(tmp_path), "sandbox": {"type": "local", "workers": 2}}
    settings = {"role": "main"} if source == "golden_tests" else {}
    reward = build("reward", {"type": source, **settings}, env={"type": "code_collab"}, order=TEAM, **tables)
    check_reward(reward, environment=env, roles=["aux", "main"], order=TEAM, act=ACT, episodes=3)


@pytest.mark.parametrize("name", ["aux", "main", "solver"])
def test_roles_conform(tmp_path, name):
    order = ["solver"] if name == "solver" else TEAM
    tables = {"data": data_of(tmp_path), "sandbox": {"type": "local", "workers": 2}}
    env = environment(tmp_path, order)
    role = build("role", f"code_{name}", name=name, order=order, env={"type": "code_collab"}, **tables)
    seen = env.observe(env.reset(env.tasks("train", 0)[0], 0), name)
    check_role(role, observations=[seen], good=[ALONE], feedback=["Tests: 1/2 passed"], name=name)


def test_two_parts_that_fit_solve_the_problem(tmp_path):
    [step], outcome, told, _ = played(tmp_path, [{"aux": AUX, "main": MAIN}])
    assert outcome == {"success": 1.0, "turns": 1.0, "syntax": 1.0, "pass_rate": 1.0, "aux_usage": 1.0}
    report = step.info["code"]
    assert (report["passed"], report["total"], report["called"], report["thin"]) == (2, 2, True, False)
    assert all_passed(told["aux"]) and all_passed(told["main"])
    assert json.loads(json.dumps(step.info)) == step.info, "plain data"


def test_main_can_not_replace_aux(tmp_path):
    cheat = fenced("def aux(x):\n    return x * x\n" + ADD["main_solution"])
    [step], outcome, _, _ = played(tmp_path, [{"aux": fenced("def aux(x):\n    return 0\n"), "main": cheat}])
    assert outcome["success"] == 0.0 and step.info["code"]["called"]


def test_code_over_its_limit_counts_as_missing(tmp_path):
    size = len("def f(x, y):\n    return aux(x) + aux(y)")
    for limit, solved in ((size, 1.0), (size - 1, 0.0)):
        record = {**ADD, "size_limit": limit}
        [step], outcome, told, _ = played(tmp_path, [{"aux": AUX, "main": MAIN}], records=[record])
        assert outcome["success"] == solved and step.info["code"]["main"] is bool(solved)
    assert any("1 characters over its limit" in line for f in told["main"] for line in f.details)


def test_a_solver_has_no_limit(tmp_path):
    [step], outcome, told, env = played(
        tmp_path, [{"solver": ALONE}], ["solver"], records=[{**ADD, "size_limit": 1}]
    )
    assert outcome["success"] == 1.0 and env.observe(step.state, "solver").size_limit is None
    assert not any(finding.name == "size" for finding in told["solver"])
    assert (
        environment(tmp_path, records=[{**ADD, "size_limit": 1}]).observe(step.state, "aux").size_limit
        is None
    )


def test_the_program_is_judged_when_the_last_role_of_the_turn_has_written(tmp_path):
    order = ["aux", "main"]
    steps, outcome, _, _ = played(tmp_path, [{"aux": AUX}, {"main": MAIN}], order)
    # Both are turn 0 in a run; here each has its own, so the helper's part is of an earlier turn.
    assert "code" not in steps[0].info and "code" not in steps[1].info and outcome["success"] == 0.0


def test_one_after_the_other_is_one_turn(tmp_path):
    texts = {"aux": AUX, "main": MAIN}
    (tree, *_), scores = play_episode(
        run(tmp_path, texts, ["aux", "main"], records=[ADD], sampler={"branches": 2})
    )
    leaves = [joint for _, joint in tree.leaves()]
    assert [leaf.outcome["success"] for leaf in leaves] == [1.0]
    values = [score.value for _, _, name, score in scores if name == "code_structure"]
    assert set(values) == {4.0}, "the helper's own step has no score yet"


def test_an_episode_ends_early_only_where_it_may(tmp_path):
    for settings, over in (({}, False), ({"end_when_solved": True}, True)):
        [step], _, _, env = played(tmp_path, [{"aux": AUX, "main": MAIN}], **settings)
        assert (env.acting_roles(step.state) == ()) is over


def test_a_lost_action_is_no_answer(tmp_path):
    env = environment(tmp_path)
    task = env.tasks("train", 0)[0]
    lost = replace(action(AUX), fault=Fault(kind="system", reason="aborted"))
    with pytest.raises(SystemFault):
        asyncio.run(env.step(env.reset(task, 0), {"aux": lost, "main": action(MAIN)}, context(task)))


def test_feedback_tests_are_the_hidden_ones_or_a_function_s(tmp_path):
    settings = {"feedback_tests": "tests.plugins.envs.code.test_collab:only_zero"}
    half = fenced("def f(x, y):\n    return aux(x) + aux(y) if x == 0 == y else None\n")
    [step], _, told, _ = played(tmp_path, [{"aux": AUX, "main": half}], **settings)
    report = step.info["code"]
    assert (report["passed"], report["visible_passed"], report["visible_total"]) == (0, 1, 1)
    tests = next(finding for finding in told["main"] if finding.name == "tests")
    assert tests.passed and tests.summary == "Tests: all 1 passed"


def only_zero(problem):
    return "assert f(0, 0) == 0\n"


@pytest.mark.parametrize(
    ("given", "what"), [(5, "gave 5"), (None, "gave None"), ("", "no assert"), ("assert f(", "is no Python")]
)
def test_feedback_tests_that_are_none_are_refused(tmp_path, given, what):
    with pytest.raises(PluginError, match="no feedback tests for the problem of 'f'") as refused:
        played(tmp_path, [{"aux": AUX, "main": MAIN}], feedback_tests=lambda problem: given)
    assert refused.value.path == "env.feedback_tests" and what in refused.value.why


async def later(problem):
    return "assert f(0, 0) == 0"


@pytest.mark.parametrize(("function", "what"), [(lambda: "", "TypeError"), (later, "gave <coroutine")])
def test_feedback_tests_that_fail_end_the_run(tmp_path, function, what):
    with pytest.raises(PluginError) as refused:
        played(tmp_path, [{"aux": AUX, "main": MAIN}], feedback_tests=function)
    assert refused.value.path == "env.feedback_tests" and what in refused.value.why


class GivesText(CodeCollab):
    def feedback_tests(self, problem):
        return only_zero(problem)


class GivesTests(CodeCollab):
    def feedback_tests(self, problem):
        return Tests(source=only_zero(problem))


class GivesNone(CodeCollab):
    def feedback_tests(self, problem):
        return Tests()


def test_a_subclass_that_gives_no_tests_is_named(tmp_path):
    table = {"type": "tests.plugins.envs.code.test_collab:GivesNone"}
    env = build("environment", table, order=TEAM, data=data_of(tmp_path), sandbox="local")
    with pytest.raises(PluginError, match="no feedback tests for the problem of 'f'"):
        env._shown_tests(env.tasks("train", 0)[0].payload)


@pytest.mark.parametrize("name", ["GivesText", "GivesTests"])
def test_a_subclass_may_give_the_feedback_tests(tmp_path, name):
    table = {"type": f"tests.plugins.envs.code.test_collab:{name}"}
    env = build("environment", table, order=TEAM, data=data_of(tmp_path), sandbox="local")
    assert env._shown_tests(env.tasks("train", 0)[0].payload) == Tests(source=only_zero(None))


def test_feedback_says_how_a_program_ended(tmp_path):
    endless = fenced("def f(x, y):\n    while True:\n        aux(x)\n    return x\n")
    _, _, told, _ = played(tmp_path, [{"aux": AUX, "main": endless}], limits={"cpu_seconds": 0.5})
    tests = next(finding for finding in told["main"] if finding.name == "tests")
    assert tests.details[1].endswith("-> CandidateEnded: timeout")
    record = {**ADD, "tests": "assert f(1, 2) == 5\nassert f(0, 3) == 9\n"}
    leaves = fenced("import os\ndef f(x, y):\n    if not x:\n        os._exit(3)\n    return aux(x) - y\n")
    _, _, told, _ = played(tmp_path, [{"aux": AUX, "main": leaves}], records=[record])
    tests = next(finding for finding in told["main"] if finding.name == "tests")
    wrong, ended = tests.details[1:]
    assert "f(1, 2)" in wrong and "exit code" not in wrong and ended.endswith("CandidateEnded: exit code 3")


def test_findings_have_the_role_s_own_part_first_and_the_failed_tests(tmp_path):
    wrong = fenced("def f(x, y):\n    return aux(x)\n")
    _, _, told, _ = played(tmp_path, [{"aux": AUX, "main": wrong}])
    assert [f.name for f in told["aux"]] == ["aux", "main", "syntax", "tests"]
    assert [f.name for f in told["main"]] == ["main", "aux", "syntax", "tests", "usage", "thin"]
    tests = next(f for f in told["main"] if f.name == "tests")
    assert tests.summary == "Tests: 1 of 2 passed"
    assert tests.details[0] == "Tests: 1/2 passed"
    assert "assert candidate(1, 2) == 5 -> AssertionError" in tests.details[1]


def test_a_slice_of_the_tests_is_what_feedback_tells_of(tmp_path):
    wrong = fenced("def f(x, y):\n    return aux(x)\n")

    async def go():
        env = environment(tmp_path)
        async with opened(env, None):
            task = env.tasks("train", 0)[0]
            step = await env.step(
                env.reset(task, 0), {"aux": action(AUX), "main": action(wrong)}, context(task)
            )
            parts = [await env.findings(step.state, "main", number) for number in (0, 1, -1)]
            return [next(f for f in findings if f.name == "tests").summary for findings in parts]

    assert asyncio.run(go()) == ["Tests: 1 of 2 passed", "Tests: none of 1 passed", "Tests: all 1 passed"]


def test_problems_of_test_are_left_out_of_train(tmp_path, caplog):
    env = build(
        "environment",
        {"type": "code_collab"},
        order=TEAM,
        data=data_of(tmp_path, train=[ADD, SHIFT], val=[ROOT], test=[SHIFT]),
        sandbox="local",
    )
    assert [task.payload.entry_point for task in env.tasks("train", 0)] == ["f"]
    assert "are also evaluated and are left out" in caplog.text


def test_a_problem_of_test_that_is_also_in_val_is_an_error(tmp_path):
    splits = {"train": [ADD], "val": [ROOT], "test": [ROOT]}
    table = data_of(tmp_path, **splits)
    env = build("environment", {"type": "code_collab"}, order=TEAM, data=table, sandbox="local")
    for split in ("train", "val", "test"):
        with pytest.raises(ConfigError, match="is also in val") as refused:
            env.tasks(split, 0)
        assert refused.value.path == "data.test"


def test_problems_of_test_are_left_out_of_val_of_a_known_set_with_one_warning(tmp_path, caplog):
    from tests.backends.data.sets.test_sets import humaneval, written

    rows = [humaneval(0), humaneval(1), {**humaneval(2), "prompt": humaneval(3)["prompt"]}, humaneval(3)]
    table = {"type": "humaneval", "file": str(written(tmp_path, rows))}
    splits = {"train": "test[:1]", "val": "test[1:3]", "test": "test[3:]"}
    env = build("environment", {"type": "code_collab"}, order=TEAM, data=table | splits, sandbox="local")
    sizes = [len(env.tasks(split, 0)) for split in ("train", "val", "test", "val")]
    assert sizes == [1, 1, 1, 1]
    assert caplog.text.count("1 of 2 val problems are also in test and are left out of val") == 1
    table |= {"train": "test[:1]", "val": "test[2:3]", "test": "test[3:]"}
    env = build("environment", {"type": "code_collab"}, order=TEAM, data=table, sandbox="local")
    with pytest.raises(ConfigError, match="share 1 of 1 problems of val"):
        env.tasks("val", 0)


def test_a_record_with_the_id_of_another_names_both_lines(tmp_path):
    table = data_of(tmp_path, train=[ADD, {**ROOT, "id": "x"}, {**SHIFT, "id": "x"}], val=[ADD], test=[ADD])
    env = build("environment", {"type": "code_collab"}, order=TEAM, data=table, sandbox="local")
    with pytest.raises(DataError, match=r"train\.jsonl, line 3, field 'id': 'x' is also the id of line 2 of"):
        env.tasks("train", 0)


def test_without_code_nothing_builds(tmp_path):
    [step], outcome, _, _ = played(tmp_path, [{"aux": "No idea.", "main": "42"}])
    assert outcome["syntax"] == 0.0 and step.info["code"]["builds"] is False
    [step], outcome, _, _ = played(tmp_path, [{"aux": AUX, "main": "No idea."}])
    assert outcome["syntax"] == 1.0 and step.info["code"]["builds"] is True


@pytest.mark.parametrize(
    ("order", "what"),
    [(["aux"], "are no team"), (["main", "solver"], "are no team"), (["planner"], "no role 'planner'")],
)
def test_other_teams_are_refused(tmp_path, order, what):
    with pytest.raises(ConfigError, match=what):
        environment(tmp_path, order)


def test_it_needs_problems_a_sandbox_and_functions(tmp_path):
    with pytest.raises(ConfigError, match="no problems"):
        build("environment", {"type": "code_collab"}, order=TEAM, sandbox="local")
    with pytest.raises(ConfigError, match="need a sandbox"):
        build("environment", {"type": "code_collab"}, order=TEAM, data=data_of(tmp_path))
    env = environment(tmp_path, records=[ADD, SUM_LINES])
    with pytest.raises(DataError, match="is for functions") as refused:
        env.tasks("train", 0)
    assert "train.jsonl" in str(refused.value) and "line 2" in str(refused.value)


def test_a_source_without_a_report_is_refused_by_its_path():
    with pytest.raises(ConfigError, match="gives no report 'code'") as refused:
        build("reward", {"type": "code_structure"})
    assert refused.value.path == "rewards.code_structure"


def test_prompts_show_the_task_the_feedback_and_what_to_write(tmp_path):
    answers = {"aux": AUX, "main": MAIN}
    made = run(
        tmp_path, answers, records=[{**ADD, "size_limit": 99}], max_turns=2, transition={"type": "diagnosis"}
    )
    trees, _ = play_episode(made)
    prompts = {
        (node.turn, role): decision.messages[-1]["content"]
        for node in trees[0].nodes()
        for role, decision in node.decisions.items()
    }
    assert "The sum of the squares" in prompts[0, "aux"] and "aux(...)" in prompts[0, "aux"]
    assert "f(x, y)" in prompts[0, "main"] and "at most 99 characters" in prompts[0, "main"]
    assert "99" not in prompts[0, "aux"]
