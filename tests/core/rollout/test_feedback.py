"""Feedback in prompts: each comment reaches each role once, as a text that a tokenizer takes."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from coterie import ChatAnswer, ChatRequest, Composed, Plugin, PluginConfig, PolicyFault, Score, SystemFault
from coterie.api.rollouts import read_rollouts
from coterie.core.errors import ConfigError, PluginError, TooManyMissing
from coterie.core.rollout.contracts import FEEDBACK_CHARACTERS
from coterie.core.types import TEAM
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import EchoRole

HERE = "tests.core.rollout.test_feedback"
LONE = "\ud800"


class Comments(Plugin):
    """Comments on every action, and shows the comments to later roles."""

    class Config(PluginConfig):
        team: bool = False
        text: Any = ""

    weights = {}
    policy_fault = 0.0

    def __init__(self, config, build):
        super().__init__(config, build)
        self.name = build.name
        self.scope = "joint" if config.team else "action"
        self.components = {f"{self.name}_score": "increment"}

    def feedback(self, role, score):
        return f"<{self.name} on {role}: {score.comment}>"

    async def score(self, view):
        role = TEAM if self.config.team else view.role
        comment = self.config.text or f"turn {view.turn}"
        return {(role, f"{self.name}_score"): Score(1.0, comment=comment)}


def source(kind="Comments", **settings):
    return {"type": f"{HERE}:{kind}", **settings}


def run(*, rewards, order=("one", "two"), max_turns=3, **tables):
    settings = {"algorithm": {"type": "reinforce_pp", "beta": 0.0}, "schedule": {"max_missing": 1.0}}
    defaults = {"sampler": {"branches": 1}, "answers": "1", **settings}
    rewards = {"environment": {}, **rewards}
    return coterie_run(order=list(order), max_turns=max_turns, rewards=rewards, **{**defaults, **tables})


def prompts(tree):
    """By role, its prompts in the order of its turns."""
    by_role: dict[str, list[str]] = {}
    for node in tree.nodes():
        for role, decision in node.decisions.items():
            by_role.setdefault(role, []).append(decision.messages[-1]["content"])
    return by_role


@pytest.mark.parametrize("order", [("one", "two"), (("one", "two"),)])
def test_each_role_reads_each_comment_of_each_source_once(order):
    """Two sources of single actions and one of the team, with roles that follow each other or act at once."""
    sources = {"a": source(), "b": source(), "c": source(team=True)}
    (tree,), _ = play_episode(run(rewards=sources, order=order))
    at_once = len(order) == 1
    for role, texts in prompts(tree).items():
        assert len(texts) == 3
        for turn, text in enumerate(texts):
            new = [] if turn == 0 else [(other, turn - 1) for other in ("one", "two")]
            if not at_once and role == "two":  # `one` acted before it in this turn
                new = [(by, at) for by, at in new if by == "two"] + [("one", turn)]
            expected = [f"<{name} on {by}: turn {at}>" for name in "ab" for by, at in new]
            for comment in expected:
                assert text.count(comment) == 1, (role, turn, comment, text)
            assert text.count("<a") + text.count("<b") == len(expected), (role, turn, text)
            # The team's comment comes once for each stage that was played.
            assert text.count("<c on team") == (len(new) // 2 if at_once else len(new))


def test_a_role_reads_nothing_of_its_own_twice_where_only_the_other_is_scored():
    (tree,), _ = play_episode(run(rewards={"a": source("OnlyTwo")}))
    assert [text.count("<a on two") for text in prompts(tree)["one"]] == [0, 1, 1]
    assert [text.count("<a on two") for text in prompts(tree)["two"]] == [0, 1, 1]


class OnlyTwo(Comments):
    async def score(self, view):
        return await super().score(view) if view.role == "two" else {}


@pytest.mark.parametrize("sampler", [{"branches": 2}, {"branches": 2, "expand": "all"}])
def test_feedback_is_refused_where_a_role_would_read_of_other_branches(sampler):
    with pytest.raises(ConfigError, match=r"sampler\.branches is 2") as caught:
        run(rewards={"a": source()}, sampler=sampler, algorithm={"type": "at_grpo"})
    assert caught.value.path == "rewards.a" and "sampler.branches=1" in caught.value.fix


class Late(Comments):
    """Comments in the background."""

    background = True


class OfTheEpisode(Comments):
    def __init__(self, config, build):
        super().__init__(config, build)
        self.scope = "trajectory"


@pytest.mark.parametrize(("kind", "why"), [("Late", "`background` is true"), ("OfTheEpisode", "trajectory")])
def test_feedback_that_no_role_reads_is_refused(kind, why):
    with pytest.raises(PluginError, match="no role reads its `feedback`") as caught:
        run(rewards={"a": source(kind)})
    assert caught.value.path == "rewards.a" and why in caught.value.why


class Wrong(Comments):
    def feedback(self, role, score):
        return {"one": None, "two": 5}[role]


class Waits(Comments):
    async def feedback(self, role, score):
        return "late"


def test_feedback_of_another_type_names_its_source():
    with pytest.raises(PluginError, match=r"Wrong' of tests: feedback returned None") as caught:
        play_episode(run(rewards={"a": source("Wrong")}))
    assert caught.value.path == "rewards.a"
    with pytest.raises(PluginError, match="`feedback` is a coroutine function"):
        run(rewards={"a": source("Waits")})


class Raises(Comments):
    def feedback(self, role, score):
        raise KeyError(role)


def test_an_error_in_feedback_names_its_source():
    with pytest.raises(KeyError) as caught:
        play_episode(run(rewards={"a": source("Raises")}))
    assert caught.value.__notes__[0].startswith(f"in reward '{HERE}:Raises' of tests: feedback (")


class Bytes(Comments):
    async def score(self, view):
        return {(view.role, "a_score"): Score(1.0, comment=b"well done")}


def test_a_comment_that_is_no_text_is_refused():
    with pytest.raises(PluginError, match="score returned Score") as caught:
        play_episode(run(rewards={"a": source("Bytes")}))
    assert caught.value.path == "rewards.a" and "'a_score' are texts" in caught.value.fix


# ------------------------------------------------------------------------------------- texts from outside


class Says(Plugin):
    """A transition mode with a fixed sentence."""

    class Config(PluginConfig):
        text: str

    async def tell(self, role, state, history, environment):
        return [self.config.text]


def test_what_utf8_can_not_encode_is_replaced():
    """A lone half of a surrogate pair; whole pairs become the character that they are."""
    (tree,), scores = play_episode(
        run(
            rewards={"a": source(text=f"go{LONE}od \U0001f600")},
            transition={"type": f"{HERE}:Says", "text": f"so{LONE} \ud83d\ude00"},
        )
    )
    texts = [text for text in prompts(tree)["one"][1:]]
    assert texts and all("go\ufffdod \U0001f600" in text and "so\ufffd \U0001f600" in text for text in texts)
    comments = {score.comment for _, _, _, score in scores if score.source == "a"}
    assert comments == {"go\ufffdod \U0001f600"}
    "".join(comments | set(texts)).encode()


class Broken(EchoRole):
    def render(self, role_input):
        return [{"role": "user", "content": f"{LONE} {role_input.role}"}]


def test_what_a_role_renders_is_encodable():
    roles = {role: {"type": f"{HERE}:Broken"} for role in ("one", "two")}
    (tree,), _ = play_episode(run(rewards={}, roles=roles))
    assert prompts(tree)["one"][0] == "\ufffd one"


def test_a_missing_score_keeps_its_comment_and_has_a_reason_that_utf8_encodes(caplog):
    _, scores = play_episode(run(rewards={"a": source("Unsure")}))
    given = {(score.value, score.reason, score.comment) for _, _, _, score in scores if score.source == "a"}
    assert given == {(None, "un\ufffdsure", "no number")}
    assert "a score is missing: " in caplog.text and "un\ufffdsure" in caplog.text


class Unsure(Comments):
    async def score(self, view):
        return {(view.role, "a_score"): Score(None, reason=f"un{LONE}sure", comment="no number")}


class Prints(Plugin):
    """A tool whose result holds what UTF-8 can't encode."""

    name = "prints"

    def find(self, text):
        return text if text == "print" else None

    async def run(self, use):
        return f"it printed {LONE}"


def test_a_tools_result_is_encodable():
    played = run(
        rewards={},
        answers=lambda request, prompt: "3" if "printed" in prompt else "print",
        roles={role: {"tools": ["prints"]} for role in ("one", "two")},
        tools={"prints": {"type": f"{HERE}:Prints"}},
    )
    (tree,), _ = play_episode(played)
    action = tree.root.decisions["one"].branches[0]
    assert action.tool_results == ("it printed \ufffd",) and action.text == "3"


@pytest.mark.parametrize("of", ["source", "transition"])
def test_long_feedback_is_cut_with_a_mark(of):
    text = "a" * FEEDBACK_CHARACTERS + "b"
    sources = {"a": source("Verbatim", text=text)} if of == "source" else {}
    transition = {"type": f"{HERE}:Says", "text": text} if of == "transition" else {"type": "none"}
    (tree,), _ = play_episode(run(rewards=sources, order=["one"], transition=transition))
    for prompt in prompts(tree)["one"][1:]:
        assert prompt.endswith("a" * FEEDBACK_CHARACTERS + " [...]") and "b" not in prompt.split()[-2]


class Verbatim(Comments):
    def feedback(self, role, score):
        return score.comment


# -------------------------------------------------------------------------------------- nobody can tell


class Adviser(Plugin):
    """A transition mode that a chat model writes."""

    class Config(PluginConfig):
        model: Annotated[Any, Composed("chat_model")]

    async def tell(self, role, state, history, environment):
        message = {"role": "user", "content": f"advise {role} {state[0][1]}"}
        return [(await self.config.model.answer(ChatRequest(messages=(message,)))).text]


class Judged(Plugin):
    """A source that a chat model judges for; the text `empty` is the output's fault."""

    class Config(PluginConfig):
        model: Annotated[Any, Composed("chat_model")]

    scope = "action"
    components = {"judged": "increment"}
    weights = {}
    policy_fault = -7.0

    async def score(self, view):
        if view.action.text == "empty":
            raise PolicyFault("nothing to judge")
        message = {"role": "user", "content": view.action.text}
        answer = await self.config.model.answer(ChatRequest(messages=(message,)))
        return {(view.role, "judged"): float(answer.text)}


class Fails(Plugin):
    """A chat model that fails where it is asked about 2."""

    class Config(PluginConfig):
        error: str = "SystemFault"

    structured = False

    async def answer(self, request):
        if "2" in request.messages[-1]["content"]:
            errors = {"SystemFault": SystemFault, "PolicyFault": PolicyFault, "KeyError": KeyError}
            raise errors[self.config.error]("the judge is down")
        return ChatAnswer(text="5")


ERRORS = ("SystemFault", "PolicyFault", "KeyError")


def by_chain(request, prompt):
    return str(request.key.chain + 1)


@pytest.mark.parametrize("error", ERRORS)
def test_an_episode_without_feedback_is_missing_and_the_others_go_on(error):
    """Of three chains, the second writes 2, which the model that advises can't be asked about."""
    trees, scores = play_episode(
        run(
            rewards={}, answers=by_chain, sampler={"branches": 1, "chains": 3}, max_turns=2,
            transition={"type": f"{HERE}:Adviser", "model": "adviser"},
            chat_models={"adviser": {"type": f"{HERE}:Fails", "error": error}},
        )
    )  # fmt: skip
    sizes = [len(list(tree.nodes())) for tree in trees]
    assert sizes == [4, 3, 4], "the first role's second prompt can't be made"
    *_, last = trees[1].nodes()
    (action,), (joint,) = last.decisions["one"].branches, last.joints
    assert action.calls == () and action.fault.kind == "system" and joint.lost
    assert "tell raised" in joint.fault.reason and "the judge is down" in joint.fault.reason
    values = [score.value for _, score in scores.at(last.key.of_joint(0)).items()]
    assert values and set(values) == {None}
    for tree in (trees[0], trees[2]):
        for node in tree.nodes():
            assert None not in [score.value for score in scores.at(node.key.of_joint(0)).values()]


def test_too_many_episodes_without_feedback_stop_the_run():
    played = run(
        rewards={}, answers="2", schedule={"max_missing": 0.1},
        transition={"type": f"{HERE}:Adviser", "model": {"type": f"{HERE}:Fails"}},
    )  # fmt: skip
    with pytest.raises(TooManyMissing, match="joint actions were lost"):
        play_episode(played)


@pytest.mark.parametrize("error", ERRORS)
def test_a_judges_own_failure_is_missing_and_the_outputs_is_the_floor(error):
    played = run(
        rewards={"j": source("Judged", model={"type": f"{HERE}:Fails", "error": error})}, max_turns=1,
        answers=lambda request, prompt: ["1", "2", "empty"][request.key.chain],
        sampler={"branches": 1, "chains": 3},
    )  # fmt: skip
    _, scores = play_episode(played)
    values = {chain: set() for chain in range(3)}
    for key, _, component, score in scores:
        if component == "judged":
            values[key.chain].add(score.value)
    assert values == {0: {5.0}, 1: {None}, 2: {-7.0}}


def test_a_run_goes_on_over_a_transition_mode_that_is_down(tmp_path):
    from coterie import train

    table = run(
        rewards={"a": source(text=f"a reason {LONE}")}, answers=by_chain,
        sampler={"branches": 1, "chains": 3}, max_turns=2, schedule={"steps": 2, "max_missing": 0.5},
        transition={"type": f"{HERE}:Adviser", "model": {"type": f"{HERE}:Fails"}},
    ).resolved.table  # fmt: skip
    train(table, out=tmp_path / "run")
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 2
    rows = read_rollouts(tmp_path / "run/rollouts/step-000001.jsonl.gz")
    branches = [row for row in rows if row["kind"] == "branch" and row["fault"] is None]
    assert branches and {row["comments"]["a_score"] for row in branches} == {"a reason \ufffd"}
