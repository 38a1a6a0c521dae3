"""Optional members that one place asks for: a plugin's, or what holds of a plugin without them."""

from __future__ import annotations

from coterie.compose.kinds import ignored
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.discovery.optional import (
    ConfigDefaults,
    EnvironmentDefaults,
    EstimatorDefaults,
    ExecutorDefaults,
    with_defaults,
)


class Remote:
    """An executor with one of the members."""

    def host_trainers(self, trainer, make):
        return make()


def test_a_plugins_member_comes_before_the_default():
    members = with_defaults(Remote(), ExecutorDefaults)
    assert members.host_trainers("mine", lambda: "made there") == "made there"
    assert isinstance(members.host_engine("engine", None, None), LocalEngineClient)
    assert members.Cluster is None and members.processes is None
    assert with_defaults(object(), ExecutorDefaults).host_trainers("mine", None) == "mine"


def test_attributes_have_defaults_and_none_takes_a_member_away():
    class Paper:
        paper_loss = "ppo_clip"

    class Without(Paper):
        paper_loss = None

    assert with_defaults(Paper(), EstimatorDefaults).paper_loss == "ppo_clip"
    assert with_defaults(Without(), EstimatorDefaults).paper_loss == ""
    assert with_defaults(None, EnvironmentDefaults).actions_per_turn == {}


def test_a_class_is_asked_as_an_object_is():
    class Config:
        asked = 0

        @classmethod
        def check_packages(cls):
            cls.asked += 1

    with_defaults(Config, ConfigDefaults).check_packages()
    with_defaults(None, ConfigDefaults).check_packages()
    assert Config.asked == 1


def test_a_name_that_is_near_a_member_is_told():
    class Misspelt(Remote):
        def host_engines(self, engine, make, shared):
            """A plugin's author meant `host_engine`."""

    assert "did you mean `host_engine`?" in " ".join(ignored(Misspelt(), "executor"))
