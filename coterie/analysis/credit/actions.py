"""Every recorded action with what credit is made of: its value, siblings, advantage and tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.analysis.credit.component_returns import (
    RETURN_KINDS,
    Component,
    Parts,
    ReturnKind,
    Rules,
    component_returns,
)
from coterie.api.episodes import (
    RecordedDecision,
    RecordedNode,
    RecordedTree,
    Row,
    answer_text,
    is_lost,
    mean_advantage,
    tokens_of,
)
from coterie.core.types import TEAM

SAME = 1e-6
"""Of a return: what differs by less is rounding, of losses in float32 too."""


@dataclass(slots=True)
class CreditedAction:
    """One sampled action of a role."""

    step: int
    task: str
    role: str
    policy: str
    turn: int
    forked: bool
    """Whether its prompt has several branches."""
    siblings: tuple[Any, ...]
    """What actions have in common that are compared: the prompt where it has several branches, else task,
    epoch, role and turn."""
    siblings_of_prompt: tuple[Any, ...]
    """What actions have in common that answered one prompt in one step."""
    prompt: tuple[Any, ...]
    """What actions have in common that answered the same prompt of a task, in whatever step."""
    text: str
    """Spaces don't count."""
    tokens: int
    advantage: float | None
    """Of one per token, their mean; None: not trained."""
    credited: int
    """Tokens whose advantage is not 0."""
    weight: float
    recorded: float | None
    """The recorded return; None: the action has none."""
    returns: Mapping[ReturnKind, Parts]
    scores: Mapping[Component, float | None] = field(default_factory=dict)
    """The action's own and those of its joint actions, as means; None: missing."""

    def value(self, kind: ReturnKind) -> float | None:
        """The recorded return, else the value by `kind`."""
        return self.returns[kind].value if self.recorded is None else self.recorded


def credited_actions(trees: Iterable[RecordedTree], rules: Rules) -> Iterator[CreditedAction]:
    """The actions of a step's trees. What the system lost is left out."""
    for tree in trees:
        returns = component_returns(tree, rules)
        for node in tree.nodes.values():
            for role, decision in node.decisions.items():
                for index, row in enumerate(decision.branches):
                    if not is_lost(row):
                        yield _action(tree, node, role, decision, row, returns[node.key, role, index])


def _action(
    tree: RecordedTree,
    node: RecordedNode,
    role: str,
    decision: RecordedDecision,
    row: Row,
    returns: Mapping[ReturnKind, Parts],
) -> CreditedAction:
    several = len(decision.branches) > 1
    place = tree.step, tree.task_id, tree.epoch, role, node.turn
    prompt = tree.task_id, role, node.turn, node.stage, decision.prompt.get("prompt_sha256")
    tokens, advantage = tokens_of(row), row["advantage"]
    if advantage is None:
        credited = 0
    else:
        credited = int(np.count_nonzero(np.broadcast_to(advantage, tokens)))
    return CreditedAction(
        step=tree.step,
        task=tree.task_id,
        role=role,
        policy=row["policy"],
        turn=node.turn,
        forked=several,
        siblings=(tree.step, node.key, role) if several else place,
        siblings_of_prompt=(tree.step, node.key) if several else (tree.step, tree.epoch, *prompt),
        prompt=prompt,
        text=answer_text(row),
        tokens=tokens,
        advantage=mean_advantage(row),
        credited=credited,
        weight=1.0 if row["weight"] is None else row["weight"],
        recorded=row["return"],
        returns=returns,
        scores={_component(name, role): score for name, score in row["scores"].items()},
    )


def _component(name: str, role: str) -> Component:
    """(owner, component) of a name in a branch's `scores`."""
    owner, dot, component = name.partition(".")
    return (TEAM, component) if dot and owner == TEAM else (role, name)


def return_kind_of(actions: Sequence[CreditedAction]) -> tuple[ReturnKind, bool]:
    """The kind whose values are the nearest to the recorded returns, and whether they are equal.

    Without a recorded return, as where nothing is trained: `to_go` of chains, `immediate` of trees.
    """
    errors: dict[ReturnKind, list[float]] = {kind: [] for kind in RETURN_KINDS}
    for action in actions:
        values = {kind: action.returns[kind].value for kind in RETURN_KINDS}
        if action.recorded is not None and None not in values.values():
            for kind, value in values.items():
                errors[kind].append(abs(value - action.recorded) / max(1.0, abs(action.recorded)))  # type: ignore[operator]
    if not any(errors.values()):
        return ("to_go" if not any(action.forked for action in actions) else "immediate"), False
    best = min(RETURN_KINDS, key=lambda kind: math.fsum(errors[kind]))  # of equal ones the first
    return best, max(errors[best]) <= SAME


def grouped_by(
    actions: Iterable[CreditedAction], key: Callable[[CreditedAction], Any]
) -> dict[Any, list[CreditedAction]]:
    """Actions by a key, in the order in which the keys first come."""
    groups: dict[Any, list[CreditedAction]] = {}
    for action in actions:
        groups.setdefault(key(action), []).append(action)
    return groups
