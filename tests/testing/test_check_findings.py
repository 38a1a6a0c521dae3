"""What authors of plugins were not told, or were told of the wrong component."""

from __future__ import annotations

import asyncio
import gc
import statistics
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from coterie import RowEstimator
from coterie.core.errors import PolicyFault, UserError
from coterie.core.plugins import Plugin
from coterie.core.types import Step
from coterie.testing import ConformanceWarning, Example, check, checking
from coterie.testing.checking.apart import check_apart, event_of
from coterie.testing.checking.component import check_component
from coterie.testing.checking.hangs import raised_in
from coterie.testing.checking.results import Checked
from coterie.testing.checking.targets import find_target
from coterie.testing.support.episodes import players
from coterie.testing.support.toys import EchoRole, NumberGame

PLAYED = {"roles": ["a"], "act": ["1", "2"], "episodes": 2}


def checked(kind: str, cls: type, *, shrink: bool = False, **example: object) -> Checked:
    """The result of a class of this module."""
    (entry,) = find_target(f"{kind}:{__name__}:{cls.__name__}").entries
    return check_component(entry, Example(**example) if example else None, shrink=shrink)


def broken(kind: str, cls: type, **example: object) -> tuple[str, str, str]:
    """The promise, the place with what is wrong, and the fix."""
    (part,) = checked(kind, cls, **example).broken
    return part.promise, f"{part.where}: {part.what}", part.fix


# ---- scores ----------------------------------------------------------------------------------------------


class Silent(NumberGame):
    async def step(self, state, actions, ctx):
        step = await super().step(state, actions, ctx)
        return Step(state=step.state, scores=dict.fromkeys(step.scores))


class Brief(Plugin):
    """A score for each action."""

    scope, components, weights, policy_fault = "action", {"brief": "potential"}, {}, 0.0
    value = 1.0

    async def score(self, view):
        return {(view.role, "brief"): self.value}


class Huge(Brief):
    value = 1e200


class Nothing(Brief):
    value = None


def test_an_environment_whose_scores_are_all_missing_is_broken():
    promise, what, fix = broken("environment", Silent, **PLAYED)
    assert promise == "some score is a number" and "Silent.step: gave None for each of" in what and fix


def test_a_score_that_a_run_calls_missing_is_none():
    _, what, fix = broken("reward", Huge)
    assert "1e+200, which a run calls missing" in what and "1e+100" in fix


def test_no_score_for_answers_that_were_guessed_is_not_broken():
    result = checked("reward", Nothing)
    assert result.ok and result.state == "not checked" and "Example" in result.unchecked[-1]
    assert not checked("reward", Nothing, **PLAYED, env={"type": f"{__name__}:Silent"}).ok


# ---- whose fault it is -----------------------------------------------------------------------------------


class Sync(NumberGame):
    def step(self, state, actions, ctx):
        return None


class Empty(NumberGame):
    def tasks(self, split, seed):
        return []


class Generator(NumberGame):
    def tasks(self, split, seed):
        yield from super().tasks(split, seed)


class Blind(NumberGame):
    def observe(self, state, role):
        raise KeyError(role)


class Ghost(NumberGame):
    def acting_roles(self, state):
        return ("ghost",)


class Raises(EchoRole):
    def parse(self, text, observation):
        return {"1": 1}[text]


@pytest.mark.parametrize("game", [Sync, Empty, Generator, Blind, Ghost])
def test_a_reward_of_a_broken_environment_is_not_checked(game):
    result = checked("reward", Brief, **PLAYED, env={"type": f"{__name__}:{game.__name__}"})
    assert result.ok and result.state == "not checked"
    assert f"its environment is broken: {game.__name__}." in result.unchecked[0]
    (part,) = checked("environment", game, **PLAYED).broken
    assert (part.fix and part.where.startswith(game.__name__)) or "environment" in part.where


def test_an_environment_whose_role_is_broken_is_not_checked():
    result = checked("environment", NumberGame, **PLAYED, role_plugins={"a": f"{__name__}:Raises"})
    assert result.ok and "the role 'a' that reads the answers is broken: Raises.parse" in result.unchecked[0]


def test_acting_roles_are_of_their_own_promise():
    promise, what, fix = broken("environment", Ghost, **PLAYED)
    assert promise.startswith("acting_roles names roles") and "'ghost'" in what and "known: a" in fix


# ---- places and fixes ------------------------------------------------------------------------------------


class Forgetful(Brief):
    async def score(self, view):
        return {(view.role, "brief"): self._judge()}

    async def _judge(self):
        return 1.0


class Adds(Forgetful):
    async def score(self, view):
        return {(view.role, "brief"): 1 + self._judge()}


class Joint(Brief):
    scope = "joint"


class Deviates(Brief):
    async def score(self, view):
        return {(view.role, "brief"): statistics.stdev([1])}


class AsyncRows(RowEstimator):
    async def advantages(self, rows):
        return [1.0 for row in rows]


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    ("kind", "cls", "expected"),
    [
        ("reward", Forgetful, "`await` is missing where `_judge` is called"),
        ("reward", Adds, "`await` is missing"),
        ("reward", Joint, "a JointView (scope 'joint') has task, turn, actions"),
        ("estimator", AsyncRows, "write it as `def advantages`"),
    ],
)
def test_the_fix_names_the_cause(kind, cls, expected):
    _, what, fix = broken(kind, cls)
    gc.collect()  # here, where the warning of a coroutine is expected
    assert expected in fix and cls.__name__ in what


def test_the_place_is_in_the_author_s_own_files():
    _, what, fix = broken("reward", Deviates, **PLAYED)
    assert "test_check_findings.py" in what and "in score" in what and fix


def test_an_installed_plugin_is_its_author_s_files_and_coterie_s_libraries_are_not():
    site, ours = sysconfig.get_path("purelib"), str(Path(checking.__file__).parents[1] / "check.py")
    stack = [
        (f"{site}/numpy/core.py", 3, "mean"),
        (f"{site}/coterie_game/a.py", 2, "score"),
        (ours, 1, "call"),
    ]
    assert raised_in(stack) == f"{site}/coterie_game/a.py:2, in score"
    assert raised_in([stack[0], stack[-1]]) == ""
    assert raised_in([(asyncio.base_events.__file__, 653, "run_until_complete"), stack[-1]]) == ""


# ---- what is left behind ---------------------------------------------------------------------------------


class Threads(Brief):
    ends: ClassVar = threading.Event()

    async def score(self, view):
        threading.Thread(target=self.ends.wait, name="waits").start()
        return {(view.role, "brief"): 1.0}


class Pools(Brief):
    pool: ClassVar = ThreadPoolExecutor(1)

    async def score(self, view):
        self.pool.submit(len, "")
        threading.Thread(target=len, args=("",)).start()
        return {(view.role, "brief"): 1.0}


def test_a_thread_that_is_left_running_is_told():
    try:
        with pytest.warns(ConformanceWarning, match="never ends while"):
            result = checked("reward", Threads, **PLAYED)
    finally:
        Threads.ends.set()
    assert any("threads running, such as 'waits'" in note for note in result.notes)


def test_idle_workers_and_threads_that_end_are_not():
    assert not [note for note in checked("reward", Pools, **PLAYED).notes if "thread" in note]
    Pools.pool.shutdown()


def test_lines_that_a_component_writes_into_the_events_are_no_events():
    assert event_of(b'hello{"event": "done", "files": []}') == {"event": "done", "files": []}
    assert event_of(b"hello") is None and event_of(b'{"event": ') is None and event_of(b"[]") is None


def test_a_kind_that_a_target_lacks_is_told():
    with pytest.raises(UserError, match="no component of the kind 'loss'") as error:
        find_target(__name__, "loss")
    assert "environment" in error.value.fix


# ---- what is read and kept -------------------------------------------------------------------------------


class Noneread(EchoRole):
    def parse(self, text, observation):
        super().parse(text, observation)


class ReturnsFault(EchoRole):
    def parse(self, text, observation):
        return PolicyFault("unreadable") if text != "good" else text


class IntKeys(RowEstimator):
    def advantages(self, rows):
        return [row.value for row in rows]

    def next_state(self, rows):
        return {"seen": [{1: 2}]}


def test_a_parser_that_forgets_to_return():
    promise, what, _ = broken("role", Noneread, observations=[""], good=["1"])
    assert promise == "what it reads is something" and "returned None for each" in what
    with pytest.warns(ConformanceWarning, match="`return` is missing"):
        assert checked("role", Noneread, observations=[""]).ok, "it may read other texts"


def test_a_parser_that_returns_a_fault():
    assert broken("role", ReturnsFault, observations=[""], good=["good"])[2] == "raise it"


def test_keys_of_a_state_that_json_changes():
    promise, what, fix = broken("estimator", IntKeys)
    assert "plain JSON" in promise and 'the key 1, which JSON makes "1"' in what and "str(key)" in fix


# ---- arguments of examples -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"roles": "solver"}, "a list: roles=['solver']"),
        ({"act": "3"}, "a list: act=['3']"),
        ({"act": {"solver": ["3"]}}, "a list, or a function (role, observation, generator)"),
        ({"episodes": 0}, "a whole number of 1 or more"),
        ({"episodes": "many"}, "a whole number of 1 or more"),
        ({"seed": 1.5}, "a whole number"),
        ({"role_plugins": ["a"]}, "a table: role_plugins={...}"),
        ({"keeps": 3}, "a list: keeps=[...]"),
        ({"skip": True}, "say why"),
        ({"order": "solver"}, "a list: ['solver']"),
    ],
)
def test_an_argument_of_another_type_is_refused(arguments, expected):
    promise, what, fix = broken("environment", NumberGame, **arguments)
    assert promise == "its examples are known" and next(iter(arguments)) in what and expected in fix


def test_arguments_of_their_types_are_taken():
    arguments = {"roles": ("a",), "act": lambda role, seen, rng: "1", "seed": 0, "keeps": {"x"} - {"x"}}
    assert checked("environment", NumberGame, **arguments, episodes=1).ok
    with pytest.raises(UserError, match="`act` is '3'"):
        players(["a"], "3")


def test_an_object_has_to_be_named():
    with pytest.raises(UserError, match="what is to be checked is") as error:
        check(EchoRole)
    assert "check('coterie.testing.support.toys:EchoRole')" in error.value.fix


def test_the_plugin_that_ends_the_process_when_it_is_imported_is_named(tmp_path, monkeypatch):
    info = tmp_path / "p_exit-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: p-exit\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[coterie]\np_exit = p_exit\n")
    (tmp_path / "p_exit.py").write_text("import os\nos._exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    (result,) = check_apart("loss:ppo_clip").results
    assert (result.name, result.distribution) == ("p_exit", "p-exit")
    assert "ended its process" in result.broken[0].what and "COTERIE_PLUGINS=" in result.broken[0].fix
