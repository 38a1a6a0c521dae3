"""Roles that earn the same whatever they do, and components that say nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.analysis.credit import free_riders
from coterie.analysis.credit.actions import credited_actions, return_kind_of
from coterie.analysis.credit.component_returns import Rules
from coterie.analysis.credit.free_riders import own_effects, sicknesses
from coterie.analysis.credit.report import credit
from tests.analysis.credit.runs import hand_over
from tests.analysis.credit.synthetic import FORMS, Team, drawn_team, recorded


def effects(team: Team, seed: int = 0):
    trees, rules = recorded(team, seed)
    actions = [action for step in trees for action in credited_actions(trees[step], rules[step])]
    return own_effects(actions, return_kind_of(actions)[0])


def subjects(team: Team, kind: str, seed: int = 0) -> list[str]:
    return [found.subject for found in sicknesses(*recorded(team, seed)) if found.kind == kind]


@pytest.mark.parametrize("form", FORMS)
def test_a_role_whose_answers_do_not_matter_rides(form):
    siblings = 12 if form == "chains" else 6
    assert subjects(Team(form, free_rider="b", siblings=siblings), "free_rider") == ["b"]
    assert subjects(Team(form, siblings=siblings), "free_rider") == []


def test_siblings_that_earn_the_same_need_no_repeated_answer():
    never = Team(free_rider="b", words=10**9, rare=0.0)  # every answer is another
    assert effects(never)["b"].share is None
    assert effects(replace(never, free_rider=""))["b"].rides == ""
    # One word in 10**9 is right, so the pay never differs; a's siblings differ where its pay is noise.
    noisy = own_effects(_with_noise_for("a", never), "immediate")
    assert noisy["b"].rides == "siblings" and noisy["b"].partner == "a" and noisy["a"].rides == ""


def _with_noise_for(role: str, team: Team):
    trees, rules = recorded(team, 1)
    draws = np.random.default_rng(0)
    actions = [action for step in trees for action in credited_actions(trees[step], rules[step])]
    return [
        replace(action, recorded=float(draws.normal()) if action.role == role else 0.0) for action in actions
    ]


@pytest.mark.parametrize(("bound", "rides"), [(0.05, True), (-0.05, True), (0.2, False), (-0.2, False)])
def test_a_bound_far_below_zero_is_no_small_share(monkeypatch, bound, rides):
    """Of siblings that depend on each other, as all pairs of the same answers, the variance says nothing."""
    monkeypatch.setattr(free_riders, "own_share", lambda actions, kind: (bound - 0.05, bound, 30))
    assert [effect.rides == "own share" for effect in effects(Team()).values()] == [rides, rides]


def test_the_own_share_is_what_was_planted():
    """Both at once: variances of share**2 to (1 - share)**2, as both roles are right equally often."""
    found = effects(Team("together", share=0.7, words=3, siblings=8, steps=30, rare=0.0))
    for role, part in (("a", 0.7), ("b", 0.3)):
        assert found[role].share == pytest.approx(part**2 / (0.7**2 + 0.3**2), abs=0.05)


def test_noise_lowers_the_own_share():
    planted = Team("branches", share=0.5, noise=0.3, words=2, siblings=8, steps=30, rare=0.0)
    # Pay of b: 0.5 with probability 1/2, of variance 1/16, and noise of variance 0.09.
    assert effects(planted)["b"].share == pytest.approx(0.0625 / (0.0625 + 0.09), abs=0.06)


def test_a_drift_of_the_step_is_no_effect_of_the_answer():
    """Answers and pay that both drift over the steps go together, without one being the other's cause."""
    trees, rules = recorded(Team("branches", free_rider="b", words=2, noise=0.1, siblings=8), 5)
    actions = [action for step in trees for action in credited_actions(trees[step], rules[step])]
    draws = np.random.default_rng(1)
    drifting = [
        replace(action, text=f"word{int(draws.random() < action.step / 11)}",
                recorded=action.step + float(draws.normal(0, 0.1)))
        for action in actions
    ]  # fmt: skip
    assert all(
        effect.share == pytest.approx(0.0, abs=0.05) for effect in own_effects(drifting, "immediate").values()
    )


def test_a_lone_role_and_few_prompts_are_not_judged():
    assert subjects(Team(free_rider="b", steps=1, tasks=4), "free_rider") == []
    trees, rules = recorded(Team(free_rider="b"), 0)
    alone = [a for step in trees for a in credited_actions(trees[step], rules[step]) if a.role == "b"]
    assert own_effects(alone, "immediate")["b"].rides == ""


def test_the_taker_of_a_hand_over_rides(tmp_path):
    schedule = {"steps": 6, "tasks_per_step": 16, "evaluate_every": 0}
    report = credit(hand_over(tmp_path / "run", "branches", "at_grpo", schedule=schedule))
    assert report.free_riders == ["taker"] and report.by_role["taker"].rides == "siblings"
    assert report.as_dict()["roles"]["giver"]["free_rider"] is None


def test_answers_without_scores_are_told_from_one_answer():
    trees, rules = recorded(Team(), 0)
    for tree in (tree for of_step in trees.values() for tree in of_step):
        for joint in (joint for node in tree.nodes.values() for joint in node.joints):
            joint["scores"] = dict.fromkeys(joint["scores"])
    actions = [action for step in trees for action in credited_actions(trees[step], rules[step])]
    lost = own_effects(actions, "immediate")
    assert all(of.prompts == 0 < of.unscored for of in lost.values())
    assert all(of.unscored == 0 < of.prompts for of in effects(Team()).values())


def test_a_component_that_never_varies_is_dead():
    assert subjects(Team(dead=True), "dead_component") == ["a.format", "b.format"]
    assert subjects(Team(), "dead_component") == []
    assert subjects(Team(dead=True, steps=1, tasks=2), "dead_component") == [], "too few scores to say"
    trees, rules = recorded(Team(dead=True), 0)
    of_weight_0 = {step: Rules({"format": 0.0}) for step in rules}
    assert [each for each in sicknesses(trees, of_weight_0) if each.kind == "dead_component"] == []


def test_what_is_said_of_a_sickness():
    (rider, dead, _) = sicknesses(*recorded(Team(free_rider="b", dead=True, rare=0.0), 0))
    assert rider.subject == "b" and rider.since == 1 and rider.value < rider.threshold
    assert "earns the same whatever it does" in rider.says
    assert dead.says == "component 'a.format' is 1 in all of its 480 scores: it tells no answer from another"


@pytest.mark.learning
def test_twenty_planted_and_twenty_healthy_teams():
    """At most one miss and one false alarm a kind. Of 150 and 150 (by hand): 1 and 0; 0 and 0."""
    missed = {"free_rider": 0, "dead_component": 0}
    alarmed = dict(missed)
    for seed in range(20):
        role = "ab"[seed // 3 % 2]
        found = sicknesses(*recorded(drawn_team(seed, free_rider=role, dead=True), seed))
        of_kind = {kind: [each.subject for each in found if each.kind == kind] for kind in missed}
        missed["free_rider"] += of_kind["free_rider"] != [role]
        missed["dead_component"] += sorted(of_kind["dead_component"]) != ["a.format", "b.format"]
        for each in sicknesses(*recorded(drawn_team(100 + seed), 100 + seed)):
            alarmed[each.kind] += 1
    assert max(missed.values()) <= 1 and max(alarmed.values()) <= 1, (missed, alarmed)
