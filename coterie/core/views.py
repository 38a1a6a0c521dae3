"""What the core hands to plugins: views for rewards, contexts for engines and trainers, batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie.core.types import Action, Joint, Message, Node, Notes, Scores, Task, Tree

if TYPE_CHECKING:
    from coterie.core.config import PolicyConfig
    from coterie.core.gathering import Strands
    from coterie.core.protocols import Chat, Loss, Role, Tool, TransitionMode
    from coterie.core.scoring import Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What an environment's step may use besides its arguments."""

    task: Task
    turn: int
    seed: int
    """Keyed by the joint: the environment's own randomness derives from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """What a source of scope `action` sees: one role's one action."""

    task: Task
    turn: int
    role: str
    observation: Any
    messages: tuple[Message, ...]
    action: Action
    state: Any
    """Before the action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointView:
    """What a source of scope `joint` sees: one played combination."""

    task: Task
    turn: int
    actions: Mapping[str, Action]
    state: Any
    """Before."""
    after: Any
    """State reached."""
    emitted: Mapping[tuple[str, str], float | None]
    """Scores that the environment's step gave."""
    info: Mapping[str, Any]
    terminal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingsView:
    """What a source of scope `siblings` sees: all branches of one decision, to be ranked together."""

    task: Task
    turn: int
    role: str
    observation: Any
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """What a source of scope `episode` sees: one path from root to leaf."""

    task: Task
    path: tuple[tuple[Node, int], ...]
    """(node, joint taken)."""
    leaf: Joint


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How trees are sampled, as an estimator's `check` sees it."""

    chains: int
    branches: int
    expand: str
    pairing: str
    recombines: bool = False
    """Where roles act at once, one more joint is played: the best branch of each (`commit: per_role`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What an estimator is given."""

    trees: Sequence[Tree]
    scores: Scores
    notes: Notes
    mix: Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Who plays, in which order, with which policy."""

    roles: Mapping[str, Role]
    order: tuple[tuple[str, ...], ...]
    """Stages; roles in one stage act at once."""
    max_turns: int
    policies: Mapping[str, str]
    """role -> policy."""
    trainable: Mapping[str, bool]
    """policy -> whether it is trained."""
    transition: TransitionMode
    tools: Mapping[str, tuple[Tool, ...]]
    max_tool_turns: int = 4
    role_tool_turns: Mapping[str, int] = field(default_factory=dict)
    """Of roles that have their own."""
    show_thoughts: frozenset[str] = frozenset()
    """Roles whose thoughts are part of what they say."""

    def tool_turns(self, role: str) -> int:
        """Most rounds of tool results in one action of the role."""
        return self.role_tool_turns.get(role, self.max_tool_turns) if self.tools.get(role) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Flat arrays over sampled tokens, shape (N,)."""

    logprobs: Any
    """Of the weights being trained."""
    behaviour: Any
    """Of the weights that sampled."""
    advantages: Any
    ref_logprobs: Any | None = None
    old: Any | None = None
    """Of the trainer's weights before the first optimiser step of this update; None: taken to be
    `behaviour`."""
    sequence: Any | None = None
    """Which sequence (span) each token is of: integers 0..sequences-1, for losses of whole sequences."""
    sequences: int = 0

    @property
    def proximal(self) -> Any:
        """What a trust region is around: the old policy where it was asked for, else the behaviour's."""
        return self.behaviour if self.old is None else self.old


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """What a loss says of every token, shape (N,)."""

    value: Any
    slope: Any
    """d sum(value) / d logprobs: of one token's own value where it depends on that token alone."""
    metrics: Mapping[str, Any]
    """Per-token quantities whose token mean is reported, e.g. `clip_fraction`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What an engine is opened with."""

    policies: Mapping[str, PolicyConfig]
    chat: Chat
    strands: Strands
    """Counts live strands of play: an in-process engine forms a batch when all of them wait."""
    deterministic: bool
    vocabulary: tuple[str, ...]
    """Words that the environment and the roles write; for `tokenizer: words`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerContext:
    """What a trainer is opened with."""

    policies: Mapping[str, PolicyConfig]
    loss: Loss
    chat: Chat
    seed: int
    deterministic: bool
    vocabulary: tuple[str, ...]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One supervised pair for a warm start."""

    policy: str
    messages: tuple[Message, ...]
    completion: str


View = ActionView | JointView | SiblingsView | EpisodeView
