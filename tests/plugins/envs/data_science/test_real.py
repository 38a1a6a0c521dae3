"""Environment `data_science` in sandbox `local`: real programs, attacks, and the disk that branches take."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.core.errors import SystemFault
from coterie.core.protocols import StepContext
from coterie.core.types import TEAM
from tests.plugins.envs.data_science.real import by_hand, team
from tests.plugins.envs.data_science.teams import acted, environment, pack, play, program, stubs

pytestmark = pytest.mark.sandbox
pytest.importorskip("sklearn")
TASKS = 9
"""One of each family."""
REGRESSION = 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("packs"), TASKS)


def sandbox(folder: Path, packages: bool = False, **more: Any) -> dict[str, Any]:
    named = {"packages": ["pandas", "scikit-learn"]} if packages else {}
    return {"type": "local", "workers": 1, "keep_files_in": str(folder / "kept"), **named, **more}


def opened(env: Any, go: Callable[[], Awaitable[Any]]) -> Any:
    """What `go` returns with an open sandbox."""

    async def inside() -> Any:
        await env.config.sandbox.open()
        try:
            return await go()
        finally:
            await env.config.sandbox.close()

    return asyncio.run(inside())


def played(env: Any, messages: Any, task: int = REGRESSION) -> list[Any]:
    return opened(env, lambda: play(env, env.tasks("train", 0)[task], messages))


def test_a_team_with_pandas_and_scikit_learn(place: Path, tmp_path: Path) -> None:
    """A task of each family, compared with the team's submission made in this process."""
    from coterie.plugins.envs.data_science.metrics.answers import read_answers
    from coterie.plugins.envs.data_science.metrics.records import competition_of
    from coterie.plugins.envs.data_science.metrics.scoring import score

    env = environment(place, sandbox(tmp_path, packages=True))
    listed = env.tasks("train", 0)

    async def all_of_them() -> list[Any]:
        return [await play(env, listed[task], team(listed[task].payload.metadata)) for task in range(TASKS)]

    for task, steps in zip(range(TASKS), opened(env, all_of_them), strict=True):
        metadata = listed[task].payload.metadata
        ended, workspace = steps[-1].state.outcome, steps[-1].state.workspace
        assert ended.why == "", [entry.run for entry in steps[-1].state.transcript]
        assert len(steps) == 3 and {path for path, _, _ in workspace.files} == {
            "X_train.pkl", "y_train.pkl", "X_test.pkl", "model.pkl", "submission.csv",
        }  # fmt: skip
        answers = read_answers(
            competition_of(metadata, file="", line=0), Path(metadata["answer_dir"]) / "test_answer.csv"
        )
        expected = score(by_hand(str(tmp_path / f"by-hand-{task}"), metadata), answers)
        assert ended.value == pytest.approx(expected.value, abs=1e-6), metadata["task_id"]
        assert ended.quality == pytest.approx(expected.quality, abs=1e-6)
        assert steps[-1].scores[TEAM, "performance"] > 0.2
        assert steps[-1].scores[TEAM, "valid"] == 1
    assert not list((tmp_path / "kept" / "contents").iterdir()), "at the end of a run everything goes"


def test_branches_of_a_large_workspace_take_its_disk_once(place: Path, tmp_path: Path) -> None:
    env = environment(place, sandbox(tmp_path))
    task = env.tasks("train", 0)[REGRESSION]
    fill = """\
import os
for name in ('X_train.pkl', 'y_train.pkl', 'X_test.pkl'):
    open(name, 'wb').write(os.urandom(200_000_000 // 3))"""

    async def go() -> tuple[int, int, list[Any]]:
        ctx = StepContext(task=task, turn=0, seed=0)
        start = (await env.step(env.reset(task, 0), {"data_engineer": acted(program(fill))}, ctx)).state
        assert start.ended == ("data_engineer",), start.transcript
        before, reached = disk(tmp_path), list[Any]()
        for number in range(8):
            code = f"import os; print(sorted(os.listdir('.')))\nopen('model.pkl', 'w').write('{number}')"
            step = await env.step(start, {"modeler": acted(program(code))}, ctx)
            reached.append(step.state)
        return before, disk(tmp_path), reached

    before, after, reached = opened(env, go)
    assert before >= 200_000_000
    assert after <= 1.3 * 200_000_000, "eight branches of it"
    for state in reached:
        assert state.transcript[-1].run.stdout == "['X_test.pkl', 'X_train.pkl', 'data', 'y_train.pkl']\n"
    names = {name for state in reached for path, name, _ in state.workspace.files if path == "model.pkl"}
    assert len(names) == 8, "each has its own model"


def disk(folder: Path) -> int:
    """Bytes of disk that a folder takes."""
    return 1024 * int(
        subprocess.run(["du", "-sk", folder], capture_output=True, check=True).stdout.split()[0]
    )


ATTACK = """\
import os
class Attack:
    def __reduce__(self):
        return (os.system, ("touch {mark}; echo attacked > attacked; id > who; ls /proc/self/fd > fds",))
import pickle
for name in ("X_train.pkl", "y_train.pkl", "X_test.pkl"):
    open(name, "wb").write(pickle.dumps(Attack()))
"""


def test_a_pickle_that_attacks_its_loader_reaches_a_later_program_alone(place: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    env = environment(place, sandbox(tmp_path))
    loads = """\
import pickle
print("loads")
pickle.load(open("X_train.pkl", "rb"))
open("model.pkl", "w").write("a model")"""
    steps = played(
        env,
        {**stubs("45"), "data_engineer": [program(ATTACK.format(mark=mark))], "modeler": [program(loads)]},
    )
    assert not mark.exists(), "nothing of it is run outside of the sandbox"
    assert not Path("attacked").exists()
    modeler = steps[1].state
    assert modeler.transcript[-1].run.stdout.startswith("loads")
    attacked = [change.path for change in modeler.trail if change.role == "modeler"]
    assert "model.pkl" in attacked, "the attack is on its own loader: the trail says what it left"
    assert steps[-1].state.outcome.why == ""


def test_coterie_never_unpickles_a_file_of_the_workspace(place: Path, tmp_path: Path) -> None:
    """In a process of its own, in which unpickling anything from the workspace ends the test."""
    code = f"""
import pickle, sys
from pathlib import Path
from tests.plugins.envs.data_science.teams import environment, program, stubs
from tests.plugins.envs.data_science.test_real import ATTACK, played, sandbox
env = environment(Path({str(place)!r}), sandbox(Path({str(tmp_path)!r})))
tasks = env.tasks("train", 0)
def hook(event, arguments):
    if event == "pickle.find_class" and arguments[0] in ("os", "posix"):
        print("unpickled", arguments, flush=True)
sys.addaudithook(hook)
attack = program({ATTACK!r}.format(mark="/nowhere"))
steps = played(env, {{**stubs("45"), "data_engineer": [attack]}})
print(steps[-1].state.outcome.why or "valid")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "valid\n", ran.stderr


HOSTILE: dict[str, tuple[str, str]] = {
    "a submission of 1 GB": (
        "with open('submission.csv', 'wb') as file:\n    file.truncate(1 << 30); file.write(b'id,target\\n')",
        "no room to bring back submission.csv",
    ),
    "a submission of 300 MB": (
        "open('submission.csv', 'wb').write(b'id,target\\n' + bytes(300 << 20))",
        "bytes, and at most",
    ),
    "a link to our keys": (
        "import os; os.symlink({secret!r}, 'submission.csv')",
        "no plain file, so not brought back: submission.csv",
    ),
    "their hard link": ("import os; os.link({secret!r}, 'submission.csv')", "Error"),
    "a pipe": ("import os; os.mkfifo('submission.csv')", "no plain file, so not brought back"),
    "a folder": ("import os; os.mkdir('submission.csv')", ""),
    "a path out of the workspace": ("open('../../submission.csv', 'w').write('id,target')", "Error"),
    "the place of another file": ("open({outside!r}, 'w').write('id,target')", "Error"),
    "the store of contents": ("import os; os.listdir({kept!r} + '/contents')", "Error"),
}  # fmt: skip


@pytest.mark.parametrize("attack", HOSTILE)
def test_what_an_analyst_tries_is_contained_and_said(place: Path, tmp_path: Path, attack: str) -> None:
    secret, outside = tmp_path / "keys", tmp_path / "outside"
    secret.write_text("the key is 1234")
    code, said = HOSTILE[attack]
    code = code.format(secret=str(secret), outside=str(outside), kept=str(tmp_path / "kept"))
    env = environment(place, sandbox(tmp_path), role_limits={"analyst": {"disk_mb": 2048, "memory_mb": 2048}})
    steps = played(env, {**stubs(), "analyst": [program(code)]})
    ended, entry = steps[-1].state.outcome, steps[2].state.transcript[-1]
    assert (ended.performance, ended.value, ended.blamed) == (0.0, None, "analyst")
    assert "submission.csv" in ended.why
    assert said in entry.run.problem + entry.run.stderr + ended.why
    assert not outside.exists()
    assert "1234" not in str(steps[-1].state) and secret.read_text() == "the key is 1234"
    assert not (tmp_path.parent / "submission.csv").exists()


ENDS = {
    "a segmentation fault": ("import ctypes; ctypes.string_at(0)", "signal 11"),
    "an endless loop": ("while True: pass", "CPU time"),
    "a memory bomb": ("x = [bytearray(1 << 20) for _ in range(5000)]", "MemoryError"),
    "a full disk": ("open('X_train.pkl', 'wb').write(bytes(80 << 20))", "No space left"),
    "a kill": ("import os; os.kill(os.getpid(), 9)", "signal 9"),
    "an exit without a word": ("import os; os._exit(7)", "exit code 7"),
}


@pytest.mark.parametrize("end", ENDS)
def test_each_end_of_a_program_is_told_to_its_role(place: Path, tmp_path: Path, end: str) -> None:
    code, why = ENDS[end]
    limits = {"cpu_seconds": 1, "wall_seconds": 10, "memory_mb": 512, "disk_mb": 64}
    env = environment(place, sandbox(tmp_path), limits=limits, workspace_mb=32)
    keep = program("open('early', 'w').write('x')", done=False)
    steps = played(env, {"data_engineer": [keep, program(code)]})
    entry = steps[1].state.transcript[-1]
    assert not entry.run.ok and why in entry.run.problem + entry.run.stderr
    assert steps[1].scores["data_engineer", "runs"] == 0
    assert "early" in [path for path, _, _ in steps[1].state.workspace.files], "what was there before stays"


def test_a_state_whose_contents_are_gone_is_lost_and_not_wrong(place: Path, tmp_path: Path) -> None:
    env = environment(place, sandbox(tmp_path))
    task = env.tasks("train", 0)[REGRESSION]
    state = played(env, stubs())[0].state  # its sandbox is closed

    async def again() -> Any:
        ctx = StepContext(task=task, turn=0, seed=0)
        return await env.step(state, {"modeler": acted(program("print(1)"))}, ctx)

    with pytest.raises(SystemFault, match="has no content"):
        opened(env, again)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk")
def test_a_full_disk_is_an_error_by_name(place: Path, tmp_path: Path) -> None:
    """On a disk of 1 MB, in a mount namespace of its own."""
    code = f"""
import subprocess
from pathlib import Path
from tests.plugins.envs.data_science.teams import environment, program
from tests.plugins.envs.data_science.test_real import played, sandbox
folder = Path({str(tmp_path / "small")!r})
env = environment(Path({str(place)!r}), sandbox(folder))
try:
    code = "import os; open('X_train.pkl', 'wb').write(os.urandom(4 << 20))"
    played(env, {{"data_engineer": [program(code)]}})
except Exception as error:
    print(type(error).__name__, str(error))
"""
    (tmp_path / "small").mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(tmp_path / "small")]
    script = " ".join(mounted) + f' && exec {sys.executable} -c "$CODE"'
    wanted = ["unshare", "-m", "sh", "-c"] if os.getuid() == 0 else ["unshare", "-rm", "sh", "-c"]
    if subprocess.run([*wanted, " ".join(mounted)], capture_output=True, check=False).returncode:
        pytest.skip("this host forbids mounts")
    variables = {**os.environ, "CODE": code}
    ran = subprocess.run([*wanted, script], capture_output=True, text=True, env=variables, check=False)
    assert ran.stdout.startswith("WriteError"), ran.stdout + ran.stderr
    assert "No space left on device" in ran.stdout and "keep_files_in" in ran.stdout
