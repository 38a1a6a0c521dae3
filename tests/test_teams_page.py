"""Each shape of docs/teams.md: its recipe is the page's and trains, and credit goes where the page says."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import coterie
from coterie.testing import build, check_environment, check_role, coterie_run, play_episode

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "teams.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r'```yaml title="([^"]+)"\n(.*?)```', PAGE, re.DOTALL))
HOOKS = ("environments", "roles", "rewards")
SHORT = ("schedule.steps=2", "schedule.tasks_per_step=3", "sampler.chains=3", "schedule.evaluate_tasks=4")


def module_of(file):
    """The module that registers a recipe's plugins: its package's entry point, or `teams.py` beside it."""
    for folder in file.parents:
        if (folder / "pyproject.toml").is_file() and folder != ROOT:
            project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
            return folder, *project["project"]["entry-points"]["coterie"].values()
    return file.parent, "teams"


def recipe(name, monkeypatch):
    """The table of a recipe, whose types name classes: nothing is registered in this process."""
    folder, module = module_of(ROOT / name)
    monkeypatch.syspath_prepend(str(folder))
    hooks, types = importlib.import_module(module), {}
    for hook in HOOKS:

        def register(known, target):
            types[known] = target if isinstance(target, str) else f"{module}:{target.__name__}"

        getattr(hooks, f"register_{hook}")(register)

    def named(table):
        if isinstance(table, dict):
            table = {key: named(value) for key, value in table.items()}
            if table.get("type") in types:
                table["type"] = types[table["type"]]
        return table

    return named(yaml.safe_load(RECIPES[name]))


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_is_the_file_and_trains(name, tmp_path, monkeypatch):
    assert RECIPES[name] == (ROOT / name).read_text(encoding="utf-8")
    table = recipe(name, monkeypatch)
    coterie.train(table, overrides=SHORT, out=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and rows[0]["missing/share"] == 0.0
    for policy, settings in table["policies"].items():
        norms = [row.get(f"policy/{policy}/grad_norm") for row in rows]
        frozen = settings.get("train") == "none"
        assert norms == [None, None] if frozen else any(norm for norm in norms), policy


def test_there_is_a_recipe_for_every_shape():
    assert [Path(name).stem for name in RECIPES] == [
        "propose_and_solve",
        "best_of_n",
        "smoke",
        "hand_over",
        "league",
    ]


def played(name, monkeypatch, answers, tasks=2):
    """Trees and scores of a step of a shape in `examples/teams`, with these answers by role."""
    table = recipe(f"examples/teams/{name}.yaml", monkeypatch)
    run = coterie_run(
        answers,
        env=table["env"],
        order=table["team"]["order"],
        roles={role: {**keys, "policy": "p"} for role, keys in table["team"]["roles"].items()},
        rewards=table["rewards"],
        sampler={"branches": 1, "chains": 2},
        algorithm={"type": "grpo"},
    )
    return play_episode(run, tasks=tasks)


def paid(scores, tree):
    """The sum of each role's scores in an episode, by role and component."""
    sums = {}
    for key, role, component, score in scores:
        if (key.task, key.chain) == (tree.task.id, tree.chain):
            sums[role, component] = sums.get((role, component), 0.0) + score.value
    return sums


def acting(tree):
    return [tuple(node.decisions) for node in tree.nodes()]


@pytest.mark.parametrize(("problem", "learnable"), [("easy", 0.0), ("medium", 1.0), ("hard", 0.0)])
def test_a_proposer_is_paid_for_what_is_solved_at_times(problem, learnable, monkeypatch):
    def attempts(request, prompt):
        return ("red", "blue")[len(request.key.path) % 2]

    trees, scores = played("propose_and_solve", monkeypatch, {"proposer": problem, "solver": attempts})
    for tree in trees:
        assert acting(tree) == [("proposer",), *[("solver",)] * 4]
        assert paid(scores, tree)["proposer", "learnable"] == learnable


def test_writers_are_paid_for_their_drafts_and_the_judge_for_what_it_hands_in(monkeypatch):
    answers = {"writer1": "red", "writer2": "blue", "writer3": "green", "judge": "writer2"}
    trees, scores = played("best_of_n", monkeypatch, answers)
    for tree in trees:
        wanted = {name: float(tree.task.payload == word) for name, word in answers.items()}
        assert paid(scores, tree) == {
            **{(writer, "draft"): wanted[writer] for writer in ("writer1", "writer2", "writer3")},
            ("judge", "handed_in"): wanted["writer2"],
        }


@pytest.mark.parametrize(
    ("clerk", "billing", "network", "expected"),
    [
        ("billing", "network", "stop", [("clerk",), ("billing",), ("network",), ("clerk",)]),
        ("both", "stop", "stop", [("clerk",), ("billing", "network"), ("clerk",)]),
        ("both", "stop", "clerk", [("clerk",), ("billing", "network"), ("network",), ("clerk",)]),
        ("stop", "fix", "fix", [("clerk",)]),
        ("nonsense", "fix", "fix", [("clerk",)]),
    ],
)
def test_roles_hand_over_join_leave_and_stop(clerk, billing, network, expected, monkeypatch):
    answers = {"clerk": clerk, "billing": billing, "network": network}
    trees, scores = played("hand_over", monkeypatch, answers)
    for tree in trees:
        assert acting(tree)[: len(expected)] == expected and len(acting(tree)) <= 6
        actions = sum(len(roles) for roles in acting(tree))
        assert paid(scores, tree)["team", "cost"] == pytest.approx(-0.05 * actions)


def test_whoever_fixes_a_part_ends_the_episode_once_all_are_fixed(monkeypatch):
    trees, scores = played("hand_over", monkeypatch, {"clerk": "both", "billing": "fix", "network": "fix"})
    for tree in trees:
        assert acting(tree) == [("clerk",), ("billing", "network")]
        assert paid(scores, tree)["team", "solved"] == 1.0


@pytest.mark.parametrize("name", ["propose_and_solve", "best_of_n", "hand_over"])
def test_the_games_keep_their_promises(name, monkeypatch):
    table = recipe(f"examples/teams/{name}.yaml", monkeypatch)
    order, env = table["team"]["order"], table["env"]
    roles = {
        role: build("role", {key: keys[key] for key in ("type", "words")}, name=role, env=env)
        for role, keys in table["team"]["roles"].items()
    }
    words = ["easy", "medium", "red", "writer1", "both", "fix", "stop", "what?"]
    game = build("environment", env, order=order)
    check_environment(game, roles=list(roles), act=words, role_plugins=roles)
    for role, plugin in roles.items():
        check_role(plugin, observations=["propose"], good=table["team"]["roles"][role]["words"])
