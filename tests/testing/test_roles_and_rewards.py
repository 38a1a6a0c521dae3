"""What `check_role`, `check_reward` and `check_transition` catch."""

from __future__ import annotations

import itertools
import json
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from coterie import TEAM, PolicyFault, Score
from coterie.core.errors import SystemFault
from coterie.testing import build, check_reward, check_role, check_transition
from coterie.testing.support.toys import GAME
from tests.testing.support import caught

TICK = itertools.count()


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Counter:
    """A sound role: the prompt is a number, the answer too."""

    def render(self, role_input: Any) -> Any:
        return user(f"{role_input.observation} {' '.join(role_input.feedback)} {len(role_input.history)}")

    def parse(self, text: str, observation: Any) -> Any:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise PolicyFault("no number")
        return int(text)


def role(**members: Any) -> Any:
    return type("Broken", (Counter,), members)()


def test_a_sound_role_passes():
    check_role(Counter(), observations=[3, {"left": 3}], good=["2"], feedback=["You slept."], texts=["12x"])


def digits(self, text, observation):
    """A common mistake: isdigit() is true of texts that int() refuses."""
    if not text.strip().isdigit():
        raise PolicyFault("no number")
    return int(text)


@pytest.mark.parametrize(("members", "message"), [
    ({"parse": lambda self, text, observation: int(text)}, "raised ValueError"),
    ({"parse": digits}, "raised ValueError"),
    ({"parse": lambda self, text, observation: json.loads(text)}, "raised JSONDecodeError"),
    ({"parse": lambda self, text, observation: text.encode()}, "raised UnicodeEncodeError"),
    ({"parse": lambda self, text, observation: lambda: text}, "can't be pickled"),
    ({"parse": lambda self, text, observation: next(TICK)}, "then as"),
    ({"parse": lambda self, text, observation: observation.update(text=text)}, "changed the observation"),
    ({"parse": lambda self, text, observation: sys.exit(3)}, "raised SystemExit: 3"),
    ({"render": lambda self, role_input: []}, "render: returned []"),
    ({"render": lambda self, role_input: "text"}, "render: returned 'text'"),
    ({"render": lambda self, role_input: [{"content": "x"}]}, "is no message"),
    ({"render": lambda self, role_input: [{"role": "human", "content": "x"}]}, "a message of 'human'"),
    ({"render": lambda self, role_input: [{"role": "user", "content": None}]}, "is no text"),
    ({"render": lambda self, role_input: user(str(next(TICK)))}, "gave other messages"),
    (
        {"render": lambda self, role_input: user(str(role_input.observation.pop("left")))},
        "changed the role input",
    ),
    ({"render": lambda self, role_input: user(role_input.nothing)}, "raised AttributeError"),
    ({"render": lambda self, role_input: user("x")}, "is not in the prompt"),
    ({"vocabulary": lambda self: ["a b"]}, "is no word"),
    ({"remembers": "yes"}, "remembers: is 'yes'"),
])  # fmt: skip
def test_a_broken_role_is_caught(members, message):
    caught(message, check_role, role(**members), observations=[{"left": 3}], feedback=["You slept."])


def test_a_parser_that_hangs_is_caught(monkeypatch):
    monkeypatch.setattr("coterie.testing.checks.role.PARSE_SECONDS", 0.01)
    slow = role(parse=lambda self, text, observation: time.sleep(0.02 * (len(text) > 9000)))
    caught("took", check_role, slow)


def test_a_good_answer_that_can_not_be_read_is_caught():
    caught("among the `good` texts", check_role, Counter(), good=["two"])


# ------------------------------------------------------------------------------------------------- rewards


class Brevity:
    """A sound reward source: it pays for one word."""

    scope = "action"
    components: Any = {"brief": "potential"}
    weights: Any = {"brief": 0.1}
    policy_fault = 0.0

    async def score(self, view: Any) -> Any:
        if view.action.fault is not None:
            raise PolicyFault("unreadable")
        return {(view.role, "brief"): float(len(view.action.text.split()) == 1)}


def source(**members: Any) -> Any:
    return type("Broken", (Brevity,), members)()


def check(reward: Any, **keywords: Any) -> None:
    game = build("environment", GAME, order=["one", "two"])
    check_reward(
        reward, **{"environment": game, "roles": ["one", "two"], "act": ["1", "2", "one two"], **keywords}
    )


def test_a_sound_source_passes_in_every_scope():
    check(Brevity())
    some = lambda view: {(role, "brief"): None if role == "two" else 0.5 for role in view.actions}  # noqa: E731
    check(source(scope="joint", score=scores(some)))
    check(
        source(scope="siblings", score=scores(lambda view: [{(view.role, "brief"): 1.0}] * len(view.actions)))
    )
    check(source(scope="episode", score=scores(lambda view: {(TEAM, "brief"): view.leaf.outcome["success"]})))
    check(source(score=scores(lambda view: {(TEAM, "brief"): next(TICK)})), repeats=False)


def shows(feedback: Any, **members: Any) -> Any:
    return source(feedback=lambda self, role, score: feedback(score), **members)


def commented(comment: Any) -> Any:
    return scores(lambda view: {(view.role, "brief"): Score(1.0, comment=comment)})


def test_feedback_of_a_score_is_a_text_that_is_read_in_time():
    check(shows(lambda score: score.comment))
    check(shows(lambda score: score.comment, score=commented("well done")))
    caught("returned None", check, shows(lambda score: None))
    caught("returned b''", check, shows(lambda score: score.comment.encode()))
    caught("a missing one has no value", check, shows(lambda score: f"{score.value:.1f}"))
    caught("no role reads its `feedback`", check, shows(lambda score: "x", background=True))
    each = scores(lambda view: [{}] * len(list(view.actions)))
    caught(
        "scope 'trajectory' is scored after play",
        check,
        shows(lambda score: "x", scope="trajectory", score=each),
    )


def test_a_comment_is_a_text():
    caught("its comment and its reason are texts", check, source(score=commented(b"well done")))


def scores(table: Any) -> Any:
    async def score(self: Any, view: Any) -> Any:
        return table(view)

    return score


class Pair:
    """What a tensor of two numbers is: it has the method, which raises ValueError."""

    def __float__(self) -> float:
        raise ValueError("only one element tensors can be converted to Python scalars")

    def __repr__(self) -> str:
        return "a pair"


def lost(view):
    raise SystemFault("503")


@pytest.mark.parametrize(("members", "message"), [
    ({"scope": "turn"}, "scope: is 'turn'"),
    ({"components": {}, "weights": {}}, "components: are none"),
    ({"components": {"brief": "bonus"}}, "is of kind 'bonus'"),
    ({"weights": {"length": 1}}, "a weight for 'length'"),
    ({"weights": {"brief": "much"}}, "weighs 'much'"),
    ({"policy_fault": None}, "policy_fault: is None"),
    ({"policy_fault": float("-inf")}, "policy_fault: is -inf"),
    ({"score": lambda self, view: {}}, "is not asynchronous"),
    ({"score": scores(lambda view: 1.0)}, "is no table"),
    ({"score": scores(lambda view: {(TEAM, "long"): 1.0})}, "a score for 'long'"),
    ({"score": scores(lambda view: {("nobody", "brief"): 1.0})}, "does not act in this stage"),
    ({"score": scores(lambda view: {(TEAM, "brief"): float("inf")})}, "is inf"),
    ({"score": scores(lambda view: {(TEAM, "brief"): "0.9"})}, "is '0.9'"),
    ({"score": scores(lambda view: {(TEAM, "brief"): Pair()})}, "is a pair"),
    ({"score": scores(lambda view: {(TEAM, "brief"): len(view.action.parsed)})}, "raised TypeError"),
    ({"score": scores(lambda view: {(TEAM, "brief"): float(next(TICK))})}, "scored the same view"),
    ({"score": scores(lost)}, "so nothing was checked"),
    ({"score": scores(lambda view: {})}, "gave no score for any of"),
    ({"score": scores(lambda view: {(TEAM, "brief"): None})}, "gave no score for any of"),
    ({"scope": "joint", "score": scores(lambda view: view.info.update(seen=1) or {})}, "changed the view"),
    ({"scope": "siblings", "score": scores(lambda view: [{}])}, "for 4 actions"),
])  # fmt: skip
def test_a_broken_source_is_caught(members, message):
    caught(message, check, source(**members))


def test_a_source_is_opened_before_it_is_asked_and_closed_afterwards():
    events: list[str] = []

    async def opened(self: Any) -> None:
        events.append("open")

    async def closed(self: Any) -> None:
        events.append("close")

    async def score(self: Any, view: Any) -> Any:
        events.append("score")
        return {(TEAM, "brief"): 1.0}

    check(source(open=opened, close=closed, score=score))
    assert events[0] == "open" and events[-1] == "close" and set(events[1:-1]) == {"score"}


class Judge:
    """A judge behind a connection; `down` breaks it."""

    up = True

    def ask(self, text: str) -> float:
        if not self.up:
            raise ConnectionError("refused")
        return 0.25 * len(text)

    @contextmanager
    def down(self) -> Any:
        self.up = False
        try:
            yield
        finally:
            self.up = True


def judged(rescue: Any) -> tuple[Any, Judge]:
    """A source that asks a judge, and answers an outage with `rescue(error)`; its judge."""
    judge = Judge()

    async def score(self: Any, view: Any) -> Any:
        if view.action.fault is not None:
            raise PolicyFault("unreadable")
        try:
            return {(view.role, "brief"): judge.ask(view.action.text)}
        except ConnectionError as error:
            return rescue(view, error)

    return source(score=score), judge


def raising(kind: Any) -> Any:
    def rescue(view: Any, error: Exception) -> Any:
        raise kind("the judge is down") from error

    return rescue


@pytest.mark.parametrize("rescue", [raising(SystemFault), lambda view, error: {(view.role, "brief"): None}])
def test_a_score_may_be_missing_in_an_outage(rescue):
    asked, judge = judged(rescue)
    check(asked, outage=judge.down)
    check(asked, outage=judge.down())
    assert judge.up


@pytest.mark.parametrize(
    ("rescue", "message"),
    [
        (lambda view, error: {(view.role, "brief"): 0.0}, "the score 0.0 in the outage, and 0.25 before"),
        (lambda view, error: {(view.role, "brief"): 5.0}, "the score 5.0 in the outage"),
        (raising(PolicyFault), "gave the floor in the outage: the output didn't cause it"),
        (raising(ConnectionError), "score in the outage: raised ConnectionError"),
    ],
)
def test_a_score_that_an_outage_made_is_caught(rescue, message):
    asked, judge = judged(rescue)
    check(asked)
    caught(message, check, asked, outage=judge.down)


def test_an_outage_that_changes_nothing_is_caught():
    caught("no score is missing in the outage", check, Brevity(), outage=Judge().down)
    caught("`outage` made an int", check, Brevity(), outage=lambda: 3)


def test_a_source_may_miss_some_scores_while_it_is_checked():
    async def score(self: Any, view: Any) -> Any:
        if view.action.text == "2":
            raise SystemFault("503")
        return await Brevity.score(self, view)

    check(source(score=score))


@pytest.mark.parametrize("stale", [False, True])
def test_siblings_and_asynchronous_outages(stale):
    judge = Judge()

    @asynccontextmanager
    async def outage() -> Any:
        with judge.down():
            yield

    async def score(self: Any, view: Any) -> Any:
        if not judge.up and not stale:
            raise SystemFault("down")
        return [{(view.role, "brief"): float(at) + (not judge.up)} for at, _ in enumerate(view.actions)]

    ranks = source(scope="siblings", score=score)
    if stale:
        caught("(0, 'one', 'brief') the score 1.0 in the outage", check, ranks, outage=outage)
    else:
        check(ranks, outage=outage)


def test_a_source_that_floors_every_view_is_caught():
    async def score(self: Any, view: Any) -> Any:
        raise PolicyFault("never")

    caught("raised PolicyFault for each of", check, source(score=score))


def test_a_close_that_raises_is_caught_by_name():
    async def close(self: Any) -> None:
        raise AttributeError("no table")

    caught("close: raised AttributeError: no table", check, source(close=close))


def test_a_source_without_views_is_caught():
    caught("nothing to score", check_reward, Brevity())


# --------------------------------------------------------------------------------------------- transitions


def mode(tell: Any) -> Any:
    async def wrapped(self: Any, role: str, state: Any, history: Any, environment: Any) -> Any:
        return tell(role, state, history)

    return type("Mode", (), {"tell": wrapped})()


def check_mode(transition: Any, **keywords: Any) -> None:
    game = build("environment", GAME, order=["one", "two"])
    check_transition(transition, game, roles=["one", "two"], act=["1", "2"], **keywords)


def test_a_sound_transition_passes():
    check_mode(mode(lambda role, state, history: [f"You wrote {entry.action.text}." for entry in history]))
    draws = mode(lambda role, state, history: [str(next(TICK))] * len(history))
    check_mode(draws, repeats=False)
    caught("then", check_mode, draws)


@pytest.mark.parametrize(("tell", "message"), [
    (lambda role, state, history: [history[0].nothing], "raised AttributeError"),
    (lambda role, state, history: "You lost." if history else (), "returned 'You lost.'"),
    (lambda role, state, history: ["", "x"] if history else (), "returned ['', 'x']"),
    (lambda role, state, history: [history[-1].nothing] if history else (), "raised AttributeError"),
    (lambda role, state, history: [] if not history else history[-1].info.update(x=1) or [], "changed"),
])  # fmt: skip
def test_a_broken_transition_is_caught(tell, message):
    caught(message, check_mode, mode(tell))


def test_what_a_transition_counts_and_writes_is_checked():
    def with_members(**members):
        made = mode(lambda role, state, history: [])
        return type("Mode", (type(made),), members)()

    check_mode(with_members(counted=lambda self: {"mine/x": 1.0}, vocabulary=lambda self: ["two"]))
    for counted in ({"success": 1.0}, None, {"mine/x": "a"}):
        caught("counted: returned", check_mode, with_members(counted=lambda self, given=counted: given))
    caught("vocabulary: raised TypeError", check_mode, with_members(vocabulary=lambda self: None))
    caught("is the text '0123'", check_mode, with_members(vocabulary=lambda self: "0123"))


def test_a_transition_is_not_asked_before_a_roles_first_decision():
    check_mode(mode(lambda role, state, history: [f"You wrote {history[-1].action.text}."]))


def test_a_synchronous_transition_is_caught():
    sync = type("Mode", (), {"tell": lambda self, role, state, history, environment: ()})()
    caught("is not asynchronous", check_mode, sync)


def down(times):
    """A mode whose service is down each so many calls."""
    calls = itertools.count(1)

    def tell(role, state, history):
        if next(calls) % times == 0:
            raise SystemFault("503")
        return ["You wrote it."]

    return mode(tell)


def test_a_transition_may_lack_its_service_now_and_then_and_not_always():
    check_mode(down(3), repeats=False)
    caught("raised SystemFault each time", check_mode, down(1))
