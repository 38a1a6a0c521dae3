"""The tutorials: their files pass their own tests, their commands run, and they are as short as they say."""

from __future__ import annotations

import ast
import asyncio
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from coterie import TEAM, Step, SystemFault, load_plugin_file
from coterie.api.rows import read_metrics
from coterie.discovery import plugins
from coterie.recipes import load
from coterie.testing import fixtures
from tests.cli.support import anew, process

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("first_algorithm", "first_reward", "remote_games")
}
RUNS = [
    (name, line)
    for name, page in PAGES.items()
    if name != "remote_games"
    for line in re.findall(r"^coterie run ([^\n]+)", page, re.MULTILINE)
]


def files(page: str) -> dict[str, str]:
    """The titled blocks of a page, by title."""
    return dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', page, re.M | re.S))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The files of a page in the working folder, with the repository's examples."""
    blocks = files(PAGES[request.param])
    for name, text in blocks.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in blocks:
        sys.modules.pop(Path(name).stem, None)


def lines_of(source: str, name: str) -> int:
    """The lines of a class or function with something on them."""
    tree = ast.parse(source)
    (node,) = (each for each in tree.body if getattr(each, "name", "") == name)
    body = source.splitlines()[node.lineno - 1 : node.end_lineno]
    return len([line for line in body if line.strip()])


def test_the_algorithm_has_thirty_lines():
    source = files(PAGES["first_algorithm"])["ranked.py"]
    assert lines_of(source, "Ranked") <= 30
    assert len([line for line in source.splitlines() if line.strip()]) <= 30


@pytest.mark.parametrize(
    "folder, module",
    [("first_algorithm", "test_ranked"), ("first_reward", "test_clarity")],
    indirect=["folder"],
)
def test_the_tests_of_a_page_pass(folder, module):
    tests = {n: test for n, test in vars(importlib.import_module(module)).items() if n.startswith("test_")}
    assert len(tests) == 5
    for test in tests.values():
        test()


@pytest.mark.parametrize("folder", ["first_reward"], indirect=True)
def test_a_judge_that_gives_the_floor_in_an_outage_fails_the_pages_test(folder):
    source = (folder / "clarity.py").read_text()
    caught = "        answer = await self.config.model.answer("
    assert caught in source
    wrong = source.replace(caught, "        answer = await self.asked(").replace(
        "    def _feedback",
        "    async def asked(self, request):\n"
        "        try:\n"
        "            return await self.config.model.answer(request)\n"
        "        except SystemFault:\n"
        "            raise PolicyFault('no grade')\n\n"
        "    def _feedback",
    )
    (folder / "clarity.py").write_text(wrong)
    with pytest.raises(AssertionError, match="gave the floor in the outage"):
        importlib.import_module("test_clarity").test_the_source_and_its_outage()


@pytest.mark.parametrize("folder, line", RUNS, indirect=["folder"])
def test_the_commands_resolve(folder, line):
    recipe, *rest = shlex.split(line)
    for name in re.findall(r"-p (\S+)", line):
        if Path(name).stem not in plugins().registry.names("environment"):
            load_plugin_file(folder / name)
    assert load(recipe, overrides=[word for word in rest if "=" in word]).config.env["type"] == "signals"


@pytest.mark.learning
@pytest.mark.parametrize("folder, line", RUNS, indirect=["folder"])
def test_the_runs_learn(folder, line):
    done = process("run", *shlex.split(line), "--out", "out")
    assert done.returncode == 0, done.stderr
    rows = read_metrics(folder / "out" / "metrics.jsonl")
    assert rows[0]["success"] < 0.6 and rows[-1]["success"] > 0.85


@pytest.mark.parametrize("folder", ["remote_games"], indirect=True)
def test_a_game_in_another_process_is_played_and_outlives_its_process(folder):
    page = importlib.import_module("far_countdown")

    async def play() -> tuple[Step, Step, Step]:
        env = page.FarCountdown(page.FarCountdown.Config(), None)
        await env.open()
        try:
            right, wrong = await asyncio.gather(env.step(3, said("2"), None), env.step(3, said("no"), None))
            env.process.kill()
            with pytest.raises(SystemFault, match="the game's process gave no answer"):
                await env.step(3, said("2"), None)
            return right, wrong, await env.step(2, said("1"), None)  # by the next process
        finally:
            await env.close()

    def said(text: str) -> dict[str, SimpleNamespace]:
        return {"counter": SimpleNamespace(text=text)}

    right, wrong, again = asyncio.run(play())
    assert (right.state, wrong.state, again.state) == (2, 3, 1)
    assert right.scores == {(TEAM, "right"): 1.0} and wrong.scores == {(TEAM, "right"): 0.0}


@pytest.mark.parametrize("folder", ["remote_games"], indirect=True)
def test_the_recipe_of_a_game_in_another_process_trains(folder):
    line = re.findall(r"^coterie run ([^\n]+)", PAGES["remote_games"], re.MULTILINE)[0]
    few = ("schedule.steps=2", "schedule.evaluate_every=0")
    done = anew("run", *shlex.split(line), *few, "--out", "out", path=folder)
    assert done.exit_code == 0, done.output
    rows = read_metrics(folder / "out" / "metrics.jsonl")
    assert len(rows) == 2 and all(row["faults/system"] == row["episodes/missing"] == 0 for row in rows)


def test_the_kit_has_the_fixtures_that_pages_name():
    assert {"coterie_build", "coterie_run", "play_episode", "tree_literals"} <= set(fixtures.__all__)
