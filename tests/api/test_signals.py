"""A run that learns nothing says so: once, by a metric, and in its last line; one that learns doesn't."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import coterie
from coterie.api.signals import FLAT, RULES, WINDOW, Signals, summary
from coterie.compose import compose
from tests.cli.support import coterie as command
from tests.test_resume import same

RECIPES = Path(__file__).parents[1] / "recipes"
TABULAR = RECIPES / "tabular.yaml"
GREEDY = (
    "sampler.sampling.temperature=0",
    "schedule.tasks_per_step=1",
    "schedule.evaluate_every=0",
    "schedule.checkpoint_every=5",
)
HEALTHY = {
    "success": 0.25,
    "reward/solver": 0.5,
    "reward/checker": 0.0,
    "groups/solver/zero_variance": 0.5,
    "groups/solver/too_small": 0.0,
    "advantage/solver/abs": 0.25,
    "length/solver": 40.0,
    "finish_length/solver": 0.25,
    "faults/solver/policy": 0.25,
    "policy/shared/optimizer_steps": 1.0,
    "policy/shared/skipped_steps": 0.0,
    "policy/shared/grad_norm": 0.1,
    "policy/shared/entropy": 1.5,
}
"""A row of a team whose checker earns nothing by itself and is in no group."""
FLAT_GROUPS = {"groups/solver/zero_variance": 1.0, "advantage/solver/abs": 0.0}
SIGNS = {
    "equal_rewards": FLAT_GROUPS,
    "zero_gradient": {"policy/shared/grad_norm": 0.0},
    "gradient_not_finite/shared": {
        "policy/shared/optimizer_steps": 0.0,
        "policy/shared/skipped_steps": 1.0,
        "policy/shared/grad_norm": None,
    },
    "entropy_collapse/shared": {"policy/shared/entropy": 0.001},
    "truncated/solver": {"finish_length/solver": 1.0},
    "unreadable/solver": {"faults/solver/policy": 0.95},
    "reward_unchanged": {"reward/solver": 0.125},
}
"""What the rows of each sign have in place of the healthy ones' values."""


def steps(changes=(), count=WINDOW, **every):
    """Rows of a run whose reward moves; `changes` by step."""
    return [
        {**HEALTHY, "reward/solver": 0.5 + step / 100, **every, **dict(changes).get(step, {})}
        for step in range(1, count + 1)
    ]


def watched(rows):
    """What the signals add to each row."""
    signals = Signals()
    return [set(signals(step, row)) for step, row in enumerate(rows, 1)], signals


def stored(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# ------------------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize("name", SIGNS)
def test_each_sign_is_told_once_when_it_has_lasted(name, caplog):
    added, signals = watched(steps(count=WINDOW + 3, **SIGNS[name]))
    assert not any(added[: WINDOW - 1]), "a short while is no sign"
    assert added[WINDOW - 1 :] == [{f"signal/{name}"}] * 4
    (line,) = caplog.messages
    rule = next(rule for rule in RULES if rule.name == name.partition("/")[0])
    assert f"steps 1-{WINDOW} (signal/{rule.name})" in line and rule.says in line and rule.helps in line
    assert rule.subjects == "run" or f"'{name.partition('/')[2]}'" in line
    assert signals.signs == {name: (1, WINDOW + 3)}


@pytest.mark.parametrize("name", SIGNS)
def test_one_step_without_it_is_enough_to_say_nothing(name):
    changes = {WINDOW // 2: {key: HEALTHY[key] for key in SIGNS[name]}}
    if name in ("truncated/solver", "unreadable/solver"):  # these are shares over all steps
        changes[WINDOW // 2] = {key: 0.0 for key in SIGNS[name]}
        changes[WINDOW // 2 + 1] = changes[WINDOW // 2]
    added, _ = watched(steps(changes, **SIGNS[name]))
    assert not any(added)


def test_rewards_that_are_missing_are_neither_equal_nor_unchanged():
    lost = {"reward/solver": None, "reward/checker": None, **FLAT_GROUPS}
    added, _ = watched(steps({n: lost for n in range(1, WINDOW + 4)}, count=WINDOW + 3))
    assert not any(added)
    lost["reward/checker"] = 0.0
    added, _ = watched(steps({n: lost for n in range(1, WINDOW + 4)}, count=WINDOW + 3))
    assert added[-1] == {"signal/equal_rewards", "signal/reward_unchanged"}


def test_every_rule_has_rows_here():
    assert {name.partition("/")[0] for name in SIGNS} == {rule.name for rule in RULES}


def test_a_team_that_learns_is_told_nothing(caplog):
    added, signals = watched(steps(count=3 * WINDOW))
    assert not any(added) and not caplog.messages and signals.signs == {}


@pytest.mark.parametrize("key", ["success", "success_committed"])
def test_equal_rewards_of_a_team_that_has_learned_are_no_sign(key):
    bare = {name: value for name, value in HEALTHY.items() if name != "success"}
    learned = {**bare, **FLAT_GROUPS, "policy/shared/entropy": 0.0, "policy/shared/grad_norm": 0.0}
    assert watched([{**learned, key: 0.95}] * WINDOW)[1].signs == {}
    assert len(watched([{**learned, key: 0.85}] * WINDOW)[1].signs) == 4


def test_a_role_whose_actions_do_not_matter_is_no_sign():
    partner = {"groups/checker/zero_variance": 0.0, "groups/checker/too_small": 0.0}
    rows = steps(**FLAT_GROUPS, **partner, **{"advantage/checker/abs": 0.5})
    assert not any(watched(rows)[0])
    frozen = steps(**{"policy/other/grad_norm": 0.0, "policy/other/optimizer_steps": 1.0})
    assert not any(watched(frozen)[0])


def test_a_lone_action_without_a_baseline_is_compared_with_nothing_and_learns():
    """An estimator without a baseline has groups of one row: equal rewards, and advantages all the same."""
    assert not any(watched(steps(**{**FLAT_GROUPS, "advantage/solver/abs": 0.25}))[0])


def test_dropped_groups_have_no_advantage_and_a_stray_one_saves_no_run():
    dropped = [
        {key: value for key, value in row.items() if key != "advantage/solver/abs"}
        for row in steps(**{**FLAT_GROUPS, "policy/shared/optimizer_steps": 0.0})
    ]
    for row in dropped:
        del row["policy/shared/grad_norm"]
    assert set(watched(dropped)[1].signs) == {"equal_rewards", "zero_gradient"}
    stray = 1 - FLAT
    dropped[4] |= {"groups/solver/zero_variance": 1 - 5 * stray, "advantage/solver/abs": 0.25}
    assert "equal_rewards" in watched(dropped)[1].signs
    dropped[4] |= {"groups/solver/zero_variance": 1 - 15 * stray}
    assert "equal_rewards" not in watched(dropped)[1].signs


def test_an_estimator_without_groups_is_judged_by_its_advantages():
    bare = {key: value for key, value in HEALTHY.items() if not key.startswith("groups/")}
    assert "equal_rewards" in watched([{**bare, "advantage/solver/abs": 0.0}] * WINDOW)[1].signs
    assert "equal_rewards" not in watched([{**bare, "advantage/solver/abs": 0.1}] * WINDOW)[1].signs


def test_a_short_answer_that_ends_at_its_limit_is_no_sign_unless_nothing_succeeds():
    moves = {"finish_length/solver": 1.0, "length/solver": 5.0}
    assert not any(watched(steps(**moves))[0])
    assert watched(steps(**moves, success=0.0))[1].signs.keys() == {"truncated/solver"}


def test_nan_and_null_say_the_same():
    nan, null = ([{**HEALTHY, "policy/shared/entropy": value}] * WINDOW for value in (math.nan, None))
    assert watched(nan)[1].signs == watched(null)[1].signs == {"reward_unchanged": (1, WINDOW)}


def test_the_last_line_says_what_still_holds_and_what_has_passed():
    signs = {"truncated/planner": (1, 20), "truncated/executor": (1, 20), "reward_unchanged": (3, 14)}
    line = "no signal: truncated (planner, executor) since step 1; reward_unchanged in steps 3-14"
    assert summary(signs, 20) == line


# -------------------------------------------------------------------------------------------------- in a run


def test_a_run_at_temperature_0_is_told_at_start_during_the_run_and_at_its_end(tmp_path):
    done = command("run", TABULAR, *GREEDY, f"schedule.steps={WINDOW + 2}", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.stderr
    start = "role 'planner' samples at temperature 0: all its answers to one prompt are equal"
    assert done.stderr.count(start) == 1 and done.stderr.count("(signal/equal_rewards)") == 1
    assert "no signal: equal_rewards since step 1; zero_gradient since step 1" in done.stderr
    flags = [row.get("signal/equal_rewards") for row in stored(tmp_path / "run")]
    assert flags == [None] * (WINDOW - 1) + [1.0] * 3


def test_a_resumed_run_does_not_repeat_what_it_told(tmp_path, caplog):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    coterie.train(TABULAR, overrides=[*GREEDY, f"schedule.steps={WINDOW + 4}"], out=whole)
    coterie.train(TABULAR, overrides=[*GREEDY, f"schedule.steps={WINDOW + 2}"], out=parts)
    assert "(signal/equal_rewards)" in caplog.text
    caplog.clear()
    result = coterie.train(resume=parts, overrides=[f"schedule.steps={WINDOW + 4}"])
    assert "(signal/" not in caplog.text
    assert result.signals["equal_rewards"] == (1, WINDOW + 4)
    same(whole, parts)


def test_a_resumed_run_looks_back_on_the_steps_before(tmp_path, caplog):
    overrides = [*GREEDY, f"schedule.steps={WINDOW - 2}"]
    assert coterie.train(TABULAR, overrides=overrides, out=tmp_path / "run").signals == {}
    result = coterie.train(resume=tmp_path / "run", overrides=[f"schedule.steps={WINDOW}"])
    assert caplog.text.count("(signal/equal_rewards)") == 1
    assert result.signals["equal_rewards"] == (1, WINDOW)


def test_a_run_that_learns_says_nothing(tmp_path, caplog):
    overrides = [f"schedule.steps={WINDOW + 5}", "schedule.evaluate_every=0"]
    result = coterie.train(RECIPES / "matrix.yaml", overrides=overrides, out=tmp_path / "run")
    assert result.signals == {} and "no signal" not in caplog.text
    assert not [key for row in stored(tmp_path / "run") for key in row if key.startswith("signal/")]


@pytest.mark.parametrize(
    ("overrides", "warnings"),
    [
        ([], 2),
        (["policies.shared.train=none"], 0),
        (["sampler.branches=1", "algorithm={type: reinforce}", "env.team=potential"], 0),
        (["sampler.roles.planner.temperature=1"], 1),
    ],
)
def test_the_start_warns_of_each_role_whose_compared_answers_are_equal(overrides, warnings, caplog):
    compose(coterie.load(TABULAR, overrides=[GREEDY[0], *overrides]))
    assert caplog.text.count("samples at temperature 0") == warnings
