"""Episodes of thousands of stages, and turns that never end."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from dataclasses import replace

import pytest

from coterie.api.compare import episode_text
from coterie.api.open_run import Oracle
from coterie.api.rollouts import rollout_rows
from coterie.api.train import train
from coterie.core.errors import ConfigError, PluginError
from coterie.core.protocols import Batch
from coterie.core.training.metrics import step_metrics
from coterie.core.types.keys import LONG, Key
from coterie.plugins.algos.blocks.returns import RETURNS, Horizon
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import ROLE

pytestmark = pytest.mark.xdist_group("long_episodes")  # one process makes the long tree

STAGES = 2000
CHAIN = {"branches": 1, "chains": 1}


def run_of(game="Counted", answers="1", *, stages=STAGES, turns=9, sampler=CHAIN, **team):
    return coterie_run(
        answers,
        env={"type": f"tests.games:{game}", "stages": stages},
        order=["one"],
        sampler=sampler,
        algorithm={"type": "reinforce" if sampler is CHAIN else "magrpo"},
        team={"max_turns": turns, **team},
    )


def test_a_turn_that_never_ends_names_the_environment_and_the_fix():
    with pytest.raises(PluginError) as caught:
        play_episode(run_of("Endless"))
    assert caught.value.path == "team.max_stages"
    assert "tests.games:Endless" in str(caught.value) and "acting_roles" in str(caught.value)
    assert "1,000 stages of turn 1" in str(caught.value) and "fix: return ()" in str(caught.value)


def test_the_bound_of_a_turn_is_a_setting_and_counts_the_stages_of_one_turn():
    with pytest.raises(PluginError, match="40 stages"):
        play_episode(run_of("Endless", max_stages=40))
    with pytest.raises(PluginError, match="999 stages"):
        play_episode(run_of(max_stages=999))
    tree = play_episode(run_of(stages=30, max_stages=30))[0][0]
    assert len(list(tree.nodes())) == 30
    with pytest.raises(ConfigError, match="max_stages"):
        run_of(max_stages=0)


def test_the_games_of_a_warm_start_are_bounded_too():
    run = run_of("Endless")

    async def demonstrations():
        await run.open()
        try:
            oracle = Oracle(run, ["p"], 0.0, asyncio.get_running_loop())
            await asyncio.to_thread(oracle.batch, 0, 1)
        finally:
            await run.close()

    with pytest.raises(PluginError, match="1,000 stages"):
        asyncio.run(demonstrations())


@pytest.fixture(scope="module")
def long():
    """A tree of one path of 2,000 stages, with its scores."""
    run = run_of()
    trees, scores = play_episode(run)
    return run, trees[0], scores


def test_an_episode_of_2000_stages_plays_and_everything_that_walks_its_tree_does(long):
    run, tree, scores = long
    nodes = list(tree.nodes())
    assert len(nodes) == STAGES and [node.turn for node in nodes[::1000]] == [0, 1]
    assert len(list(tree.leaves())) == 1 and len(next(iter(tree.chains()))) == STAGES
    metrics = step_metrics([tree], scores, None, run.reward_weights, run.team)
    assert metrics["success"] == 1.0 and metrics["turns_to_success"] == 2.0
    assert episode_text(tree).count("> 1") == STAGES
    assert repr(tree).startswith("Tree(")


@pytest.mark.parametrize("name", sorted(RETURNS))
def test_every_return_walks_a_long_episode(long, name):
    run, tree, scores = long
    batch = Batch(trees=[tree], scores=scores, reward_weights=run.reward_weights, annotations={})
    rows = list(RETURNS[name](batch, Horizon(max_turns=9)))
    assert [len(row.branches) for row in rows] == ([STAGES] if name == "episode" else [1] * STAGES)
    assert rows[0].branches[0] == tree.root.key.of_branch("one", 0)
    if name in ("to_go", "tree"):  # a 1 pays 1, and the potential rises from 0 to 1
        assert rows[0].value == pytest.approx(STAGES + 1) and rows[-1].value == pytest.approx(1 + 1 / STAGES)


def bare(tree):
    """The nodes, with the key of each child in its place."""
    return [
        replace(node, joints=[(replace(j, child=None), j.child and j.child.key) for j in node.joints])
        for node in tree.nodes()
    ]


def test_a_long_tree_is_copied_and_pickled(long):
    _, tree, _ = long
    middle = play_episode(run_of(stages=LONG + 50))[0][0]
    pairs = [(middle, copy.deepcopy(middle)), (tree, pickle.loads(pickle.dumps(tree)))]
    for before, after in pairs:
        assert after.root is not before.root and (after.task, after.chain) == (before.task, before.chain)
        assert bare(after) == bare(before)


def test_a_forked_tree_is_the_same_after_pickling():
    tree = play_episode(coterie_run(max_turns=2, sampler={"branches": 2, "expand": "all"}))[0][0]
    again = pickle.loads(pickle.dumps(tree))
    assert again == tree and again.root is not tree.root and len(list(tree.nodes())) > 9


def test_rows_of_a_long_episode_name_their_places_uniquely_and_briefly(long):
    run, tree, scores = long
    rows = list(rollout_rows([tree], scores, None, run.reward_weights))
    nodes = [row["node"] for row in rows if row["kind"] == "node"]
    assert len(set(nodes)) == STAGES and max(map(len, nodes)) < 2 * LONG + 50
    children = [row["child"] for row in rows if row["kind"] == "joint"]
    assert children == [*nodes[1:], None]
    assert sum(len(json.dumps(row)) for row in rows) < 20_000_000


def test_a_long_key_is_equal_to_one_that_was_made_in_another_way():
    key = Key("t")
    for joint in range(LONG + 20):
        key = key.child(joint % 3)
    plain = Key("t", path=tuple(joint % 3 for joint in range(LONG + 20)))
    again = pickle.loads(pickle.dumps(key))
    for other in (plain, again):
        assert other == key and hash(other) == hash(key) and repr(tuple(other)) == repr(tuple(key))
        assert other.text() == key.text() and other.child(1).text() == key.child(1).text()
    assert type(again.path) is tuple
    assert Key("t", path=(0,) * (LONG - 1)).text() == "t/e0/c0/n" + ".".join("0" * (LONG - 1))


def test_a_comb_whose_teeth_end_at_once_grows_to_any_depth():
    """Both branches go on at every stage, and one of them for a single stage."""

    def answer(request, prompt):
        ended = request.key.path[-1:] == (1,)
        return "0" if ended or (request.key.branch == 1 and len(request.key.path) >= 1010) else "1"

    run = run_of(answers=answer, stages=1010, sampler={"branches": 2, "expand": "all"})
    tree = play_episode(run)[0][0]
    assert len(list(tree.nodes())) == 1010 + 1009


def test_a_step_is_trained_on_long_episodes(tmp_path):
    table = {
        "env": {"type": "tests.games:Counted", "stages": 1010},
        "team": {"order": ["one"], "max_turns": 2, "roles": {"one": {"type": ROLE, "policy": "p"}}},
        "policies": {"p": {"model": {"init": "tabular"}}},
        "sampler": {"chains": 1, "branches": 1, "sampling": {"max_new_tokens": 1}},
        "algorithm": "reinforce",
        "loss": {"type": "reinforce"},
        "engine": "tabular",
        "trainer": "tabular",
        "schedule": {"steps": 1, "tasks_per_step": 1},
    }
    result = train(table, out=tmp_path / "run")
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert result is not None and row["success"] == 1.0 and row["turns_to_success"] == 2.0
    assert (tmp_path / "run" / "rollouts" / "step-000001.jsonl.gz").exists()


def test_paths_that_earlier_versions_could_play_are_written_as_before():
    key = Key("t", 0, 0)
    for _ in range(499):
        key = key.child(1)
    assert key.text() == "t/e0/c0/n" + ".".join(["1"] * 499)
    assert key.child(1).text().startswith("t/e0/c0/n500:")
