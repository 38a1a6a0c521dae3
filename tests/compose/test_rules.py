"""The table of rules: each of them is broken here by one configuration."""

from __future__ import annotations

import pytest

from coterie import ConfigError, PluginConfig, PolicyConfig
from coterie.backends.engines.scripted import ScriptedEngine
from coterie.backends.trainers.none import NoTrainer
from coterie.compose import compose
from coterie.compose.rules.names import one_end
from coterie.compose.rules.table import OF_COMPONENTS, OF_SIDE, OF_TABLES, OF_WEIGHTS
from coterie.core.config import RunConfig
from coterie.recipes import load
from coterie.testing import coterie_run
from coterie.testing.support.toys import EmittedScores, NumberGame

HERE = __name__
RULES = (*OF_TABLES, *OF_SIDE, *OF_COMPONENTS, *OF_WEIGHTS)


class Scores(EmittedScores):
    """A source of another scope than the game's own."""

    components = {"whole": "increment"}
    scope = "episode"

    def __init__(self, config, build):
        pass


class Trajectories(Scores):
    scope = "trajectory"


class Fussy(Scores):
    scope = "joint"

    def check_components(self, components):
        raise ConfigError("nobody scores what I name")


class Shows(Scores):
    scope = "joint"

    def feedback(self, view, scores):
        return {}


class Dice(NumberGame):
    not_summable = ("sum",)


class Wordy(NumberGame):
    def vocabulary(self):
        return ["one"]


class Empty(NumberGame):
    def tasks(self, split, seed):
        return []


class Particular(NoTrainer):
    """A trainer that refuses what its settings say."""

    class Config(PluginConfig):
        needs: bool = False
        repeats: str = ""

        def check_needs(self, needs, path):
            if self.needs:
                raise ConfigError("nothing needs this", path=path)

    class Policy(PolicyConfig):
        wrong: str = ""

        @property
        def warm_started(self):
            return self.wrong == "start"

        def check(self, path, run):
            if self.wrong == "policy":
                raise ConfigError("the model isn't there", path=path)

        def check_words(self, path, vocabulary, longest):
            if self.wrong == "words":
                raise ConfigError(f"no model writes {vocabulary} in {longest['one']} tokens", path=path)


class Behind(ScriptedEngine):
    def check_ahead(self, policies, ahead, pinned):
        raise ConfigError(f"{ahead} step ahead is too far", path="engine")


class Newest(ScriptedEngine):
    lease = None


def answer(request, text):
    return "0"


FRESH = {"loss": {"type": "reinforce"}}
WHOLE = {"rewards": {"own": {"type": "environment"}, "whole": {"type": f"{HERE}:Scores"}}}
SUMS = {"algorithm": {"type": "magrpo"}}


def one(type_, path="rewards"):
    return {path: {"r": {"type": f"{HERE}:{type_}"}}}


def policy(**settings):
    table = {"model": {"init": "none"}, "train": "none", **settings}
    return {"policies": {"p": table}, "trainer": {"type": f"{HERE}:Particular"}}


def ahead(**schedule):
    return {"schedule": {"max_staleness": 1, **schedule}}


def two_ends():
    """No layers can have both, so that only a configuration made in Python meets the rule."""
    config = coterie_run().config
    one_end(config.model_copy(update={"schedule": config.schedule.model_copy(update={"epochs": 2})}))


def other_algorithm():
    compose(
        load(
            "plan_path",
            overrides=["algorithm=grpo", "sampler.chains=2", "sampler.branches=1", "env.team=potential"],
            scale="smoke",
        )
    )


BROKEN = [
    ("stages", {"sampler": {"roles": {"nine": {}}}}, "unknown role 'nine'"),
    ("policies", {"policies": {"p": {"model": "m"}, "q": {"model": "m"}}}, "nothing uses this"),
    ("settings_of_policies", policy(wrong="policy"), "the model isn't there"),
    ("tools", {"roles": {"one": {"tools": ["hammer"]}}}, "unknown tool 'hammer'"),
    ("one_end", two_ends, "set steps or epochs, not both"),
    ("trackers", {"trackers": {"a/b": {"type": "jsonl"}}}, "a tracker can't be named 'a/b'"),
    ("a_reward", {"rewards": {}}, "a run needs a reward"),
    ("named_components", one("Fussy"), "nobody scores what I name"),
    ("feedback", one("Shows"), "where decisions have branches"),
    (
        "task_shown",
        {"transition": {"type": "plain", "original_prompt": False}, "max_turns": 2},
        "states the task in every turn",
    ),
    ("cluster", {"cluster": {}}, "nothing consumes this table"),
    ("shared_tables", {"sandbox": {"type": "local"}}, "no chosen component has a field for a sandbox"),
    ("chat_models", {"chat_models": {"judge": {"type": "function"}}}, "no component names it"),
    (
        "any_weight",
        {"rewards": {"own": {"type": "environment", "weights": {"sum": 0.0, "own": 0.0}}}},
        "weight 0",
    ),
    ("trajectories_without_forks", one("Trajectories"), "a trajectory can't be scored in one call"),
    ("best_branch", WHOLE | {"sampler": {"expand": "best"}}, "the best branch can't be chosen"),
    ("compared_siblings", WHOLE | {"sampler": {"expand": "sampled"}}, "siblings can't be compared"),
    (
        "stopped_episodes",
        WHOLE | {"algorithm": {"type": "magrpo", "termination_threshold": 1}, "sampler": {"expand": "all"}},
        "an episode can't be stopped",
    ),
    (
        "stopping_forgoes_increments",
        {"algorithm": {"type": "magrpo", "termination_threshold": 1}, "sampler": {"expand": "all"}},
        "forgoes what 'own', 'sum' would pay",
    ),
    (
        "sums_over_turns",
        {"env": f"{HERE}:Dice", "sampler": {"expand": "all"}} | SUMS,
        "can't be summed over turns",
    ),
    ("samples", {"sampler": {"sampling": {"top_p": 0.5}}}, "samples with top_p/top_k"),
    ("paper_loss", other_algorithm, "keeps the loss that was there (ppo_clip"),
    ("oracle", policy(wrong="start"), "no oracle to imitate"),
    (
        "settings_with_an_effect",
        {"trainer": {"type": f"{HERE}:Particular", "needs": True}},
        "nothing needs this",
    ),
    (
        "steps_of_an_update",
        FRESH | {"trainer": {"type": f"{HERE}:Particular", "repeats": "epochs=2"}},
        "trainer.epochs=2 makes several",
    ),
    ("tasks", {"env": f"{HERE}:Empty"}, "the train split has no tasks"),
    ("words", policy(wrong="words") | {"env": f"{HERE}:Wordy"}, "no model writes ('one',)"),
    ("play_has_an_effect", {"schedule": {"play": "pinned"}}, "no step is played ahead"),
    ("loss_of_older_samples", FRESH | ahead(), "steps ahead are played by older ones"),
    ("versions_in_flight", ahead(play="in_flight") | {"deterministic": True}, "can't repeat"),
    (
        "engine_plays_ahead",
        ahead() | {"engine": {"type": f"{HERE}:Behind", "play": f"{HERE}:answer"}},
        "1 step ahead is too far",
    ),
    (
        "versions_are_kept",
        ahead() | {"engine": {"type": f"{HERE}:Newest", "play": f"{HERE}:answer"}},
        "keeps one version of the weights",
    ),
]
"""The rule, what breaks it (tables of a run, or a function), and a part of what it says."""


def test_every_rule_is_broken_once_in_the_order_of_the_table():
    assert [name for name, *_ in BROKEN] == [rule.check.__name__ for rule in RULES]


def test_every_rule_says_what_it_is_about():
    for rule in RULES:
        assert rule.check.__doc__.startswith(("Refuse ", "Warn ", "Let ")), rule.check.__name__
        assert rule.tables and set(rule.tables) <= set(RunConfig.model_fields), rule.tables


@pytest.mark.parametrize(("name", "broken", "text"), BROKEN, ids=[name for name, *_ in BROKEN])
def test_what_breaks_a_rule_is_refused_or_warned_of(name, broken, text, caplog):
    (rule,) = (rule for rule in RULES if rule.check.__name__ == name)
    try:
        if callable(broken):
            broken()
        else:
            compose(coterie_run(**broken).resolved, ["train"])
    except ConfigError as error:
        assert text in f"{error.what} {error.why}"
        assert error.path.partition(".")[0] in ("", *rule.tables), error.path
    else:
        assert text in caplog.text and rule.check.__doc__.startswith("Warn")
