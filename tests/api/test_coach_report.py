"""The report on a coach: its rule over simulated coaches, and a run's folder as it is read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from coach_relay import Relay, RuleCoach, parts_of, relay_table, right

import coterie
from coterie import Plugin
from coterie.api.coach_report import coach_report
from coterie.api.coach_statistics import (
    ScoredActions,
    correlation_interval,
    effects,
    rank_correlation,
    ranks,
)
from coterie.cli.commands.run import report as finished
from coterie.core.errors import RunFolderError, UserError
from tests.api.coach_simulation import JUDGING, SETTING, alarms, simulated
from tests.backends.remote.server import MODEL, OpenAIServer
from tests.cli.support import coterie as command


def test_the_seeds_that_set_the_bounds_judge_nothing():
    assert not set(SETTING) & set(JUDGING)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, ((), False)), ({"favour": 1.0}, (("c",), False)), ({"drift": 1.0}, ((), True))],
    ids=["honest", "favours a role", "drifts"],
)
def test_the_rule_on_seeds_that_had_no_part_in_it(settings, expected):
    """At most one miss, and one false alarm, of each kind of coach."""
    results = [alarms(effects(simulated(seed, **settings))) for seed in JUDGING]
    assert sum(result != expected for result in results) <= 1, results


def test_raw_means_differ_although_the_coach_is_honest():
    actions = simulated(3)
    means = [actions.score[actions.role == role].mean() for role in ("a", "b", "c")]
    assert means[2] - means[0] > 1.0
    assert alarms(effects(actions)) == ((), False)


def test_a_coach_that_favours_a_role_and_drifts_has_both_warnings():
    assert alarms(effects(simulated(1, favour=-1.0, drift=-1.0))) == (("c",), True)


def test_ranks_and_correlations_by_hand():
    values = np.array([3.0, 1.0, 3.0, 7.0])
    assert ranks(values).tolist() == [2.5, 1.0, 2.5, 4.0]
    assert rank_correlation(values, -values) == pytest.approx(-1.0)
    # Ranks 1 2 3 4 5 and 2 1 4 3 5: 1 - 6 * 4 / (5 * 24) = .8.
    assert rank_correlation(np.arange(5.0), np.array([2.0, 1, 4, 3, 5])) == pytest.approx(0.8)
    assert math.isnan(rank_correlation(np.ones(4), np.arange(4.0)))
    low, high = correlation_interval(0.8, 50)
    assert 0.6 < low < 0.8 < high < 0.9


def columns(scores, quality, roles, steps=None, tasks=None, kinds=None):
    count = len(scores)
    return ScoredActions(
        score=np.array(scores, dtype=float),
        quality=np.array(quality, dtype=float),
        role=np.array(roles),
        kind=np.array(kinds if kinds is not None else [""] * count),
        step=np.array(steps if steps is not None else [1] * count),
        task=np.array(tasks if tasks is not None else [str(n) for n in range(count)]),
    )


def test_bias_by_hand():
    """Two roles, verified right or wrong; `b` gets exactly two points more than `a` at either quality."""
    rng = np.random.default_rng(0)
    noise = rng.permutation(np.repeat([-0.5, 0.5], 100))
    quality, roles = np.tile([0, 0, 1, 1], 50), np.tile(["a", "b"], 100)
    balanced = np.concatenate([[-0.5] * 100, [0.5] * 100])
    result = effects(columns(3 + 4 * quality + 2 * (roles == "b") + balanced, quality, roles))
    assert result.roles["b"].value == pytest.approx(2.0) and result.roles["a"].value == pytest.approx(-2.0)
    assert result.biased_roles == ("b",) and result.drift is None
    # Heteroscedasticity-robust error of a difference of means of 100 each with residuals of .5: .0707.
    assert result.roles["b"].error == pytest.approx(0.5 * math.sqrt(2 / 100), rel=0.03)
    silent = effects(columns(3 + 4 * quality + noise, quality, roles))
    assert silent.biased_roles == ()


def test_repeated_scores_of_one_task_are_no_further_evidence():
    quality, roles = np.tile([0.0, 1.0], 60), np.repeat(["a", "b"], 60)
    scores = 5 + (roles == "b") + np.tile([0, 0, 1, -1], 30)
    single = effects(columns(scores, quality, roles)).roles["b"]
    copies = effects(
        columns(
            np.tile(scores, 9), np.tile(quality, 9), np.tile(roles, 9), tasks=[str(n) for n in range(120)] * 9
        )
    ).roles["b"]
    assert copies.value == pytest.approx(single.value)
    assert copies.error == pytest.approx(single.error, rel=0.05)


def test_task_types_are_compared_too():
    quality, roles = np.tile([0, 1], 100), np.tile(["a", "a", "b", "b"], 50)
    kinds = np.tile(["regression"] * 4 + ["classification"] * 4, 25)
    scores = 2 + 4 * quality + 1.5 * (kinds == "regression") + np.tile([0.25, 0.25, -0.25, -0.25], 50)
    result = effects(columns(scores, quality, roles, kinds=kinds))
    assert result.kinds["regression"].value == pytest.approx(1.5)
    assert result.biased_kinds == ("regression",)


def test_too_few_actions_have_no_effects():
    assert effects(columns([5.0] * 10, [1.0] * 10, ["a", "b"] * 5)) is None


# ------------------------------------------------------------------------------------------ a run's folder


def train(folder, model=None, quality=True, rewards=None, env="VerifiedRelay", coach=None, **schedule):
    table = relay_table()
    if quality:
        table["env"] = {"type": f"{__name__}:{env}", "tasks": 6 if env == "Apart" else 48}
    return coterie.train(
        {
            **table,
            "policies": {"shared": {"model": {"init": "tabular"}}},
            "rewards": {
                "environment": {"type": "environment"},
                "coach": {
                    "type": "coach",
                    "model": {"type": "coach_relay:RuleCoach", "noise": 1.0, **(model or {})},
                    **(coach or {}),
                },
                **(rewards or {}),
            },
            "sampler": {"chains": 1 if env == "Apart" else 2, "sampling": {"max_new_tokens": 1}},
            "algorithm": {"type": "reinforce_pp", "beta": 0.0, "truncated": "keep"},
            "engine": "tabular",
            "trainer": {"type": "tabular", "learning_rate": 0.5},
            "schedule": {"steps": 4, "tasks_per_step": 6, **schedule},
        },
        out=folder,
    )


class VerifiedRelay(Relay):
    """The relay with a verified score of every action, which has weight 0."""

    components = {"right": "increment", "correct": "increment"}
    weights = {"correct": 0.0}

    async def step(self, state, actions, ctx):
        ((role, action),) = actions.items()
        seen = self.observe(state, role)
        correct = seen.isdigit() and action.text == str(right(role, int(seen)))
        step = await super().step(state, actions, ctx)
        return replace(step, scores={**step.scores, (role, "correct"): float(correct)})


class ConstantRelay(VerifiedRelay):
    """A verifier that says of every action the same."""

    async def step(self, state, actions, ctx):
        step = await super().step(state, actions, ctx)
        return replace(step, scores={key: 1.0 for key in step.scores})


class LostRelay(VerifiedRelay):
    """A verifier that is away for `fetch` alone, or, where `role` is empty, for all."""

    role = "fetch"

    async def step(self, state, actions, ctx):
        step = await super().step(state, actions, ctx)
        lost = {(role, name): None for role, name in step.scores if name == "correct" and self.role in role}
        return replace(step, scores={**step.scores, **lost})


class AwayRelay(LostRelay):
    role = ""


class Apart(Relay):
    """What a role sees names the task, so that no two questions are equal."""

    def observe(self, state, role):
        return " ".join(map(str, (state[0], *state[1])))


def test_the_report_of_a_run(tmp_path, capsys):
    finished(train(tmp_path / "run"))
    assert f"coterie coach {tmp_path / 'run'}" in capsys.readouterr().err, (
        "a run with a coach names its report"
    )
    report = coach_report(tmp_path / "run")
    assert (report.source, report.verified, report.steps) == ("coach", "correct", 4)
    assert report.actions == 4 * 6 * 2 * 3 and report.missing == 0
    assert report.agreement["quality"]["rho"] > 0.2 and set(report.agreement["quality"]["roles"]) == {
        "fetch", "transform", "report",
    }  # fmt: skip
    assert set(report.effects.kinds) == {"low", "high"} and report.effects.drift is not None
    assert report.versions == {"rules-1": 1}
    assert report.cost["answers"] == report.actions and report.cost["asked_again"] == 0
    done = command("coach", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)
    assert table["actions"] == report.actions and set(table["bias"]["roles"]) == set(report.means)
    shown = " ".join(command("coach", tmp_path / "run").stdout.split())
    assert "drift in 50 steps" in shown and "quality correct (the environment's only score" in shown
    for role, effect in [*table["bias"]["roles"].items(), ("steps (ci95):", table["drift_in_50_steps"])]:
        low, high = effect["ci95"]
        assert high - effect["points"] == pytest.approx(1.959964 * effect["points"] / effect["t"])
        assert f"{effect['points']:+.2f} [{low:+.2f}, {high:+.2f}]" in shown.split(f" {role} ", 1)[1]


def test_without_a_verified_quality_the_report_says_what_it_cannot_tell(tmp_path):
    train(tmp_path / "run", quality=False, steps=2)
    report = coach_report(tmp_path / "run")
    assert report.effects is None and report.verified == "" and report.agreement["quality"] is None
    assert report.agreement["outcome"]["n"] == report.actions
    assert "neither whether a role is favoured" in report.limits[0] and not any(
        "equal quality" in warning for warning in report.warnings
    )


@pytest.mark.parametrize(
    ("env", "why", "roles"),
    [
        (
            "ConstantRelay",
            "agreement with 'correct': all verified qualities are 1",
            "all verified qualities are 1",
        ),
        ("LostRelay", "agreement with 'correct' of fetch: 0 actions have both, and three are needed", None),
        ("AwayRelay", "agreement with 'correct': it is missing for every scored action", None),
    ],
)
def test_what_the_verifier_cannot_tell_has_a_reason(env, why, roles, tmp_path):
    train(tmp_path / "run", env=env, steps=2, max_missing=1.0)
    shown = command("coach", tmp_path / "run")
    assert f"not known: {why}" in shown.stdout, shown.stdout
    table = json.loads(command("coach", tmp_path / "run", "--json").stdout)
    assert why in table["limits"] and table["verified"] == "correct"
    if roles:
        agreement = table["agreement"]["quality"]
        assert agreement["rho"] is None and agreement["why"] == roles
        assert {part["why"] for part in agreement["roles"].values()} == {roles}
    elif env == "LostRelay":
        agreement = table["agreement"]["quality"]
        assert agreement["why"] is None and agreement["roles"]["fetch"]["why"].startswith("0 actions")


def style(view):
    return float(len(view.action.text))


STYLE = {"style": {"type": "function", "function": f"{__name__}:style", "scope": "action"}}


class Style(Plugin):
    """Scores single actions under a name that the configuration doesn't have."""

    scope, components, weights, policy_fault = "action", {"beauty": "increment"}, {}, 0.0

    async def score(self, view):
        return {(view.role, "beauty"): style(view)}


def test_another_sources_score_is_no_verified_quality_by_itself(tmp_path):
    train(tmp_path / "named", quality=False, rewards=STYLE, steps=1)
    report = coach_report(tmp_path / "named")
    assert report.verified == "" and "no component of the environment" in report.limits[0]
    assert coach_report(tmp_path / "named", quality="style").verified == "style"
    train(tmp_path / "both", rewards=STYLE, steps=1)
    assert coach_report(tmp_path / "both").verified == "correct"
    train(tmp_path / "open", quality=False, rewards={"looks": {"type": f"{__name__}:Style"}}, steps=1)
    report = coach_report(tmp_path / "open")
    assert (
        report.verified == "" and "beauty may be of rewards.looks: name it by --quality" in report.limits[0]
    )


def test_a_coach_verifies_no_coach(tmp_path):
    second = {"tutor": {"type": "coach", "model": "coach_relay:RuleCoach", "component": "tutored"}}
    train(tmp_path / "run", quality=False, rewards=second, steps=1)
    assert coach_report(tmp_path / "run", source="coach").verified == ""
    for quality in ("process", "tutored"):
        with pytest.raises(UserError, match="can't verify the coach") as caught:
            coach_report(tmp_path / "run", source="coach", quality=quality)
        assert caught.value.path == "--quality"
    with pytest.raises(UserError, match="only the team has it"):
        coach_report(tmp_path / "run", source="coach", quality="right")


class Uneven(RuleCoach):
    """Answers malformed once, for `fetch`, and always, for `report`, from then on as another version."""

    async def answer(self, request):
        answer = await super().answer(request)
        role = request.messages[0]["content"].partition("\n<role>\n")[2].split(",")[0]
        bad = role == "report" or (role == "fetch" and len(request.messages) == 1)
        version = "rules-2" if role == "fetch" else "rules-1"
        return type(answer)(text="no score" if bad else answer.text, version=version)


def test_missing_scores_further_answers_and_versions_are_counted(tmp_path):
    train(tmp_path / "run", {"type": f"{__name__}:Uneven"}, quality=False, steps=1, max_missing=1.0)
    report = coach_report(tmp_path / "run")
    assert report.actions == 36 and report.missing == 12
    assert report.cost["answers"] == 12 * (2 + 1 + 2) and report.cost["asked_again"] == 24
    assert set(report.versions) == {"rules-1", "rules-2"}
    assert any("33% of the scores are missing" in warning for warning in report.warnings)
    assert any("model changed" in warning for warning in report.warnings)


@dataclass
class Unsteady(OpenAIServer):
    """Fails and answers malformed by role and task: see the test."""

    def __post_init__(self):
        super().__post_init__()
        self.answer = self._scored

    def _places(self, body):
        (parts,) = parts_of(body["messages"][0]["content"])
        return parts["role"].split(",")[0], int(parts["seen"].split()[0]), len(body["messages"]) > 1

    def _scored(self, body):
        role, number, again = self._places(body)
        malformed = (role == "fetch" and not again) or (role == "transform" and number == 0)
        return "no score" if malformed else "PROCESS_SCORE: 7\nREASONING: so"

    async def _respond(self, asked, writer):
        role, number, again = self._places(asked.body)
        if number % 2 == 0 and (role == "report" or (role == "fetch" and again)):
            return await self._refuse(asked, "500", writer)
        return await super()._respond(asked, writer)


def test_the_counts_are_the_calls_that_a_server_got(tmp_path):
    """Of six tasks: `report` has no answer in three; `fetch` is malformed in all, and has no second answer in
    three; `transform` is malformed twice in one."""
    pytest.importorskip("openai")
    with Unsteady() as server:
        model = {
            "type": "openai", "base_url": server.url, "model": MODEL, "api_key": None, "json": "off",
            "retries": 0,
        }  # fmt: skip
        train(tmp_path / "run", env="Apart", coach={"model": model}, steps=1, max_missing=1.0)
        report = coach_report(tmp_path / "run")
        assert (report.cost["asked"], report.cost["answers"]) == (len(server.asked), len(server.paid))
    assert report.cost | {"spent": 0} == {
        "asked": 6 * 4 + 1, "answers": 19, "unanswered": 6, "asked_again": 7, "spent": 0,
    }  # fmt: skip
    assert report.actions == 18 and report.missing == 7
    assert {kind: entry["scores"] for kind, entry in report.missing_reasons.items()} == {
        "no answer": 3, "no answer to the second question": 3, "malformed twice": 1,
    }  # fmt: skip
    assert "500" in report.missing_reasons["no answer"]["example"]
    shown = command("coach", tmp_path / "run")
    assert "25, 7 of them after a malformed answer; 19 answers" in shown.stdout
    assert "3 no answer, 3 no answer to the second question, 1 malformed twice" in shown.stderr


class Cut(RuleCoach):
    async def answer(self, request):
        return replace(await super().answer(request), text='{"score": 3, "reason": "it', finish="length")


def test_a_trajectorys_call_is_counted_once_and_cut_answers_are_named(tmp_path):
    model = {"type": f"{__name__}:Cut", "structured": True}
    train(tmp_path / "run", model, coach={"per": "trajectory"}, steps=1, max_missing=1.0)
    report = coach_report(tmp_path / "run")
    assert report.actions == report.missing == 36 and report.cost["asked"] == report.cost["answers"] == 24
    assert report.missing_reasons["cut by max_tokens"]["scores"] == 36
    assert "answers were cut by rewards.coach.max_tokens: raise it" in report.warnings
    assert report.means == {}


def test_what_is_asked_outside_the_rollouts_is_told(tmp_path):
    train(tmp_path / "run", steps=2, record_every=2, evaluate_every=2, evaluate_tasks=2)
    limits = " ".join(coach_report(tmp_path / "run").limits)
    assert "questions in evaluations are not counted" in limits and "one step in 2 is recorded" in limits


def test_what_has_no_report_says_why(tmp_path):
    with pytest.raises(RunFolderError, match="not a run folder"):
        coach_report(tmp_path)
    train(tmp_path / "run", steps=1, record_every=0)
    with pytest.raises(RunFolderError, match="has no rollouts"):
        coach_report(tmp_path / "run")
    with pytest.raises(UserError, match="no coach is called 'tutor'"):
        coach_report(tmp_path / "run", source="tutor")
    train(tmp_path / "other", steps=1)
    with pytest.raises(UserError, match="no action has a score 'rght'"):
        coach_report(tmp_path / "other", quality="rght")
