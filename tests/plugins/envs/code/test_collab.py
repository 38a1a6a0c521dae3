"""Environment `code_collab`: its game, its forms of a team, what it reports and tells."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from coterie.core.errors import ConfigError, DataError, PluginError, SystemFault
from coterie.core.protocols import RolloutJob
from coterie.core.types import Fault, all_passed
from coterie.plugins.envs.code.collab import CodeCollab
from coterie.plugins.envs.code.problem import Tests
from coterie.plugins.rewards.reports import levels
from coterie.testing import build, check_environment, check_reward, check_role, play_episode
from coterie.testing.support.opening import opened
from tests.plugins.envs.code.problems import ADD, HALF, ROOT, SHIFT, SUM_LINES
from tests.plugins.envs.code.support import TEAM, data_of, environment, fenced, run
from tests.plugins.envs.code.warm import WARM
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
    tables = {"data": data_of(tmp_path), "sandbox": WARM}
    settings = {"role": "main"} if source == "golden_tests" else {}
    reward = build("reward", {"type": source, **settings}, env={"type": "code_collab"}, order=TEAM, **tables)
    check_reward(reward, environment=env, roles=["aux", "main"], order=TEAM, act=ACT, episodes=3)


@pytest.mark.parametrize("name", ["aux", "main", "solver"])
def test_roles_conform(tmp_path, name):
    order = ["solver"] if name == "solver" else TEAM
    tables = {"data": data_of(tmp_path), "sandbox": WARM}
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


USELESS = fenced("def aux(x):\n    return 0\n")
RIGHT = ADD["main_solution"]
AT_THE_TOP = [
    "def aux(x):\n    return x * x\n",
    "aux = lambda v: v * v\n",
    "aux: object = lambda v: v * v\n",
    "aux, z = lambda v: v * v, 1\n",
    "z = (aux := lambda v: v * v)\n",
    "class aux(int):\n    def __new__(cls, v):\n        return v * v\n",
    "class Square:\n    global aux\n    aux = lambda v: v * v\n",
]
WITHIN = [
    "def aux(v):\n    return v * v",
    "aux = lambda v: v * v",
    "global aux\naux = lambda v: v * v",
    "from math import prod as aux\nx, y = [x, x], [y, y]",
    "try:\n    raise ValueError\nexcept ValueError as aux:\n    return x * x + y * y",
    "if False:\n    return aux(x)\nreturn x * x + y * y",
]


def reports(folder, *answers, **settings):
    """The report on each pair of answers (of aux, of main), each an episode's first turn."""

    async def go():
        env = environment(folder, **settings)
        async with opened(env, None):
            task = env.tasks("train", 0)[0]
            steps = [
                env.step(env.reset(task, 0), {"aux": action(aux), "main": action(main)}, context(task))
                for aux, main in answers
            ]
            return [step.info["code"] for step in await asyncio.gather(*steps)]

    return asyncio.run(go())


def test_main_can_not_replace_aux(tmp_path):
    found = reports(tmp_path, *((USELESS, fenced(replacing + RIGHT)) for replacing in AT_THE_TOP))
    assert [(report["called"], report["passed"]) for report in found] == [(True, 0)] * len(AT_THE_TOP)


def test_an_aux_of_main_s_own_earns_what_a_main_without_a_helper_earns(tmp_path):
    lines = [[*statements.split("\n"), "return aux(x) + aux(y)"] for statements in WITHIN]
    bodies = ["".join(f"    {line}\n" for line in of) for of in lines]
    found = reports(tmp_path, *((USELESS, fenced(f"def f(x, y):\n{body}")) for body in bodies))
    assert [(report["passed"], levels(report)) for report in found] == [(2, 2.5)] * len(WITHIN)


BRANCHES = [  # of the original's decisions, in their order; ADD has two tests
    ("no aux, no main", "no code", "no code", 0.0),
    ("aux without a return, no main", fenced("def aux(x):\n    pass\n"), "no code", 0.0),
    ("no main: it stops", AUX, "no code", 0.4),
    ("main without a return: it stops", AUX, fenced("def f(x, y):\n    aux(x)\n"), 0.4),
    ("no aux, and main doesn't parse: it stops", "no code", fenced("def f(x, y):\n    return (x\n"), 0.6),
    ("main doesn't parse: it stops", AUX, fenced("def f(x, y):\n    return (x\n"), 1.0),
    ("aux doesn't parse: it stops", fenced("def aux(x):\n    return (x\n"), MAIN, 1.0),
    ("no test passes", AUX, fenced("def f(x, y):\n    return aux(x) * aux(y) + 3\n"), 1.5),
    ("the program can't be loaded", AUX, fenced("T = {}['x']\n" + RIGHT), 1.5),
    ("half of the tests pass, by a call", AUX, fenced("def f(x, y):\n    return aux(x) + 0\n"), 3.5),
    ("half of the tests pass, without a call", AUX, fenced("def f(x, y):\n    return x * x\n"), 2.0),
    ("a call", AUX, MAIN, 4.0),
    ("no call", AUX, ALONE, 2.5),
    ("no aux, and no call", "no code", ALONE, 2.1),
    ("no aux to call", "no code", MAIN, 1.1),
    ("a thin wrapper", fenced(ADD["solution"].replace("def f", "def aux")), fenced(
        "def f(x, y):\n    return aux(x, y)\n"), 3.0),
    ("a thin wrapper in two lines", fenced(ADD["solution"].replace("def f", "def aux")), fenced(
        "def f(x, y):\n    z = aux(x, y)\n    return z\n"), 3.0),
    ("an ignored result", AUX, fenced("def f(x, y):\n    aux(x)\n    return x * x + y * y\n"), 3.5),
    # The original pays for a call of an aux that returns nothing.
    ("an aux without a return", fenced("def aux(x):\n    pass\n"), fenced(
        "def f(x, y):\n    z = [aux(x)]\n    return (x * x + y * y, z)[0]\n"), 2.1),
]  # fmt: skip


def test_the_reward_has_the_branches_of_the_original(tmp_path):
    found = reports(tmp_path, *((aux, main) for _, aux, main, _ in BRANCHES))
    earned = {name: levels(report) for (name, *_), report in zip(BRANCHES, found, strict=True)}
    assert earned == pytest.approx({name: value for name, *_, value in BRANCHES})


def test_a_program_that_can_t_be_loaded_builds_and_does_not_run(tmp_path):
    broken = fenced("TABLE = {}['x']\n" + RIGHT)
    [step], _, _, _ = played(tmp_path, [{"aux": AUX, "main": broken}])
    assert step.info["code"]["builds"] and not step.info["code"]["runs"]


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


VISIBLE = {**ADD, "visible_tests": "assert f(0, 0) == 0\n"}
HALF_RIGHT = fenced("def f(x, y):\n    return aux(x) + aux(y) if x == 0 == y else None\n")


def told_of(folder, *, evaluation=False, role="main", **settings):
    """(the finding on tests, the diagnosis, what was counted) after a turn of a half right program."""

    async def go():
        env = environment(folder, **settings)
        async with opened(env, None):
            task = env.tasks("train", 0)[0]
            ctx = replace(context(task), evaluation=evaluation)
            step = await env.step(env.reset(task, 0), {"aux": action(AUX), "main": action(HALF_RIGHT)}, ctx)
            found = await env.findings(step.state, role, 0)
            counted = env.counted()
            return next(f for f in found if f.name == "tests"), await env.diagnose(step.state, role), counted

    return asyncio.run(go())


def test_feedback_is_of_the_tests_that_come_with_a_problem(tmp_path):
    """They say nothing of the answers that decide success."""
    tests, diagnosis, counted = told_of(tmp_path, records=[VISIBLE])
    assert tests.passed and tests.summary == "Tests: all 1 passed"
    assert "candidate" not in diagnosis and "feedback/hidden_tests" not in counted
    assert env_visible(tmp_path, VISIBLE) == (1, 1)


def env_visible(folder, record):
    [step], _, _, _ = played(folder, [{"aux": AUX, "main": HALF_RIGHT}], records=[record])
    return step.info["code"]["visible_passed"], step.info["code"]["visible_total"]


@pytest.mark.parametrize("settings", [{}, {"feedback_tests": "visible"}, {"feedback_tests": "hidden"}])
def test_without_them_or_by_a_word_it_is_of_the_hidden_ones_and_counted(tmp_path, settings):
    records = [VISIBLE] if settings.get("feedback_tests") == "hidden" else [ADD]
    tests, diagnosis, counted = told_of(tmp_path, records=records, **settings)
    assert tests.summary == "Tests: none of 2 passed" and "assert candidate(1, 2) == 5" in tests.details[1]
    assert "== 5" in diagnosis and counted["feedback/hidden_tests"] == 1


@pytest.mark.parametrize("settings", [{}, {"feedback_tests": "hidden"}])
def test_an_evaluation_never_shows_a_hidden_test(tmp_path, settings):
    tests, diagnosis, counted = told_of(tmp_path, evaluation=True, records=[ADD], **settings)
    assert tests.summary == "Tests: none of 2 passed" and not tests.passed
    assert not any("assert" in line for line in tests.details) and "assert" not in diagnosis
    assert "feedback/hidden_tests" not in counted


def test_an_evaluation_shows_the_visible_tests(tmp_path):
    wrong = {**VISIBLE, "visible_tests": "assert f(0, 1) == 1\n"}
    tests, _, _ = told_of(tmp_path, evaluation=True, records=[wrong])
    assert "assert f(0, 1) == 1" in tests.details[1]


SAME = [
    "assert f(1, 2) == 5\nassert f(0, 1) == 1\n",
    "assert f(0, 1) == 1\n\n\nassert   f(1,2)==(5), 'why'  # the same\n",
    "def check(candidate):\n    assert candidate(1, 2) == 5\n    assert candidate(0, 1) == 1\n",
]


@pytest.mark.parametrize("visible", SAME)
@pytest.mark.parametrize("evaluation", [False, True])
def test_a_visible_test_that_is_a_hidden_one_too_is_shown_in_training_alone(tmp_path, visible, evaluation):
    record = {**ADD, "visible_tests": visible}
    tests, diagnosis, counted = told_of(tmp_path, evaluation=evaluation, records=[record])
    assert tests.summary == "Tests: none of 2 passed" and "(0, 1) == 1" in diagnosis
    assert ("5" in diagnosis) is not evaluation
    assert counted.get("feedback/hidden_tests", 0) == (not evaluation)


def test_a_run_s_evaluation_is_told_to_its_environment(tmp_path):
    """Turn 2 of an evaluation reads no hidden test, turn 2 of training does."""
    answers = {"aux": AUX, "main": HALF_RIGHT}
    made = run(tmp_path, answers, records=[ADD], max_turns=2, transition={"type": "level_feedback"})

    async def go():
        async with opened(made):
            jobs = [
                RolloutJob(task=made.environment.tasks("train", 0)[0], evaluation=evaluation)
                for evaluation in (False, True)
            ]
            return (await made.play(jobs)).trees

    shown = [
        {
            ("== 5" in prompt, "Tests: 0/2 passed" in prompt)
            for node in tree.nodes()
            if node.turn
            for prompt in (decision.messages[-1]["content"] for decision in node.decisions.values())
        }
        for tree in asyncio.run(go())
    ]
    assert shown == [{(True, True)}, {(False, True)}]


@pytest.mark.parametrize(
    ("records", "env", "transition", "turns", "said"),
    [
        ([ADD, VISIBLE], {}, "level_feedback", 2, "1 of 2 problems of train have no visible tests"),
        ([ADD], {}, "diagnosis", 2, "1 of 1 problems of train have no visible tests"),
        ([VISIBLE], {}, "level_feedback", 2, ""),
        ([ADD], {"feedback_tests": "hidden"}, "level_feedback", 2, ""),
        ([ADD], {"feedback_tests": "tests.plugins.envs.code.test_collab:only_zero"}, "diagnosis", 2, ""),
        ([ADD], {}, "level_feedback", 1, ""),
        ([ADD], {}, "passed", 2, ""),
        ([ADD], {}, "plain", 2, ""),
    ],
)
def test_a_run_that_would_show_hidden_tests_says_so_once_at_its_start(
    tmp_path, caplog, records, env, transition, turns, said
):
    texts = {"aux": AUX, "main": MAIN}
    data = [{**record, "id": str(n), "prompt": f"{n} {record['prompt']}"} for n, record in enumerate(records)]
    made = run(tmp_path, texts, records=data, env=env, max_turns=turns, transition={"type": transition})
    for _ in range(2):
        made.environment.tasks("train", 0)
    assert caplog.text.count("have no visible tests") == bool(said) and said in caplog.text


def test_feedback_tests_may_be_a_function_s(tmp_path):
    settings = {"feedback_tests": "tests.plugins.envs.code.test_collab:only_zero"}
    [step], _, told, _ = played(tmp_path, [{"aux": AUX, "main": HALF_RIGHT}], **settings)
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
        env.tests_shown(env.tasks("train", 0)[0].payload)


@pytest.mark.parametrize("name", ["GivesText", "GivesTests"])
def test_a_subclass_may_give_the_feedback_tests(tmp_path, name):
    table = {"type": f"tests.plugins.envs.code.test_collab:{name}"}
    env = build("environment", table, order=TEAM, data=data_of(tmp_path), sandbox="local")
    assert env.tests_shown(env.tasks("train", 0)[0].payload) == Tests(source=only_zero(None))


def test_feedback_says_how_a_program_ended(tmp_path):
    endless = fenced("def f(x, y):\n    while True:\n        aux(x)\n    return x\n")
    _, _, told, _ = played(tmp_path, [{"aux": AUX, "main": endless}], limits={"cpu_seconds": 0.2})
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


def test_an_id_may_be_a_number(tmp_path):
    table = data_of(tmp_path, train=[{**ADD, "id": 0}, {**SHIFT, "id": 7}], val=[ROOT])
    env = build("environment", {"type": "code_collab"}, order=TEAM, data=table, sandbox="local")
    assert [task.id for task in env.tasks("train", 0)] == ["train-0", "train-7"]


def test_problems_that_repeat_within_a_split_are_told_with_their_places(tmp_path, caplog):
    table = data_of(tmp_path, train=[ADD, SHIFT, {**ADD, "id": "again"}], val=[ROOT], test=[HALF])
    env = build("environment", {"type": "code_collab"}, order=TEAM, data=table, sandbox="local")
    places = [env.place(task) for task in env.tasks("train", 0)]
    assert [place.rpartition(":")[2] for place in places] == ["1", "2", "3"]
    told = f"an id of their own: {places[2]} (= {places[0]})"
    assert "split 'train': 1 of 3 problems repeat" in caplog.text and told in caplog.text


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
