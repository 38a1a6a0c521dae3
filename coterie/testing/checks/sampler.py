"""`check_sampler`: trees are consistent, complete, and the same twice."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from coterie.core.errors import type_text
from coterie.core.protocols import Engine, Member, NamedRewardSource, Plan, RolloutJob, Team
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.types import Key, Node, Request, RewardWeights, Sampling, Task, Tree, as_tuple
from coterie.core.types.digest import digest, ids_sha256
from coterie.testing.support.failure import guarded, require, require_kind
from coterie.testing.support.promises import promise
from coterie.testing.support.time_limit import in_time
from coterie.testing.support.toys import EchoRole, EmittedScores, LetterEngine, NumberGame, SilentTransition

ROLES = ("planner", "executor", "critic")
_UNTRAINED = "critic"
"""The role whose policy isn't trained."""
_TURNS = 2


def check_sampler(sampler: Any, *, tasks: int = 3) -> None:
    """Check a sampler on the kit's game: two turns, three roles, in one stage or with two in one stage.

    - `plan` is a Plan and `sampling(role)` a Sampling; `for_evaluation(greedy)` plays one chain and one
      branch, at temperature 0 when greedy.
    - A tree's keys follow from its joint actions. The branches of a decision share its prompt; that of a role
      whose policy isn't trained isn't trainable. A joint action names one existing branch of each role that
      acted. Only expanded joint actions have children, in the state that they reached. An episode's end has
      its outcome. A node names the rule of its expansion.
    - Each call is requested once, by its own key; every score has the key of a branch or joint action.
    - The same task, epoch and chain give the same tree, another chain has other draws; `play` stops every
      active rollout that it started.
    - A call that a system fault lost costs its joint actions and nothing else.

    Args:
        tasks: number of tasks to play for each team order.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(sampler, "sampler")
    promise("the plan and the sampling are declared")
    _check_plan(sampler, name)
    for order in (["planner", ("executor", "critic")], [ROLES]):
        for number in range(tasks):
            task = Task(id=f"train-{number}", payload=number)
            promise("trees are consistent and complete")
            tree, engine, ctx = _grow(sampler, task, 0, order, name)
            _check_tree(tree, name, task)
            _check_complete(tree, engine, ctx, name)
            _check_planned(tree, sampler.plan, name)
            promise("a tree repeats, and another chain has other draws")
            again, _, _ = _grow(sampler, task, 0, order, name)
            same = digest(tree) == digest(again)
            require(
                same, "gave two trees for one task and chain", f"{name}.play", fix="draw by ctx.seed(key)"
            )
            sibling, other, _ = _grow(sampler, task, 1, order, name)
            _check_tree(sibling, name, task)
            seeds = {request.seed for request in engine.requests}
            repeated = seeds & {request.seed for request in other.requests}
            require(
                not repeated,
                "two chains share draws",
                f"{name}.play",
                fix="start from Key(task, epoch, chain)",
            )
    promise("a lost call costs its joint actions and nothing else")
    _check_lost_call(sampler, name)
    _check_evaluation(sampler, name)


def _check_plan(sampler: Any, name: str) -> None:
    plan = sampler.plan
    sound = isinstance(plan, Plan) and plan.chains >= 1 and plan.branches >= 1
    require(sound, f"is {plan!r}", f"{name}.plan", fix="a coterie.Plan")
    for role in ROLES:
        with guarded(f"{name}.sampling"):
            sampling = sampler.sampling(role)
        require(
            isinstance(sampling, Sampling),
            f"returned {sampling!r}",
            f"{name}.sampling",
            fix="a coterie.Sampling",
        )


def _grow(
    sampler: Any, task: Task, chain: int, order: Any, name: str, engine: LetterEngine | None = None
) -> tuple[Tree, LetterEngine, JobContext]:
    """One tree of the kit's game, played in the context that a run passes to a sampler."""
    engine = engine or LetterEngine()
    team = Team(
        members={
            role: Member(role=EchoRole(), policy="policy", trainable=role != _UNTRAINED) for role in ROLES
        },
        order=as_tuple(order),
        max_turns=_TURNS,
        transition=SilentTransition(),
    )
    client = LocalEngineClient(cast(Engine, engine))
    active_rollouts = client.active_rollouts
    source: Any = EmittedScores()
    ctx = JobContext(
        environment=NumberGame(),
        team=team,
        engine=client,
        reward_sources=[NamedRewardSource("environment", source, {})],
        reward_weights=RewardWeights(),
        run_seed=7,
        job=RolloutJob(task=task, chain=chain),
    )

    async def play() -> Tree:
        with guarded(f"{name}.play"):  # in the loop: where it waits, that has no frame of the sampler's
            tree: Tree = await in_time(client.active(sampler.play(task, 0, chain, ctx)))
            if ctx.background:
                await asyncio.gather(*ctx.background)
            return tree

    tree = asyncio.run(play())
    require(isinstance(tree, Tree), f"returned {type_text(tree)}", f"{name}.play", fix="a Tree")
    require(
        active_rollouts.live == 0 and active_rollouts.waiting == 0,
        f"left {active_rollouts.live} rollouts active: no request batch would form again",
        f"{name}.play",
        fix="run branches and children through ctx.gather",
    )
    same = tree.task == task and (tree.epoch, tree.chain) == (0, chain)
    require(
        same,
        "is of another task, epoch or chain than its arguments",
        f"{name}.play",
        fix="Tree(task=task, epoch=epoch, chain=chain)",
    )
    return tree, engine, ctx


def _check_tree(tree: Tree, name: str, task: Task) -> None:
    where = f"{name}.play"
    require(
        tree.root.key == Key(task.id, tree.epoch, tree.chain),
        f"the root is {tree.root.key!r}",
        where,
        fix="Key(task.id, epoch, chain)",
    )
    for node in tree.nodes():
        _check_decisions(node, where)
        _check_joints(node, where)


def _check_decisions(node: Node, where: str) -> None:
    key = node.key.text()
    require(node.decisions, f"{key}: no role acts", where, fix="a node has a decision of each acting role")
    late = f"{key}: turn {node.turn} of {_TURNS}"
    require(node.turn < _TURNS, late, where, fix="end the chain at team.max_turns")
    for role, decision in node.decisions.items():
        prompts = [action.calls[0].prompt_ids for action in decision.branches if action.calls]
        for holds, what, fix in (
            (decision.role == role and decision.branches,
             f"the decision of '{role}' is of '{decision.role}', or has no branches",
             "Decision(role=role, branches=...)"),
            (ids_sha256(decision.prompt_ids) == decision.prompt_sha256,
             "prompt_sha256 is not of prompt_ids", "ids_sha256(prompt_ids)"),
            (not (role == _UNTRAINED and decision.trainable),
             f"the decision of '{role}' is trainable, and its policy isn't trained",
             "request.decision(branches, ctx.team.members[role].trainable and not ctx.evaluation)"),
            (all(ids == decision.prompt_ids for ids in prompts),
             f"a branch of '{role}' had another prompt", "render the prompt once, then sample K actions"),
        ):  # fmt: skip
            require(holds, f"{key}: {what}", where, fix)


def _check_joints(node: Node, where: str) -> None:
    key, count = node.key.text(), len(node.joints)
    within = all(0 <= index < count for index in node.expanded)
    for holds, what, fix in (
        (within and len(set(node.expanded)) == len(node.expanded),
         f"expanded is {node.expanded} of {count} joint actions", "indices of joints, each once"),
        (node.rule or not node.joints,
         "no rule says why these joint actions were expanded", "set Node.rule"),
    ):  # fmt: skip
        require(holds, f"{key}: {what}", where, fix)
    for index, joint in enumerate(node.joints):
        place = f"{key}, joint action {index}"
        exists = joint.branches.keys() == node.decisions.keys() and all(
            0 <= branch < len(node.decisions[role].branches) for role, branch in joint.branches.items()
        )
        what = f"{place}: its branches are {dict(joint.branches)}"
        require(exists, what, where, fix="one branch of every role that acted")
        if joint.child is None:
            outcome = joint.outcome is not None and "success" in joint.outcome
            ended = index in node.expanded and not joint.lost
            what = f"{place}: an episode ended without outcome"
            require(outcome or not ended, what, where, fix="environment.outcome(state)")
            continue
        for holds, what, fix in (
            (index in node.expanded, "has a child and is not among the expanded",
             "add its index to Node.expanded"),
            (joint.child.key == node.key.child(index), f"its child's key is {joint.child.key.text()}",
             "key.child(joint)"),
            (joint.child.state_digest == joint.state_digest, "its child has another state",
             "go on from the state that the joint action reached"),
        ):  # fmt: skip
            require(holds, f"{place}: {what}", where, fix)
    sound = any(not joint.lost for joint in node.joints)
    what = f"{key}: joint actions were played and none was expanded"
    require(node.expanded or not sound, what, where, fix="expand at least one joint action without a fault")


def _check_complete(tree: Tree, engine: LetterEngine, ctx: JobContext, name: str) -> None:
    """Each requested call is in the tree, once; exactly the played joint actions are scored."""
    branches = {
        node.key.of_branch(role, branch)
        for node in tree.nodes()
        for role, decision in node.decisions.items()
        for branch in range(len(decision.branches))
    }
    joints = {node.key.of_joint(index) for node in tree.nodes() for index in range(len(node.joints))}
    requested = [request.key for request in engine.requests]
    stray = [key for key in requested if key._replace(call=-1) not in branches]
    scored = {key for key, _, _, _ in ctx.scores}
    for holds, what, fix in (
        (len(set(requested)) == len(requested), "requested a call twice", "K is drawn once per decision"),
        (not stray, f"requested {stray[:1]!r}, which is in no decision",
         "keep every sampled action as a branch"),
        (scored <= branches | joints, "scored a key that is not in the tree",
         "key.of_branch(role, b) or key.of_joint(j)"),
        (joints <= scored, "left a played joint action without scores",
         "call coterie.NodeExpansion.score"),
    ):  # fmt: skip
        require(holds, what, f"{name}.play", fix)


def _check_planned(tree: Tree, plan: Plan, name: str) -> None:
    """The estimator's `check` and `coterie plan` believe the plan."""
    for node in tree.nodes():
        for role, decision in node.decisions.items():
            count = len(decision.branches)
            require(
                count == plan.branches,
                f"says {plan.branches} branches, and '{role}' got {count} at {node.key.text()}",
                f"{name}.plan",
                fix="Plan.branches is the number of actions that are sampled for a decision",
            )


def _check_lost_call(sampler: Any, name: str) -> None:
    def lost(request: Request) -> bool:
        return request.key.role == "executor" and request.key.branch == 0

    tree, _, ctx = _grow(sampler, Task(id="train-0"), 0, ROLES, name, LetterEngine(lost))
    _check_tree(tree, name, tree.task)
    for node in tree.nodes():
        for index, joint in enumerate(node.joints):
            touched = joint.branches.get("executor") == 0
            fix = "don't step an action with a system fault: set the joint action's fault"
            require(joint.lost == touched, "stepped a lost action", f"{name}.play", fix=fix)
            scores = ctx.scores.at(node.key.of_joint(index))
            made_up = touched and any(score.value is not None for score in scores.values())
            require(
                not made_up,
                "scored a joint action that was never played",
                f"{name}.play",
                fix="ctx.mark_missing",
            )


def _check_evaluation(sampler: Any, name: str) -> None:
    where = f"{name}.for_evaluation"
    for greedy in (False, True):
        with guarded(where):
            evaluation = sampler.for_evaluation(greedy)
        require_kind(evaluation, "sampler")
        promise("an evaluation plays one chain and one branch")
        single = (evaluation.plan.chains, evaluation.plan.branches) == (1, 1)
        require(single, f"plays {evaluation.plan}", where, fix="one chain, one branch: no best of K")
        for role in ROLES:
            with guarded(f"{name}.sampling"):
                expected = 0.0 if greedy else sampler.sampling(role).temperature
                temperature = evaluation.sampling(role).temperature
            require(
                temperature == expected,
                f"with greedy={greedy} '{role}' has temperature {temperature}",
                where,
                fix=f"temperature {expected}",
            )
        _grow(evaluation, Task(id="val-0"), 0, ROLES, name)
