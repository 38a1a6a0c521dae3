"""Copies of the tree to break, and the tests run in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("coterie", "tests", "docs", "examples", "benchmarks")


def copy_tree(folder: Path, root: Path = ROOT) -> Path:
    """What the tests read of the tree, in a new folder."""
    folder.mkdir(parents=True)
    for name in PARTS:
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in root.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Variables with which Python imports the package from the folder, and nothing of a pytest around it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, "PYTHONPATH": str(folder)}


def run_tests(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests of a folder, those that `make test-resume` runs too."""
    options = ["-q", "-n0", "-x", "-p", "no:cacheprovider", "-m", "not long"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env={**environment(folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )
