"""The coach in runs: overlap, blame, faults that stay with their action, and samples in their own context."""

from __future__ import annotations

import asyncio
import time
from unittest import mock

import coach_relay
import numpy as np
import pytest
from coach_relay import ROLES, RuleCoach, relay_table, right

from coterie import ConfigError, SystemFault
from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.core.protocols import Batch
from coterie.core.training.samples import samples_of
from coterie.core.types import TEAM
from coterie.estimate.cost import count
from coterie.plugins.samplers.tree import TreeSampler
from coterie.recipes import load
from coterie.testing import build, check_reward, coterie_run, play_episode, scripted_engine
from coterie.testing.support.toys import NumberGame

RULES = {"type": "coach_relay:RuleCoach"}
SPANS: list[tuple[str, float, float]] = []


class Faulty(RuleCoach):
    """Fails for the actions in `fails`, each `role text`; with `malformed`, by what it answers."""

    class Config(RuleCoach.Config):
        fails: tuple[str, ...] = ()
        malformed: bool = False

    async def answer(self, request):
        (parts, *_) = coach_relay.parts_of(request.messages[0]["content"])
        failing = f"{parts['role'].split(',')[0]} {parts['wrote']}" in self.config.fails
        if failing and not self.config.malformed:
            raise SystemFault("the server is gone")
        answer = await super().answer(request)
        return answer if not failing else type(answer)(text="PROCESS_SCORE: 8/10")


def relay(answers, model=None, rewards=None, **tables):
    """A run of the relay with the coach's scores alone in the reward."""
    settings = {"model": {**RULES, **(model or {})}}
    table = {
        **relay_table("p"),
        "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
        "rewards": {
            "environment": {"type": "environment", "weights": {"right": 0.0}},
            "coach": {"type": "coach", **settings, **(rewards or {})},
        },
        "sampler": {"branches": 1},
        "algorithm": {"type": "reinforce_pp", "beta": 0.0},
        "engine": scripted_engine(answers),
        "trainer": {"type": "none"},
        "schedule": {"steps": 1, "tasks_per_step": 2, "max_missing": 1.0},
        **tables,
    }
    return compose(load(table))


def do_right(request, prompt):
    """What the role should write, from its prompt."""
    return str(right(request.key.role, int(prompt.split()[-2])))


@pytest.mark.parametrize("per", ["action", "trajectory"])
def test_it_conforms(per):
    table = {"type": "coach", "model": RULES, "per": per}
    game = build("environment", relay_table()["env"], order=list(ROLES))
    source = build("reward", table, name="coach", order=list(ROLES), env=relay_table()["env"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuleCoach, "score", lambda self, parts: (float(len(parts["wrote"])), "by length"))
        check_reward(
            source,
            environment=game,
            roles=list(ROLES),
            act=["0", "12", "no number"],
            outage=lambda: mock.patch.object(RuleCoach, "answer", side_effect=SystemFault("down")),
        )


# ------------------------------------------------------------------------------------------ the right role


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("per", ["action", "trajectory"])
@pytest.mark.parametrize("wrong", ROLES)
@pytest.mark.parametrize("fault", ["number", "text"])
def test_of_a_planted_fault_the_right_role_has_the_low_score(fault, wrong, per, structured):
    """With our prompts, and a coach that follows the roles' instructions."""

    def play(request, prompt):
        seen = prompt.split()[-2]
        if request.key.role == wrong:
            return str((right(wrong, int(seen)) + 1) % 6) if fault == "number" else "oops"
        return str(right(request.key.role, int(seen))) if seen.isdigit() else "7"

    run = relay(play, {"structured": structured}, {"per": per, "ground_truth": "all"})
    trees, scores = play_episode(run, tasks=4)
    for tree in trees:
        by_role = {
            role: scores.at(node.key.of_branch(role, 0))[role, "process"].value
            for node in tree.nodes()
            for role in node.decisions
        }
        assert set(by_role) == set(ROLES)
        assert min(by_role, key=by_role.get) == wrong and by_role[wrong] <= 0.3
        assert all(value >= 0.6 for role, value in by_role.items() if role != wrong)


def test_a_trajectory_and_its_actions_are_scored_alike_by_the_same_coach():
    tables = []
    for per in ("action", "trajectory"):
        run = relay(
            lambda request, prompt: str(request.key.chain), rewards={"per": per}, sampler={"chains": 4}
        )
        _, scores = play_episode(run, tasks=3)
        tables.append(
            {
                (key, role): (score.value, score.comment)
                for key, role, component, score in scores
                if component == "process"
            }
        )
        (coach,) = [source for source in run.reward_sources if source.name == "coach"]
        assert len(coach.plugin.config.model.asked) == (36 if per == "action" else 12)
    assert tables[0] == tables[1] and len(tables[0]) == 36


# ---------------------------------------------------------- faults stay where they are


def credit_of(run, tasks=3):
    """The advantage of every branch, and the reasons of missing scores."""
    trees, scores = play_episode(run, tasks=tasks)
    batch = Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights)
    credit, _ = run.estimator(batch, None)
    missing = {key for key, _, _, score in scores if score.value is None}
    return {key: np.asarray(value, dtype=float) for key, value in credit.advantage.items()}, missing


def by_place(request, prompt):
    """A number that is the chain's or branch's own for each role."""
    return str((request.key.chain + request.key.branch + 2 * len(request.key.path)) % 6)


CASES = {
    "grpo": ({"type": "grpo"}, "chains"),
    "at_grpo": ({"type": "at_grpo"}, "branches"),
    "reinforce_pp": ({"type": "reinforce_pp", "beta": 0.0, "normalise": {"scope": "role"}}, "chains"),
}


@pytest.mark.parametrize("malformed", [False, True])
@pytest.mark.parametrize("algorithm", CASES)
def test_a_fault_of_the_coach_changes_no_other_samples_advantage(algorithm, malformed):
    """The last sample of `fetch` has no score: the others get what they get where it is not sampled, and the
    other roles what they get with it."""
    settings, knob = CASES[algorithm]
    count = 4
    faulty = {"type": f"{__name__}:Faulty", "noise": 1.0, "malformed": malformed}
    expand = {"expand": "sampled"} if knob == "branches" else {}

    def credit(number, fails=()):
        sampler = {"branches": 1, **expand, knob: number}
        run = relay(by_place, {**faulty, "fails": fails}, algorithm=settings, sampler=sampler)
        return credit_of(run)

    whole, none = credit(count)
    without, _ = credit(count - 1)
    faulted, missing = credit(count, [f"fetch {count - 1}"])
    assert not none and len(missing) == 3
    assert all(key.role == "fetch" and key.chain + key.branch == count - 1 for key in missing)
    assert not missing & {key for key, value in faulted.items() if value.any()}
    compared = [key for key in faulted if key.role == "fetch" and key not in missing]
    assert len(compared) == 9
    for key in compared:
        np.testing.assert_allclose(faulted[key], without[key], rtol=0, atol=1e-12)
    others = [key for key in whole if key.role != "fetch"]
    assert others
    for key in others:
        np.testing.assert_allclose(faulted[key], whole[key], rtol=0, atol=1e-12)
    assert any(abs(faulted[key] - whole[key]).max() > 1e-3 for key in compared), "the sample counts"


def test_under_a_global_normaliser_the_others_are_normalised_without_it():
    """REINFORCE++ by hand: (score - mean) / deviation over the scores that are there."""
    model = {"type": f"{__name__}:Faulty", "fails": ["transform 2"]}
    run = relay(do_right, model)
    trees, scores = play_episode(run, tasks=6)
    batch = Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights)
    credit, _ = run.estimator(batch, None)
    # One task has `transform 2`. Every other score is .9, so that all advantages are 0.
    assert len(credit.advantage) == 17 and all(
        abs(value).max() < 1e-12 for value in credit.advantage.values()
    )
    run = relay(by_place, {**model, "fails": ["transform 2"]}, sampler={"chains": 3})
    trees, scores = play_episode(run, tasks=2)
    batch = Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights)
    credit, _ = run.estimator(batch, None)
    values = {key: score.value for key, _, component, score in scores if component == "process"}
    known = {key: value for key, value in values.items() if value is not None}
    assert len(values) == 18 and len(known) == len(credit.advantage) == 16
    mean, deviation = np.mean(list(known.values())), np.std(list(known.values()))
    for key, value in known.items():
        np.testing.assert_allclose(credit.advantage[key], (value - mean) / deviation, atol=1e-6)


def test_a_lost_trajectory_is_lost_alone():
    model = {"type": f"{__name__}:Faulty", "fails": ["fetch 2"]}
    run = relay(by_place, model, {"per": "trajectory"}, sampler={"chains": 3})
    _, scores = play_episode(run, tasks=2)
    process = [(key, score) for key, _, component, score in scores if component == "process"]
    missing = [key for key, score in process if score.value is None]
    assert {key.chain for key in missing} == {2} and len(missing) == 6 and len(process) == 18


def test_a_trajectory_is_not_scored_where_episodes_fork():
    with pytest.raises(ConfigError, match="fork"):
        relay(do_right, rewards={"per": "trajectory"}, sampler={"branches": 2}, algorithm={"type": "at_grpo"})


async def slow_writing(request, prompt):
    begin = time.monotonic()
    await asyncio.sleep(0.1)
    SPANS.append(("generation", begin, time.monotonic()))
    return do_right(request, prompt)


class Timed(RuleCoach):
    async def answer(self, request):
        begin = time.monotonic()
        answer = await super().answer(request)
        SPANS.append(("coach", begin, time.monotonic()))
        return answer


def test_the_coach_scores_while_the_engine_generates():
    """The coach of a stage and the generation of the next one overlap; nothing waits for the coach."""
    SPANS.clear()
    run = relay(slow_writing, {"type": f"{__name__}:Timed", "delay": 0.1})
    play_episode(run, tasks=4)
    spans = {name: sorted(span[1:] for span in SPANS if span[0] == name) for name in ("generation", "coach")}
    assert len(spans["generation"]) == len(spans["coach"]) == 12
    overlapping = [
        start
        for start, end in spans["coach"]
        if any(start < after and before < end for before, after in spans["generation"])
    ]
    assert len(overlapping) >= 4, "the actions of the first stage are scored while others are generated"
    ((source,),) = [[s.plugin for s in run.reward_sources if s.name == "coach"]]
    assert source.background


# ---------------------------------------------------------- samples in their own context


class Talk(NumberGame):
    def vocabulary(self):
        return ["1", "2", "3"]


def test_the_tokens_of_every_turn_are_trained_in_their_own_context():
    """MAPPA's code trained every action after an agent's first one in a context without the task."""
    roles = {role: {"remembers": True} for role in ("one", "two")}
    coach = {"type": "coach", "model": {**RULES}}
    run = coterie_run(
        roles=roles, max_turns=3, sampler={"branches": 1, "sampling": {"max_new_tokens": 2}},
        env=f"{__name__}:Talk", rewards={"environment": {"type": "environment"}, "coach": coach},
        algorithm={"type": "reinforce_pp", "beta": 0.0, "truncated": "keep"},
        policies={"p": {"model": {"init": "tabular"}, "train": "full"}},
        engine="tabular", trainer={"type": "tabular"},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuleCoach, "score", lambda self, parts: (float(len(parts["wrote"]) % 11), "by length"))
        trees, scores, codec = asyncio.run(step_with_codec(run))
    batch = Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights)
    credit, _ = run.estimator(batch, None)
    rows = {row.key: row for row in samples_of(trees, credit)["p"]}
    checked = 0
    for tree in trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                row, (action,) = rows[node.key.of_branch(role, 0)], decision.branches
                (call,) = action.calls
                begin = row.prompt_tokens
                assert tuple(row.token_ids[:begin]) == decision.prompt_ids == call.prompt_ids
                assert tuple(row.token_ids[begin:]) == call.token_ids
                assert row.loss_mask.tolist() == [False] * begin + [True] * len(call.token_ids)
                # A later turn's prompt has the first one's, which holds the task, and all that came between.
                turns = [message["content"] for message in decision.messages if message["role"] == "user"]
                assert [text.split()[1] for text in turns] == [f"turn{n}" for n in range(node.turn + 1)]
                assert codec.encode(decision.messages).ids == decision.prompt_ids or node.turn
                checked += 1
    assert checked == len(rows) == 2 * 3 * 2


async def step_with_codec(run):
    try:
        await open_run(run)
        rollouts = await run.play(run.jobs(1, 2))
        return rollouts.trees, await run.score(rollouts), run.engine.codec("p")
    finally:
        await run.close()


def test_reasons_are_recorded_with_the_scores():
    _, scores = play_episode(relay(do_right), tasks=1)
    comments = [score.comment for _, role, _, score in scores if role != TEAM]
    assert len(comments) == 3 and all(text.endswith("is right\n(rules-1; answers: 1)") for text in comments)


# ------------------------------------------------------------------------------------------------- feedback


def prompts_of(trees):
    """By role, the content of its last message, in the order of play."""
    return [
        (role, decision.messages[-1]["content"])
        for tree in trees
        for node in tree.nodes()
        for role, decision in node.decisions.items()
    ]


def wrong_fetch(request, prompt):
    seen = int(prompt.split("User: ")[1].split()[0])
    return str((right(request.key.role, seen) + (request.key.role == "fetch")) % 6)


def test_later_roles_read_the_reasons_where_they_are_shown():
    run = relay(wrong_fetch, rewards={"show_feedback": True})
    trees, scores = play_episode(run, tasks=2)
    for tree in trees:
        number = tree.task.payload
        wrote = (number + 1) % 6
        first, second, third = prompts_of([tree])
        assert first == ("fetch", str(number))
        fault = f"feedback: The coach on fetch: {number} is right"
        assert second == ("transform", f"{wrote}\n{fault}")
        done = f"feedback: The coach on transform: {right('transform', wrote)} is right"
        assert third == ("report", f"{right('transform', wrote)}\n{fault}\n{done}")
    assert not any(score.value is None for _, _, _, score in scores)


def test_reasons_are_not_shown_otherwise():
    trees, _ = play_episode(relay(wrong_fetch), tasks=2)
    assert not any("coach" in text for _, text in prompts_of(trees))


def test_a_role_reads_what_came_since_its_last_action():
    """Two roles, two turns: each reads of its own last action and of the other's after it."""
    roles = {role: {"remembers": True} for role in ("one", "two")}
    coach = {"type": "coach", "model": {**RULES}, "show_feedback": True}
    run = coterie_run(
        {"one": "1", "two": "2"}, roles=roles, max_turns=2, sampler={"branches": 1},
        rewards={"environment": {"type": "environment"}, "coach": coach},
        algorithm={"type": "reinforce_pp", "beta": 0.0},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuleCoach, "score", lambda self, parts: (5.0, f"wrote {parts['wrote']}"))
        trees, _ = play_episode(run)
    texts = [text for _, text in prompts_of(trees)]
    assert [text.count("The coach on") for text in texts] == [0, 1, 2, 2]
    assert "The coach on one: wrote 1" in texts[1] and "two" not in texts[1].split("coach on", 1)[1]
    assert texts[2].index("The coach on one") < texts[2].index("The coach on two")
    assert texts[3].index("The coach on two") < texts[3].index("The coach on one")


class Other(TreeSampler):
    """A sampler that may play differently."""


def test_feedback_of_a_trajectory_is_refused():
    with pytest.raises(ConfigError, match="after its last role") as caught:
        relay(do_right, rewards={"per": "trajectory", "show_feedback": True})
    assert caught.value.path == "rewards.coach.show_feedback"


@pytest.mark.parametrize("sampler", [{"branches": 2}, {"type": f"{__name__}:Other", "branches": 2}])
def test_feedback_is_refused_where_it_would_be_of_other_branches(sampler):
    algorithm = {"type": "at_grpo"}
    with pytest.raises(ConfigError, match=r"sampler\.branches is 2(.|\n)*show_feedback: false") as caught:
        relay(do_right, rewards={"show_feedback": True}, sampler=sampler, algorithm=algorithm)
    assert caught.value.path == "rewards.coach"
    relay(do_right, sampler=sampler, algorithm=algorithm)  # its reasons are not shown
    relay(do_right, rewards={"show_feedback": True}, sampler={**sampler, "branches": 1})


@pytest.mark.parametrize(
    ("order", "turns", "refused"),
    [(["planner", "executor"], 1, "executor"), (["solver"], 1, ""), (["solver"], 2, "solver")],
)
def test_feedback_is_refused_where_the_compact_rendering_cannot_show_it(order, turns, refused):
    """Before anything is played; the error names the coach's setting and that of the rendering."""

    def composed(**env):
        return compose(
            load(
                {
                    "env": {"type": "plan_path", **env},
                    "team": {
                        "order": order,
                        "max_turns": turns,
                        "roles": {role: {"type": f"plan_path_{role}", "policy": "p"} for role in order},
                    },
                    "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
                    "rewards": {
                        "environment": {"type": "environment"},
                        "coach": {"type": "coach", "model": RULES, "show_feedback": True},
                    },
                    "sampler": {"branches": 1},
                    "algorithm": {"type": "reinforce_pp", "beta": 0.0},
                    "engine": scripted_engine(lambda request, prompt: "R"),
                    "trainer": {"type": "none"},
                    "schedule": {"steps": 1, "tasks_per_step": 2},
                }
            )
        )

    composed(rendering="prose")
    if not refused:  # nobody acts after a scored action
        composed()
        return
    with pytest.raises(ConfigError) as caught:
        composed()
    assert caught.value.path == "rewards.coach" and "show_feedback: false" in caught.value.fix
    assert f"'{refused}'" in str(caught.value) and "env.rendering=compact" in str(caught.value)


@pytest.mark.parametrize("prompt", ["{{ text }}", "{{ text }}{% for note in notes %}{{ note }}{% endfor %}"])
def test_feedback_is_refused_where_a_template_has_no_place_for_it(prompt):
    coach = {"type": "coach", "model": RULES, "show_feedback": True}
    roles = {role: {"type": "template", "prompt": prompt, "policy": "p"} for role in ("one", "two")}

    def composed():
        return coterie_run(
            roles=roles, max_turns=1, order=["one", "two"], sampler={"branches": 1},
            rewards={"environment": {"type": "environment"}, "coach": coach},
            algorithm={"type": "reinforce_pp", "beta": 0.0},
        )  # fmt: skip

    if "note" in prompt:
        composed()
        return
    with pytest.raises(ConfigError, match="role 'two' can't show") as caught:
        composed()
    assert caught.value.path == "rewards.coach" and "team.roles.two.prompt" in str(caught.value)


@pytest.mark.parametrize(
    ("quality", "words"),
    [("rigth", "did you mean 'right'"), ("process", "a coach's own score"), (3, "known: right")],
)
def test_a_quality_that_nobody_scores_is_refused_at_once(quality, words):
    relay(do_right, rewards={"quality": "right"})
    with pytest.raises(ConfigError) as caught:
        relay(do_right, rewards={"quality": quality})
    assert caught.value.path == "rewards.coach.quality" and words in str(caught.value)


def test_another_coachs_score_is_no_quality():
    coach = {"type": "coach", "model": RULES}
    two = {
        "environment": {"type": "environment"},
        "coach": {**coach, "quality": "tutored"},
        "tutor": {**coach, "component": "tutored"},
    }
    with pytest.raises(ConfigError, match="a coach's own score"):
        coterie_run(rewards=two, sampler={"branches": 1}, algorithm={"type": "reinforce_pp", "beta": 0.0})


@pytest.mark.parametrize(("per", "calls"), [("action", 2 * 3 * 3), ("trajectory", 2 * 3)])
def test_a_plan_counts_the_coachs_calls(per, calls):
    """Two tasks, three chains, three actions an episode."""
    run = relay(do_right, rewards={"per": per}, sampler={"chains": 3})
    counts = count(run)
    assert counts.outside_calls == {"coach": calls}
    (note,) = [note for note in counts.notes if "outside calls of rewards.coach leave out" in note]
    assert "second question after a malformed answer" in note and "evaluations" in note
    assert not any("outside calls" in note for note in count(coterie_run()).notes)
