"""`check_sampler`: trees that hold what was played, and that grow the same twice."""

from __future__ import annotations

import asyncio
from typing import Any

from coterie.core.concurrency.request_batching import ActiveRollouts
from coterie.core.protocols import NamedRewardSource, Plan, Team
from coterie.core.rollout.context import RolloutPass
from coterie.core.types import Key, Node, Request, RewardWeights, Sampling, Task, Tree, as_tuple
from coterie.core.types.digest import digest, ids_sha256
from coterie.testing.support.failure import guarded, require, require_kind
from coterie.testing.support.toys import Echo, Emitted, Ledger, LetterEngine, Quiet

ROLES = ("planner", "executor", "critic")
_TURNS = 2


def check_sampler(sampler: Any, *, tasks: int = 3) -> None:
    """Check a sampler on a game of the kit: three roles, two of which act at once, two turns.

    - `plan` and `sampling(role)` are what the core reads; `for_evaluation(greedy)` plays one chain and one
      branch, at temperature 0 when greedy.
    - A tree's keys follow from its joints; the branches of a decision share its prompt; a joint picks
      branches that exist, one for each role that acted; children hang on expanded joints only, in the state
      that the joint reached; an episode's end has its outcome; the rule that chose is said.
    - Every call is asked for once, and by its own key; scores lie on places of the tree.
    - The same task, epoch and chain give the same tree, another chain other draws; strands are given back.
    - A call that the system lost costs its joints and nothing else.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(sampler, "sampler")
    _check_plan(sampler, name)
    for order in (["planner", ("executor", "critic")], [ROLES]):
        for number in range(tasks):
            task = Task(id=f"train-{number}", payload=number)
            tree, engine, play = _grow(sampler, task, 0, order, name)
            _sound(tree, name, task)
            _accounted(tree, engine, play, name)
            again, _, _ = _grow(sampler, task, 0, order, name)
            same = digest(tree) == digest(again)
            require(
                same,
                "gave two trees for one task and chain",
                where=f"{name}.play",
                fix="draw by ctx.seed(key)",
            )
            sibling, other, _ = _grow(sampler, task, 1, order, name)
            _sound(sibling, name, task)
            seeds = {request.seed for request in engine.asked}
            repeated = seeds & {request.seed for request in other.asked}
            require(
                not repeated,
                "two chains share draws",
                where=f"{name}.play",
                fix="start from Key(task, epoch, chain)",
            )
    _check_lost_call(sampler, name)
    _check_evaluation(sampler, name)


def _check_plan(sampler: Any, name: str) -> None:
    plan = sampler.plan
    sound = isinstance(plan, Plan) and plan.chains >= 1 and plan.branches >= 1
    require(sound, f"is {plan!r}", where=f"{name}.plan", fix="a coterie.core.protocols.Plan")
    for role in ROLES:
        found = sampler.sampling(role)
        require(
            isinstance(found, Sampling), f"returned {found!r}", where=f"{name}.sampling", fix="a Sampling"
        )


def _grow(
    sampler: Any, task: Task, chain: int, order: Any, name: str, engine: LetterEngine | None = None
) -> tuple[Tree, LetterEngine, RolloutPass]:
    """One tree of the kit's game, as a run's executor would have it played."""
    engine = engine or LetterEngine()
    team = Team(
        roles={role: Echo() for role in ROLES},
        order=as_tuple(order),
        max_turns=_TURNS,
        policies=dict.fromkeys(ROLES, "policy"),
        trainable={"policy": True},
        transition=Quiet(),
        tools={},
    )
    active_rollouts = ActiveRollouts()
    emitted: Any = Emitted()
    play = RolloutPass(
        environment=Ledger(),
        team=team,
        engine=engine,
        reward_sources=[NamedRewardSource("environment", emitted, {})],
        reward_weights=RewardWeights(),
        active_rollouts=active_rollouts,
        run_seed=7,
    )

    async def go() -> Tree:
        active_rollouts.start()
        try:
            found: Tree = await sampler.play(task, 0, chain, play)
            if play.background:
                await asyncio.gather(*play.background)
            return found
        finally:
            active_rollouts.stop()

    with guarded(f"{name}.play"):
        tree = asyncio.run(go())
    require(isinstance(tree, Tree), f"returned a {type(tree).__name__}", where=f"{name}.play", fix="a Tree")
    require(
        active_rollouts.live == 0 and active_rollouts.waiting == 0,
        f"left {active_rollouts.live} strands live: no batch would ever form again",
        where=f"{name}.play",
        fix="run branches and children through ctx.strands.gather",
    )
    same = tree.task == task and (tree.epoch, tree.chain) == (0, chain)
    require(same, "is of another task, epoch or chain than was asked for", where=f"{name}.play")
    return tree, engine, play


def _sound(tree: Tree, name: str, task: Task) -> None:
    where = f"{name}.play"
    require(
        tree.root.key == Key(task.id, tree.epoch, tree.chain), f"the root is {tree.root.key!r}", where=where
    )
    for node in tree.nodes():
        _sound_decisions(node, where)
        _sound_joints(node, where)


def _sound_decisions(node: Node, where: str) -> None:
    place = node.key.text()
    require(node.decisions, f"{place}: nobody is asked", where=where)
    require(
        node.turn < _TURNS, f"{place}: turn {node.turn} of {_TURNS}", where=where, fix="heed team.max_turns"
    )
    for role, decision in node.decisions.items():
        named = decision.role == role and bool(decision.branches)
        require(named, f"{place}: the decision of '{role}' is of '{decision.role}', or empty", where=where)
        sha = ids_sha256(decision.prompt_ids) == decision.prompt_sha256
        require(sha, f"{place}: prompt_sha256 is not of prompt_ids", where=where)
        for action in decision.branches:
            shared = not action.calls or action.calls[0].prompt_ids == decision.prompt_ids
            require(
                shared,
                f"{place}: a branch of '{role}' had another prompt",
                where=where,
                fix="ask once, act K times",
            )


def _sound_joints(node: Node, where: str) -> None:
    place = node.key.text()
    within = all(0 <= index < len(node.joints) for index in node.expanded)
    require(
        within and len(set(node.expanded)) == len(node.expanded),
        f"{place}: expanded is {node.expanded} of {len(node.joints)} joints",
        where=where,
    )
    require(
        node.rule or not node.joints,
        f"{place}: no rule says why these joints went on",
        where=where,
        fix="Node.rule",
    )
    for index, joint in enumerate(node.joints):
        at = f"{place}, joint {index}"
        exists = joint.branches.keys() == node.decisions.keys() and all(
            0 <= branch < len(node.decisions[role].branches) for role, branch in joint.branches.items()
        )
        require(
            exists,
            f"{at}: picks {dict(joint.branches)}",
            where=where,
            fix="one branch of every role that acted",
        )
        if joint.child is not None:
            require(index in node.expanded, f"{at}: went on and is not among the expanded", where=where)
            key = joint.child.key == node.key.child(index)
            require(
                key,
                f"{at}: its child's key is {joint.child.key.text()}",
                where=where,
                fix="key.child(joint)",
            )
            state = joint.child.state_digest == joint.state_digest
            require(state, f"{at}: its child stands in another state", where=where)
        elif index in node.expanded and joint.fault is None:
            outcome = joint.outcome is not None and "success" in joint.outcome
            require(
                outcome,
                f"{at}: an episode ended without outcome",
                where=where,
                fix="environment.outcome(state)",
            )
    sound = any(joint.fault is None for joint in node.joints)
    require(node.expanded or not sound, f"{place}: joints were played and none went on", where=where)


def _accounted(tree: Tree, engine: LetterEngine, play: RolloutPass, name: str) -> None:
    """What was asked is in the tree, once; what is scored was played."""
    where = f"{name}.play"
    branches = {
        node.key.of_branch(role, branch)
        for node in tree.nodes()
        for role, decision in node.decisions.items()
        for branch in range(len(decision.branches))
    }
    joints = {node.key.of_joint(index) for node in tree.nodes() for index in range(len(node.joints))}
    asked = [request.key for request in engine.asked]
    require(
        len(set(asked)) == len(asked),
        "asked for a call twice",
        where=where,
        fix="K is drawn once per decision",
    )
    strange = [key for key in asked if key._replace(call=-1) not in branches]
    require(not strange, f"asked for {strange[:1]!r}, which is in no decision", where=where)
    scored = {key for key, _, _, _ in play.scores}
    require(scored <= branches | joints, "scored a place that is not in the tree", where=where)
    require(
        joints <= scored, "left a joint that was played unscored", where=where, fix="scoring.score_selection"
    )


def _check_lost_call(sampler: Any, name: str) -> None:
    def lost(request: Request) -> bool:
        return request.key.role == "executor" and request.key.branch == 0

    tree, _, play = _grow(sampler, Task(id="train-0"), 0, ROLES, name, LetterEngine(lost))
    _sound(tree, name, tree.task)
    for node in tree.nodes():
        for index, joint in enumerate(node.joints):
            touched = joint.branches.get("executor") == 0
            fix = "an action with a system fault is not stepped: the joint carries its fault"
            require((joint.fault is not None) == touched, "steps lost actions", where=f"{name}.play", fix=fix)
            cell = play.scores.at(node.key.of_joint(index))
            made_up = touched and any(score.value is not None for score in cell.values())
            require(not made_up, "scored what was never played", where=f"{name}.play", fix="ctx.mark_missing")


def _check_evaluation(sampler: Any, name: str) -> None:
    where = f"{name}.for_evaluation"
    for greedy in (False, True):
        with guarded(where):
            alone = sampler.for_evaluation(greedy)
        require_kind(alone, "sampler")
        single = (alone.plan.chains, alone.plan.branches) == (1, 1)
        require(single, f"plays {alone.plan}", where=where, fix="one chain, one branch: no best of K")
        for role in ROLES:
            own, wanted = (
                alone.sampling(role).temperature,
                0.0 if greedy else sampler.sampling(role).temperature,
            )
            require(own == wanted, f"with greedy={greedy} '{role}' has temperature {own}", where=where)
        _grow(alone, Task(id="val-0"), 0, ROLES, name)
