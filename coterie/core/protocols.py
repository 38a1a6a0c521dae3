"""One Protocol per kind of plugin: what the core calls, and nothing else.

A plugin class may have a nested `Config` (a `coterie.PluginConfig`); its constructor is called as
`cls(config, build)`, where `build` (a `Build`) tells the instance's name and makes other components.
`coterie.Plugin` has a constructor that stores both. Constructors are cheap: weights, processes and
connections are made in `open` and given back in `close`, where a kind has them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from coterie.core.sandbox import Judged, Program, Ran, Verdict
from coterie.core.types import (
    Action,
    Briefing,
    Call,
    Credit,
    Key,
    Message,
    Metrics,
    Past,
    Prompt,
    Request,
    Sample,
    Sampling,
    Step,
    Task,
    Tree,
    Weights,
)
from coterie.core.views import (
    ActionView as ActionView,
    Batch as Batch,
    Demonstration as Demonstration,
    EngineContext as EngineContext,
    EpisodeView as EpisodeView,
    JointView as JointView,
    Plan as Plan,
    SiblingsView as SiblingsView,
    StepContext as StepContext,
    Surrogate as Surrogate,
    Team as Team,
    TokenBatch as TokenBatch,
    TrainerContext as TrainerContext,
    View as View,
)

if TYPE_CHECKING:
    from coterie.core.config import RunConfig
    from coterie.core.play import Play

T = TypeVar("T")
R = TypeVar("R")

Split = Literal["train", "val", "test"]
ComponentKind = Literal["increment", "level", "counterfactual"]
"""A gain; the value of a state; or what a proposal would have earned on a fork. Returns that sum over turns
add increments, use differences of levels, and leave counterfactuals out (invariant 10)."""


@runtime_checkable
class Environment(Protocol):
    """A turn-based Markov game. A state is a value: never mutated, picklable, cheap to fork."""

    roles: tuple[str, ...]
    """Roles it knows how to observe; empty: any."""
    components: Mapping[str, ComponentKind]
    """Score components that its steps emit, and what kind of number each is."""
    weights: Mapping[str, float]
    """Default weight of each component in the Mix (1 where absent)."""

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """The tasks of a split; splits are disjoint by content."""

    def reset(self, task: Task, seed: int) -> Any:
        """The state in which the task starts."""

    def stage(self, state: Any) -> tuple[str, ...] | None:
        """Who acts now: () = the game is over, None = as `team.order` says."""

    def observe(self, state: Any, role: str) -> Any:
        """What the role sees of the state."""

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The state after the roles of one stage acted, and what that earned. Never mutates `state`."""

    def outcome(self, state: Any) -> Mapping[str, float]:
        """Metrics of an ended episode; `success` (0 or 1, or a share) is required."""

    # Optional: digest(state) -> str; diagnose(state, role) -> str; vocabulary() -> Iterable[str];
    # demonstrate(state, role, noise, rng) -> str, the oracle's message, for warm starts.
    # For `coterie data`: record(task) -> dict, what JSON holds of it; task_of(record, id) -> Task, the way
    # back (ValueError where it is no task of this game; more fields than `record` gives do no harm);
    # fingerprints(task) -> {"content": str, "solution"?: str, ...}, what no two splits may share;
    # picture(task) -> str, for people.


class TaskSource(Protocol):
    """Tasks by index; `len` is None-free: an endless generator says how many it will vouch for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Task: ...


@runtime_checkable
class Role(Protocol):
    """A seat: how a prompt is written and an answer is read."""

    def render(self, briefing: Briefing) -> Sequence[Message]:
        """The messages of the prompt."""

    def parse(self, text: str, observation: Any) -> Any:
        """What the text means. Raise `PolicyFault` where it means nothing; the reason is kept."""

    # Optional: vocabulary() -> Iterable[str]; remembers: bool = True makes the prompt a conversation:
    # earlier prompts and answers of this role come before the rendered messages.


@runtime_checkable
class RewardSource(Protocol):
    """Where reward comes from.

    Raise `SystemFault` for what is not the policy's doing (the scores are missing) and `PolicyFault`
    for what the output caused (every component gets `policy_fault`).
    """

    scope: Literal["action", "joint", "siblings", "episode"]
    components: Mapping[str, ComponentKind]
    weights: Mapping[str, float]
    """Default weights in the Mix."""
    policy_fault: float
    """The floor."""

    async def score(
        self, view: Any
    ) -> Mapping[tuple[str, str], float | None] | Sequence[Mapping[tuple[str, str], float | None]]:
        """{(role or TEAM, component): value or None}; for scope `siblings` one such table a branch."""

    # Optional: calls_per_view: int, how often one `score` asks something outside (a judge, a coach):
    # `coterie plan` counts them.


@runtime_checkable
class Sampler(Protocol):
    """Grows trees."""

    @property
    def plan(self) -> Plan:
        """How it samples, for an estimator's `check`."""

    def sampling(self, role: str) -> Sampling:
        """How a role's tokens are drawn."""

    def for_evaluation(self, greedy: bool) -> Sampler:
        """The same, playing each task once as the policy would."""

    async def play(self, task: Task, epoch: int, chain: int, ctx: Play) -> Tree:
        """One tree."""


@runtime_checkable
class AdvantageEstimator(Protocol):
    """From a step's trees and scores to credit."""

    needs: tuple[str, ...]
    """Notes it reads, e.g. ("ref_logprobs",)."""
    weights: Mapping[str, float]
    """Component weights that it sets in the Mix; `team` scales every team component (alpha)."""

    # Optional: sums_over_turns: bool, its return adds up turns (what can be farmed is then refused);
    # stop_above: float | None, a joint that earns at least this is not played on.

    def check(self, plan: Plan, team: Team) -> None:
        """Raise `ConfigError` where the sampling plan gives this estimator no meaning."""

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]: ...


@runtime_checkable
class Loss(Protocol):
    """A per-token surrogate, in any array library.

    `xp` is `numpy` or `torch`: the surrogate is written once in the functions that both have (exp,
    where, minimum, maximum, clip). It returns the value and the slope d sum(value) / d logprobs, so that a
    trainer without autograd uses the same loss; a test holds the slope against autograd. A token's value
    may depend on the tokens of its sequence (a span), which a trainer never splits, and on no others.
    """

    needs: tuple[str, ...]
    """Notes that its TokenBatch must have: "ref_logprobs", "old_logprobs"."""
    length: Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
    """How tokens are summed (see `core/batching.py`)."""
    entropy: float
    """Coefficient of the entropy bonus; the trainer adds it, for it needs the whole distribution."""

    # Optional: length_constant: float, what the length rule `constant` divides every sequence's sum by.

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate: ...


@runtime_checkable
class TransitionMode(Protocol):
    """What roles are told between turns."""

    async def tell(
        self, role: str, state: Any, history: Sequence[Past], environment: Environment
    ) -> Sequence[str]:
        """Sentences for the briefing; none on a role's first decision of an episode."""


@runtime_checkable
class Codec(Protocol):
    """Text to ids and back for one policy."""

    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        """Prompt ids, with the generation prompt. With `previous`, its ids are reused verbatim where
        the messages extend `previous_messages` plus its decoded text; else a fresh prompt."""

    def decode(self, call: Call) -> str:
        """The text of a call, without its stop token."""

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Ids of an answer, its stop token included: for supervised steps."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def context(self) -> int | None:
        """Longest prompt plus completion, in tokens."""

    # Optional: with_tools(schemas) -> Codec | None, one whose prompts tell the model of these tools;
    # vocabulary: {token: id}, by which a policy from elsewhere is known to speak the same tokens.


@runtime_checkable
class Engine(Protocol):
    """Generates tokens."""

    async def open(self, ctx: EngineContext) -> None: ...

    async def generate(self, request: Request) -> Call:
        """One call. Raises SystemFault when the engine, not the model, failed."""

    async def load_weights(self, weights: Weights) -> None:
        """From now on the policy's requests are answered with these weights."""

    def codec(self, policy: str) -> Codec: ...

    async def close(self) -> None: ...


@runtime_checkable
class Trainer(Protocol):
    """Owns the weights of all policies, and updates them."""

    async def open(self, ctx: TrainerContext) -> None: ...

    async def annotate(self, samples: Sequence[Sample], what: str) -> dict[Key, np.ndarray]:
        """Per sample key, shape (sampled tokens,): `ref_logprobs` (of the weights at the start),
        `old_logprobs` (of the present ones) or `values` (of the value head)."""

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """One training step of each policy on its samples; metrics per policy."""

    def weights(self, policy: str) -> Weights: ...

    def save(self, folder: Path) -> None:
        """All state, for an exact resume."""

    def load(self, folder: Path) -> None: ...

    def digest(self) -> dict[str, str]:
        """policy -> sha256 of its weights."""

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        """A Hugging Face folder or a PEFT adapter."""

    async def close(self) -> None: ...

    # Optional: set_progress(share), told before each update of a run with `schedule.tokens` which share of
    # them is spent; `optimizer.horizon: budget` requires it.
    # Optional, together: bases() -> {name: policies that start from the same weights}, and
    # async warm_start(policy, demonstrations, config) -> Metrics, which trains the start of all of those.


@runtime_checkable
class Executor(Protocol):
    """Where episodes run."""

    async def map(self, play: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
        """Play every item; results in the order of the items."""


@runtime_checkable
class Chat(Protocol):
    """How messages become text for a tokenizer."""

    def codec(self, tokenizer: Any, context: int | None) -> Codec: ...


@runtime_checkable
class Tool(Protocol):
    """Something a role may call inside one action."""

    name: str

    def find(self, text: str) -> Any | None:
        """The call in the text, or None. The text is what is said, without thoughts; any text may come."""

    async def run(self, call: Any) -> str:
        """Its result, shown to the model as the next message. Raises SystemFault for what is not the call's
        doing; what is (bad arguments, a crash) is a result. PolicyFault ends the action: the floor."""

    # Optional: async open(), async close(); schemas: function schemas, which the policy's chat template then
    # tells the model (`Codec.with_tools`).


@runtime_checkable
class Sandbox(Protocol):
    """Runs programs that a model wrote, never in our process.

    Raises SystemFault where the run ended by ours, PolicyFault where a program killed its sandbox twice.
    """

    async def open(self) -> None: ...

    async def run(self, program: Program) -> Ran:
        """What the program did; a crash, a time-out and a killed program are results."""

    async def judge(self, judged: Judged) -> Verdict:
        """Which tests the candidate passes; it runs in another process than they do."""

    async def close(self) -> None: ...


@runtime_checkable
class DataSource(Protocol):
    """Records for environments that read their tasks."""

    def records(self, split: Split) -> Sequence[Mapping[str, Any]]: ...


@runtime_checkable
class Tracker(Protocol):
    """Is told the metrics of every step."""

    def open(self, folder: Path) -> None:
        """The run's folder; before the first row."""

    def truncate(self, step: int) -> None:
        """Forget the rows after `step`: a resumed run tells them again."""

    def track(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Build(Protocol):
    """What a plugin's constructor is given besides its Config."""

    name: str
    """The instance's name in the configuration: the role, the reward, the tool."""
    path: str
    """Its dotted path in the configuration, for error messages."""
    run: RunConfig

    def make(self, kind: str, table: Any, path: str) -> Any:
        """Another component."""
