"""What is wrong about credit in the public code of the originals, each on games that were really played.

AT-GRPO is PettingLLMs, MAGRPO is CoMLRL, the coach's scores are MAPPA's.
"""

from __future__ import annotations

from typing import Any

import pytest

from coterie import SystemFault
from coterie.core.protocols import Batch
from coterie.core.training.samples import samples_of
from coterie.core.types import Credit
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.trees import Forest, J, chain, places
from tests.plugins.algos.support import advantages, credit, estimator

PLAIN = {"normalise": {"type": "none"}}


def played(tasks: int = 1, **tables: Any) -> tuple[list[Any], Credit]:
    """(trees, credit) of one step of a scripted run: branch b writes b, which pays 1.1 b by default."""
    run = coterie_run(**tables)
    trees, scores = play_episode(run, tasks)
    return trees, run.estimator(
        Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights), None
    )[0]


def of(result: Credit, node: Any, role: str) -> list[float | None]:
    """The advantages of a role's branches at a node; None where there is none."""
    count = len(node.decisions[role].branches)
    return [result.advantage.get(node.key.of_branch(role, branch)) for branch in range(count)]


# -------------------------------------------------------------------------------------------- AT-GRPO


@pytest.mark.parametrize("order", [["one", "two", "three"], [["one", "two", "three"]]])
def test_every_role_is_rewarded_on_its_own_branches(order):
    """There, the best branch is copied inside the loop over agents: all but the first get K equal rewards."""
    (tree,), result = played(order=order, max_turns=2, algorithm={"type": "at_grpo", **PLAIN})
    for node in tree.nodes():
        for role in node.decisions:
            first, second, third = of(result, node, role)
            assert first < second < third


def test_a_group_is_one_prompts_and_not_that_of_different_problems():
    """There, the group's key lumps K problems together, so that an easy one makes a hard one look bad."""
    hard, easy = [J(0), J(1)], [J(100), J(101)]
    forest = Forest().grow(hard).grow(easy, task="u")
    advantage = advantages("at_grpo", forest, **PLAIN)
    assert advantage == {"0:one0": -0.5, "0:one1": 0.5, "u/0:one0": -0.5, "u/0:one1": 0.5}


def test_an_end_on_the_first_agent_keeps_what_was_sampled():
    """There, that turn's samples of later agents are lost. Here they were never asked, and all else stays."""
    (tree,), result = played(
        answers=stops_in_turn_2,
        max_turns=3,
        sampler={"branches": 2},
        algorithm={"type": "at_grpo", **PLAIN},
    )
    nodes = list(tree.nodes())
    assert [tuple(node.decisions) for node in nodes] == [("one",), ("two",), ("one",)]
    for node in nodes:
        for role in node.decisions:
            assert None not in of(result, node, role)
    assert of(result, nodes[0], "one") == pytest.approx([-0.55, 0.55])


def stops_in_turn_2(request: Any, text: str) -> str:
    return "stop" if "turn1" in text else str(request.key.branch)


def test_early_successes_are_not_thrown_away():
    """There, the baseline without a tree keeps only the rollouts of the maximum length."""
    forest = Forest().grow(chain(1.0), chain(0.0, 0.0, 0.0), chain(0.0, 0.0, 1.0), chain(0.0))
    advantage = advantages("grpo", forest, normalise={"type": "none"})
    assert advantage["0:one0"] == advantage["2:one0"] == 0.5
    assert advantage["1:one0"] == advantage["3:one0"] == -0.5


def test_no_group_is_filtered_behind_ones_back():
    """There, the half of the groups with the lowest mean is dropped."""
    forest = Forest()
    for index in range(4):
        forest.grow([J(index), J(index + 1)], task=f"t{index}")
    assert len(advantages("at_grpo", forest)) == 8
    result = credit(estimator("at_grpo"), forest)
    assert set(result.weight.values()) <= {1.0}


def test_a_failed_generation_is_not_trained():
    """There, it becomes a trained end-of-text token."""
    trees, result = played(
        answers=loses_branch_1,
        order=["one"],
        algorithm={"type": "at_grpo", **PLAIN},
        schedule={"max_missing": 0.9},
    )
    assert of(result, trees[0].root, "one") == pytest.approx([-1.1, None, 1.1])
    assert result.metrics["groups/one/missing_rows"] == 1.0
    keys = [sample.key.branch for rows in samples_of(trees, result).values() for sample in rows]
    assert 1 not in keys


def loses_branch_1(request: Any, text: str) -> str:
    if request.key.branch == 1:
        raise SystemFault("connection reset")
    return str(request.key.branch)


# --------------------------------------------------------------------------------------------- MAGRPO


def tree_of(**algorithm: Any) -> dict[str, Any]:
    return {
        "order": [["one", "two"]],
        "max_turns": 2,
        "sampler": {"branches": 2, "expand": "all"},
        "algorithm": {"type": "magrpo", **algorithm},
    }


def test_advantages_are_not_divided_by_a_deviation_unless_asked():
    """There, the documentation says so, and the default divides."""
    (tree,), result = played(**tree_of())
    # Joint b pays each 2 b + b/10, and leads to two joints that pay 0 and 2.1
    assert of(result, tree.root, "one") == pytest.approx([-1.05, 1.05])


def test_the_discount_is_read():
    """There, `discount` is ignored."""
    for gamma in (1.0, 0.5, 0.0):
        (tree,), result = played(**tree_of(gamma=gamma))
        wanted = [2.1 * branch + gamma * 2.1 / 2 for branch in (0, 1)]
        returns = [result.returns[tree.root.key.of_branch("one", branch)] for branch in (0, 1)]
        assert returns == pytest.approx(wanted)


def test_in_a_cross_every_branch_is_credited_with_its_own_joints():
    """There, `crossed` credits the wrong returns. `two` always writes 0 here, so its branches are equal."""
    tables = tree_of()
    tables["sampler"]["pairing"] = "cross"
    (tree,), result = played(answers=only_one_counts, **tables)
    for node in tree.nodes():
        assert of(result, node, "one") == pytest.approx([-0.55, 0.55])
        assert of(result, node, "two") == [0.0, 0.0]


def only_one_counts(request: Any, text: str) -> str:
    return str(request.key.branch if request.key.role == "one" else 0)


def test_no_episode_is_ended_by_an_unset_threshold():
    """There, the default of -0.2 silently disables turn 2 for every reward of 0 or more."""
    (tree,), _ = played(**tree_of())
    assert all(joint.child is not None for joint in tree.root.joints)
    assert estimator("magrpo").stop_above is None


def test_the_last_turn_has_not_nearly_all_of_the_gradient():
    """A flat mean would give turn 2 80 % of it at K = 4."""
    tables = tree_of()
    tables["sampler"]["branches"] = 4
    (tree,), result = played(**tables)
    turns = {node.key: node.turn for node in tree.nodes()}
    share = {0: 0.0, 1: 0.0}
    for key, weight in result.weight.items():
        share[turns[key.node]] += weight
    assert share[0] == pytest.approx(share[1])
    assert sum(turns[key.node] == 1 for key in result.advantage) / len(result.advantage) == 0.8


# ---------------------------------------------------------------------------------------------- MAPPA


def test_a_coach_that_fails_gives_no_score():
    """There, the reward is silently 5.0."""
    _, result = played(
        tasks=4,
        answers=names_its_chain,
        order=["one"],
        sampler={"branches": 1, "chains": 2},
        algorithm={"type": "reinforce_pp", "beta": 0.0, **PLAIN},
        rewards={"coach": {"type": "function", "function": "tests.plugins.algos.test_originals:coach"}},
        schedule={"max_missing": 0.9},
    )
    assert {key.chain for key in result.advantage} == {1}
    assert [value.tolist()[-1] for value in result.advantage.values()] == [0.7] * 4
    assert result.metrics["groups/one/missing_rows"] == 4.0


def coach(view: Any) -> float:
    """Fails on what chain 0 says."""
    if view.actions["one"].text == "0":
        raise SystemFault("503")
    return 0.7


def names_its_chain(request: Any, text: str) -> str:
    return str(request.key.chain)


def test_one_lost_episode_costs_itself():
    """There, one failed workflow floors the batch: 31 become 16, 15 become 0."""
    trees, result = played(
        tasks=8,
        answers=loses_task_3,
        order=["one"],
        sampler={"branches": 1},
        algorithm={"type": "reinforce_pp", "beta": 0.0},
        schedule={"max_missing": 0.9},
    )
    assert len(trees) == 8 and len(result.advantage) == 7


def loses_task_3(request: Any, text: str) -> str:
    if request.key.task.endswith("-3"):
        raise SystemFault("the worker died")
    return "1"


def test_statistics_are_taken_once_and_over_all_roles():
    """There, rewards are normalised twice, and agent by agent: an agent that always fails looks average."""
    forest = Forest(order=(("one",), ("two",))).grow(chain(0, 10), chain(1, 11), chain(2, 12))
    advantage = places(credit(estimator("reinforce_pp", beta=0.0), forest).advantage)
    assert all(advantage[f"{c}:one0"][0] < 0 < advantage[f"{c}.0:two0"][0] for c in range(3))
    by_role = places(
        credit(estimator("reinforce_pp", beta=0.0, normalise={"scope": "role"}), forest).advantage
    )
    assert by_role["2:one0"][0] > 0 > by_role["0.0:two0"][0]  # only where the configuration says so
