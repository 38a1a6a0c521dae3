"""A plugin's mistake ends a run, or is told once, by the name of the plugin and its method."""

from __future__ import annotations

import logging

import pytest

from coterie import PolicyFault, SystemFault
from coterie.core.errors import PluginError
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import EchoRole

HERE = __name__


class Parser(EchoRole):
    """Its parser breaks on texts that say how."""

    def parse(self, text, observation):
        if text == "name":
            return numbr(text)  # noqa: F821
        if text == "number":
            return int(text)
        if text in ("bad", "system"):
            raise PolicyFault("said bad") if text == "bad" else SystemFault("the service is down")
        return text


class WithoutObservation(EchoRole):
    def parse(self, text):
        return text


class Asynchronous(EchoRole):
    async def parse(self, text, observation):
        return text


def one(*texts, role="Parser", chains=1, **tables):
    """A run of one role that writes these texts, one a branch."""
    return coterie_run(
        {"one": list(texts)},
        order=["one"],
        roles={"one": {"type": f"{HERE}:{role}"}},
        sampler={"branches": len(texts), "chains": chains},
        **tables,
    )


def faults(run):
    trees, _ = play_episode(run)
    return [action.fault for action in trees[0].root.decisions["one"].branches]


def test_an_exception_of_a_parser_is_told_once_a_kind_however_many_rollouts_have_it(caplog):
    run = one("1", "name", "name", "number", "bad", chains=3)
    with caplog.at_level(logging.WARNING, "coterie"):
        found = faults(run)
    assert [fault and fault.kind for fault in found] == [None, "policy", "policy", "policy", "policy"]
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2, messages
    for message, kind in zip(sorted(messages), ("NameError", "ValueError"), strict=True):
        assert f"role '{HERE}:Parser' of tests: parse raised {kind}: " in message
        assert "fault of the policy" in message and "raise PolicyFault" in message


def test_a_parser_that_breaks_on_every_action_ends_the_run():
    for texts, role, kind in [
        (("name", "number"), "Parser", "NameError"),
        (("1", "2"), "WithoutObservation", "TypeError"),
    ]:
        with pytest.raises(PluginError, match=f"parse raised {kind}") as caught:
            play_episode(one(*texts, role=role))
        assert f"role '{HERE}:{role}' of tests" in str(caught.value)
        assert caught.value.path == "team.roles.one" and caught.value.fix


def test_texts_that_a_parser_refuses_end_no_run(caplog):
    assert [fault.reason for fault in faults(one("bad", "bad"))] == ["said bad"] * 2
    assert caplog.text == ""
    assert len(faults(one("bad", "name"))) == 2  # one of them is the text's fault


def test_a_system_fault_of_a_parser_is_one():
    found = faults(one("1", "system", schedule={"max_missing": 1.0}))
    assert found[0] is None and found[1].kind == "system"
    assert f"role '{HERE}:Parser' of tests: parse" in found[1].reason


@pytest.mark.filterwarnings("error")
def test_a_parser_is_no_coroutine_function():
    with pytest.raises(PluginError, match="`parse` must not be `async def`") as caught:
        play_episode(one("1", "2", role="Asynchronous"))
    assert f"role '{HERE}:Asynchronous' of tests: parse returned" in str(caught.value)
