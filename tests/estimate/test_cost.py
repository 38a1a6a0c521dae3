"""The counts of a plan, against steps that are really played."""

from __future__ import annotations

import itertools
import logging
from collections import Counter

import pytest

import coterie
from coterie import Plugin, PluginConfig
from coterie.backends.models.minibatches import count_minibatches, minibatches
from coterie.backends.models.policy import TrainingFields
from coterie.backends.trainers.none import NoTrainer
from coterie.core.errors import ConfigError
from coterie.core.training.samples import samples_of
from coterie.core.types import Credit
from coterie.estimate.cost import BOUND, check_size, count, readable, shape_of, warn_of_tasks
from coterie.estimate.counts import RoleCalls
from coterie.estimate.least import warn_of_size
from coterie.estimate.prompts import first_prompts
from coterie.testing import coterie_run, play_episode
from tests.games import stops
from tests.test_resume import MATRIX

ASKED: Counter[str] = Counter()
"""Outside calls of this file's judges, by scope."""


class Judge(Plugin):
    """Calls an outside service twice per view."""

    weights = {}
    policy_fault = 0.0
    calls_per_view = 2
    scope = "joint"

    def __init__(self, config, build):
        super().__init__(config, build)
        self.components = {build.name: "increment"}

    async def score(self, view):
        ASKED[self.scope] += 2
        return {}


class JudgeOfActions(Judge):
    scope = "action"


class JudgeOfSiblings(Judge):
    scope = "siblings"

    async def score(self, view):
        await super().score(view)
        return [{} for _ in view.actions]


class JudgeOfEpisodes(Judge):
    scope = "episode"


class Idle(NoTrainer):
    """A trainer with settings and without weights, for any policy."""

    Policy = TrainingFields

    class Config(PluginConfig):
        minibatch_size: int | None = None
        epochs: int = 1

    async def open(self, ctx):
        pass

    def optimizer_steps(self, samples, siblings):
        return count_minibatches(samples, siblings, self.config.minibatch_size, self.config.epochs)


class Adder(Plugin):
    """Finds a call in every text."""

    name = "adder"

    def find(self, text):
        return text

    async def run(self, call):
        return "3"


def two_policies():
    """Arguments of `coterie_run`: role one plays policy p, role two policy q; both are trained."""
    trained = {"model": {"init": "none"}, "train": "full"}
    return {
        "policies": {"p": trained, "q": trained},
        "roles": {"one": {"policy": "p"}, "two": {"policy": "q"}},
        "trainer": {"type": "tests.estimate.test_cost:Idle", "minibatch_size": 4, "epochs": 3},
    }


def played(run, tasks=2):
    """(trees, scores, calls of the engine) of one step."""
    calls, generate = [], run.engine.generate

    def counted(request):
        calls.append(request)
        return generate(request)

    run.engine.generate = counted
    trees, scores = play_episode(run, tasks)
    return trees, scores, len(calls)


def actions_of(trees):
    for tree in trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                for branch, action in enumerate(decision.branches):
                    yield node.key.of_branch(role, branch), action


# ------------------------------------------------------------------------------------------------- by playing


@pytest.mark.parametrize(
    "order", [["one", "two"], [["one", "two"]], [["one", "two"], "three"], ["one", "one"]]
)
@pytest.mark.parametrize(
    "sampler",
    [
        {"branches": 3},
        {"branches": 2, "expand": "all"},
        {"branches": 2, "expand": "all", "pairing": "cross"},
        {"branches": 3, "expand": "sampled", "pairing": "cross"},
        {"branches": 1, "chains": 3},
    ],
)
def test_a_step_asks_for_what_was_counted(order, sampler):
    algorithm = {"algorithm": {"type": "grpo" if sampler["branches"] == 1 else "at_grpo"}}
    run = coterie_run(order=order, max_turns=2, sampler=sampler, **algorithm)
    counts = count(run)
    trees, _, calls = played(run)
    assert counts.trees == len(trees)
    assert counts.generations == calls
    assert counts.actions == len(list(actions_of(trees)))
    assert counts.joints == sum(len(node.joints) for tree in trees for node in tree.nodes())
    assert counts.leaves == sum(len(list(tree.leaves())) for tree in trees)
    assert counts.policies["p"].prompts == sum(len(node.decisions) for tree in trees for node in tree.nodes())


@pytest.mark.parametrize(("branches", "roles", "turns"), [(4, 2, 4), (3, 3, 2)])
def test_leaves_of_trees_that_are_expanded_everywhere(branches, roles, turns):
    names = [f"r{index}" for index in range(roles)]
    together = {"order": [names], "max_turns": turns}
    cross = {"branches": branches, "expand": "all", "pairing": "cross"}
    assert count(coterie_run(**together, sampler=cross)).leaves == 2 * branches ** (roles * turns)
    aligned = {"branches": branches, "expand": "all"}
    assert count(coterie_run(**together, sampler=aligned)).leaves == 2 * branches**turns
    one_by_one = {"order": names, "max_turns": turns}
    assert count(coterie_run(**one_by_one, sampler=aligned)).leaves == 2 * branches ** (roles * turns)


def test_the_joint_of_each_roles_best_is_counted_too():
    sampler = {"branches": 3, "commit": "per_role"}
    counts = count(coterie_run(order=[["one", "two"]], sampler=sampler))
    trees, _, _ = played(coterie_run(order=[["one", "two"]], sampler=sampler))
    assert counts.joints == 2 * (3 + 1)
    assert sum(len(tree.root.joints) for tree in trees) <= counts.joints
    assert count(coterie_run(order=["one", "two"], sampler=sampler)).joints == 2 * (3 + 3), (
        "one role has one best"
    )


def test_an_early_end_only_makes_it_less():
    run = coterie_run(answers=stops, max_turns=3, sampler={"branches": 2, "expand": "all"})
    counts = count(run)
    trees, _, _ = played(run)
    assert len(list(actions_of(trees))) < counts.actions


def test_each_policy_has_what_its_roles_do():
    run = coterie_run(
        order=["one", "two"],
        max_turns=2,
        sampler={"branches": 2, "roles": {"two": {"max_new_tokens": 9}}, "sampling": {"max_new_tokens": 5}},
        **two_policies(),
    )
    counts = count(run).policies
    assert {name: policy.roles for name, policy in counts.items()} == {"p": ("one",), "q": ("two",)}
    assert counts["p"].generations == counts["q"].generations == 2 * 2 * 2
    assert (counts["p"].generated_tokens, counts["q"].generated_tokens) == (8 * 5, 8 * 9)
    assert counts["p"].samples == 8 and counts["p"].optimizer_steps == 3 * 2


def test_a_policy_that_is_not_trained_gives_no_samples():
    counts = count(coterie_run()).policies["p"]
    assert counts.generations and not counts.samples and not counts.optimizer_steps


def test_a_tool_may_be_used_as_often_as_the_team_allows():
    run = coterie_run(
        roles={"one": {"tools": ["adder"]}},
        tools={"adder": {"type": "tests.estimate.test_cost:Adder"}},
        team={"max_tool_turns": 3},
    )
    counts = count(run)
    trees, _, calls = played(run)
    prompts = {call.prompt_ids for _, action in actions_of(trees[:1]) for call in action.calls}
    assert counts.generations == calls == 2 * 3 * 4
    assert counts.policies["p"].prompts == 2 * len(prompts) == 2 * (1 + 3 * 3)
    assert "3 tool results an action" in counts.notes[0]


@pytest.mark.parametrize("expand", ["best", "all"])
def test_outside_calls_are_those_that_a_source_makes(expand):
    judges = {"of_joints": "Judge", "of_actions": "JudgeOfActions", "of_siblings": "JudgeOfSiblings"}
    if expand == "all":  # `best` can't wait for an episode's score
        judges["of_episodes"] = "JudgeOfEpisodes"
    run = coterie_run(
        order=[["one", "two"], "three"],
        max_turns=2,
        sampler={"branches": 2, "expand": expand, "pairing": "cross"},
        rewards={
            "environment": {"type": "environment"},
            **{name: {"type": f"tests.estimate.test_cost:{judge}"} for name, judge in judges.items()},
        },
    )
    counts = count(run)
    ASKED.clear()
    played(run)
    assert counts.outside_calls == {
        name: ASKED[run.reward_sources[1 + i].scope] for i, name in enumerate(judges)
    }
    assert "environment" not in counts.outside_calls, "it calls nothing outside"


def test_evaluation_plays_each_task_once():
    schedule = {"evaluate_every": 2, "evaluate_tasks": 5}
    counts = count(coterie_run(max_turns=3, sampler={"branches": 4, "chains": 2}, schedule=schedule))
    assert counts.evaluation == 5 * 3 * 2
    assert count(coterie_run()).evaluation == 0, "this run never evaluates"


# ------------------------------------------------------------------------------------------------ minibatches


@pytest.mark.parametrize(("tasks", "branches"), itertools.product((1, 3, 4, 7), (1, 3, 4)))
@pytest.mark.parametrize("size", [None, 1, 3, 5, 8, 64])
def test_optimiser_steps_are_the_minibatches_that_are_made(tasks, branches, size):
    chains = {"chains": 2} if branches == 1 else {}
    algorithm = {"type": "grpo" if branches == 1 else "at_grpo"}
    run = coterie_run(
        order=["one", "two"],
        sampler={"branches": branches, **chains},
        algorithm=algorithm,
        schedule={"tasks_per_step": tasks},
        policies={"p": {"model": {"init": "none"}, "train": "full"}},
        trainer={"type": "tests.estimate.test_cost:Idle", "minibatch_size": size},
    )
    counts = count(run).policies["p"]
    trees, _, _ = played(run, tasks)
    samples = samples_of(trees, Credit(advantage={key: 1.0 for key, _ in actions_of(trees)}))["p"]
    assert counts.samples == len(samples)
    assert counts.optimizer_steps == len(minibatches(samples, size, seed=0))


def test_no_samples_no_optimiser_steps():
    assert count_minibatches(0, 4, None, 3) == count_minibatches(0, 4, 8, 3) == 0


# ---------------------------------------------------------------------------------- who decides, what is said


def test_an_environment_that_says_who_acts_makes_the_counts_bounds():
    stages = {"stages": [["one"], ["two", "one"], ["two"]]}
    run = coterie_run(env=stages, order=[["one", "two"]], sampler={"branches": 2}, max_turns=3)
    counts = count(run)
    assert "decides which roles act" in counts.notes[0]
    by_order = count(coterie_run(order=[["one", "two"]], sampler={"branches": 2}, max_turns=3))
    assert not by_order.notes
    trees, _, calls = played(run)
    assert calls <= counts.generations and counts.joints >= by_order.joints
    assert sum(len(node.joints) for tree in trees for node in tree.nodes()) <= counts.joints


@pytest.mark.parametrize("chains", [1, 3])
def test_a_role_that_acts_twice_in_a_turn_is_counted_twice(chains):
    """MathChat: the executor writes a program, and goes on from its output."""
    order = ["problem_solver", "code_executor", "verifier"]
    run = coterie_run(
        "```python\nprint(1)\n```",
        env={"type": "math", "verify": "numbers"},
        order=order,
        roles={role: {"type": f"math_{role}"} for role in order},
        sandbox={"type": "tests.plugins.envs.programs:Inline"},
        sampler={"chains": chains, "branches": 1},
        algorithm={"type": "reinforce_pp", "beta": 0.0},
        schedule={"steps": 1, "tasks_per_step": 2, "evaluate_every": 1, "evaluate_tasks": 5},
    )
    counts = count(run)
    assert "acts at most once, 'code_executor' at most 2 times" in counts.notes[0]
    trees, _, calls = played(run)
    assert calls == counts.generations == 2 * chains * 4
    assert len(list(actions_of(trees))) == counts.actions and counts.evaluation == 5 * 4


def test_a_first_task_that_cant_be_read_is_said():
    run = coterie_run()
    run.environment.reset = None
    counts = count(run)
    assert counts.generations == count(coterie_run()).generations
    assert "the first task can't be read here" in counts.notes[0]


@pytest.mark.parametrize(("tasks", "times"), [
    (8, ""), (7, "1 to 2 times"), (5, "1 to 2 times"), (4, "2 times"), (3, "2 to 3 times"), (1, "8 times"),
])  # fmt: skip
def test_a_step_of_more_tasks_than_there_are_is_said_with_both_numbers(tasks, times, caplog):
    """By the plan, and once when a run starts; the step plays as often as it says."""
    run = coterie_run(env={"tasks": tasks}, schedule={"tasks_per_step": 8})
    notes = [note for note in count(run).notes if "tasks_per_step" in note]
    warn_of_tasks(run)
    assert notes == [record.getMessage() for record in caplog.records] and len(notes) == bool(times)
    trees, _ = play_episode(run, 8)
    often = sorted(set(Counter(tree.task.id for tree in trees).values()))
    if times:
        assert notes[0].startswith(f"schedule.tasks_per_step is 8, and there are {tasks} train tasks: ")
        assert f"a step plays each task {times}, each time as a further epoch" in notes[0]
        assert " to ".join(map(str, often)) + " times" == times
    else:
        assert often == [1]


def test_the_smallest_level_of_a_curriculum_is_what_is_said(caplog):
    table = {"tasks": 9, "curriculum": {"field": "tasks", "values": [9, 4, 6], "promote_at": 0.5}}
    run = coterie_run(env=table, schedule={"tasks_per_step": 8})
    warn_of_tasks(run)
    assert "there are 4 train tasks" in caplog.text and len(caplog.records) == 1
    assert [note for note in count(run).notes if "there are 4 train tasks" in note]


def test_a_run_says_it_once(tmp_path, caplog):
    run = ["schedule.tasks_per_step=9", "schedule.steps=3", "schedule.evaluate_every=0"]
    coterie.train(MATRIX, overrides=run, out=tmp_path / "run")
    warned = [record for record in caplog.records if "tasks_per_step" in record.getMessage()]
    assert [record.getMessage()[:68] for record in warned] == [
        "schedule.tasks_per_step is 9, and there are 4 train tasks: a step pl"
    ]


def test_first_prompts_are_those_that_a_step_asks(monkeypatch):
    run = coterie_run(order=["one", "two"], max_turns=2)
    codec = run.engine.codec("p")
    trees, _, _ = played(run, tasks=8)
    prompt_lengths = [len(tree.root.decisions["one"].prompt_ids) for tree in trees]
    lengths = first_prompts(run, {"p": codec})
    assert lengths == {"one": max(prompt_lengths), "two": len(codec.ids("two turn0 "))}


def test_a_role_that_remembers_sees_its_own_words_again():
    lengths = {}
    for remembers in (False, True):
        run = coterie_run(
            max_turns=3,
            sampler={"sampling": {"max_new_tokens": 7}},
            roles={"one": {"remembers": remembers}},
        )
        lengths[remembers] = first_prompts(run, {"p": run.engine.codec("p")})["one"]
    assert lengths[True] == 3 * lengths[False] + 2 * 7


def test_policies_without_a_codec_are_left_out():
    run = coterie_run(order=["one", "two"], **two_policies())
    assert set(first_prompts(run, {"q": run.engine.codec("q")})) == {"two"}


def test_a_context_bounds_prompts_and_answers():
    counts = count(coterie_run(sampler={"branches": 3, "sampling": {"max_new_tokens": 64}})).policies["p"]
    assert counts.prompt_tokens is None
    tight = counts.bounded(32, 64)
    assert tight.prompt_tokens == counts.prompts * 31
    assert tight.generated_tokens == counts.generations * 31
    assert counts.bounded(512, 64).generated_tokens == counts.generated_tokens == counts.generations * 64


def test_prompt_tokens_are_the_prompts_times_their_length():
    """Two tasks, two turns: four prompts a role, whatever the number of branches."""
    run = coterie_run(order=["one", "two"], max_turns=2, sampler={"branches": 3})
    counts = count(run).policies["p"]
    assert counts.bounded(4096, 64, {"one": 10, "two": 7}).prompt_tokens == 4 * 10 + 4 * 7
    assert counts.bounded(None, 64, {"one": 10, "two": 7}).prompt_tokens == 4 * 10 + 4 * 7
    assert counts.bounded(9, 64, {"one": 10, "two": 7}).prompt_tokens == 4 * 8 + 4 * 7, (
        "the context bounds it"
    )
    assert counts.bounded(33, 64, {"one": 10}).prompt_tokens == 4 * 10 + 4 * 32, "two's length is unknown"
    assert counts.bounded(None, 64, {"one": 10}).prompt_tokens is None


def test_a_prompt_after_a_tools_result_has_the_answers_before_it():
    run = coterie_run(
        roles={"one": {"tools": ["adder"]}},
        tools={"adder": {"type": "tests.estimate.test_cost:Adder"}},
        team={"max_tool_turns": 3},
        sampler={"branches": 3, "sampling": {"max_new_tokens": 5}},
    )
    counts = count(run).policies["p"]
    # Two tasks; the branches share the first prompt of 10 tokens; three more a branch, each five longer.
    assert counts.bounded(None, 5, {"one": 10}).prompt_tokens == 2 * (10 + 3 * (15 + 20 + 25))
    assert counts.bounded(18, 5, {"one": 10}).prompt_tokens == 2 * (10 + 3 * (15 + 17 + 17))


# --------------------------------------------------------------------------------------------- the size bound


def cross(turns, tasks=1):
    sampler = {"branches": 4, "expand": "all", "pairing": "cross"}
    return coterie_run(
        order=[["one", "two"]], max_turns=turns, sampler=sampler, schedule={"tasks_per_step": tasks}
    )


def test_a_tree_past_the_bound_is_refused():
    counts = count(cross(turns=4))
    assert counts.leaves == 4 ** (2 * 4) == 65_536 and counts.generations > BOUND
    with pytest.raises(ConfigError, match="34,952 generations, and 20,000 are the bound") as refused:
        check_size(counts)
    assert refused.value.path == "sampler"
    assert "65,536 leaves" in refused.value.why and "sampler.branches" in refused.value.fix


def test_the_bound_is_on_a_steps_generations():
    assert count(cross(turns=3, tasks=9)).generations == 9 * 2184
    check_size(count(cross(turns=3, tasks=9)))
    with pytest.raises(ConfigError):
        check_size(count(cross(turns=3, tasks=10)))


def test_a_run_past_the_bound_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, logger="coterie"):
        warn_of_size(cross(turns=3))
        assert not caplog.records
        warn_of_size(cross(turns=4))
    assert "34,952 generations" in caplog.text and "coterie plan" in caplog.text


def test_huge_numbers_are_shown_by_their_magnitude():
    assert readable(65_536) == "65,536"
    huge = count(cross(turns=1200)).leaves
    assert huge == 16**1200 and readable(huge) == "10^1444.9"


# ------------------------------------------------------------------------------ counted, not gone through


@pytest.mark.parametrize("expand", ["best", "all"])
@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("order", [(("one",), ("two",)), (("one", "two"), ("one",))])
def test_a_long_episode_is_counted_as_the_sum_of_its_turns(expand, branches, order):
    plan = coterie.Plan(chains=1, branches=branches, expand=expand, pairing="aligned")
    nodes, joints, later, decisions = 1, 0, 0, Counter()
    for _ in range(9):
        for stage in order:
            later += nodes * any(decisions[role] for role in stage)
            decisions.update(dict.fromkeys(stage, nodes))
            joints += nodes * branches
            nodes *= branches if expand == "all" else 1
    shape = shape_of(order, 9, plan)
    assert (shape.leaves, shape.joints, shape.later) == (nodes, joints, later)
    assert shape.decisions == decisions and not shape.cut
    assert shape.waves[-1] == dict.fromkeys(order[-1], nodes // (branches if expand == "all" else 1))


def test_planning_takes_no_longer_for_a_larger_step():
    large = coterie_run(
        max_turns=10**9,
        sampler={"chains": 10**9, "branches": 10**6},
        schedule={"tasks_per_step": 10**9},
    )
    assert count(large).generations == 10**9 * 10**9 * 10**9 * 2 * 10**6
    notes = count(cross(turns=10**9)).notes
    assert "a tree grows past 10^4,932 nodes: its later turns are not counted" in notes


def test_a_tools_many_rounds_are_counted_without_going_through_them():
    for most in (None, 18, 5, 1000):
        calls = RoleCalls(decisions=2, branches=3, calls=40, answer=5)
        prompts = [min(10 + 5 * call, most or 10**9) for call in range(40)]
        assert calls.prompt_tokens(10, most) == 2 * (prompts[0] + 3 * sum(prompts[1:]))
    endless = RoleCalls(decisions=1, branches=1, calls=10**12, answer=5)
    assert endless.prompt_tokens(10, 100) > 99 * 10**12
