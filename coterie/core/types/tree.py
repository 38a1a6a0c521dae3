"""What happened (Tree), what it is worth (Scores), who gets it (Credit), what is trained on (Sample).

All of these are values: frozen and slotted. A rollout is a tree that can fork; views such as a chain
or a group are computed from it and never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.core.types.keys import Key
from coterie.core.types.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem instance; picklable."""

    id: str
    """Unique in the run; names the split too, so that two splits never share a draw."""
    payload: Any = None
    """What the environment needs to reset."""
    answer: Any = None
    """Reference answer; never shown to a role unless the environment does so."""
    stratum: str = ""
    """For `schedule.stratify`: which share of a step's tasks this one counts towards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why an action is not what it should be.

    `policy`: the output's doing (unparsable); it is scored. `system`: ours or the world's (engine
    aborted, worker died); its scores are missing.
    """

    kind: Literal["policy", "system"]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One generation, token-exact."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """What was sampled, the stop token included."""
    logprobs: tuple[float, ...]
    """Of the sampled tokens under the behaviour policy at the sampling temperature, untruncated."""
    version: int
    """Of the weights that drew them."""
    finish: Literal["stop", "length", "abort"]
    continues: bool = False
    """The prompt extends the previous call's prompt and tokens verbatim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What a role hands over: one or more calls, with tool results between them."""

    calls: tuple[Call, ...]
    text: str
    """What is said: the decoded completion of the last call, without the stop token and, unless the role has
    `show_thoughts`, without its thought."""
    thought: str = ""
    """The last call's, without its marks; trained like the rest (see `core/rollout/thoughts.py`)."""
    parsed: Any = None
    """What the role's parser made of the text; what the environment steps with."""
    tool_results: tuple[str, ...] = ()
    tool_limit: bool = False
    """The last text asks for a tool once more than `max_tool_turns` allows, or for results that left no room
    in the context: it stands as it is."""
    dialogue: tuple[Message, ...] = ()
    """Messages of the last call's prompt, where tool results extended the decision's; else empty."""
    fault: Fault | None = None

    @property
    def trainable(self) -> bool:
        """A call that the system aborted is never trained on."""
        return not (self.fault is not None and self.fault.kind == "system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One role's prompt at a node and the K actions sampled for it."""

    role: str
    policy: str
    observation: Any
    messages: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    prompt_sha256: str
    branches: tuple[Action, ...]
    trainable: bool = True
    temperature: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAction:
    """One combination of branches that was really played."""

    branches: Mapping[str, int]
    """role -> branch."""
    state_digest: str
    terminated: bool = False
    """The environment says it is over."""
    truncated: bool = False
    """The turn limit, a reward that was enough (`Play.stop_above`) or a system fault ended it."""
    child: Node | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    """Diagnostics for transitions and coaches."""
    outcome: Mapping[str, float] | None = None
    """`environment.outcome` where the episode ended here; has `success`."""
    recombined: bool = False
    """Played once more from the best branch of each role; outside every baseline."""
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A state in which one stage is asked."""

    key: Key
    turn: int
    stage: int
    decisions: Mapping[str, Decision]
    joints: tuple[JointAction, ...]
    state_digest: str = ""
    expanded: tuple[int, ...] = ()
    """Indices of the joints that went on, or that ended the episode as the committed ones."""
    rule: str = ""
    """The rule that chose them: `best`, `sampled`, `all`, `only`, `uniform (all missing)`, `per_role`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """All that was played from one task's root in one chain."""

    task: Task
    chain: int
    epoch: int
    root: Node
    step: int = 0

    def nodes(self) -> Iterator[Node]:
        """Every node, parents before children."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(j.child for j in reversed(node.joints) if j.child is not None)

    def leaves(self) -> Iterator[tuple[Key, JointAction]]:
        """The expanded joints at which an episode ended, with the joint's key."""
        for node in self.nodes():
            for index in node.expanded:
                if node.joints[index].child is None:
                    yield node.key.of_joint(index), node.joints[index]

    def chains(self) -> Iterator[tuple[tuple[Node, int], ...]]:
        """Every root-to-leaf path as ((node, joint taken), ...): the episodes that were played out."""
        stack: list[tuple[Node, tuple[tuple[Node, int], ...]]] = [(self.root, ())]
        while stack:
            node, before = stack.pop()
            for index in reversed(node.expanded):
                child = node.joints[index].child
                path = (*before, (node, index))
                if child is None:
                    yield path
                else:
                    stack.append((child, path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What `Environment.step` returns."""

    state: Any
    scores: Mapping[tuple[str, str], float | None] = field(default_factory=dict)
    """{(role or TEAM, component): value} that the environment emits with the transition."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What transition modes and coaches may use; plain data."""
    turn_over: bool = False
    """End the turn here although stages of the order are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One earlier decision of the same role on the path, as the model really saw it."""

    turn: int
    observation: Any
    messages: tuple[Message, ...]
    action: Action
    info: Mapping[str, Any]
    """Of the joint that was committed after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleInput:
    """What a role is told: the observation, and what the transition mode adds to it."""

    role: str
    turn: int
    observation: Any
    feedback: tuple[str, ...] = ()
    """Sentences of the transition mode, oldest first."""
    history: tuple[HistoryEntry, ...] = ()


def committed(decisions: Mapping[str, Decision], combination: Mapping[str, int]) -> dict[str, Action]:
    """The actions that a pick names."""
    return {role: decisions[role].branches[branch] for role, branch in combination.items()}


def as_tuple(order: Sequence[str | Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """`[a, [b, c]]` -> `(("a",), ("b", "c"))`: a nested list is a stage whose roles act at once."""
    return tuple((stage,) if isinstance(stage, str) else tuple(stage) for stage in order)
