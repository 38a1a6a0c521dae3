"""Wheels and fresh venvs: Coterie as its users install it."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def built(project: Path, out: Path) -> Path:
    """The wheel of a project, built into a folder of its own under `out`."""
    folder = out / project.name
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project)],
        check=True,
        capture_output=True,
        text=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


class FreshVenv:
    """A venv with nothing but what is installed into it.

    Args:
        folder: where it is made; commands run here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        venv.create(folder / "venv", with_pip=True)

    def install(self, *what: str | Path) -> None:
        """Install wheels, or names with the versions of constraints.txt."""
        command = [self.bin / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", *what]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def run(
        self, program: str, *arguments: str | Path, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the venv (`python`, `pytest`, `coterie`) in the folder."""
        return subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.folder,
            check=check,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
