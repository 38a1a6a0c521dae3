"""The game, its result, and opponents that are earlier versions of the player."""

import coterie_duel

import coterie
from coterie.testing import (
    build,
    check_environment,
    check_plugin,
    check_reward,
    check_role,
    coterie_run,
    play_episode,
)

GAME = {"type": "nim_duel", "heap": 5, "opponents": 2, "tasks": 16}
SIDES = ["player", "opponent1", "opponent2"]
PERFECT = {"heap 1": "one", "heap 2": "two", "heap 3": "one", "heap 4": "one", "heap 5": "two"}


def duel(answers):
    """One step's trees and scores, where each side answers as given."""
    run = coterie_run(
        answers,
        env=GAME,
        order=[SIDES],
        roles={side: {"type": "nim_side"} for side in SIDES},
        rewards={"result": {"type": "duel_result"}},
        sampler={"branches": 1, "chains": 2},
        algorithm={"type": "grpo"},
    )
    return play_episode(run, tasks=16)


def test_the_scores_of_an_episode_add_up_to_zero():
    trees, scores = duel(dict.fromkeys(SIDES, "one"))
    paid = {}
    for key, role, _, score in scores:
        paid.setdefault((key.task, key.chain), {})[role] = score.value
    for tree in trees:
        ((_, leaf),) = tree.leaves()
        by_side = paid[tree.task.id, tree.chain]
        if "player" in by_side:
            assert by_side["player"] == 2.0 * leaf.outcome["success"] - 1.0
        if len(by_side) == 2:  # who wins with the first move leaves the other side none
            assert sum(by_side.values()) == 0.0


def test_who_plays_perfectly_beats_one_who_takes_one():
    sides = {"player": lambda request, prompt: PERFECT[prompt], "opponent1": "one", "opponent2": "one"}
    trees, _ = duel(sides)
    for tree in trees:
        heap, first, _ = tree.task.payload
        if first == "player" and heap % 3:  # multiples of three are lost against perfect play
            assert all(leaf.outcome["success"] == 1.0 for _, leaf in tree.leaves())


def test_every_chain_of_a_task_meets_the_same_opponent():
    trees, _ = duel(dict.fromkeys(SIDES, "one"))
    met = {}
    for tree in trees:
        roles = {role for node in tree.nodes() for role in node.decisions} - {"player"}
        met.setdefault(tree.task.id, set()).update(roles)
    assert all(len(opponents) <= 1 for opponents in met.values())
    assert {opponent for opponents in met.values() for opponent in opponents} == {"opponent1", "opponent2"}


def test_an_unreadable_move_loses():
    trees, _ = duel({"player": "three", "opponent1": "one", "opponent2": "one"})
    assert all(leaf.outcome["success"] == 0.0 for tree in trees for _, leaf in tree.leaves())


def test_the_kit():
    environment = build("environment", GAME, order=[SIDES])
    roles = {side: build("role", "nim_side", name=side, env=GAME) for side in SIDES}
    moves = ["one", "two", "three"]
    check_environment(environment, roles=SIDES, act=moves, role_plugins=roles)
    check_role(roles["player"], observations=["heap 3"], good=["one", "two"])
    result = build("reward", "duel_result", env=GAME)
    check_reward(result, environment=environment, roles=SIDES, act=moves, role_plugins=roles)
    check_plugin(coterie_duel)


def test_the_player_meets_versions_of_itself_which_stay_what_they_were(tmp_path):
    short = ["schedule.steps=2", "schedule.checkpoint_every=1", "schedule.tasks_per_step=4"]
    first, league = tmp_path / "first", tmp_path / "league"
    coterie.train("duel-first", overrides=short, out=first)
    past = {"past1": f"{first}@1:player", "past2": f"{first}@2:player"}
    sources = [f"policies.{name}.from={source}" for name, source in past.items()]
    sources.append(f"policies.player.from={first}@latest:player")
    coterie.train("duel-league", overrides=[*short, *sources], out=league)
    tables = {}
    for name, address in (("first", f"{first}@1"), ("kept", f"{league}@2")):
        run, _, step = address.partition("@")
        policy = "player" if name == "first" else "past1"
        coterie.export(run, policy, tmp_path / f"table-{name}", checkpoint=int(step))
        tables[name] = (tmp_path / f"table-{name}" / "table.npz").read_bytes()
    assert tables["first"] == tables["kept"]


def test_the_smoke_recipe_learns_to_win(tmp_path):
    assert coterie.train("duel-first", out=tmp_path / "run").metrics["eval/success"] > 0.6
