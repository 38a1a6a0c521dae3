"""Rollout trees. A node is a state with the prompts of the roles that act; each prompt has sampled actions.

A tree forks where several actions of one prompt are played. Chains, episodes and groups are views that are
computed from a tree and never stored. All values here are frozen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from coterie.core.types.keys import Key
from coterie.core.types.messages import Message

MAX_STAGES = 1000
"""Default of `team.max_stages`, the most stages of one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem instance; picklable."""

    id: str
    """Unique in the run. It contains the split, so that two splits never share a random draw."""
    payload: Any = None
    """Input of `Environment.reset`."""
    answer: Any = None
    """Reference answer. Roles see it only where the environment shows it."""
    stratum: str = ""
    """Class of the task; with `schedule.stratify: true`, every step keeps the shares of the classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The failure of an action or of a step."""

    kind: Literal["policy", "system"]
    """`policy`: the output caused it (unparsable text), and the action is scored. `system`: it has another
    cause (an aborted call, a dead worker), and the scores are missing."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One generation, token-exact."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """The sampled tokens, the stop token included."""
    logprobs: tuple[float, ...]
    """Log-probabilities of `token_ids` under the whole distribution at the sampling temperature."""
    version: int
    """Version of the weights that sampled the tokens; of several, the oldest."""
    finish: Literal["stop", "length", "abort"]
    continues: bool = False
    """As in `Prompt`."""
    version_runs: tuple[tuple[int, int], ...] = ()
    """(version, tokens) in their order, where the weights changed within the call; else empty. They add up to
    the call's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One sampled action of a role: one or more calls, with tool results between them."""

    calls: tuple[Call, ...]
    text: str
    """Decoded completion of the last call, without the stop token and, unless the role has `show_thoughts`,
    without the thought."""
    thought: str = ""
    """Thought of the last call, without its delimiters (`core/rollout/thoughts.py`). It is trained too."""
    parsed: Any = None
    """Output of the role's parser for `text`: the input of `Environment.step`."""
    tool_results: tuple[str, ...] = ()
    tool_limit: bool = False
    """Whether `text` contains a tool call that was not run: `max_tool_turns` was reached, or the results left
    no room in the context."""
    dialogue: tuple[Message, ...] = ()
    """Messages of the last call's prompt, tool results included; empty where no tool was called."""
    fault: Fault | None = None

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(len(call.token_ids) for call in self.calls)

    @property
    def trainable(self) -> bool:
        """False after a system fault."""
        return not (self.fault is not None and self.fault.kind == "system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One role's prompt at a node and the actions sampled for it."""

    role: str
    policy: str
    observation: Any
    messages: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    prompt_sha256: str
    """`ids_sha256` of `prompt_ids`."""
    branches: tuple[Action, ...]
    trainable: bool = True
    """Whether the policy is trained and the rollout is one of training."""
    temperature: float = 1.0
    """Temperature of the log-probabilities; 1 for greedy sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAction:
    """One combination of branches that was played: one branch of each role that acted."""

    branches: Mapping[str, int]
    """Branch index by role."""
    state_digest: str
    """Digest of the state that the joint action reached."""
    terminated: bool = False
    """The environment ended the episode."""
    truncated: bool = False
    """The turn limit, a sufficient reward (`RolloutContext.stop_above`) or a system fault ended it."""
    child: Node | None = field(default=None, repr=False)
    """The next node, if the joint action was committed and the episode goes on."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """`Step.info`."""
    outcome: Mapping[str, float] | None = None
    """`Environment.outcome`, if the episode ended here."""
    recombined: bool = False
    """Whether it combines the best branch of each role (`commit: per_role`). No baseline counts it."""
    fault: Fault | None = None

    @property
    def lost(self) -> bool:
        """Whether a system fault kept it from being played, so that its scores are missing."""
        return self.fault is not None and self.fault.kind == "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A state, the decisions of the roles that act in it, and the joint actions that were played."""

    key: Key
    turn: int
    """Index of the pass over the team's order, from 0."""
    stage: int
    """Index of the stage within the turn, from 0."""
    decisions: Mapping[str, Decision]
    """By role; empty where a prompt outgrew the context: one joint action without branches has the fault."""
    joints: tuple[JointAction, ...]
    state_digest: str = ""
    expanded: tuple[int, ...] = ()
    """Indices of the joint actions that were committed: the episode goes on from them or ended with them."""
    rule: str = ""
    """Rule that chose `expanded`: `best`, `sampled`, `all`, `only`, `per_role` or `uniform (all missing)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The rollout of one task in one chain."""

    task: Task
    chain: int
    epoch: int
    root: Node

    def __reduce__(self) -> tuple[Any, ...]:
        """The nodes as a list: pickle and deepcopy would call themselves at every stage of an episode."""
        bare = [replace(n, joints=tuple(replace(j, child=None) for j in n.joints)) for n in self.nodes()]
        return _joined, (self.task, self.chain, self.epoch, bare)

    def nodes(self) -> Iterator[Node]:
        """Every node, parents before children."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(j.child for j in reversed(node.joints) if j.child is not None)

    def actions(self) -> Iterator[tuple[Key, Decision, Action]]:
        """Every sampled action, with its branch's key and its decision."""
        for node in self.nodes():
            for role, decision in node.decisions.items():
                for branch, action in enumerate(decision.branches):
                    yield node.key.of_branch(role, branch), decision, action

    def leaves(self) -> Iterator[tuple[Key, JointAction]]:
        """The committed joint actions that ended an episode, with their keys."""
        for node in self.nodes():
            for index in node.expanded:
                if node.joints[index].child is None:
                    yield node.key.of_joint(index), node.joints[index]

    def chains(self) -> Iterator[tuple[tuple[Node, int], ...]]:
        """Every path from the root to a leaf as ((node, index of its joint action), ...): the episodes."""
        stack: list[tuple[Node, tuple[tuple[Node, int], ...]]] = [(self.root, ())]
        while stack:
            node, prefix = stack.pop()
            for index in reversed(node.expanded):
                child = node.joints[index].child
                path = (*prefix, (node, index))
                if child is None:
                    yield path
                else:
                    stack.append((child, path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Output of `Environment.step`."""

    state: Any
    """The next state."""
    scores: Mapping[tuple[str, str], float | None] = field(default_factory=dict)
    """The environment's own scores: {(role or TEAM, component): value, None if missing}."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Diagnostics for transition modes and coaches; plain data."""
    turn_over: bool = False
    """Whether the turn ends here although stages of the order remain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check of what a team made, or a remark on it."""

    name: str
    """What was checked, such as `syntax` or `tests`."""
    passed: bool | None
    """None: a remark, which makes no difference to success."""
    summary: str = ""
    """The result in one line, without details; empty: modes without details leave the finding out."""
    details: tuple[str, ...] = ()
    """The result in lines, with places, messages and reasons; empty: `summary`."""


def all_passed(findings: tuple[Finding, ...]) -> bool:
    """Whether every check passed; False without any check."""
    checks = [finding.passed for finding in findings if finding.passed is not None]
    return bool(checks) and all(checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """An earlier decision of a role on its path, with the messages that the model saw."""

    turn: int
    observation: Any
    messages: tuple[Message, ...]
    action: Action
    info: Mapping[str, Any]
    """`JointAction.info` of the joint action that was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleInput:
    """Input of `Role.render`."""

    role: str
    turn: int
    observation: Any
    feedback: tuple[str, ...] = ()
    """Sentences from the transition mode, oldest first."""
    history: tuple[HistoryEntry, ...] = ()
    """Earlier decisions of the role, oldest first."""
    shows_task: bool = True
    """Whether the prompt states the task; False where a transition mode leaves it out of later turns."""


def _joined(task: Task, chain: int, epoch: int, nodes: Sequence[Node]) -> Tree:
    """The tree of `Tree.__reduce__`; a node's key tells its parent."""
    grown: dict[Key, Node] = {}
    for node in reversed(nodes):
        joints = enumerate(node.joints)
        linked = tuple(replace(joint, child=grown.get(node.key.child(index))) for index, joint in joints)
        grown[node.key] = replace(node, joints=linked)
    return Tree(task=task, chain=chain, epoch=epoch, root=grown[nodes[0].key])


def committed(decisions: Mapping[str, Decision], branches: Mapping[str, int]) -> dict[str, Action]:
    """The actions at these branch indices, by role."""
    return {role: decisions[role].branches[branch] for role, branch in branches.items()}


def as_tuple(order: Sequence[str | Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The stages of `team.order`: `[a, [b, c]]` -> `(("a",), ("b", "c"))`. Roles of one stage act at once."""
    return tuple((stage,) if isinstance(stage, str) else tuple(stage) for stage in order)
