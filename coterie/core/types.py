"""What happened (Tree), what it is worth (Scores), who gets it (Credit), what is trained on (Sample).

All of these are values: frozen and slotted. A rollout is a tree that can fork; views such as a chain
or a group are computed from it and never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.core.keys import TEAM as TEAM, Key as Key

Message = dict[str, str]
"""One chat message: {"role": "system" | "user" | "assistant" | "tool", "content": ...}."""


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
class Sampling:
    """How a role's tokens are drawn. The defaults truncate nothing (invariant 4)."""

    temperature: float = 1.0
    """0 means greedy (evaluation only)."""
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    max_new_tokens: int = 64
    stop: tuple[str, ...] = ()
    """Strings that end a call besides the tokenizer's end-of-turn tokens; each must be one token."""

    @property
    def truncated(self) -> bool:
        return self.top_p < 1.0 or self.top_k > 0


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
    """The last call's, without its marks; trained like the rest (see `core/thoughts.py`)."""
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
class Joint:
    """One combination of branches that was really played."""

    pick: Mapping[str, int]
    """role -> branch."""
    state_digest: str
    terminal: bool = False
    """The environment says it is over."""
    cut: bool = False
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
    joints: tuple[Joint, ...]
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

    def leaves(self) -> Iterator[tuple[Key, Joint]]:
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


@dataclass(frozen=True, slots=True)
class Score:
    """One component's value for a place and a role. None = missing, never a stand-in number."""

    value: float | None
    reason: str = ""
    source: str = ""


class Scores:
    """The table beside the trees: (place, role or TEAM, component) -> Score. Late writers only add."""

    __slots__ = ("_by_place",)

    def __init__(self) -> None:
        self._by_place: dict[Key, dict[tuple[str, str], Score]] = {}

    def add(self, key: Key, role: str, component: str, score: Score) -> None:
        """Add one score.

        Raises:
            ValueError: the place already has a score for that role and component.
        """
        cell = self._by_place.setdefault(key, {})
        if (role, component) in cell:
            raise ValueError(f"{key.text()}: {role}.{component} was scored twice")
        cell[role, component] = score

    def at(self, key: Key) -> Mapping[tuple[str, str], Score]:
        """All scores of a place: {(role, component): Score}."""
        return self._by_place.get(key, {})

    def merge(self, other: Scores) -> None:
        for key, cell in other._by_place.items():
            for (role, component), score in cell.items():
                self.add(key, role, component, score)

    def __iter__(self) -> Iterator[tuple[Key, str, str, Score]]:
        for key, cell in self._by_place.items():
            for (role, component), score in cell.items():
                yield key, role, component, score

    def __len__(self) -> int:
        return sum(len(cell) for cell in self._by_place.values())


Notes = dict[str, dict[Key, np.ndarray]]
"""{"ref_logprobs" | "old_logprobs" | "values" | "teacher_logprobs": {branch key: per-token, shape
(tokens,)}}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What the estimator returns. An absent key is not trained: no loss, no KL, in no denominator."""

    advantage: dict[Key, float | np.ndarray]
    """By branch: one number, or one per sampled token."""
    weight: dict[Key, float] = field(default_factory=dict)
    """By branch; 1 where absent."""
    target: dict[Key, np.ndarray] = field(default_factory=dict)
    """Value targets, per token."""
    returns: dict[Key, float] = field(default_factory=dict)
    """By branch; what the advantage was made from, for the record."""
    metrics: dict[str, float] = field(default_factory=dict)


class Span(NamedTuple):
    """One sequence of a sequence-level loss inside a sample: tokens [start, stop) belong to `branch`."""

    start: int
    stop: int
    branch: Key
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """All that a trainer ever sees. Arrays have shape (T,), T = len(token_ids)."""

    key: Key
    """Of the branch, and of the first call where a broken prefix made several samples of it."""
    policy: str
    token_ids: np.ndarray
    """int64: prompt, then what was sampled (and tool results between calls)."""
    loss_mask: np.ndarray
    """bool: True exactly on sampled tokens."""
    logprobs: np.ndarray
    """float32: behaviour log-probs at `temperature`; 0 where the mask is False."""
    advantages: np.ndarray
    """float32; 0 where the mask is False."""
    spans: tuple[Span, ...]
    version: int
    temperature: float = 1.0
    prompt_tokens: int = 0
    """Length of the prefix shared with the samples of the same decision."""
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Notes aligned to token_ids: `ref_logprobs`, `old_logprobs`, `values`, and the `targets` of values."""

    @property
    def group(self) -> Key:
        """Samples of one group share their first `prompt_tokens` ids."""
        return self.key.decision


Metrics = dict[str, float]


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
class Past:
    """One earlier decision of the same role on the path, as the model really saw it."""

    turn: int
    observation: Any
    messages: tuple[Message, ...]
    action: Action
    info: Mapping[str, Any]
    """Of the joint that was committed after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """What a role is told: the observation, and what the transition mode adds to it."""

    role: str
    turn: int
    observation: Any
    notes: tuple[str, ...] = ()
    """Sentences of the transition mode, oldest first."""
    history: tuple[Past, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an engine is asked."""

    key: Key
    """Of the call; orders rows of a batch and keys the randomness."""
    policy: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    """64-bit; every draw of this call derives from it, whatever the batch."""
    continues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids of a prompt."""

    ids: tuple[int, ...]
    continues: bool = False
    """The ids start with the previous call's prompt and sampled ids, verbatim."""
    thinking: bool = False
    """The template opened a thought: the completion goes on with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A handle to a policy's weights, as a trainer gives it and an engine takes it."""

    policy: str
    version: int
    module: Any = None
    """The live object, where engine and trainer share a process."""
    folder: str | None = None
    """Or a folder in Hugging Face / PEFT format."""
    adapter: str | None = None
    """Name of the policy's adapter inside `module`, where the module is a PEFT model."""
    tokenizer: Any = None


def committed(decisions: Mapping[str, Decision], pick: Mapping[str, int]) -> dict[str, Action]:
    """The actions that a pick names."""
    return {role: decisions[role].branches[branch] for role, branch in pick.items()}


def as_tuple(order: Sequence[str | Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """`[a, [b, c]]` -> `(("a",), ("b", "c"))`: a nested list is a stage whose roles act at once."""
    return tuple((stage,) if isinstance(stage, str) else tuple(stage) for stage in order)
