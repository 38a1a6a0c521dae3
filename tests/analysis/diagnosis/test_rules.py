"""Each rule by itself: rows of a healthy run in which one thing is changed from a step on."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest

import coterie
from coterie.analysis.credit.free_riders import CreditSickness
from coterie.analysis.diagnosis.evidence import RunEvidence
from coterie.analysis.diagnosis.run import RULES, diagnose_run, sicknesses
from coterie.api.signals import RULES as SIGNS
from coterie.core.errors import RunFolderError
from coterie.recipes import flatten

STEPS, ONSET = 60, 31
NAN = None


def healthy(step: int) -> dict[str, float | None]:
    """A row of a run of two roles and two policies that learns, with noise that repeats."""
    rng = np.random.default_rng(step)

    def noise(size: float) -> float:
        return float(rng.normal(0, size))

    success = 0.2 + 0.3 * step / STEPS + noise(0.02)
    row = {
        "step": step,
        "success": success,
        "missing/share": 0.0,
        "missing/judge": 0.0,
        "episodes/missing": 0.0,
    }
    for role in ("writer", "critic"):
        row |= {
            f"reward/{role}": success + noise(0.02), f"length/{role}": 100 + noise(5),
            f"empty/{role}": 0.0, f"finish_length/{role}": 0.05, f"faults/{role}/policy": 0.05,
            f"groups/{role}/zero_variance": 0.3 + noise(0.03), f"groups/{role}/too_small": 0.0,
            f"advantage/{role}/abs": 0.4,
        }  # fmt: skip
    for policy in ("p", "q"):
        row |= {
            f"policy/{policy}/{name}": value
            for name, value in {
                "entropy": 1.0 + noise(0.03), "mismatch": 0.01 * (1 + abs(noise(0.2))),
                "grad_norm": 0.5 + noise(0.05),
                "approx_kl": 0.002, "clip_fraction": 0.02, "optimizer_steps": 2.0, "skipped_steps": 0.0,
                "samples": 64.0, "explained_variance": 0.3, "staleness/mean": 0.5,
            }.items()
        }  # fmt: skip
    return row


def run_of(changes, begin=ONSET, steps=STEPS, settings=None, **more):
    """The evidence of rows in which `changes(step)` stand in place of the healthy ones from a step on."""
    rows = [{**healthy(n), **(changes(n) if n >= begin else {})} for n in range(1, steps + 1)]
    return RunEvidence(rows, settings or {}, **more)


def flat_success(n):
    return 0.35 + float(np.random.default_rng(n).normal(0, 0.02))


def stuck(n):
    """A team that gets no better from the first step on."""
    level = flat_success(n)
    return {"success": level, "reward/writer": level, "reward/critic": level}


CASES = {
    "all_missing": (lambda n: {"missing/share": 1.0}, ""),
    "missing": (lambda n: {"missing/judge": 0.06}, "judge"),
    "episodes_lost": (lambda n: {"episodes/missing": 0.06}, ""),
    "no_variance": (
        lambda n: {f"groups/{role}/zero_variance": 0.92 for role in ("writer", "critic")}, ""),
    "success_falls": (lambda n: {"success": 0.12, "reward/writer": 0.12, "reward/critic": 0.12}, ""),
    "reward_without_success": (
        lambda n: {"success": 0.22 - 0.003 * (n - ONSET), "reward/writer": 0.3 + 0.02 * (n - ONSET)},
        ""),
    "overflow": (lambda n: {"episodes/overflow": float(n % 3 > 0)}, ""),
    "zero_gradient": (lambda n: {"signal/zero_gradient": 1.0}, ""),
    "reward_unchanged": (lambda n: {"signal/reward_unchanged": 1.0}, ""),
    "entropy_collapse": (lambda n: {"policy/p/entropy": 0.09, "success": 0.35}, "p"),
    "stale_weights": (lambda n: {"policy/p/mismatch": 0.02 + 0.005 * (n - ONSET)}, "p"),
    "mismatch": (lambda n: {"policy/p/mismatch": 0.12 + 0.01 * (n % 2)}, "p"),
    "old_weights": (lambda n: {"policy/p/staleness/mean": 4.5}, "p"),
    "clipped": (lambda n: {"policy/p/clip_fraction": 0.31}, "p"),
    "large_updates": (lambda n: {"policy/p/approx_kl": 0.25}, "p"),
    "gradient_explodes": (
        lambda n: {"policy/p/grad_norm": 12.0, "success": 0.3, "reward/writer": 0.3, "reward/critic": 0.3},
        "p"),
    "gradient_not_finite": (lambda n: {"policy/p/optimizer_steps": 1.0, "policy/p/skipped_steps": 1.0}, "p"),
    "no_gradient": (lambda n: {"policy/p/grad_norm": 0.0}, "p"),
    "few_updates": (lambda n: {"policy/p/samples": 64.0 if n % 3 == 0 else NAN}, "p"),
    "values_explain_nothing": (lambda n: {"policy/p/explained_variance": -0.1}, "p"),
    "length_hacking": (
        lambda n: {"length/writer": 100.0 + 8 * (n - ONSET), "reward/writer": 0.4 + 0.03 * (n - ONSET),
                   "success": flat_success(n)}, "writer"),
    "dead_role": (lambda n: {"groups/writer/zero_variance": 0.6, "groups/writer/too_small": 0.4,
                             "reward/writer": 0.1}, "writer"),
    "empty": (lambda n: {"empty/writer": 0.35}, "writer"),
    "truncation": (lambda n: {"finish_length/writer": 0.55}, "writer"),
    "unreadable": (lambda n: {"faults/writer/policy": 0.55}, "writer"),
}  # fmt: skip
"""Kind -> what its rows have in place of the healthy ones', and its subject."""
APART = {"learns_nothing", "sharpening", "free_rider", "dead_component"}
"""Those with a test of their own below."""


def kinds(evidence):
    return {(of.kind, of.subject) for of in sicknesses(evidence)}


def test_every_rule_has_a_case():
    assert {rule.kind for rule in RULES} == {*CASES} | APART
    assert len({rule.kind for rule in RULES}) == len(RULES)
    grades = [rule.grade for rule in RULES]
    assert grades == sorted(grades), "faults before warnings"


def test_healthy_rows_show_nothing():
    assert kinds(run_of(lambda n: {})) == set()
    assert kinds(run_of(lambda n: {}, steps=9)) == set()
    assert kinds(RunEvidence([])) == set()
    assert kinds(RunEvidence([{"step": 1}])) == set()


@pytest.mark.parametrize("kind", CASES)
def test_a_sickness_is_named_with_its_subject_and_its_step(kind):
    changes, subject = CASES[kind]
    evidence = run_of(changes)
    every = {(of.kind, of.subject): of for of in sicknesses(evidence)}
    assert {*every} == {(kind, subject)}
    of = every[kind, subject]
    rule = next(rule for rule in RULES if rule.kind == kind)
    assert of.says.startswith(rule.means) and of.helps == rule.helps and of.grade == rule.grade
    assert f"{of.kind}{f' ({subject})' if subject else ''} since step {of.since}: {of.metric}" in of.line
    if kind == "reward_without_success":
        assert of.since == 1, "it is a trend of the whole run"
    elif kind in ("zero_gradient", "reward_unchanged"):
        assert of.since == ONSET - 9, "a sign looks 10 steps back"
    else:
        assert abs(of.since - ONSET) <= 5, of.since
    assert json.loads(json.dumps(of.as_dict()))["metric"] == of.metric


@pytest.mark.parametrize(
    "kind", [kind for kind in CASES if kind not in ("gradient_not_finite", "all_missing")]
)
def test_single_steps_alarm_nobody(kind):
    changes, _ = CASES[kind]
    rows = [{**healthy(n), **(changes(ONSET + n) if n % 12 == 0 else {})} for n in range(1, STEPS)]
    assert {of.kind for of in sicknesses(RunEvidence(rows))} <= (
        {kind} & {"zero_gradient", "reward_unchanged"}
    )


@pytest.mark.parametrize(
    ("kind", "names", "well", "ill"),
    [
        ("missing", ("missing/judge",), 0.049, 0.051),
        ("episodes_lost", ("episodes/missing",), 0.049, 0.051),
        ("no_variance", ("groups/writer/zero_variance", "groups/critic/zero_variance"), 0.89, 0.91),
        ("clipped", ("policy/p/clip_fraction",), 0.29, 0.31),
        ("large_updates", ("policy/p/approx_kl",), 0.19, 0.21),
        ("old_weights", ("policy/p/staleness/mean",), 3.9, 4.1),
        ("mismatch", ("policy/p/mismatch",), 0.095, 0.105),
        ("empty", ("empty/writer",), 0.29, 0.31),
        ("truncation", ("finish_length/writer",), 0.49, 0.51),
        ("unreadable", ("faults/writer/policy",), 0.49, 0.51),
        ("dead_role", ("groups/writer/zero_variance",), 0.985, 0.995),
        ("values_explain_nothing", ("policy/p/explained_variance",), 0.01, -0.01),
    ],
)
def test_a_level_counts_from_its_threshold_on(kind, names, well, ill):
    lower = {"reward/writer": 0.1} if kind == "dead_role" else {}
    assert kind not in {of for of, _ in kinds(run_of(lambda n: {**dict.fromkeys(names, well), **lower}))}
    assert kind in {of for of, _ in kinds(run_of(lambda n: {**dict.fromkeys(names, ill), **lower}))}


@pytest.mark.parametrize(
    ("first", "well", "ill"), [(2.0, 0.105, 0.095), (0.5, 0.055, 0.045), (0.05, 0.011, 0.009)]
)
def test_a_collapse_is_measured_against_the_first_entropy(first, well, ill):
    def falls(last):
        changes = {"policy/p/entropy": first}
        later = {"policy/p/entropy": last, "success": 0.35}
        return run_of(lambda n: later if n >= ONSET else changes, begin=1)

    assert kinds(falls(well)) <= {("sharpening", "p")} and kinds(falls(ill)) == {("entropy_collapse", "p")}


def test_sharpening_begins_at_six_tenths_of_the_first_window():
    def falls(last):
        fall = (1.0 - last) / 40
        return run_of(lambda n: {**stuck(n), "policy/p/entropy": max(1.0 - fall * n, last)}, begin=1)

    assert ("sharpening", "p") in kinds(falls(0.53)) and ("sharpening", "p") not in kinds(falls(0.63))


def test_a_gradient_explodes_at_twenty_times_and_skips_at_a_fifth():
    def norm(value):
        still = {"success": 0.3, "reward/writer": 0.3, "reward/critic": 0.3}
        return kinds(run_of(lambda n: {**still, "policy/p/grad_norm": value}))

    assert ("gradient_explodes", "p") in norm(11.0) and ("gradient_explodes", "p") not in norm(9.0)

    def skips(every):
        lost = {"policy/p/optimizer_steps": 0.0, "policy/p/skipped_steps": 2.0}
        return kinds(run_of(lambda n: lost if n % every == 0 else {}, begin=1))

    assert skips(4) == {("gradient_not_finite", "p")} and skips(6) == set()


@pytest.mark.parametrize(
    "kind", ["entropy_collapse", "truncation", "empty", "no_variance", "dead_role", "no_gradient"]
)
def test_a_team_that_has_learned_is_well(kind):
    changes, _ = CASES[kind]
    assert kinds(run_of(lambda n: {**changes(n), "success": 0.96})) == set()


def test_a_low_entropy_is_no_collapse_where_success_has_come_half_way():
    low = {"policy/p/entropy": 0.02}
    assert ("entropy_collapse", "p") in kinds(run_of(lambda n: {**low, "success": 0.5}))
    assert ("entropy_collapse", "p") not in kinds(run_of(lambda n: {**low, "success": 0.65}))
    assert kinds(run_of(lambda n: {"policy/p/entropy": 0.11, "success": 0.5})) == set(), "above a tenth"


def test_a_standstill_is_told_after_30_steps():
    assert kinds(run_of(stuck, begin=1)) == {("learns_nothing", "")}
    assert kinds(run_of(stuck, begin=1, steps=29)) == set()
    level = {"curriculum/level": 0.0}
    rising = run_of(lambda n: {**stuck(n), "curriculum/level": float(n // 20)}, begin=1)
    assert kinds(rising) == set(), "success at another level is no standstill"
    assert kinds(run_of(lambda n: {**stuck(n), **level}, begin=1)) == {("learns_nothing", "")}


def test_sharpening_without_learning():
    falls = lambda n: {**stuck(n), "policy/p/entropy": 1.0 - 0.009 * n}  # noqa: E731
    assert kinds(run_of(falls, begin=1)) == {("learns_nothing", ""), ("sharpening", "p")}
    learns = run_of(lambda n: {"policy/p/entropy": 1.0 - 0.009 * n}, begin=1)
    assert kinds(learns) == set(), "a policy that learns may sharpen"


def test_answers_that_grow_with_success_are_well():
    def grows(n):
        return {"length/writer": 100.0 + 8 * max(n - ONSET, 0)}

    assert kinds(run_of(grows)) == set()
    paid = lambda n: {**grows(n), "reward/writer": 0.4 + 0.03 * (n - ONSET)}  # noqa: E731
    assert kinds(run_of(lambda n: {**paid(n), "success": 0.2 + 0.012 * n})) == set()


def test_versions_that_stand_still_are_stale():
    def versions(*pairs):
        return run_of(lambda n: {}, versions={"p": dict(pairs)}, settings={"schedule": {"max_staleness": 1}})

    steps = range(5, STEPS + 1, 5)
    assert kinds(versions(*((step, step - 1) for step in steps))) == set()
    assert kinds(versions(*((step, step - 2 + step % 2) for step in steps))) == set(), "one step ahead"
    stale = versions(*((step, min(step - 1, 29)) for step in steps))
    assert kinds(stale) == {("stale_weights", "p")}
    (of,) = sicknesses(stale)
    assert (of.since, of.value, of.threshold) == (30, 30.0, 4.0) and "version 29" in of.says
    assert kinds(versions((5, 4), (8, 4))) == set(), "three updates behind, one of them allowed"
    assert kinds(versions((5, 4), (9, 4))) == {("stale_weights", "p")}
    frozen = run_of(lambda n: {"policy/p/optimizer_steps": 0.0}, begin=1, versions={"p": {5: 0, 60: 0}})
    assert kinds(frozen) == set(), "no update, no new version"
    again = versions((5, 4), (15, 4), (25, 24), (60, 59))
    assert kinds(again) == set(), "it caught up"


def test_what_explains_another_one_stands_alone():
    both = run_of(lambda n: {"policy/p/mismatch": 0.02 + 0.02 * (n - ONSET), "policy/q/mismatch": 0.2})
    assert kinds(both) == {("stale_weights", "p"), ("mismatch", "q")}
    credit = [CreditSickness("dead_component", "team.pay", "scores", 0.0, 0.0, 1, "equal.")]
    flat = CASES["no_variance"][0]
    assert kinds(run_of(flat, credit=credit)) == {("no_variance", "")}
    assert kinds(run_of(lambda n: {}, credit=credit)) == {("dead_component", "team.pay")}


def test_a_penalty_is_not_dead_before_eight_steps():
    credit = [CreditSickness("dead_component", "team.penalty", "scores", 0.0, 0.0, 1, "equal.")]
    assert kinds(run_of(lambda n: {}, steps=7, credit=credit)) == set()
    assert kinds(run_of(lambda n: {}, steps=8, credit=credit)) == {("dead_component", "team.penalty")}


def test_short_answers_that_are_cut_off_are_a_sickness_where_nobody_succeeds():
    short = {"length/writer": 2.0, "finish_length/writer": 1.0}
    assert kinds(run_of(lambda n: short)) == set(), "a move may end at its limit"
    failing = run_of(lambda n: {**stuck(n), **short, "success": 0.0}, begin=1, steps=29)
    assert ("truncation", "writer") in kinds(failing)


def test_a_policy_that_no_row_names_has_no_samples():
    """Steps without a sample of a policy have none of its metrics."""
    settings = {"team": {"roles": {"writer": {"policy": "p"}}}, "policies": {"p": {"train": "full"}}}
    rows = [{k: v for k, v in healthy(n).items() if not k.startswith("policy/p")} for n in range(1, STEPS)]
    (of,) = sicknesses(RunEvidence(rows, settings))
    assert (of.kind, of.subject, of.value, of.since) == ("few_updates", "p", 1.0, 1)
    settings["policies"]["p"]["train"] = "none"
    assert kinds(RunEvidence(rows, settings)) == set()


def test_a_free_rider_needs_somebody_to_ride_on():
    riders = [
        CreditSickness("free_rider", name, "share", 0.0, 0.25, 3, "It rides.")
        for name in ("writer", "critic")
    ]
    (of,) = sicknesses(run_of(lambda n: {}, credit=riders[:1]))
    assert (of.kind, of.subject, of.since, of.metric) == ("free_rider", "writer", 3, "share")
    assert "It rides." in of.says
    assert kinds(run_of(lambda n: {}, credit=riders)) == set()


def test_all_missing_is_seen_at_once_and_explains_the_rest():
    rows = [{"step": n, "missing/share": 1.0, "missing/judge": 1.0, "reward/a": NAN} for n in (1, 2)]
    assert kinds(RunEvidence(rows)) == {("all_missing", "")}


def test_a_frozen_role_is_not_dead():
    settings = {"team": {"roles": {"writer": {"policy": "p"}}}, "policies": {"p": {"train": "none"}}}
    changes, _ = CASES["dead_role"]
    assert kinds(run_of(changes, settings=settings)) == set()
    heads = ("groups/writer", "advantage/writer")
    absent = run_of(lambda n: {key: NAN for key in healthy(n) if key.startswith(heads)}, begin=1)
    assert kinds(absent) == {("dead_role", "writer")}


def test_the_rules_name_settings_that_there_are():
    """Each dotted name of a help is a setting of the quickstart's configuration, or of a table below."""
    from coterie.compose.settings import settings_of

    table = settings_of(coterie.load("quickstart").config).table
    known = {re.sub(r"^policies\.\w+", "policies.<name>", path) for path, _ in flatten(table)}
    known = {re.sub(r"^rewards\.\w+", "rewards.<name>", path) for path in known}
    parts = {".".join(path.split(".")[:n]) for path in known for n in range(1, 6)}
    others = {  # of tables that the quickstart has none of
        "env.curriculum", "chat_models.<name>", "chat_models.<name>.timeout", "chat_models.<name>.retries",
        "chat_models.<name>.concurrency", "sandbox.limits.wall_seconds", "policies.<name>.from",
        "rewards.<name>.weights",
    }  # fmt: skip
    signs = {sign.name for sign in SIGNS}
    for rule in RULES:
        if rule.kind not in signs:  # whose texts are the signals'
            names = re.findall(r"\b[a-z_]+(?:\.(?:<name>|[a-z_]+))+", rule.helps)
            assert {*names} <= parts | others, (rule.kind, {*names} - parts - others)


def test_a_folder_is_read_as_its_rows_and_its_files_say(tmp_path):
    folder = tmp_path / "run"
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text("name: x\nschedule: {max_staleness: 0}\n")
    rows = [{**healthy(n), **(CASES["empty"][0](n) if n >= ONSET else {})} for n in range(1, STEPS + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    diagnosis = diagnose_run(folder)
    assert [of.kind for of in diagnosis.sicknesses] == ["empty"] and diagnosis.ok, "a warning is no fault"
    assert (diagnosis.steps, diagnosis.recorded, diagnosis.remarks) == (STEPS, (), ())
    (folder / "rollouts" / "step-000005.jsonl.gz").write_bytes(gzip.compress(b"{torn"))
    (remark,) = diagnose_run(folder).remarks
    assert "step-000005.jsonl.gz can't be read" in remark
    assert diagnose_run(folder, rollouts=False).remarks == ()
    with pytest.raises(RunFolderError):
        diagnose_run(tmp_path)


def test_rewards_that_are_missing_are_no_equal_ones():
    """One source of two gives no score: half of the scores are there, and no reward is."""
    changes = {"missing/share": 0.5, "missing/judge": 1.0, "signal/reward_unchanged": 1.0}
    for role in ("writer", "critic"):
        changes |= {f"reward/{role}": NAN, f"groups/{role}/too_small": 1.0}
        changes[f"groups/{role}/zero_variance"] = 0.0
    kinds = {(of.kind, of.subject): of for of in sicknesses(run_of(lambda n: changes))}
    assert {"all_missing", "missing"} <= {kind for kind, _ in kinds}
    assert not {"no_variance", "reward_unchanged", "zero_gradient"} & {kind for kind, _ in kinds}
    assert kinds["all_missing", ""].since == ONSET and kinds["missing", "judge"].value == 1.0
    some = changes | {"reward/writer": 0.5}
    assert "all_missing" not in {of.kind for of in sicknesses(run_of(lambda n: some))}
