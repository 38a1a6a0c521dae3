"""Losses and gradients against TRL's and CoMLRL's own, as tests/golden recorded them; and where ours
differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coterie.core.training.samples import samples_of
from coterie.core.types import Key
from coterie.testing import build
from coterie.testing.support.trees import place
from tests.golden.replay import (
    EXACT,
    Record,
    branches,
    chains,
    completion,
    paths,
    records,
    roles,
    tree,
    update,
)
from tests.plugins.algos.support import ALL, CROSS, credit, estimator

RECORDS = records("trl")
TRL = {record["name"]: (rollout, record) for rollout, found in RECORDS["losses"].items() for record in found}
COMLRL = {record["name"]: record for record in records("comlrl")["trees"]}

CLIP = {"type": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}
GSPO = {"type": "gspo", "clip_low": 0.03, "clip_high": 0.04}
KL = {"kl": 0.1, "kl_form": "k3"}
TOKENS, SEQUENCES = {"level": "token", "cap": 1.25}, {"level": "sequence", "cap": 1.25}


# ----------------------------------------------------------------------------------------------------- TRL


def of_trl(name: str, loss: dict[str, Any], algorithm: str = "grpo") -> tuple[float, list[list[float]]]:
    """Our loss of a recorded rollout, from its rewards on, and the gradient by completion.

    Completions without credit have no gradient.
    """
    rollout = RECORDS["rollouts"][TRL[name][0]]
    policy_loss = build("loss", {"length": "sequence_mean", **loss})
    siblings, count = rollout["siblings"], len(rollout["rewards"])
    index = {completion(number, siblings): number for number in range(count)}
    corrected = "old_logprobs" in policy_loss.needs
    forest = chains(rollout["rewards"], siblings, rollout["sampling" if corrected else "old"])

    def table(policy: str) -> dict[Key, np.ndarray]:
        return {key: np.array(rollout[policy][index[place(key)]]) for key, _ in forest.actions()}

    annotations = {"ref_logprobs": table("ref")} | ({"old_logprobs": table("old")} if corrected else {})
    result = credit(estimator(algorithm, forest=forest), forest)
    value, gradient = update(
        policy_loss, samples_of(forest.trees, result, annotations)["p"], table("current")
    )
    rows = {place(key): grad for key, grad in gradient.items()}
    return value, [
        rows.get(completion(number, siblings), [0.0] * len(rollout["current"][number]))
        for number in range(count)
    ]


def agree(ours: tuple[float, list[list[float]]], record: Record, factor: float = 1.0) -> bool:
    """Whether TRL's loss and gradient are `factor` times ours."""
    same = [
        theirs == pytest.approx(np.array(row) * factor, abs=EXACT)
        for row, theirs in zip(ours[1], record["gradient"], strict=True)
    ]
    return bool(record["loss"] == pytest.approx(ours[0] * factor, abs=EXACT)) and all(same)


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("grpo", CLIP),
        ("bnpo", {**CLIP, "length": "token_mean"}),
        ("dapo", {**CLIP, "length": "token_mean"}),
        ("dapo, 2 micro-batches", {**CLIP, "length": "token_mean"}),
        ("dapo, on policy", {**CLIP, "length": "token_mean"}),
        ("grpo, delta", {**CLIP, "dual_clip": 1.5}),
        ("grpo, kl", {**CLIP, **KL}),
        ("dapo, kl", {**CLIP, **KL, "length": "token_mean"}),
        # There epsilon_high is the bound itself, our clip_high what it has above 1.
        ("cispo", {"type": "cispo", "clip_high": 0.5, "length": "token_mean"}),
        ("gspo", GSPO),
        ("gspo, kl", {**GSPO, **KL}),
        ("luspo", {**GSPO, "length": "sequence_sum"}),
        ("grpo, tokens corrected", {**CLIP, "correction": TOKENS}),
        ("grpo, sequences corrected", {**CLIP, "correction": SEQUENCES}),
        ("grpo, kl, corrected", {**CLIP, **KL, "correction": TOKENS}),
        ("gspo, tokens corrected", {**GSPO, "correction": TOKENS}),
    ],
)
def test_trls_losses_and_gradients(name, loss):
    assert agree(of_trl(name, loss), TRL[name][1])


def test_trls_dr_grpo():
    loss = {**CLIP, "length": "constant", "length_constant": 6}
    assert agree(of_trl("dr_grpo", loss, "dr_grpo"), TRL["dr_grpo"][1])


def test_trls_rloo_on_policy_is_reinforce():
    # Its ratio is the whole sequence's, whose gradient is that of the log-probability: the loss is -A there
    # and -A log pi here, and the gradient is the same.
    _, gradient = of_trl("rloo", {"type": "reinforce", "length": "sequence_sum"}, "rloo")
    for ours, theirs in zip(gradient, TRL["rloo"][1]["gradient"], strict=True):
        assert ours == pytest.approx(theirs, abs=EXACT)


def test_trls_bnpo_depends_on_the_micro_batches_and_ours_does_not():
    # A mean of micro-batches' token means weighs a token by the company it is in (invariant 6).
    ours = of_trl("bnpo", {**CLIP, "length": "token_mean"})
    assert agree(ours, TRL["bnpo"][1]) and agree(ours, TRL["dapo, 2 micro-batches"][1])
    assert not agree(ours, TRL["bnpo, 2 micro-batches"][1])


def test_trl_counts_what_has_no_reward_and_we_do_not():
    # 6 of 12 completions have a reward to compare with another's. There the others stay in the denominator,
    # so that a verifier that fails half of the time halves the step (invariant 3).
    ours, record = of_trl("grpo, missing", CLIP), TRL["grpo, missing"][1]
    assert agree(ours, record, factor=6 / 12) and not agree(ours, record)


def test_trls_delta_within_the_clip_range_cuts_good_tokens_too_and_dual_clip_never_does():
    # Dual clip (arXiv 1912.09729) is for A < 0 alone. Past the clip range, where it is of use, the two are
    # the same ("grpo, delta").
    rollout, record = TRL["grpo, low delta"]
    _, ours = of_trl("grpo, low delta", {**CLIP, "dual_clip": 1.1})
    policies = RECORDS["rollouts"][rollout]
    clipped_count = 0
    for row, advantage in enumerate(record["advantages"]):
        ratios = np.exp(np.subtract(policies["current"][row], policies["old"][row]))
        good = (advantage > 0) & (ratios > 1.1) & (ratios < 1.28)
        assert not np.any(np.array(record["gradient"][row])[good]) and np.all(np.array(ours[row])[good])
        same = ratios < 1.1
        assert np.array(ours[row])[same] == pytest.approx(np.array(record["gradient"][row])[same], abs=EXACT)
        clipped_count += int(good.sum())
    assert clipped_count > 1


def test_trl_weighs_the_kl_term_by_the_ratio_unless_set_otherwise():
    # By default it multiplies k3 with pi / old, so that its gradient is in expectation that of KL(pi || ref)
    # off the old policy too. Ours is the paper's (arXiv 2402.03300, equation 4); of `kl_form: k2` the
    # gradient is the KL's on policy.
    rollout, record = TRL["grpo, corrected kl"]
    value, _ = of_trl("grpo, corrected kl", {**CLIP, **KL})
    policies, extra = RECORDS["rollouts"][rollout], []
    for current, old, ref in zip(policies["current"], policies["old"], policies["ref"], strict=True):
        away = np.subtract(ref, current)
        k3 = np.exp(away) - away - 1
        extra.append(np.mean(0.1 * k3 * (np.exp(np.subtract(current, old)) - 1)))
    assert record["loss"] - value == pytest.approx(np.mean(extra), abs=EXACT)
    assert abs(np.mean(extra)) > 1e-3


# -------------------------------------------------------------------------------------------------- CoMLRL


def of_comlrl(record: Record, *, sampled: bool = False) -> list[tuple[float, list[list[list[float]]]]]:
    """By agent: our loss, and the gradient by node, branch and token (see `tree`)."""
    forest = tree(record, sampled=sampled)
    plan = CROSS if forest.pairing == "cross" else ALL
    result = credit(estimator("magrpo", plan=plan, forest=forest, turns=3), forest)
    samples = samples_of(forest.trees, result)["p"]
    current = {key: action.calls[0].logprobs for key, action in forest.actions()}
    answers = []
    for role in roles(record):
        role_samples = [sample for sample in samples if sample.key.role == role]
        value, gradient = update(build("loss", "reinforce"), role_samples, current)
        answers.append((value, [[gradient[key] for key in node] for node in branches(forest, role)]))
    return answers


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("one agent", 1),
        ("aligned, 1 turn", 1),
        ("aligned, 2 turns", 1),
        ("aligned, 3 turns", 1),
        # Sums over the partners' branches, where ours are means (tests/plugins/algos/test_against_others.py).
        ("cross, 1 turn", 3),
        ("cross, 2 turns", 2),
        ("cross, 3 agents", 4),
    ],
)
def test_comlrls_losses_and_gradients(name, factor):
    record = COMLRL[name]
    turns = record["settings"]["num_turns"]
    depths = np.array([len(path) for path in paths(record["tree"])])
    for (value, gradient), agent in zip(of_comlrl(record), record["agents"], strict=True):
        # It takes an optimiser step a turn, each on the mean over the turn's branches. We take one for all
        # turns, on the mean of those means: that is what a branch's weight does.
        assert agent["steps"] == turns
        means = [np.mean(np.array(agent["loss"])[depths == turn]) for turn in range(turns)]
        assert factor * value == pytest.approx(np.mean(means), abs=EXACT)
        for node, theirs in zip(gradient, agent["gradient"], strict=True):
            for ours, row in zip(node, theirs, strict=True):
                assert factor * turns * np.array(ours) == pytest.approx(row[:-1], abs=EXACT)


def test_comlrl_never_trains_on_the_last_token():
    record = COMLRL["aligned, 1 turn"]
    for (_, gradient), agent in zip(of_comlrl(record, sampled=True), record["agents"], strict=True):
        for ours, theirs in zip(gradient[0], agent["gradient"][0], strict=True):
            # Its logits are cut one short, so that what ends the longest answer of a node is never learnt.
            assert len(ours) == len(theirs) and theirs[-1] == 0.0
            assert ours == pytest.approx([theirs[0]] * len(ours), abs=EXACT) and ours[-1] != 0.0


def test_comlrl_trains_on_padding():
    record = COMLRL["padded"]
    for (_, gradient), agent in zip(of_comlrl(record, sampled=True), record["agents"], strict=True):
        assert [len(row) for row in gradient[0]] == agent["lengths"][0] == [2, 3, 4]
        for ours, theirs in zip(gradient[0], agent["gradient"][0], strict=True):
            # After an answer's end come tokens that were not sampled, pushed as hard as those that were. Ours
            # end with the answer.
            assert theirs == pytest.approx([ours[0]] * 3 + [0.0], abs=EXACT) and ours[0] != 0.0
