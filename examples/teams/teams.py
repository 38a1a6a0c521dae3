"""Small games for three shapes of teams (docs/teams.md): propose and solve, one of several, hand over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from coterie import (
    TEAM,
    Action,
    ComponentKind,
    EpisodeView,
    Message,
    Plugin,
    PluginConfig,
    PolicyFault,
    Register,
    RoleInput,
    Split,
    Step,
    StepContext,
    Task,
    hookimpl,
)

Actions = Mapping[str, Action]
WRITERS = ("writer1", "writer2", "writer3")
EXPERTS = ("billing", "network")


class Writer(Plugin):
    """Reads an observation, writes one word of `words`."""

    class Config(PluginConfig):
        words: tuple[str, ...]

    config: Config

    def render(self, role_input: RoleInput) -> list[Message]:
        return [{"role": "user", "content": f"{role_input.role} {role_input.observation}"}]

    def parse(self, text: str, observation: Any) -> str:
        if text not in self.config.words:
            raise PolicyFault(f"{text[:20]!r} is not one of {', '.join(self.config.words)}")
        return text


# ------------------------------------------------------------------------------------- propose and solve


class Proposal(NamedTuple):
    """The proposed problem, and which attempts solved it."""

    problem: str = ""
    solved: tuple[bool, ...] = ()


class ProposeAndSolve(Plugin):
    """The proposer names a kind of problem, and the solver attempts it several times.

    `easy` is solved by any answer, `medium` by one, `hard` by none.
    """

    class Config(PluginConfig):
        attempts: int = 4

    config: Config
    roles = ("proposer", "solver")
    components: Mapping[str, ComponentKind] = {"right": "increment"}
    weights: Mapping[str, float] = {}
    answers: Mapping[str, tuple[str, ...]] = {"easy": ("red", "blue"), "medium": ("red",), "hard": ()}

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        return [Task(id=f"{split}-{index}") for index in range(16)]

    def reset(self, task: Task, seed: int) -> Proposal:
        return Proposal()

    def acting_roles(self, state: Proposal) -> tuple[str, ...]:
        if not state.problem:
            return ("proposer",)
        over = state.problem == "unreadable" or len(state.solved) == self.config.attempts
        return () if over else ("solver",)

    def observe(self, state: Proposal, role: str) -> str:
        return state.problem or "propose"

    async def step(self, state: Proposal, actions: Actions, ctx: StepContext) -> Step:
        if "proposer" in actions:
            return Step(state=Proposal(actions["proposer"].parsed or "unreadable"))
        right = actions["solver"].parsed in self.answers[state.problem]
        after = state._replace(solved=(*state.solved, right))
        return Step(state=after, scores={("solver", "right"): float(right)})

    def outcome(self, state: Proposal) -> Mapping[str, float]:
        share = sum(state.solved) / self.config.attempts
        return {"success": share, "learnable": float(0 < share < 1)}

    def vocabulary(self) -> Sequence[str]:
        return ("easy", "medium", "hard", "red", "blue")


class Learnable(Plugin):
    """1 for a proposer whose problem the solver solved at times: neither always nor never."""

    scope: Literal["episode"] = "episode"  # the solver's attempts come after the proposer acted
    components: Mapping[str, ComponentKind] = {"learnable": "increment"}
    weights: Mapping[str, float] = {}
    per_role = ("learnable",)
    policy_fault = 0.0

    async def score(self, view: EpisodeView) -> Mapping[tuple[str, str], float]:
        return {("proposer", "learnable"): (view.leaf.outcome or {})["learnable"]}


# ------------------------------------------------------------------------------------ one of several


class Drafts(NamedTuple):
    """The word that is asked for, the drafts, and the writer that was chosen: "" before, None: unreadable."""

    wanted: str
    drafts: tuple[str | None, ...] = ()
    chosen: str | None = ""


class OneOfSeveral(Plugin):
    """Three writers draft at once; a judge, who can tell right from wrong, names the draft to hand in."""

    roles = (*WRITERS, "judge")
    components: Mapping[str, ComponentKind] = {"draft": "increment", "handed_in": "increment"}
    weights: Mapping[str, float] = {}

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        return [Task(id=f"{split}-{index}", payload=("red", "blue")[index % 2]) for index in range(16)]

    def reset(self, task: Task, seed: int) -> Drafts:
        return Drafts(task.payload)

    def acting_roles(self, state: Drafts) -> tuple[str, ...]:
        if not state.drafts:
            return WRITERS
        return ("judge",) if state.chosen == "" else ()

    def observe(self, state: Drafts, role: str) -> str:
        right = ["right" if draft == state.wanted else "wrong" for draft in state.drafts]
        return " ".join(right) or state.wanted

    async def step(self, state: Drafts, actions: Actions, ctx: StepContext) -> Step:
        if "judge" not in actions:
            drafts = tuple(actions[writer].parsed for writer in WRITERS)
            pay = {(writer, "draft"): float(actions[writer].parsed == state.wanted) for writer in WRITERS}
            return Step(state=state._replace(drafts=drafts), scores=pay)
        after = state._replace(chosen=actions["judge"].parsed)
        return Step(state=after, scores={("judge", "handed_in"): self.outcome(after)["success"]})

    def outcome(self, state: Drafts) -> Mapping[str, float]:
        chosen = dict(zip(WRITERS, state.drafts, strict=False)).get(state.chosen or "")
        return {"success": float(chosen == state.wanted)}

    def vocabulary(self) -> Sequence[str]:
        return ("red", "blue", *WRITERS)


# --------------------------------------------------------------------- hand over, join, leave and stop


class Ticket(NamedTuple):
    """The experts that a ticket needs, those who have done their part, and who acts: nobody, at the end."""

    needs: tuple[str, ...]
    done: frozenset[str] = frozenset()
    acting: tuple[str, ...] = ("clerk",)
    stages: int = 0

    @property
    def solved(self) -> bool:
        return self.done >= set(self.needs)


class Desk(Plugin):
    """The roles decide who acts next: each writes a colleague's name, `both`, `fix` or `stop`.

    The clerk begins. Who writes a name hands over to that role. `both` lets both experts join: they act at
    once, and who of them then writes `stop` leaves. An expert that writes `fix` has done its part and hands
    back to the clerk. The clerk's `stop`, an unreadable answer of the only one who acts, or six stages end
    the episode.
    """

    class Config(PluginConfig):
        cost: float = 0.05
        """What each action costs the team."""

    config: Config
    roles = ("clerk", *EXPERTS)
    components: Mapping[str, ComponentKind] = {"solved": "increment", "cost": "increment"}
    weights: Mapping[str, float] = {}

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        needs = (EXPERTS[:1], EXPERTS[1:], EXPERTS)
        return [Task(id=f"{split}-{index}", payload=needs[index % 3]) for index in range(12)]

    def reset(self, task: Task, seed: int) -> Ticket:
        return Ticket(task.payload)

    def acting_roles(self, state: Ticket) -> tuple[str, ...]:
        return state.acting

    def observe(self, state: Ticket, role: str) -> str:
        return f"needs {' '.join(name for name in state.needs if name not in state.done)}"

    async def step(self, state: Ticket, actions: Actions, ctx: StepContext) -> Step:
        written = {role: action.parsed for role, action in actions.items()}
        done = state.done | {role for role, word in written.items() if word == "fix" and role in state.needs}
        after = state._replace(done=done, acting=self._next(written), stages=state.stages + 1)
        if after.solved or after.stages == 6:
            after = after._replace(acting=())
        pay = {(TEAM, "solved"): float(after.solved), (TEAM, "cost"): -self.config.cost * len(written)}
        return Step(state=after, scores=pay)

    def _next(self, written: Mapping[str, str | None]) -> tuple[str, ...]:
        if len(written) > 1:  # who joined stays until it is done or leaves
            stay = tuple(role for role, word in written.items() if word not in ("fix", "stop"))
            return stay or ("clerk",)
        ((role, word),) = written.items()
        if word == "both":
            return EXPERTS
        if word in self.roles:
            return (word,)
        return ("clerk",) if role != "clerk" and word in ("fix", "stop") else ()

    def outcome(self, state: Ticket) -> Mapping[str, float]:
        return {"success": float(state.solved), "stages": float(state.stages)}

    def vocabulary(self) -> Sequence[str]:
        return (*self.roles, "both", "fix", "stop")


@hookimpl
def register_environments(register: Register) -> None:
    register("propose_and_solve", ProposeAndSolve)
    register("one_of_several", OneOfSeveral)
    register("desk", Desk)


@hookimpl
def register_roles(register: Register) -> None:
    register("one_word", Writer)


@hookimpl
def register_rewards(register: Register) -> None:
    register("learnable", Learnable)
