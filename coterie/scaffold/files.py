"""Writing what was composed: all files or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


class ScaffoldError(Exception):
    """What can't be written. Nothing was."""

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        super().__init__(what)


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Make a folder with these files, by their paths in it. It may exist if it is empty.

    The files are written into a folder beside it, which then gets its name.

    Raises:
        ScaffoldError: the folder has something in it, or can't be written.
    """
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        why = "there is something in it" if folder.is_dir() else "it is no folder"
        raise ScaffoldError(f"{folder} exists already", why=why, fix="choose another NAME, or -o FOLDER")
    made = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        for name, text in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_text(text, encoding="utf-8")
        made.chmod(0o777 & ~_umask())
        os.replace(made, folder)
    except OSError as error:
        raise _failed(folder, error) from error
    finally:
        if made is not None and made.exists():
            shutil.rmtree(made, ignore_errors=True)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder that may have others; none of these may be there.

    Raises:
        ScaffoldError: one of them exists, or can't be written; then none is there.
    """
    for name in files:
        if os.path.lexists(folder / name):
            raise ScaffoldError(f"{folder / name} exists already", fix="choose another name, or -o FOLDER")
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                written.append(folder / name)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise _failed(folder, error) from error


def _failed(folder: Path, error: OSError) -> ScaffoldError:
    what = f"{folder} can't be written"
    return ScaffoldError(what, why=error.strerror or str(error), fix="choose another place: -o FOLDER")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
