"""What an episode is searched and sorted by: one number, or one word, a field.

A field `<name>.<role>` is the same of one role's actions. A mean over nothing is None, as is whatever a
missing score makes unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from coterie.api.episodes import RecordedAction, RecordedEpisode, Row, mean_advantage, tokens_of
from coterie.viewing.where import Value

FIELDS: dict[str, str] = {
    "step": "step of the run",
    "task": "id of the task",
    "stratum": "class of the task; empty where it has none",
    "epoch": "pass over the tasks",
    "chain": "index of the tree among those of its task",
    "episode": "index of the path within its tree",
    "turns": "turns begun",
    "actions": "committed actions on the path",
    "success": "the environment's outcome; missing where a fault ended the episode",
    "outcome.<name>": "other outcomes of the environment",
    "reward": "mean reward that the path's joint actions paid; missing where one of them is",
    "return": "mean return of the path's actions, as the algorithm computed it",
    "advantage": "mean advantage of the path's trained actions",
    "score.<role>.<component>": "mean score of a component on the path; of the team: score.team.<component>",
    "spread": "largest difference of rewards among the siblings of an action on the path",
    "missing": "missing scores on the path",
    "faults": "actions on the path that could not be parsed, or that an environment refused",
    "lost": "actions or steps on the path that the system lost",
    "empty": "actions without text",
    "finish_length": "actions that max_new_tokens cut off",
    "repeats": "actions with the text of the last action of another role before it, which wrote the text "
    "first",
    "tools": "tool results",
    "tokens": "tokens sampled",
}
"""Field -> its meaning."""

OF_ROLES = (
    *("reward", "return", "advantage", "spread", "missing", "faults", "lost", "empty", "finish_length"),
    *("repeats", "tools", "tokens", "actions"),
)
"""Fields that each role has too."""


def fields_of(episode: RecordedEpisode) -> dict[str, Value]:
    """All fields of an episode: those of `FIELDS`, and `<name>.<role>` for each role that acted."""
    tree, actions = episode.tree, list(episode.actions)
    fields: dict[str, Value] = {
        "step": tree.step,
        "task": tree.task_id,
        "stratum": tree.stratum,
        "epoch": tree.epoch,
        "chain": tree.chain,
        "episode": episode.index,
        "turns": episode.turns,
        "success": episode.success,
    }
    for name, value in episode.outcome.items():
        if name != "success":
            fields[f"outcome.{name}"] = value
    repeated = {id(action.branch) for action in repeats_of(actions)}
    fields |= _of_actions(actions, repeated)
    fields |= _scores(episode, actions)
    joint_faults = [joint["fault"] for joint in _joints(episode) if joint["fault"] is not None]
    of_actions = [action.branch["fault"] for action in actions]
    for fault in joint_faults:
        if fault not in of_actions:  # a fault of an action was counted with the action
            name = "faults" if fault["kind"] == "policy" else "lost"
            fields[name] = int(fields[name] or 0) + 1
    if episode.end is None:
        fields["lost"] = int(fields["lost"] or 0) + 1
    for role in dict.fromkeys(action.role for action in actions):
        of_role = _of_actions([action for action in actions if action.role == role], repeated)
        fields |= {f"{name}.{role}": of_role[name] for name in OF_ROLES if name != "missing"}
        fields[f"missing.{role}"] = _missing(episode, role)
    fields["missing"] = _missing(episode)
    return fields


def _of_actions(actions: Sequence[RecordedAction], repeated: set[int]) -> dict[str, Value]:
    branches = [action.branch for action in actions]
    faults = [branch["fault"]["kind"] for branch in branches if branch["fault"] is not None]
    return {
        "actions": len(actions),
        "reward": _mean([action.reward for action in actions], whole=True),
        "return": _mean([branch["return"] for branch in branches]),
        "advantage": _mean([mean_advantage(branch) for branch in branches]),
        "spread": max((s for action in actions if (s := spread_of(action)) is not None), default=None),
        "faults": faults.count("policy"),
        "lost": faults.count("system"),
        "empty": sum(not branch["completion"].strip() for branch in branches),
        "finish_length": sum(bool(b["calls"]) and b["calls"][-1]["finish"] == "length" for b in branches),
        "repeats": sum(id(branch) in repeated for branch in branches),
        "tools": sum(len(branch.get("tool_results", ())) for branch in branches),
        "tokens": sum(map(tokens_of, branches)),
    }


def spread_of(action: RecordedAction) -> float | None:
    """Largest difference of rewards among the siblings of an action; None: fewer than two have one."""
    rewards = [row["reward"] for row in action.siblings if row["reward"] is not None]
    return max(rewards) - min(rewards) if len(rewards) > 1 else None


def repeats_of(actions: Iterable[RecordedAction]) -> Iterator[RecordedAction]:
    """The actions whose text is that of the last action of another role before them; spaces don't count.

    Roles that act at once don't see each other, so they can't repeat each other. A text is that of the role
    that wrote it first.
    """
    earlier: list[tuple[str, int, str]] = []
    """(role, identity of the node, text), in the order of play."""
    for action in actions:
        text = " ".join(action.branch["completion"].split())
        before = [entry for entry in earlier if entry[0] != action.role and entry[1] != id(action.node)]
        writer = next((entry[0] for entry in earlier if entry[2] == text), action.role)
        if text and before and before[-1][2] == text and writer != action.role:
            yield action
        earlier.append((action.role, id(action.node), text))


def _joints(episode: RecordedEpisode) -> Iterator[Row]:
    return (node.joints[index] for node, index in episode.path if index is not None)


def _scores(episode: RecordedEpisode, actions: Sequence[RecordedAction]) -> dict[str, Value]:
    """Means over the path: what joint actions were given, and what actions were given themselves."""
    values: dict[str, list[float | None]] = {}
    for scores in _cells(episode, actions):
        for name, value in scores.items():
            values.setdefault(f"score.{name}", []).append(value)
    return {name: _mean(of) for name, of in sorted(values.items())}


def _cells(episode: RecordedEpisode, actions: Sequence[RecordedAction]) -> Iterator[dict[str, float | None]]:
    """Tables of scores on the path, named `<role or team>.<component>`."""
    yield from (joint["scores"] for joint in _joints(episode))
    yield from (action.branch.get("own_scores", {}) for action in actions)


def _missing(episode: RecordedEpisode, role: str | None = None) -> int:
    """Missing scores on the path; of a role, those that it owns."""
    cells = _cells(episode, list(episode.actions))
    prefix = "" if role is None else f"{role}."
    return sum(
        value is None and name.startswith(prefix) for scores in cells for name, value in scores.items()
    )


def _mean(values: Iterable[float | None], whole: bool = False) -> float | None:
    """The mean of those that are there; with `whole`, None where one is not."""
    every = list(values)
    present = [value for value in every if value is not None]
    if not present or (whole and len(present) < len(every)):
        return None
    return math.fsum(present) / len(present)
