"""A sandbox in this process, packs and scripted teams, for the tests of environment `data_science`."""

from __future__ import annotations

import contextlib
import io
import tempfile
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.backends.sandboxes.kept_files import KeepingFiles
from coterie.core.protocols import Program, Ran, StepContext
from coterie.core.types import Action, Fault, Step, Task
from coterie.data.ds_pack import write_pack
from coterie.discovery.members import KeptFiles
from coterie.testing import build
from tests.plugins.envs.programs import Inline

FOLDERS = "tests.plugins.envs.data_science.teams:Folders"
ORDER = ["data_engineer", "modeler", "analyst"]


class Folders(Inline):
    """Runs what the tests wrote, in this process and in a folder: quick, and contains nothing."""

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self.store = tempfile.TemporaryDirectory()
        self.files = KeepingFiles(self.store.name, "sandbox")
        self.programs: list[Program] = []

    async def close(self) -> None:
        self.files.close()

    async def run(self, program: Program) -> Ran:
        self.programs.append(program)
        out = io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            for path, data in program.files.items():
                place = Path(folder, path)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            with contextlib.chdir(folder), contextlib.redirect_stdout(out):
                error = ""
                try:
                    exec(program.code, {})  # ours
                except BaseException:
                    error = traceback.format_exc()
            places = [
                place for place in Path(folder).rglob("*") if place.is_file() and not place.is_symlink()
            ]
            files = {str(place.relative_to(folder)): place.read_bytes() for place in places}
        if error:
            return Ran(
                status="failed",
                exit_code=1,
                stdout=out.getvalue(),
                stderr=error,
                files=files,
                reason="exit code 1",
            )
        return Ran(status="finished", exit_code=0, stdout=out.getvalue(), files=files)

    async def run_on(self, program: Program, files: KeptFiles, most_mb: int) -> tuple[Ran, KeptFiles]:
        return await self.files.run_on(self.run, program, files, most_mb)

    def kept(self, files: KeptFiles, path: str) -> Path:
        return self.files.kept(files, path)


def pack(folder: Path, tasks: int = 2, seed: int = 3) -> Path:
    """A synthetic pack with three splits."""
    write_pack(folder / "pack", ["train", "val", "test"], tasks, seed, force=False, facts={})
    return folder / "pack"


def environment(place: Path, sandbox: Any = FOLDERS, **settings: Any) -> Any:
    """The environment of a pack."""
    table = {"type": "data_science", "data": {"type": "ds_pack", "path": str(place)}, "sandbox": sandbox}
    return build("environment", {**table, **settings}, order=ORDER)


def program(code: str, *, done: bool = True) -> str:
    """A message with a program."""
    return f"So:\n\n```python\n{code}\n```\n" + "DONE\n" * done


def acted(text: str, *, fault: str = "") -> Action:
    """An action."""
    return Action(calls=(), text=text, fault=Fault(kind="policy", reason=fault) if fault else None)


async def play(env: Any, task: Task, messages: Mapping[str, Sequence[str]]) -> list[Step]:
    """The steps of an episode; a role that has no message left writes DONE."""
    state, steps = env.reset(task, 0), list[Step]()
    left: dict[str, Iterable[str]] = {role: iter(texts) for role, texts in messages.items()}
    while acting := env.acting_roles(state):
        text = next(iter(left.get(acting[0], ())), "DONE")
        ctx = StepContext(task=task, turn=0, seed=len(steps))
        steps.append(await env.step(state, {acting[0]: acted(text)}, ctx))
        state = steps[-1].state
    return steps


STUBS: Mapping[str, str] = {
    "data_engineer": """\
import csv
rows = list(csv.DictReader(open("data/train.csv")))
for name in ("X_train.pkl", "y_train.pkl", "X_test.pkl"):
    open(name, "w").write(f"{name} of {len(rows)} rows")
print(len(rows), "rows")""",
    "modeler": """\
assert open("y_train.pkl", "rb").read()
open("model.pkl", "w").write("a model")""",
    "analyst": """\
import csv
assert open("model.pkl").read() == "a model" and open("X_test.pkl", "rb").read()
ids = [row["id"] for row in csv.DictReader(open("data/test.csv"))]
with open("submission.csv", "w") as file:
    print("id", "target", sep=",", file=file)
    for each in ids:
        print(each, {guess!r}, sep=",", file=file)""",
}
"""Programs without a library: the analyst writes one constant for every row."""


def stubs(guess: str = "1", **other: str) -> dict[str, list[str]]:
    """A message with its stub program for each role, or with another program."""
    return {
        role: [program(other.get(role, code).replace("{guess!r}", repr(guess)))]
        for role, code in STUBS.items()
    }


def scripted(request: Any, prompt: str) -> str:
    """The stub team as the script of an engine; in odd chains the modeler crashes, and repairs it."""
    role = request.key.role
    if role == "modeler" and request.key.chain % 2 and "ZeroDivisionError" not in prompt:
        return program("1 / 0")
    return stubs("45.5")[role][0]


def run_table(place: Path, sandbox: Mapping[str, Any]) -> dict[str, Any]:
    """A run of the stub team on a pack, without a model."""
    return {
        "env": {"type": "data_science", "data": {"type": "ds_pack", "path": str(place)}},
        "sandbox": dict(sandbox),
        "team": {
            "order": ORDER,
            "max_turns": 1,
            "roles": {role: {"type": f"data_science_{role}", "policy": "p"} for role in ORDER},
        },
        "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
        "engine": {"type": "scripted", "play": "tests.plugins.envs.data_science.teams:scripted"},
        "trainer": {"type": "none"},
        "sampler": {"chains": 2, "branches": 1},
        "algorithm": {"type": "grpo"},
        "schedule": {"tasks_per_step": 2, "steps": 2, "evaluate_every": 0, "stratify": "kind"},
    }
