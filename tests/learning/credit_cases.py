"""Random configurations for the oracle: how they are drawn, built, played and given credit."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.api.open_run import open_run
from coterie.core.protocols import Batch
from coterie.core.training.metrics import step_metrics
from coterie.core.types import TEAM, Credit, Key, Tree
from coterie.testing import coterie_run
from tests.learning.credit_estimators import actions, logprobs
from tests.learning.credit_sources import ACTING, SourceSpec, drawn

HERE = "tests.learning.credit_sources"
ESTIMATORS = (
    "at_grpo",
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce",
    "magrpo",
    "marloo",
    "mareinforce",
    "maremax",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rae",
    "compose",
    "gae",
    "at_grpo",
    "reinforce_pp",
    "compose",
    "compose",
)
WEIGHTS = (0.0, 0.5, 1.0, -0.3)
FLOORS = (0.0, -1.0, 0.5)


@dataclass(frozen=True)
class Allowed:
    """What may occur. The defaults allow everything."""

    failing: float = 0.08
    aborts: float = 0.06
    frozen: bool = True


@dataclass(frozen=True)
class Case:
    """One configuration."""

    seed: int
    order: list[Any]
    turns: int
    sampler: dict[str, Any]
    algorithm: dict[str, Any]
    sources: tuple[SourceSpec, ...]
    engine: dict[str, Any]
    frozen: str
    """The role whose policy isn't trained; empty: all are."""
    own_policies: bool
    tasks: int
    tasks_per_step: int
    steps: int

    @property
    def roles(self) -> list[str]:
        return [role for stage in self.order for role in ([stage] if isinstance(stage, str) else stage)]

    def run(self) -> Any:
        """The composed run.

        Raises:
            ConfigError: the combination is refused.
        """
        uses_tools = self.engine["tools"] > 0
        policy_of = {role: role if self.own_policies and role != "one" else "p" for role in self.roles}
        roles = {
            role: {"policy": policy, **({"tools": ["echo"]} if uses_tools else {})}
            for role, policy in policy_of.items()
        }
        frozen = policy_of.get(self.frozen)
        policies = {
            name: {"model": {"init": "none"}, "train": "none" if name == frozen else "full"}
            for name in policy_of.values()
        }
        return coterie_run(
            env={"type": f"{HERE}:Game", "tasks": self.tasks},
            order=self.order,
            roles=roles,
            max_turns=self.turns,
            seed=self.seed,
            policies=policies,
            sampler=self.sampler,
            algorithm=self.algorithm,
            rewards={source.name: source.table() for source in self.sources},
            engine={"type": f"{HERE}:Writer", **self.engine},
            trainer={"type": f"{HERE}:Idle"},
            tools={"echo": {"type": f"{HERE}:Echo"}} if uses_tools else {},
            schedule={"steps": self.steps, "tasks_per_step": self.tasks_per_step, "max_missing": 1.0},
        )


@dataclass(frozen=True)
class PlayedStep:
    """One step of a case: what was played, and the credit that the framework gave."""

    trees: list[Tree]
    references: Mapping[Key, np.ndarray]
    values: Mapping[Key, np.ndarray]
    before: Any
    """The estimator's state before the step."""
    credit: Credit
    after: Any
    metrics: Mapping[str, float]


async def play(case: Case) -> list[PlayedStep]:
    """Play and credit all steps of a case.

    Raises:
        ConfigError: the combination is refused.
    """
    run = case.run()
    steps: list[PlayedStep] = []
    state: Any = None
    await open_run(run)
    try:
        for index in range(case.steps):
            run.state.step = index
            rollouts = await run.play(run.jobs(1, case.tasks_per_step))
            scores = await run.score(rollouts)
            arrays = {name: annotations(rollouts.trees, name) for name in ("ref_logprobs", "values")}
            batch = Batch(
                trees=rollouts.trees,
                scores=scores,
                annotations={name: arrays[name] for name in run.estimator.needs},
                reward_weights=run.reward_weights,
            )
            credit, after = run.estimator(batch, state)
            metrics = step_metrics(rollouts.trees, scores, credit, run.reward_weights)
            references, values = arrays["ref_logprobs"], arrays["values"]
            steps.append(PlayedStep(rollouts.trees, references, values, state, credit, after, metrics))
            state = after
    finally:
        await run.close()
    return steps


def annotations(trees: Sequence[Tree], name: str) -> dict[Key, np.ndarray]:
    """Numbers for the sampled tokens of all trained branches, by their keys."""
    frozen = {d.role for tree in trees for n in tree.nodes() for d in n.decisions.values() if not d.trainable}
    table = {}
    for key, action in actions(trees):
        behaviour = logprobs(action)
        if key.role in frozen or not len(behaviour):
            continue
        chance = drawn(name, tuple(key))
        noise = np.array([chance.gauss(0.0, 0.5) for _ in behaviour])
        table[key] = behaviour + noise if name == "ref_logprobs" else noise
    return table


# ------------------------------------------------------------------------------------------------ the draw


def draw(seed: int, estimator: str, allowed: Allowed) -> Case:
    """A configuration, which may be refused."""
    chance = random.Random(f"case {seed}")
    names = ["one", "two", "three"][: chance.choice((1, 2, 2, 2, 3))]
    algorithm = _algorithm(chance, estimator)
    repeats = algorithm.get("fill") == "repeat"  # counts where an episode ends early
    together = repeats or (estimator == "at_grpo" and chance.random() < 0.8)
    order = _order(chance, names, together)
    turns = chance.choice((3, 4) if repeats else (1, 2, 2, 3))
    sampler = _sampler(chance, algorithm, order)
    turns = _bounded(sampler, order, turns)
    if estimator in ("magrpo", "marloo", "mareinforce", "maremax") and chance.random() < 0.3:
        algorithm["turn_weights"] = [chance.choice((1.0, 0.5, 2.0)) for _ in range(turns)]
    frozen = chance.choice(names) if len(names) > 1 and chance.random() < 0.4 and allowed.frozen else ""
    tasks = chance.choice((2, 3))
    return Case(
        seed=seed,
        order=order,
        turns=turns,
        sampler=sampler,
        algorithm=algorithm,
        sources=_sources(chance, names, algorithm, sampler, allowed.failing),
        engine={
            "texts": chance.choice((2, 4, 9)),
            "aborts": allowed.aborts,
            "stops": 0.4 if repeats else chance.choice((0.0, 0.1, 0.25)),
            "cuts": 0.15,
            "breaks": chance.choice((0.0, 0.05)) if allowed.aborts else 0.0,
            "tools": chance.choice((0.0, 0.0, 0.15)),
        },
        frozen=frozen,
        own_policies=bool(frozen) or chance.random() < 0.5,
        tasks=tasks,
        tasks_per_step=chance.choice((2, tasks + 1)),
        steps=3 if estimator == "rae" else 1,
    )


def _order(chance: random.Random, names: list[str], together: bool) -> list[Any]:
    """The order of a turn; `together`: in one stage."""
    if len(names) == 1:
        return list(names)
    if together or chance.random() < 0.4:
        return [names]
    if len(names) == 3 and chance.random() < 0.5:
        return chance.choice(([names[:2], names[2]], [names[0], names[1:]]))
    return list(names)


def _algorithm(chance: random.Random, name: str) -> dict[str, Any]:
    table: dict[str, Any] = {"type": name, "alpha": chance.choice((0.0, 0.35, 1.0))}
    if name == "reinforce_pp":
        table["beta"] = chance.choice((0.0, 0.01))
        table["return"] = chance.choice(("immediate", "immediate", "to_go"))
        table["truncated"] = chance.choice(("drop", "drop", "keep"))
        table["gamma"] = chance.choice((1.0, 1.0, 0.9))
        if chance.random() < 0.6:
            table["normalise"] = {
                "scope": chance.choice(("role", "global")),
                "per": chance.choice(("action", "token")),
                "ddof": chance.choice((0, 1)),
            }
        return table
    if name == "gae":
        table |= {"lam": chance.choice((0.95, 1.0, 0.3)), "gamma": chance.choice((1.0, 0.9))}
        if chance.random() < 0.6:
            table["normalise"] = {
                "type": "whiten",
                "scope": chance.choice(("role", "global")),
                "per": chance.choice(("action", "token")),
                "eps": 1e-3,
            }
        return table
    if chance.random() < 0.25:
        table["zero_variance"] = "drop"
    if name == "reinforce_pp_baseline":
        if chance.random() < 0.6:
            table["normalise"] = {
                "scope": chance.choice(("role", "global")),
                "per": chance.choice(("action", "token")),
            }
        return table
    if name == "rae":
        table["decay"] = chance.choice((0.95, 0.5))
    if name == "compose":
        returns = chance.choice(("immediate", "immediate", "episode", "tree", "to_go"))
        groups = ("task", "role", "batch") if returns == "episode" else tuple(GROUPED)
        table |= {"return": returns, "group": chance.choice(groups)}
        table["baseline"] = chance.choice(("mean", "mean", "loo", "none", "max"))
        table["normalise"] = _normaliser(chance)
    elif chance.random() < 0.25 and name != "rae":
        table["normalise"] = _normaliser(chance)
    if name not in ("at_grpo",) and table.get("return") != "immediate":
        table["gamma"] = chance.choice((1.0, 0.9, 0.5))
        table["fill"] = chance.choice(("difference", "difference", "repeat"))
    return table


GROUPED = ("decision", "turn", "task", "role", "batch")


def _normaliser(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.25:
        return {"type": "none"}
    scope = chance.choice(("group", "role", "global"))
    return {
        "type": chance.choice(("scale", "whiten")),
        "scope": scope,
        "per": chance.choice(("action", "token")) if scope != "group" else "action",
        "ddof": chance.choice((0, 1)),
        "eps": chance.choice((1e-6, 1e-4, 0.1)),
        "eps_mode": chance.choice(("add", "clamp")),
    }


CHAINS = ("grpo", "dr_grpo", "rloo", "reinforce", "reinforce_pp", "reinforce_pp_baseline", "rae")
TREES = ("magrpo", "marloo", "mareinforce", "maremax")


def _sampler(chance: random.Random, algorithm: Mapping[str, Any], order: list[Any]) -> dict[str, Any]:
    name, returns = algorithm["type"], algorithm.get("return")
    together = any(not isinstance(stage, str) and len(stage) > 1 for stage in order)
    table: dict[str, Any] = {"chains": chance.choice((2, 3, 4)), "branches": 1}
    grows = name in TREES or returns == "tree" or (returns != "to_go" and chance.random() < 0.5)
    if name == "at_grpo" or (returns == "immediate" and name == "compose" and chance.random() < 0.6):
        table = {
            "chains": chance.choice((1, 2)),
            "branches": chance.choice((2, 3, 4)),
            "expand": chance.choice(("best", "best", "best", "sampled", "all")),
        }
    elif grows and name not in ("reinforce", "gae"):
        table = {"chains": chance.choice((1, 2)), "branches": chance.choice((2, 2, 3)), "expand": "all"}
    if table["branches"] > 1 and together:
        table["pairing"] = chance.choice(
            ("aligned", "aligned" if table["expand"] == "best" else "cross", "cross")
        )
        if table["expand"] == "best":
            table["commit"] = chance.choice(("joint", "per_role", "per_role"))
    return table


def _bounded(sampler: dict[str, Any], order: list[Any], turns: int) -> int:
    """Fewer branches and turns where a tree would have more than 150 leaves; returns the turns."""

    def leaves() -> int:
        count = 1
        for stage in order:
            roles = 1 if isinstance(stage, str) else len(stage)
            count *= sampler["branches"] ** (roles if sampler.get("pairing") == "cross" else 1)
        return count**turns if sampler.get("expand") == "all" else count

    while leaves() > 150:
        if turns > 2 or (turns == 2 and sampler["branches"] == 2):
            turns -= 1
        elif sampler["branches"] > 2:
            sampler["branches"] -= 1
        else:
            break
    if sampler.get("expand") == "all" and leaves() > 30:
        sampler["chains"] = 1
    return turns


def _sources(
    chance: random.Random,
    names: Sequence[str],
    algorithm: Mapping[str, Any],
    sampler: Mapping[str, Any],
    failing: float,
) -> tuple[SourceSpec, ...]:
    scopes = ["action", "joint", "joint", "siblings", "episode"]
    kinds = ("increment", "potential", "potential", "counterfactual")
    values = chance.choice(("normal", "normal", "normal", "ties", "ties"))
    flat = algorithm["type"].startswith("reinforce_pp") and chance.random() < 0.5
    if sampler.get("expand") == "best" and chance.random() < 0.9:  # the choice can't wait for the end
        scopes.remove("episode")
    if flat:  # (nearly) one number for every action, whatever fails
        scopes, kinds, values = ["action", "siblings"], ("increment",), chance.choice(("flat", "close"))
    often = 0.4 if algorithm.get("fill") == "repeat" else 0.2
    sources = []
    for index in range(chance.choice((1, 2, 2, 3))):
        name = f"s{index}"
        components = {f"{name}_{i}": chance.choice(kinds) for i in range(chance.choice((1, 1, 2)))}
        owners = chance.choice(
            ((TEAM,), (ACTING,), (TEAM, ACTING), (names[0],), (TEAM, names[-1]), tuple(names))
        )
        scope = chance.choice(scopes)
        of_roles = scope in ("joint", "episode") and TEAM not in owners and chance.random() < 0.4
        sources.append(
            SourceSpec(
                name=name,
                salt=chance.randrange(10**6),
                scope=scope,
                per_role=tuple(components) if of_roles else (),
                kinds=components,
                weights={component: chance.choice((*WEIGHTS, 1.0)) for component in components},
                owners=owners,
                floor=0.5 if flat else chance.choice(FLOORS),
                values=values if flat or chance.random() < 0.8 else "ties",
                silent=0.0 if flat else chance.choice((0.0, often, often)),
                failing=failing,
            )
        )
    return tuple(sources)
