"""Packages in the sandboxes: what programs see, what workers import ahead, and what is refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.backends.sandboxes import distributions
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.backends.sandboxes.programs import check_fits
from coterie.core.errors import ConfigError
from coterie.core.protocols import Judged, Limits, Program, Ran
from tests.backends.sandboxes.fusion_server import FusionServer
from tests.backends.sandboxes.installed import environment
from tests.backends.sandboxes.support import inside
from tests.backends.sandboxes.test_fusion import using

MEMORY = "coterie.backends.sandboxes.programs.machine_memory"
LIMITS = Limits(cpu_seconds=5, wall_seconds=20, memory_mb=1024, disk_mb=8, output_kb=16)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of distributions that this process can import from."""
    folder = environment(tmp_path_factory.mktemp("env") / "lib" / "python3" / "site-packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


def programs(codes: list[str], **settings: Any) -> list[Ran]:
    """The results of programs in one sandbox, in order."""

    async def all_of(sandbox: LocalSandbox) -> list[Ran]:
        return [await sandbox.run(Program(code=code)) for code in codes]

    return inside(all_of, **{"limits": LIMITS, **settings})


def refused(**settings: Any) -> str:
    """The message with which the sandbox refuses to open."""
    with pytest.raises(ConfigError) as error:
        programs([], **settings)
    return str(error.value)


# -------------------------------------------------------------------------------------- what programs see

SEES = """\
import alpha, beta, os, sys
print(beta.VALUE, alpha.gamma, [path for path in sys.path if path.endswith('site-packages')])
for name in ('gamma', 'shared', 'coterie', 'pytest', 'numpy'):
    try: __import__(name)
    except ImportError: print('no', name)
for path in ('gamma/__init__.py', 'shared/one/__init__.py', 'raises.py'):
    try: open(os.path.join(os.path.dirname(beta.__file__), path)).read()
    except OSError: print('not', path)
for path in (beta.__file__, os.path.join(os.path.dirname(alpha.__file__), 'new.py')):
    try: open(path, 'w')
    except OSError: print('read-only')
"""


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_programs_import_the_named_distributions_and_what_they_require_and_see_no_other(
    site: Path, namespaces: str
) -> None:
    (done,) = programs([SEES], packages=["alpha"], namespaces=namespaces)
    lines = done.stdout.splitlines()
    assert lines[0] == f"7 None {[str(site)]}", done
    assert lines[1:6] == ["no gamma", "no shared", "no coterie", "no pytest", "no numpy"]
    assert lines[6:] == [
        "not gamma/__init__.py",
        "not shared/one/__init__.py",
        "not raises.py",
        *["read-only"] * 2,
    ]


def test_an_extra_of_a_distribution_brings_what_it_requires(site: Path) -> None:
    (done,) = programs(["import alpha\nprint(alpha.gamma.SECRET)"], packages=["alpha[more]"])
    assert done.stdout == "not for programs\n", done


def test_of_a_package_that_distributions_share_programs_see_the_named_part(site: Path) -> None:
    code = "import os, shared.one\nprint(shared.one.WHO, os.listdir(shared.__path__[0]))\nimport shared.two"
    (done,) = programs([code], packages=["shared-one"])
    assert done.stdout == "1 ['one']\n" and "No module named 'shared.two'" in done.stderr, done


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_programs_see_no_environment_of_the_interpreter_itself(namespaces: str) -> None:
    hidden = distributions.environments(distributions.FOLDERS_OF_PYTHON, ())
    files = [str(path) for place in hidden for path in [*Path(place).rglob("*.py")][:20]]
    if not files:
        pytest.skip("no distribution is installed for this interpreter itself")
    code = (
        f"for path in {files!r}:\n"
        "    try: open(path).close()\n"
        "    except OSError: continue\n"
        "    print('read', path)\n"
    )
    (done,) = programs([code], namespaces=namespaces)
    assert (done.status, done.stdout) == ("finished", ""), done


def test_a_folder_of_packages_is_shown_also_where_it_is_an_environment(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "mine.py").write_text("VALUE = 3\n")
    (done,) = programs(["import mine\nprint(mine.VALUE)"], packages=[str(folder)])
    assert done.stdout == "3\n", done
    place = str(tmp_path / "lib/python3.11/site-packages")
    os.makedirs(place)
    assert distributions.environments([str(tmp_path)], ()) == [place]
    assert distributions.environments([str(tmp_path)], [place]) == []
    assert distributions.environments([str(tmp_path)], [str(folder)]) == []
    assert distributions.environments([str(tmp_path)], [f"{place}/mine"]) == [place]


def test_the_judges_candidate_and_tests_import_them(site: Path) -> None:
    async def go(sandbox: LocalSandbox) -> Any:
        return await sandbox.judge(
            Judged(
                candidate="import alpha\ndef f():\n    return alpha.beta.VALUE",
                tests="import alpha\nassert f() == alpha.beta.VALUE == 7",
                calls=("f",),
            )
        )

    verdict = inside(go, limits=LIMITS, packages=["alpha"])
    assert verdict.ok, verdict


# --------------------------------------------------------------------------------------------- refused

WRONG = {
    "alhpa": ("no distribution 'alhpa' is installed", "did you mean 'alpha'?"),
    "no-such-thing-at-all": ("no distribution", "pip install no-such-thing-at-all"),
    "scikit-learnt": ("no distribution", "scikit-learn"),
    "sklearn": ("no distribution", "is called scikit-learn"),
    "alpha>=2": ("alpha 1.0 is installed, not >=2", "pip install 'alpha>=2'"),
    "alpha beta": ("'alpha beta' names no distribution", "a path with a `/`"),
    "": ("'' names no distribution", "such as scikit-learn"),
    "coterie": ("programs can't import Coterie", "leave it out"),
    "inner": ("programs can't import Coterie", "leave inner out"),
    "needy": ("needy requires absent-thing, which is not installed", "pip install absent-thing"),
    "edited": ("edited is installed in editable mode", "without -e"),
    "unlisted": ("doesn't say which files are its own", "--force-reinstall unlisted"),
    "alpha; python_version < '3'": ("has a condition", "write alpha"),
    "alpha @ http:x": ("has an address", "write alpha"),
    "/proc": ("/proc is a folder of the system", "holds packages for programs alone"),
    "/": ("/ is a folder of the system", "holds packages for programs alone"),
    str(Path(coterie.__file__).parents[1]): ("programs can't import Coterie", "holds packages"),
    str(Path(coterie.__file__).parent / "cli" / ".."): ("programs can't import Coterie", "holds packages"),
    __file__: ("there is no folder", "name the folder that it is in"),
    "/no/such/folder": ("there is no folder /no/such/folder", "name one that exists"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_distribution_here_is_refused_with_a_fix(name: str, site: Path) -> None:
    what, fix = WRONG[name]
    with pytest.raises(ConfigError) as error:
        distributions.find(["beta", name])
    assert what in error.value.what and fix in error.value.fix, error.value
    assert error.value.path == "sandbox.packages"


def test_a_module_of_another_name_and_a_folder_without_a_slash_are_refused_with_their_names(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="the module gamma_tools is of gamma-extras: name that"):
        distributions.find(["gamma_tools"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match=r"\./mine names the folder"):
        distributions.find(["mine"])


def test_a_link_in_place_of_a_package_is_refused(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(tmp_path)
    (tmp_path / "beta.py").rename(tmp_path / "real.py")
    (tmp_path / "beta.py").symlink_to(tmp_path / "real.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"beta\.py is a link"):
        distributions.find(["alpha"])


def test_versions_are_those_of_all_that_programs_see(site: Path) -> None:
    assert distributions.find(["alpha"]).versions == {"alpha": "1.0", "beta": "1.0"}


UNUSABLE = {
    "raises": "RuntimeError: no such engine",
    "threads": "its import leaves 1 threads",
    "descriptors": "its import leaves 1 open descriptors",
    "children": "its import starts a process",
    "forks": "its import starts a process",
    "sharing": "its import leaves 1 places of shared memory",
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_module_that_workers_can_not_import_without_a_trace_is_refused(name: str, site: Path) -> None:
    message = refused(packages=[name])
    assert f"workers can't import {name}" in message and UNUSABLE[name] in message, message
    assert "preload" in message


def test_such_a_package_can_be_imported_by_each_program_for_itself(site: Path) -> None:
    (done,) = programs(
        ["import threads, sharing\nprint(len(sharing.held))"], packages=["threads", "sharing"], preload=[]
    )
    assert done.stdout == "4096\n", done


def test_preload_without_packages_is_refused() -> None:
    with pytest.raises(ValueError, match="which is empty"):
        LocalSandbox.Config(preload=("json",))


# ------------------------------------------------------------------------------------------ imported ahead


def test_a_worker_imports_once_and_no_program_sees_what_another_one_changed(site: Path) -> None:
    code = (
        "import alpha, os, sys\n"
        "print(alpha.PID == os.getpid(), alpha.seen, alpha.beta.VALUE, hasattr(sys, 'mark'))\n"
        "alpha.seen.append(1)\nalpha.beta.VALUE = 8\nsys.mark = os.environ['MARK'] = 'x'\n"
        "assert len(alpha.seen) == 1 and 'alpha' in sys.modules"
    )
    done = programs([code] * 3, packages=["alpha"])
    assert [ran.stdout for ran in done] == ["False [] 7 False\n"] * 3, done
    for ran in programs([code] * 2, packages=["alpha"], preload=[]):
        assert ran.stdout == "True [] 7 False\n", ran


def test_a_program_starts_without_them_in_its_modules_and_its_own_files_win(site: Path) -> None:
    async def go(sandbox: LocalSandbox) -> list[Ran]:
        names = (
            "import sys\nprint({'alpha', 'beta'} & {*sys.modules})\nimport alpha\nprint(alpha.__spec__.name)"
        )
        own = "import beta\nprint(beta.VALUE)"
        queue = "import queue, alpha\nprint(queue.mine, alpha.beta.VALUE)"
        return [
            await sandbox.run(Program(code=names)),
            await sandbox.run(Program(code=own, files={"beta.py": b"VALUE = 9"})),
            await sandbox.run(Program(code=queue, files={"queue.py": b"mine = 1"})),
        ]

    names, own, queue = inside(go, limits=LIMITS, packages=["alpha"])
    assert names.stdout == "set()\nalpha\n" and names.ok, names
    assert own.stdout == "9\n" and queue.stdout == "1 7\n", (own, queue)


def test_a_program_has_one_thread_a_library_and_no_variable_of_the_run(site: Path) -> None:
    code = "from os import environ as e\nprint(e['OMP_NUM_THREADS'], e['PYTHONPATH'], 'COTERIE_API_KEY' in e)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_API_KEY", "secret")
        (done,) = programs([code], packages=["alpha"])
    assert done.stdout == f"1 {site} False\n", done


def test_a_package_that_makes_temporary_files_when_it_is_imported_gives_programs_no_folder_of_it(
    site: Path,
) -> None:
    code = "import os, tempfile, temporary\n"
    code += "print(tempfile.gettempdir() == os.environ['TMPDIR'] != temporary.PLACE)"
    (done,) = programs([code], packages=["temporary"], namespaces="off")
    assert done.stdout == "True\n", done


NUMPY = (
    "import numpy, random\n"
    "print(numpy.random.random(), numpy.random.default_rng().random(), random.random())\n"
    "numpy.random.seed(1)\nprint(numpy.random.random())"
)


def test_programs_of_one_worker_draw_different_numbers_and_repeat_seeded_ones() -> None:
    first, second = (ran.stdout.split() for ran in programs([NUMPY] * 2, packages=["numpy"]))
    assert not {*first[:3]} & {*second[:3]}
    assert first[3] == second[3] == "0.417022004702574"


# ------------------------------------------------------------------------------------------------- memory

GB = 2**30


@pytest.mark.parametrize(
    ("settings", "what", "why", "fix"),
    [
        (
            {"workers": 3, "limits": {"memory_mb": 2048, "disk_mb": 1024}},
            "3 programs at a time may take 9,216 MB, and this machine has 8,192 MB",
            "each may take 2,048 MB of memory (memory_mb) and 1,024 MB of files",
            "set sandbox.workers to at most 2, or lower sandbox.limits.memory_mb or disk_mb",
        ),
        (
            {"workers": 5, "limits": {"memory_mb": 2048, "disk_mb": 1024}, "namespaces": "off"},
            "5 programs at a time may take 10,240 MB",
            "`workers` is 5",
            "set sandbox.workers to at most 4, or lower sandbox.limits.memory_mb",
        ),
        (
            {"limits": {"memory_mb": 9000}},
            "programs at a time may take",
            "the number of CPUs",
            "lower sandbox.limits.memory_mb or disk_mb",
        ),
    ],
)
def test_programs_that_do_not_fit_into_the_machine_are_refused_with_the_numbers(
    settings: dict[str, Any], what: str, why: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MEMORY, lambda: 8 * GB)
    with pytest.raises(ConfigError) as error:
        asyncio.run(LocalSandbox(LocalSandbox.Config.model_validate(settings)).open())
    assert what in error.value.what and why in error.value.why and error.value.fix == fix, error.value


def test_what_fits_exactly_opens_and_an_unknown_machine_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"sandbox.limits": Limits(memory_mb=2048, disk_mb=1024)}
    how: Any = {"in_memory": True, "path": "sandbox", "by_default": False}
    monkeypatch.setattr(MEMORY, lambda: 6 * GB)
    check_fits(2, limits, **how)
    monkeypatch.setattr(MEMORY, lambda: 6 * GB - 1)
    with pytest.raises(ConfigError, match="at most 1"):
        check_fits(2, limits, **how)
    monkeypatch.setattr(MEMORY, lambda: None)
    check_fits(2000, limits, **how)


def test_a_limit_that_the_imported_packages_fill_is_refused_before_and_for_one_program() -> None:
    small = LIMITS.model_copy(update={"memory_mb": 32})
    message = refused(packages=["numpy"], limits=small)
    assert "memory_mb is 32, and the imported packages take" in message and "preload: []" in message

    async def go(sandbox: LocalSandbox) -> str:
        with pytest.raises(ConfigError) as error:
            await sandbox.run(Program(code="", limits=small))
        assert (await sandbox.run(Program(code="import numpy"))).ok
        return str(error.value)

    assert "limits: memory_mb is 32" in inside(go, limits=LIMITS, packages=["numpy"])


# ----------------------------------------------------------------------------------------- sandbox_fusion


def test_a_server_that_can_import_them_is_used_and_one_that_can_not_is_refused() -> None:
    with FusionServer() as server:
        program = Program(code="import numpy, os\nprint(numpy.ones(2).sum(), os.environ['OMP_NUM_THREADS'])")
        settings = {"limits": LIMITS, "grace_seconds": 20}
        done = using(server, lambda box: box.run(program), packages=("numpy",), **settings)
        assert done.stdout == "2.0 1\n", done
        for name, what in {
            "no-such-thing": "can't import no-such-thing\n  why: it is not installed there",
            "numpy>=99": "is installed on the server, not >=99",
            "numpy/core": "names no distribution",
        }.items():
            with pytest.raises(ConfigError) as error:
                using(server, lambda box: box.run(program), packages=("numpy", name), **settings)
            assert what in str(error.value) and error.value.path == "sandbox.packages", error.value
        short = LIMITS.model_copy(update={"memory_mb": 64})
        with pytest.raises(ConfigError, match="numpy") as error:
            using(server, lambda box: box.run(program), packages=("numpy",), limits=short, grace_seconds=20)
