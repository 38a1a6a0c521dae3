"""The pages are what the code is, their links lead somewhere, and what they show runs."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

import coterie.testing
from coterie.discovery import GROUP
from coterie.studies import Study
from tests.cli.forks import python

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "writing_plugins.md"
PAGES = sorted(DOCS.rglob("*.md"))
WITH_FILES = (PAGE, DOCS / "kinds" / "reward.md", DOCS / "kinds" / "estimator.md")
"""The pages whose titled blocks are the files of the example."""
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def without_code(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """The anchors that mkdocs makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_the_generated_parts_are_up_to_date():
    for name, made in runpy.run_path(str(DOCS / "generate.py"))["pages"]().items():
        stale = f"docs/{name} is stale: run `python docs/generate.py`"
        assert (DOCS / name).read_text(encoding="utf-8") == made, stale


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_link_of_a_page_leads_somewhere(page):
    for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked.read_text(encoding="utf-8")), target


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    elsewhere = runpy.run_path(str(DOCS / "site_hooks.py"))["ELSEWHERE"]
    pages = sorted([*(page.relative_to(DOCS).as_posix() for page in PAGES), *elsewhere])
    assert sorted(re.findall(r"([\w/]+\.md)", navigation)) == pages


def test_every_check_is_named_by_the_page():
    kinds = sorted((DOCS / "kinds").glob("*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in (PAGE, *kinds))
    for name in coterie.testing.__all__:
        assert re.search(rf"\b{name}(`|\()", text), name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the pages in a folder."""
    folder = tmp_path_factory.mktemp("page")
    for page in WITH_FILES:
        for name, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def example(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder, which is the working folder."""
    monkeypatch.chdir(files)
    return files


COMMAND = "from coterie.cli.main import main; main()"
PYTEST = "import sys, pytest\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))"


def run_python(code: str, *arguments: str) -> str:
    done = python(code, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_passes_its_own_tests(example):
    tests = ["test_countdown.py", "test_runs.py", "test_judged.py", "test_commented.py", "test_kept.py"]
    assert "12 passed" in run_python(PYTEST, *tests)


def test_the_example_of_an_outage_fails_where_the_floor_is_taken(example, monkeypatch):
    wrong = (example / "judged.py").read_text().replace('SystemFault("the judge', 'PolicyFault("the judge')
    (example / "broken").mkdir()
    (example / "broken" / "judged.py").write_text(wrong)
    for name in ("countdown.py", "test_judged.py"):
        (example / "broken" / name).write_text((example / name).read_text())
    monkeypatch.chdir(example / "broken")
    done = python(PYTEST, "test_judged.py")
    assert done.returncode == 1 and "gave the floor in the outage" in done.stdout, done.stdout


def test_the_example_trains(example):
    arguments = ["run", "countdown.yaml", "-p", "countdown.py", "--out", "out"]
    output = run_python(COMMAND, *arguments)
    share = re.search(r"val success ([.\d]+)", output)
    assert share and float(share[1]) > 0.9, output


def test_the_estimator_of_rows_passes_its_checks(example):
    code = (
        "import squashed\n"
        "from coterie.testing import build, check_estimator, check_plugin\n"
        "check_estimator(build('estimator', 'squashed:Squashed'))\n"
        "check_plugin(squashed)\n"
        "print('checked')\n"
    )
    assert run_python(code) == "checked\n"


@pytest.mark.long
def test_the_estimator_of_rows_trains(example):
    overrides = ["algorithm=squashed", "sampler.branches=1", "sampler.chains=8", "trainer.learning_rate=20"]
    plugins = ["-p", "countdown.py", "-p", "squashed.py"]
    output = run_python(COMMAND, "run", "countdown.yaml", *plugins, *overrides, "--out", "rows")
    share = re.search(r"val success ([.\d]+)", output)
    assert share and float(share[1]) > 0.85, output


def test_the_example_package_is_found_by_its_entry_point(example):
    table = tomllib.loads((example / "pyproject.toml").read_text())
    assert list(table["project"]["entry-points"]) == [GROUP]


def test_the_study_of_ones_own_is_one():
    (source,) = [
        text for name, text in BLOCK.findall((DOCS / "reproduce.md").read_text()) if name == "mine.py"
    ]
    module: dict[str, object] = {}
    exec(source, module)
    study = module["MINE"]
    assert isinstance(study, Study)
    assert [method.id for method in study.methods(None)] == ["shared", "per_role"]


def test_every_file_that_the_architecture_names_exists():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = {word for word in re.findall(r"`([\w./]+)`", text) if "/" in word or word.endswith(".py")}
    assert len(named) > 15
    missing = [word for word in named if not any((base / word).exists() for base in (ROOT, ROOT / "coterie"))]
    assert not missing, missing


OTHERS = {"queue.py", "word_games.py", "tests/test_gpu.py"}
"""Files of users that docstrings speak of."""


def test_the_modules_that_docstrings_and_comments_name_exist():
    """As paths (`estimate/least.py`, `effects.py` beside it), or dotted (`backends.cluster.hosts.Actors`)."""
    package = ROOT / "coterie"
    rooms = "|".join(sorted(path.name for path in package.iterdir() if (path / "__init__.py").exists()))
    dotted = re.compile(rf"`(?:coterie\.)?((?:{rooms})(?:\.\w+){{2,}})`")
    files = [path for path in package.rglob("*.py") if "templates" not in path.parts]
    names, folders = {path.name for path in files} | OTHERS, [ROOT, *{path.parent for path in files}]

    def is_there(name: str) -> bool:
        return name in names or any((folder / name).exists() for folder in folders)

    def is_module(parts: Sequence[str]) -> bool:
        path = package.joinpath(*parts)
        return path.with_suffix(".py").exists() or (path / "__init__.py").exists()

    missing = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        missing += [(path.name, name) for name in re.findall(r"`([\w/]+\.py)`", text) if not is_there(name)]
        for parts in (name.split(".") for name in dotted.findall(text)):
            inner = (package / parts[0] / parts[1]).is_dir()  # else the module is the second part
            if not is_module(parts[: 3 if inner else 2]):
                missing.append((path.name, ".".join(parts)))
    assert not missing
