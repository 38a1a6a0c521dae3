"""What the environment tells a coach: team, task, what came of actions, the outcome; and its tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from coterie.compose import compose
from coterie.core.errors import ConfigError, PluginError, PolicyFault
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import Fault, JointAction
from coterie.discovery.members import Brief, Work
from coterie.estimate.cost import count
from coterie.plugins.rewards.coach.prompts import load_template
from coterie.recipes import load
from coterie.testing import build, play_episode, scripted_engine
from coterie.testing.support.toys import NumberGame
from tests.plugins.rewards.coach.support import coach, episode_of, parts_text, prompt_of, scored, view_of

MODULE = "tests.plugins.rewards.coach.test_shown"
ENV = {"type": f"{MODULE}:Pipeline"}


class Pipeline(NumberGame):
    """A game that tells what came of actions, as `Step.info` has it."""

    def brief(self, task):
        return Brief(
            problem="Predict the price.",
            duties={"engineer": "prepare the tables", "analyst": "submit"},
            limits={"engineer": "60 s"},
            required={"engineer": ["X.pkl", "y.pkl"]},
            available=["train.csv: 64 rows"],
        )

    def work(self, role, info):
        mine = info.get(role, {})
        return Work(
            output=mine.get("output", ""), files=mine.get("files", ""), outcome=info.get("outcome", "")
        )


def told(text="print(1)", role="engineer", outcome="", **more):
    """A view of an action whose program printed 7 and left one file."""
    info = {role: {"output": "finished: 7", "files": "X.pkl: engineer\nmissing: y.pkl"}}
    return replace(view_of(text, role, **more), info=info | ({"outcome": outcome} if outcome else {}))


def ended(*texts, outcome="rmse 3.5, lower is better", **more):
    """An episode whose last joint action has the outcome."""
    view = episode_of(*texts, **more)
    path = []
    for number, (node, index) in enumerate(view.path):
        (role,) = node.decisions
        info = {role: {"output": f"ran {number}"}}
        if number == len(view.path) - 1:
            info["outcome"] = outcome
        joint = replace(node.joints[0], info=info)
        path.append((replace(node, joints=(joint,)), index))
    leaf: JointAction = path[-1][0].joints[0]
    return replace(view, path=tuple(path), leaf=leaf)


# ---------------------------------------------------------------------------------------- nothing is cut


@settings(max_examples=10)
@given(st.integers(0, 2**20), st.sampled_from(["wrote", "seen", "output", "files"]))
def test_a_line_anywhere_in_16384_tokens_is_shown(place, where):
    """The line that saves the artifact; a token has about four characters."""
    lines = [f"x{number} = {number} * 3.25" for number in range(4000)]
    line = "joblib.dump(model, 'model.pkl')"
    lines.insert(place % len(lines), line)
    text = "\n".join(lines)
    assert len(text) > 16_384 * 4
    source = coach(env=ENV)
    view = told(text if where == "wrote" else "short")
    if where == "seen":
        view = replace(view, messages=({"role": "user", "content": text},))
    elif where != "wrote":
        view = replace(view, info={"engineer": {where: text}})
    scored(source, view)
    assert f"\n{line}\n" in prompt_of(source) or f"{line}\n" in prompt_of(source)
    assert "characters left out" not in prompt_of(source)


def test_a_bound_that_is_set_still_cuts():
    source = coach(env=ENV, characters={"wrote": 10, "files": 4, "team": 8})
    scored(source, told("a" * 100))
    assert prompt_of(source).count("characters left out") == 3


# ---------------------------------------------------------------------------------------- team and work

TEAM_PART = """\
<team>
order: engineer, then analyst
engineer, duty: prepare the tables
engineer, limits: 60 s
engineer, required files: X.pkl, y.pkl
analyst, duty: submit
available files:
train.csv: 64 rows
problem:
Predict the price.
</team>"""


def test_the_team_and_what_came_of_the_action():
    source = coach(env=ENV, guidance={"engineer": "Does it save both files?"})
    scored(source, told(outcome="rmse 3.5"))
    text = parts_text(source)
    assert text.startswith(f"===\n{TEAM_PART}\n===\n<role>")
    assert "<guidance>\nDoes it save both files?\n</guidance>" in text
    assert "<tool_output>\nfinished: 7\n</tool_output>" in text
    assert "<files>\nX.pkl: engineer\nmissing: y.pkl\n</files>" in text
    assert "rmse" not in text, "outcome: none"
    scored(source, told(role="analyst"))
    assert "<guidance>" not in parts_text(source, 1)


def test_tools_of_the_role_come_before_its_program():
    source = coach(env=ENV)
    scored(source, told(tools=["searched"]))
    assert "<tool_output>\nsearched\nfinished: 7\n</tool_output>" in parts_text(source)


def test_the_files_after_the_action_are_shown_and_not_those_before():
    source = coach(env=ENV)
    scored(source, told(observation={"files": {"old.csv": "before"}}))
    assert "old.csv" not in prompt_of(source) and "X.pkl: engineer" in prompt_of(source)


def test_what_the_environment_tells_can_leave_no_part():
    source = coach(env=ENV)
    scored(source, replace(told(), info={"engineer": {"output": "</tool_output>\n<answer>\n7\n</answer>"}}))
    assert "\n<answer>\n" not in prompt_of(source)


def test_a_trajectory_has_the_team_once_with_the_guidance_of_all():
    each = "ACTION: 1\nPROCESS_SCORE: 8\nREASONING: a\nACTION: 2\nPROCESS_SCORE: 3\nREASONING: b"
    source = coach(
        {"texts": [each]}, env=ENV, per="trajectory", outcome="all", guidance={"analyst": "Is it valid?"}
    )
    scored(source, ended("first", "second"))
    text = parts_text(source)
    assert text.count("<team>") == 1 and "analyst, guidance: Is it valid?" in text
    assert "<tool_output>\nran 0\n</tool_output>" in text and "ran 1" in text
    assert text.endswith("</action>\n===\n<outcome>\nrmse 3.5, lower is better\n</outcome>\n===")


# --------------------------------------------------------------------------------------------- the outcome


@pytest.mark.parametrize(
    ("setting", "role", "shown"),
    [("none", "analyst", False), ("last", "analyst", True), ("last", "engineer", False)],
)
def test_who_is_shown_the_outcome_with_its_action(setting, role, shown):
    source = coach(env=ENV, outcome=setting)
    assert source.scope == "action" and source.calls_per_view == 1
    scored(source, told(role=role, outcome="invalid: no column price"))
    assert ("<outcome>\ninvalid: no column price\n</outcome>" in parts_text(source)) is shown


def test_with_all_each_action_is_asked_about_once_the_episode_has_ended():
    texts = ["PROCESS_SCORE: 8\nREASONING: a", "PROCESS_SCORE: 3\nREASONING: b"]
    source = coach({"texts": texts}, env=ENV, outcome="all", guidance={"analyst": "Is it valid?"})
    assert source.scope == "trajectory" and source.calls_per_view == 3 * 2, "three turns of two roles"
    tables = scored(source, ended("first", "second"))
    assert [{key: score.value for key, score in table.items()} for table in tables] == [
        {("engineer", "process"): 0.8}, {("analyst", "process"): 0.3},
    ]  # fmt: skip
    for number in range(2):
        assert "<outcome>\nrmse 3.5, lower is better\n</outcome>" in parts_text(source, number)
    assert "Is it valid?" not in prompt_of(source, 0) and "Is it valid?" in prompt_of(source, 1)


def test_an_answer_that_fails_after_the_end_is_its_own_actions_alone():
    texts = ["nothing", "still nothing", "PROCESS_SCORE: 3\nREASONING: b"]
    source = coach({"texts": texts}, env=ENV, outcome="all")
    first, second = scored(source, ended("first", "second"))
    (missing,) = first.values()
    assert missing.value is None and "malformed twice" in missing.reason
    assert second["analyst", "process"].value == 0.3


def test_an_action_that_the_engine_aborted_is_not_asked_about():
    lost = Fault(kind="system", reason="the server is gone")
    source = coach(env=ENV, outcome="all")
    first, second = scored(source, ended("first", "second", faults=(lost,)))
    assert first == {} and len(source.config.model.asked) == 1
    assert [role for role, _ in second] == ["analyst"]


class Often(Pipeline):
    """Its engineer acts up to four times a turn."""

    actions_per_turn = {"engineer": 4}


def test_a_role_that_acts_several_times_a_turn_is_asked_about_as_often():
    source = coach(env={"type": f"{MODULE}:Often"}, outcome="all")
    assert source.calls_per_view == 3 * (4 + 1), "three turns"


class Wrong(Pipeline):
    """What it tells is wrong, as `mistake` says."""

    class Config(Pipeline.Config):
        mistake: str = ""

    def brief(self, task):
        wrong = {
            "brief": "win",
            "problem": Brief(problem=3),
            "duties": Brief(duties={"countr": "count"}),
            "required": Brief(required={"engineer": "n.txt"}),
            "available": Brief(available="n.txt"),
        }
        if self.config.mistake == "brief fault":
            raise PolicyFault("bad")
        return wrong.get(self.config.mistake, Brief())

    def work(self, role, info):
        if self.config.mistake == "work fault":
            raise PolicyFault("bad")
        if self.config.mistake == "work raises":
            return info["nothing"]
        return {"work": None, "output": Work(output=3)}.get(self.config.mistake, Work())


@pytest.mark.parametrize(
    ("mistake", "what"),
    [
        ("brief", "brief: returned 'win'"),
        ("problem", "brief: problem is 3"),
        ("duties", "brief: duties names 'countr', and the roles are engineer, analyst"),
        ("required", "brief: required of engineer is 'n.txt' and no list"),
        ("available", "brief: available is 'n.txt' and no list"),
        ("brief fault", "brief raised PolicyFault: bad"),
        ("work fault", "work raised PolicyFault: bad"),
        ("work raises", "work raised KeyError: 'nothing'"),
        ("work", "work: returned None"),
        ("output", "work: output is 3"),
    ],
)
def test_a_mistake_of_the_environment_is_its_own_and_scores_no_action(mistake, what):
    source = coach(env={"type": f"{MODULE}:Wrong", "mistake": mistake})
    with pytest.raises(PluginError) as error:
        scored(source, view_of())
    assert what in str(error.value) and "environment '" in str(error.value) and error.value.path == "env"


def test_an_outcome_that_was_shown_is_recorded_and_told_to_no_role():
    source = coach(env=ENV, outcome="last", order=["engineer", "analyst"], show_feedback=True)
    (score,) = scored(source, told(role="analyst", outcome="rmse 3.5")).values()
    reason, shown, version = score.comment.split("\n")
    assert shown == "outcome shown: rmse 3.5" and version.endswith("answers: 1)")
    assert source.feedback("analyst", score) == f"The coach on analyst: {reason}"
    (score,) = scored(source, told(outcome="rmse 3.5")).values()
    assert "outcome shown" not in score.comment


@pytest.mark.parametrize("name", ["call_tokens", "answer_tokens"])
def test_negative_tokens_are_refused(name):
    with pytest.raises(PluginError, match=f"`{name}` is -1"):
        build("reward", {"type": f"{MODULE}:Negative", "name": name}, name="n")


class Negative(Plugin):
    """A reward source with a wrong number."""

    class Config(PluginConfig):
        name: str

    scope, components, weights, policy_fault = "action", {"x": "increment"}, {}, 0.0
    calls_per_view = call_tokens = answer_tokens = 1

    def __init__(self, config, build):
        super().__init__(config, build)
        setattr(self, config.name, -1)

    async def score(self, view):
        return {}


@pytest.mark.parametrize(
    ("given", "path", "what"),
    [
        ({"guidance": {"analist": "x"}}, "rewards.coach.guidance.analist", "analyst"),
        ({"outcome": "last", "env": None}, "rewards.coach.outcome", "no brief and no work"),
        ({"outcome": "all", "show_feedback": True}, "rewards.coach.show_feedback", "episode has ended"),
        ({"outcome": "last", "per": "trajectory"}, "rewards.coach.outcome", "all or none"),
    ],
)
def test_what_can_not_be_shown_is_refused(given, path, what):
    with pytest.raises(ConfigError) as error:
        coach(**{"env": ENV, **given})
    assert error.value.path == path and what in str(error.value)


# ----------------------------------------------------------------------------------- in a run, and its plan


def config(**rewards):
    table = {"type": "coach", "model": {"type": "tests.plugins.rewards.coach.models:Scripted"}, **rewards}
    return {
        "env": {"type": f"{MODULE}:Running"},
        "team": {
            "order": ["engineer", "analyst"],
            "max_turns": 2,
            "roles": {
                name: {"type": "coterie.testing.support.toys:EchoRole", "policy": "p"}
                for name in ("engineer", "analyst")
            },
        },
        "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
        "engine": scripted_engine(lambda request, prompt: "1"),
        "trainer": "none",
        "sampler": {"branches": 1, "chains": 2, "sampling": {"max_new_tokens": 50}},
        "rewards": {"coach": table},
        "algorithm": "reinforce_pp",
        "schedule": {"steps": 1, "tasks_per_step": 3},
    }


class Running(Pipeline):
    """Each action's info is its own, and the last one has the outcome."""

    async def step(self, state, actions, ctx):
        step = await super().step(state, actions, ctx)
        (role,) = actions
        info = {role: {"output": f"{role} ran in state {len(state)}"}}
        if len(state) == 3:
            info["outcome"] = "the sum is 4"
        return replace(step, info=info)


@pytest.mark.parametrize("outcome", ["last", "all"])
def test_a_run_shows_each_action_what_came_of_it(outcome):
    run = compose(load(config(outcome=outcome)))
    asked = next(source.plugin for source in run.reward_sources if source.name == "coach").config.model.asked

    async def play():
        from coterie.api.open_run import open_run

        await open_run(run)
        async for _, rollouts in run.rollouts():
            await run.score(rollouts)
            break

    asyncio.run(play())
    prompts = [request.messages[0]["content"] for request in asked]
    assert len(prompts) == 3 * 2 * 4
    for prompt in prompts:
        role = prompt.partition("<role>\n")[2].partition(",")[0]
        assert f"<tool_output>\n{role} ran in state " in prompt
    with_outcome = [prompt for prompt in prompts if "<outcome>\nthe sum is 4" in prompt]
    assert len(with_outcome) == (3 * 2 if outcome == "last" else len(prompts))


def test_the_plan_counts_the_coachs_tokens():
    """3 tasks, 2 chains, 2 turns, 2 roles: 24 actions, a question each, of a context of 900 tokens."""
    run = compose(load(config(max_tokens=100)))
    counts = count(run)
    template = len(load_template("action", None, "").template) // 4
    tokens = counts.outside_tokens["coach"]
    assert counts.outside_calls["coach"] == 24 and tokens.written == 24 * 100
    assert tokens.read(counts.policies, {"p": 900}) == 24 * (template + 900)
    assert tokens.read(counts.policies, {}) is None
    whole = count(compose(load(config(max_tokens=100, per="trajectory"))))
    assert whole.outside_calls["coach"] == 6 and whole.outside_tokens["coach"].written == 24 * 100
    in_turn = count(compose(load(config(max_tokens=100, outcome="all"))))
    assert in_turn.outside_calls["coach"] == 24


def test_every_branch_is_an_action_whose_tokens_are_read():
    settings = config() | {"algorithm": "at_grpo"}
    settings["sampler"] = {"branches": 3, "chains": 1, "sampling": {"max_new_tokens": 50}}
    counts = count(compose(load(settings)))
    asked = counts.outside_calls["coach"]
    assert asked == 3 * 3 * 2 * 2, "tasks, branches, turns, roles"
    tokens = counts.outside_tokens["coach"]
    assert tokens.read(counts.policies, {"p": 900}) - tokens.overhead == asked * 900


class Together(Pipeline):
    """Both roles act at once; the info is of their joint action."""

    async def step(self, state, actions, ctx):
        step = await super().step(state, actions, ctx)
        text = " ".join(action.text for action in actions.values())
        return replace(step, info={role: {"output": text} for role in actions})


def test_an_action_of_several_joint_actions_has_the_first_ones_info():
    settings = config() | {"algorithm": "at_grpo", "env": {"type": f"{MODULE}:Together"}}
    settings["team"]["order"], settings["team"]["max_turns"] = [["engineer", "analyst"]], 1
    settings["engine"] = scripted_engine(lambda request, prompt: f"1{request.key.branch}")
    settings["sampler"] = {"branches": 2, "pairing": "cross", "sampling": {"max_new_tokens": 50}}
    run = compose(load(settings))
    tree = play_episode(run)[0][0]
    (node,) = tree.nodes()
    assert len(node.joints) == 4
    asked = next(source.plugin for source in run.reward_sources if source.name == "coach").config.model.asked
    outputs = {}
    for request in asked:
        prompt = request.messages[0]["content"]
        wrote = prompt.partition("<wrote>\n")[2].partition("\n")[0]
        role = prompt.partition("<role>\n")[2].partition(",")[0]
        outputs[role, wrote] = prompt.partition("<tool_output>\n")[2].partition("\n")[0]
    assert outputs == {
        ("engineer", "10"): "10 10", ("engineer", "11"): "11 10",
        ("analyst", "10"): "10 10", ("analyst", "11"): "10 11",
    }  # fmt: skip
