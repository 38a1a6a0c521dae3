"""A rollout file alone suffices to compute advantages again: plain formulas over its rows, no estimator."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import coterie
from coterie.core.errors import PolicyFault, SystemFault

TABULAR = Path(__file__).parents[1] / "recipes" / "tabular.yaml"
Row = Mapping[str, Any]
Place = tuple[str, str, int]
"""(node, role, branch)"""


def judge(view: Any) -> float:
    """A score of one joint action in [0, 1); a third of the actions have a floor, a tenth have none."""
    text = "|".join(action.text for action in view.actions.values())
    draw = zlib.crc32(f"{view.task.id}/{view.turn}/{text}".encode()) % 1000 / 1000
    if draw < 0.1:
        raise SystemFault("the judge is down")
    if draw < 0.4:
        raise PolicyFault("the judge can't read it")
    return draw


class File:
    """The rows of a rollout file by place, and what they pay."""

    def __init__(self, path: Path) -> None:
        self.step: Row = {}
        self.nodes: dict[str, dict[str, Row]] = {}
        self.joints: dict[str, list[Row]] = {}
        self.branches: dict[Place, Row] = {}
        for row in coterie.read_rollouts(path):
            if row["kind"] == "step":
                self.step = row
            elif row["kind"] == "node":
                self.nodes.setdefault(row["node"], {})[row["role"]] = row
            elif row["kind"] == "joint":
                self.joints.setdefault(row["node"], []).append(row)
            else:
                self.branches[row["node"], row["role"], row["branch"]] = row

    def chains(self) -> Iterator[list[tuple[str, Row]]]:
        """[(node, joint action)] of every chain; a node has one joint action here."""
        children = {joint["child"] for joints in self.joints.values() for joint in joints}
        for root in self.nodes.keys() - children:
            path, node = [], root
            while node is not None:
                (joint,) = self.joints[node]
                path.append((node, joint))
                node = joint["child"]
            yield path

    def gains(self, path: list[tuple[str, Row]], role: str) -> list[float | None]:
        """What each joint action of a chain pays a role: increments, and differences of potentials."""
        before: dict[tuple[str, str], float] = {}
        paid: list[float | None] = []
        for node, joint in path:
            cells = [joint["scores"]]
            if role in joint["branches"]:
                cells.append(self.branches[node, role, joint["branches"][role]]["own_scores"])
            total: float | None = 0.0
            for name, score in ((name, score) for cell in cells for name, score in cell.items()):
                owner, _, component = name.partition(".")
                kind = self.step["kinds"][component]
                weight = self.step["weights"].get(component, 1.0)
                weight *= self.step["team_weight"] if owner == "team" else 1.0
                if owner not in ("team", role) or weight == 0 or kind == "counterfactual":
                    continue
                if score is None or total is None:
                    total = None
                    continue
                total += weight * score
                if kind == "potential":
                    total -= before.get((owner, component), 0.0)
                    before[owner, component] = weight * score
            paid.append(total)
        return paid

    def actions(self, path: list[tuple[str, Row]], role: str) -> list[tuple[int, Place]]:
        """The role's actions on a chain, with their position in it."""
        return [
            (at, (node, role, joint["branches"][role]))
            for at, (node, joint) in enumerate(path)
            if role in joint["branches"]
        ]

    def to_go(self, roles: list[str]) -> dict[Place, float | None]:
        """What a chain pays from each action on."""
        returns: dict[Place, float | None] = {}
        for path in self.chains():
            for role in roles:
                gains = self.gains(path, role)
                for at, place in self.actions(path, role):
                    returns[place] = None if None in gains[at:] else sum(gains[at:])  # type: ignore[arg-type]
        return returns

    def tokens(self, place: Place) -> np.ndarray:
        return np.array([x for call in self.branches[place]["calls"] for x in call["logprobs"]])


Advantages = dict[Place, np.ndarray]


def reinforce_pp(file: File) -> Advantages:
    """Score minus .1 times the KL to the action's end; mean and deviation over the role's tokens."""
    values: Advantages = {}
    for place, score in file.to_go(["planner"]).items():
        row = file.branches[place]
        if score is None or row["calls"][-1]["finish"] == "length":
            continue
        rewards = -0.1 * (file.tokens(place) - np.array(row["annotations"]["ref_logprobs"]))
        rewards[-1] += score
        values[place] = np.cumsum(rewards[::-1])[::-1]
    pooled = np.concatenate(list(values.values()))
    return {place: (part - pooled.mean()) / pooled.std() for place, part in values.items()}


def gae(file: File) -> Advantages:
    """lambda .9, gamma .97, by token; mean and deviation (n - 1) over the batch's tokens."""
    values: Advantages = {}
    for path in file.chains():
        gains, actions = file.gains(path, "planner"), file.actions(path, "planner")
        if None in gains:
            continue
        advantage, following_value = 0.0, 0.0
        ends = [at for at, _ in actions[1:]] + [len(path)]
        for (at, place), end in reversed(list(zip(actions, ends, strict=True))):
            state_values = file.branches[place]["annotations"]["values"]
            parts = []
            for t in reversed(range(len(state_values))):
                reward = sum(gains[at:end]) if t == len(state_values) - 1 else 0.0  # type: ignore[arg-type]
                delta = reward + 0.97 * following_value - state_values[t]
                advantage = delta + 0.97 * 0.9 * advantage
                following_value = state_values[t]
                parts.append(advantage)
            values[place] = np.array(parts[::-1])
    pooled = np.concatenate(list(values.values()))
    return {place: (part - pooled.mean()) / pooled.std(ddof=1) for place, part in values.items()}


def episodes(file: File) -> dict[Place, tuple[str, float]]:
    """By the planner's action: its task, and the return of its chain."""
    returns = {}
    for path in file.chains():
        gains = file.gains(path, "planner")
        if None not in gains:
            for _, place in file.actions(path, "planner"):
                row = file.branches[place]
                returns[place] = (f"{row['task_id']}/{row['epoch']}", sum(gains))  # type: ignore[arg-type]
    return returns


def grpo(file: File) -> Advantages:
    """The chain's return minus the mean of the task's chains, by their deviation (n - 1)."""
    returns, groups = episodes(file), {}
    for (node, _, _), (task, value) in returns.items():
        groups.setdefault(task, {})[node.split("/n")[0]] = value
    advantages = {}
    for place, (task, value) in returns.items():
        group = np.array(list(groups[task].values()))
        if len(group) > 1:
            deviation = group.std(ddof=1)
            advantages[place] = (value - group.mean()) / (deviation + 1e-6) if np.ptp(group) > 1e-12 else 0.0
    return advantages  # type: ignore[return-value]


def rae(file: File) -> Advantages:
    """The chain's return minus the role's running mean of before the step."""
    baseline = file.step["state"]["planner"]
    return {place: np.array(value - baseline) for place, (_, value) in episodes(file).items()}


@pytest.mark.parametrize(("formula", "algorithm"), [
    (reinforce_pp, {"type": "reinforce_pp", "beta": 0.1, "return": "to_go", "truncated": "drop",
                    "normalise": {"scope": "role"}}),
    (gae, {"type": "gae", "lam": 0.9, "gamma": 0.97}),
    (grpo, {"type": "grpo", "normalise": {"eps": 1e-6}}),
    (rae, {"type": "rae"}),
])  # fmt: skip
def test_advantages_follow_from_the_file_alone(
    tmp_path: Path, formula: Callable[[File], Advantages], algorithm: dict[str, Any]
) -> None:
    """Missing scores and floors included; the executor's weights are frozen."""
    table = yaml.safe_load(TABULAR.read_text()) | {
        "algorithm": {**algorithm, "alpha": 0.35},
        "policies": {"planner": {"model": {"init": "tabular"}},
                     "executor": {"model": {"init": "tabular"}, "train": "none"}},
        "sampler": {"branches": 1, "chains": 4, "sampling": {"max_new_tokens": 6}},
        "rewards": {"environment": {"type": "environment"}, "judge": {
            "type": "function", "function": f"{__name__}:judge", "floor": -0.5, "weights": {"judge": 1.5}}},
        "trainer": {"type": "tabular", "learning_rate": 20},
        "schedule": {"steps": 2, "tasks_per_step": 24, "max_missing": 1},
    }  # fmt: skip
    table["env"] |= {"team": "potential", "train_tasks": 6}  # a step plays each task in four epochs
    for role, settings in table["team"]["roles"].items():
        settings["policy"] = role
    coterie.train(table, out=tmp_path / "run")
    file = File(tmp_path / "run" / "rollouts" / "step-000002.jsonl.gz")
    advantages = formula(file)
    recorded = {place: row["advantage"] for place, row in file.branches.items()}
    assert {place for place, value in recorded.items() if value is not None} == advantages.keys()
    for place, advantage in advantages.items():
        np.testing.assert_allclose(recorded[place], advantage, rtol=1e-6, atol=1e-9, err_msg=str(place))
    # The case holds: missing scores, floors, and advantages that differ from each other.
    judged = [joint["scores"].get("team.judge") for joints in file.joints.values() for joint in joints]
    assert None in judged and -0.5 in judged and len(advantages) > 6
    assert len({float(np.ravel(value)[0]) for value in advantages.values()}) > 4
