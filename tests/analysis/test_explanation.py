"""What a configuration means: its parts, its readers, its hooks, and prompts that are those of a run."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path

import pytest

from coterie import Plugin, PluginConfig, explain
from coterie.analysis.explained_keys import PLUGIN_DEFAULT, explained_keys, select
from coterie.compose import compose
from coterie.compose.settings import settings_of
from coterie.core.errors import ConfigError, UserError
from coterie.core.types import Key, Score
from coterie.discovery import plugins
from coterie.recipes import flatten, load
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import NumberGame

TABULAR = Path(__file__).parents[1] / "recipes" / "tabular.yaml"
RECIPES = plugins().registry.names("recipe")


@cache
def explained(name):
    """The explanation of a recipe, without tokenizers; made once for all tests, which only read it."""
    return explain(name, tokenizers=False)


@cache
def of_many_keys():
    """The explanation of a configuration with keys of every part."""
    return explain(
        "plan_path",
        overrides=[
            "env.curriculum={field: size, values: [4, 6], promote_at: 0.5}",
            "rewards.environment.weights={team: 1}",
            "evaluate={samples: 2, sets: {large: {env: {size: 12}, sampling: {temperature: 0.5}}, b: {}}}",
            "evaluate.best=large",
            "schedule.steps=4",
        ],
        prompts=False,
    )


# --------------------------------------------------------------------------------------------------- the keys


@pytest.mark.parametrize("name", RECIPES)
def test_every_key_of_every_recipe_has_one_reader(name):
    resolved = load(name)
    settings = settings_of(resolved.config)
    keys = explained_keys(resolved, settings)
    assert [(key.path, key.value) for key in keys] == list(flatten(settings.table))
    assert len({key.path for key in keys}) == len(keys)
    assert [key.path for key in keys if not key.reader] == []
    for key in keys:
        assert key.allowed and key.origin, key
        chooses = key.path.removesuffix(".type") in settings.components and key.path.endswith(".type")
        assert bool(key.declared) != chooses, key
        if key.origin == PLUGIN_DEFAULT and key.path.rpartition(".")[0] in settings.components:
            assert key.default == key.value, key


@pytest.mark.parametrize(
    ("path", "reader", "declared"),
    [
        ("env.size", "environment 'plan_path' of coterie", "coterie.plugins.envs.plan_path.config:Config"),
        ("env.type", "the composition, which makes the environment", ""),
        ("env.curriculum.promote_at", "the curriculum", "coterie.compose.curriculum:CurriculumConfig"),
        ("team.max_turns", "the team", "coterie.core.config.schema:RunConfig"),
        ("team.roles.planner.policy", "the team", "coterie.compose.tables:RoleConfig"),
        ("team.roles.planner.system", "role 'plan_path_planner' of coterie", ""),
        ("rewards.environment.weights.team", "the rewards of the run", "coterie.compose.tables:RewardConfig"),
        ("policies.shared.model", "the run, trainer 'torch' of coterie, engine 'hf' of coterie", ""),
        ("policies.shared.optimizer.learning_rate", "trainer 'torch' of coterie", ""),
        ("policies.shared.context", "trainer 'torch' of coterie, engine 'hf' of coterie", ""),
        ("sampler.sampling.temperature", "sampler 'tree' of coterie", ""),
        ("evaluate.sets.large.env.size", "environment 'plan_path' of coterie", ""),
        ("evaluate.sets.large.sampling.temperature", "sampler 'tree' of coterie", ""),
        ("evaluate.samples", "the evaluations in training", "coterie.compose.evaluation_sets:EvaluateConfig"),
        ("schedule.steps", "the run's schedule", "coterie.core.config.schema:RunConfig"),
        ("seed", "the run", "coterie.core.config.schema:RunConfig"),
    ],
)
def test_the_reader_of_a_key_is_the_component_that_declares_it(path, reader, declared):
    (key,) = select(of_many_keys().keys, path)
    assert key.reader == reader
    assert key.declared.endswith(declared.split(":")[-1])


def test_where_a_value_comes_from_and_what_it_may_be():
    made = explain("plan_path", overlays=["per_role"], overrides=["trainer.epochs=2"], prompts=False)
    (epochs,) = select(made.keys, "trainer.epochs")
    assert (epochs.value, epochs.origin, epochs.default) == (2, "override", 1)
    assert (epochs.allowed, epochs.may_change) == ("int >= 1", "")
    assert epochs.meaning == "Passes over the samples of a step."
    (policy,) = select(made.keys, "team.roles.planner.policy")
    assert (policy.value, policy.origin) == ("planner", "overlay per_role")
    assert select(made.keys, "trainer.micro_tokens")[0].may_change == "yes"
    (kind,) = select(made.keys, "loss.type")
    assert "ppo_clip | reinforce" in kind.allowed
    with pytest.raises(ConfigError, match=r"no key 'trainer.epoch'\n.*trainer.epochs"):
        select(made.keys, "trainer.epoch")
    assert len(select(made.keys, "trainer")) > 5


def test_a_key_of_a_recorded_run_that_no_plugin_declares_any_more_has_no_reader():
    resolved = load("plan_path")
    settings = settings_of(resolved.config)
    settings.table["trainer"]["of_old"] = 1
    (old,) = select(explained_keys(resolved, settings), "trainer.of_old")
    assert (old.reader, old.value) == ("", 1)


# -------------------------------------------------------------------------------------------------- the parts


def test_each_part_has_its_plugin_its_file_and_who_chose_it():
    made = explain("plan_path", overrides=["transition.type=plain"], prompts=False)
    parts = {part.path: part for part in made.parts}
    assert set(parts) == set(settings_of(load("plan_path").config).components)
    mode, sampler, env = parts["transition"], parts["sampler"], parts["env"]
    assert (mode.kind, mode.plugin, mode.chosen_by) == ("transition", "plain", "override")
    assert (sampler.chosen_by, env.chosen_by) == ("default", "recipe plan_path")
    for part in made.parts:
        assert part.distribution == "coterie" and part.version and part.line, part
        line = Path(part.file).read_text().splitlines()[part.line - 1]
        target = plugins().registry.find(part.kind, part.plugin).target
        assert line.startswith(f"class {target.partition(':')[2]}"), part


# ------------------------------------------------------------------------------------------------ the prompts


def contents(prompt):
    return [{"role": message.role, "content": message.content} for message in prompt.messages]


def test_the_prompts_are_those_that_a_run_sends_token_by_token():
    """A run whose answers are empty, as those of a game without an oracle are: its first two turns."""
    run = coterie_run(
        lambda request, text: "",
        order=["one", ["two", "three"]],
        roles={"one": {}, "two": {}, "three": {}},
        max_turns=3,
        sampler={"branches": 1, "chains": 3, "expand": "sampled"},
        algorithm={"type": "grpo"},
    )
    trees, _ = play_episode(run)
    made = explain(run.config, task=int(trees[0].task.id.rpartition("-")[2]))
    decisions = [
        (role, node.turn, decision)
        for node in trees[0].nodes()
        if node.turn < 2
        for role, decision in node.decisions.items()
    ]
    assert made.task == trees[0].task.id and made.answers == "empty" and made.missing == []
    assert [(prompt.role, prompt.turn) for prompt in made.prompts] == [d[:2] for d in decisions]
    assert len(decisions) == 6
    for prompt, (_, _, decision) in zip(made.prompts, decisions, strict=True):
        assert contents(prompt) == [dict(message) for message in decision.messages]
        assert prompt.tokens == len(decision.prompt_ids) > 0
        text = "".join(part.text for part in prompt.text)
        assert text == run.engine.codec("p").text(decision.prompt_ids)


def test_the_first_prompts_of_a_recipe_are_those_of_its_first_step():
    root = play_episode(compose(load(TABULAR)))[0][0].root
    made = explain(TABULAR, task=int(root.key.task.rpartition("-")[2]))
    (role,) = root.decisions
    (first,) = [p for p in made.prompts if p.role == role and p.turn == 0]
    assert made.task == root.key.task
    assert contents(first) == [dict(message) for message in root.decisions[role].messages]
    assert first.tokens == len(root.decisions[role].prompt_ids)
    assert made.answers == "the oracle's, with errors"
    assert [(p.role, p.turn) for p in made.prompts][:2] == [("planner", 0), ("executor", 0)]


@pytest.mark.parametrize(
    "name", ["plan_path", "sokoban_split", "sudoku_split", "quickstart", "magrpo_v1", "mt_magrpo_cooperative"]
)
def test_the_parts_of_each_message_join_to_it_and_name_who_wrote_them(name):
    made = explained(name)
    resolved = load(name)
    roles = set(resolved.config.team.roles)
    assert {prompt.role for prompt in made.prompts} == roles and made.missing == []
    assert {prompt.turn for prompt in made.prompts} == {0, 1}
    kinds = {part.kind for p in made.prompts for m in p.messages for part in m.parts}
    assert {"role", "observation"} <= kinds
    assert ("feedback" in kinds) == (resolved.config.transition["type"] != "none")
    for prompt in made.prompts:
        assert prompt.tokens is None and prompt.text == [] and prompt.policy
        for part in (part for message in prompt.messages for part in message.parts):
            assert part.text and part.writer.endswith(" of coterie"), part


def named(prompt, kind):
    return {part.text: part.names for m in prompt.messages for part in m.parts if part.kind == kind}


def test_the_words_of_a_game_come_from_the_fields_that_decide_them():
    made = explain("plan_path", overrides=["team.roles.planner.system=Plan, please."], tokenizers=False)
    planner, executor, later, _ = made.prompts
    shown = named(planner, "observation")
    assert shown["1"] == ("turn",) and named(later, "observation")["2"] == ("turn",)
    assert all("position" in names for text, names in shown.items() if "@" in text)
    assert all("goal" in names for text, names in shown.items() if "G" in text)
    assert named(planner, "setting") == {"Plan, please.": ("team.roles.planner.system",)}
    replaced = {part.replaced_by for m in executor.messages for part in m.parts}
    assert replaced == {"", "team.roles.executor.system"}
    assert "rendering" in planner.decides and "plan" in str(named(executor, "observation").values())
    (feedback,) = [part for m in later.messages for part in m.parts if part.kind == "feedback"]
    assert feedback.writer == "transition 'diagnosis' of coterie" and feedback.names == ("sentence 1",)


class Praise(Plugin):
    """A source that shows what it wrote; asking it would fail, as a coach without a key does."""

    scope = "action"
    components = {"praise": "increment"}
    weights = {"praise": 1.0}
    policy_fault = 0.0

    async def score(self, view):
        raise AssertionError("explaining scores nothing")

    def feedback(self, role, score: Score) -> str:
        return f"To {role}: {score.comment}"


class Talker(Plugin):
    """A role that remembers, and shows its feedback and its earlier action."""

    class Config(PluginConfig):
        opening: str = "Dear friend,"
        closing: str | None = None

    remembers = True

    def render(self, role_input):
        seen = role_input.observation
        said = [entry.action.text for entry in role_input.history]
        closing = self.config.closing or "Yours"
        lines = [self.config.opening, f"It is {seen}.", *role_input.feedback, *said, closing]
        return [{"role": "user", "content": "\n".join(lines)}]

    def parse(self, text, observation):
        return text


def test_comments_earlier_prompts_answers_and_settings_have_their_writers():
    where = f"{__name__}:Talker"
    run = coterie_run(
        order=["one"],
        roles={"one": {"type": where, "opening": "Hello {you},"}},
        max_turns=2,
        sampler={"branches": 1, "chains": 3, "expand": "sampled"},
        algorithm={"type": "grpo"},
        rewards={"game": {"type": "environment"}, "praise": {"type": f"{__name__}:Praise"}},
    )
    first, second = explain(run.config).prompts
    assert [part.kind for part in first.messages[0].parts] == ["setting", "role", "role"]
    assert first.messages[0].parts[0].text == "Hello {you},"
    assert [message.role for message in second.messages] == ["user", "assistant", "user"]
    assert contents(second)[0] == contents(first)[0]
    earlier, answer, now = ([part.kind for part in m.parts] for m in second.messages)
    assert (earlier, answer) == (["earlier"], ["answer"])
    assert now == ["setting", "role", "observation", "role", "comment", "role", "role"]
    (comment,) = [part for part in second.messages[2].parts if part.kind == "comment"]
    assert comment.text == "To one: (what 'praise' writes of this action)"
    assert comment.writer.startswith(f"reward '{__name__}:Praise'")
    assert second.messages[2].parts[-1].replaced_by == "team.roles.one.closing"


def test_an_outside_model_of_a_transition_mode_is_not_asked():
    made = explained("mt_magrpo_cooperative")
    (text,) = {text for p in made.prompts if p.turn for text in named(p, "feedback")}
    assert text == "(what 'expert_edits' writes, which asks a model)"


def test_data_that_is_not_here_is_named_with_its_fix_and_the_rest_is_explained(tmp_path):
    made = explain("team_task", overrides=["env.data={type: jsonl, path: /no/such.jsonl}"], tokenizers=False)
    (missing,) = [text for text in made.missing if text.startswith("no prompts")]
    assert "/no/such.jsonl" in missing and made.prompts == []
    assert made.parts and made.keys


def test_a_task_that_is_not_there_is_refused():
    assert explain("plan_path", task=3, tokenizers=False).task == "train-3"
    with pytest.raises(UserError, match="there is no train task -1"):
        explain("plan_path", task=-1, tokenizers=False)


def test_an_explanation_is_plain_data():
    made = explained("quickstart")
    again = json.loads(json.dumps(made.as_dict()))
    assert again["prompts"][0]["messages"][0]["parts"][0]["kind"] == "observation"
    assert {"name", "parts", "observers", "loaded", "keys", "prompts", "missing"} <= set(again)
    assert Key("train-0").text() and again["task"] == "train-0"


class Dice(Plugin):
    """A role that draws in its prompt."""

    rolls = itertools.count()

    def render(self, role_input):
        return [{"role": "user", "content": f"{role_input.observation} {next(self.rolls)}"}]

    def parse(self, text, observation):
        return text


class Weather(NumberGame):
    """A game that shows something else at each look."""

    looks = itertools.count()

    def observe(self, state, role):
        return f"{super().observe(state, role)} {next(self.looks)}"


@pytest.mark.parametrize(("settings", "method"), [
    ({}, ""),
    ({"roles": {"one": {"type": f"{__name__}:Dice"}}}, f"role '{__name__}:Dice' of tests: render"),
    ({"env": {"type": f"{__name__}:Weather"}}, f"environment '{__name__}:Weather' of tests: observe"),
])  # fmt: skip
def test_what_is_drawn_anew_at_each_call_is_named(settings, method):
    made = coterie_run(order=["one"], **settings)
    explanation = explain(made.config, tokenizers=False)
    drawn = [text for text in explanation.missing if "a second call gives otherwise" in text]
    assert len(drawn) == bool(method) and all(method in text for text in drawn)
