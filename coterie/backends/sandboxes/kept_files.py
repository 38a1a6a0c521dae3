"""Files that programs hand on: contents by their hash, in a folder that the sandboxes of a machine share.

    FOLDER/contents/HASH        a content, once, whoever keeps it
          /owners/OWNER/HASH    a hard link to it for each open store that keeps it

An owner's folder is locked while its process lives, so the next store that opens removes what a killed one
has left. A content without an owner is removed: the number of its links says so. Programs get copies, so that
none can change a content.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import shutil
import sys
import tempfile
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from coterie.core.errors import SystemFault, WriteError
from coterie.core.protocols.sandbox import Program, Ran
from coterie.core.storage.atomic import TEMPORARY, locked
from coterie.discovery.members import KeptFiles

if sys.platform != "win32":  # there only a sandbox that is never asked to keep files can be used
    import fcntl

Entry = tuple[str, str, int]
"""Path, sha256 and bytes of a file."""


def default_folder() -> Path:
    """The folder of this user on this machine."""
    return Path(tempfile.gettempdir()) / f"coterie-files-{os.getuid()}"


class FileStore:
    """The contents that one sandbox keeps; open from its construction to `close`.

    Args:
        folder: all stores of this folder share contents. None: `default_folder`.
        path: of the setting, for errors.

    Raises:
        WriteError: the folder can't be written, or it is another user's.
    """

    def __init__(self, folder: Path | None, path: str) -> None:
        self.folder, self._path = folder or default_folder(), path
        self._holders: Counter[str] = Counter()
        """How many living KeptFiles, and programs that have just left it, name a content."""
        self._released: deque[tuple[str, ...]] = deque()
        """Contents of KeptFiles that are gone. A collection of garbage may come at any point, so it only
        notes them."""
        self._finalizers: list[weakref.finalize[..., KeptFiles]] = []
        try:
            for each in (self.folder, self._contents, self.folder / "owners"):
                each.mkdir(mode=0o700, parents=each == self.folder, exist_ok=True)
            if self.folder.stat().st_uid != os.getuid():
                raise PermissionError("it belongs to another user")
            with locked(self.folder):
                self._sweep()
                self._own = self.folder / "owners" / f"{os.getpid()}-{secrets.token_hex(4)}"
                self._own.mkdir(mode=0o700)
                self._lock = os.open(self._own, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise self.refused(error) from error

    @property
    def _contents(self) -> Path:
        return self.folder / "contents"

    # ---- keep ----------------------------------------------------------------------------------------------

    def writer(self) -> ContentWriter:
        """A content that is to be written.

        Raises:
            WriteError: the disk is full, or can't be written.
        """
        self.drop_released()
        return ContentWriter(self, self._own / f"{TEMPORARY}{secrets.token_hex(8)}")

    def keep(self, entries: Iterable[Entry]) -> KeptFiles:
        """Keep contents, of this store or another one of the folder, while the result is referred to.

        Raises:
            SystemFault: this machine lacks a content.
        """
        files = KeptFiles(tuple(sorted(entries)))
        hashes = tuple(dict.fromkeys(name for _, name, _ in files.files))
        self._holders.update(hashes)
        try:
            for name in hashes:
                self._take(name)
        except BaseException:
            self.release(hashes)
            raise
        self._finalizers = [each for each in self._finalizers if each.alive]
        finalizer = weakref.finalize(files, self._released.append, hashes)
        finalizer.atexit = False
        self._finalizers.append(finalizer)
        return files

    def place(self, name: str) -> Path:
        """The file with a content, which nobody may change.

        Raises:
            SystemFault: this machine lacks it.
        """
        for file in (self._own / name, self._contents / name):
            if file.is_file():
                return file
        raise SystemFault(
            f"{self.folder} has no content {name[:12]}: its state comes from another machine, or from a "
            "process that has ended"
        )

    def content(self, name: str) -> memoryview:
        """A content, read from the disk where it is looked at. Raises as `place`."""
        with open(self.place(name), "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))

    def refused(self, error: OSError) -> WriteError:
        """The error of a disk that is full or can't be written."""
        return WriteError(
            f"files that programs hand on can't be kept in {self.folder}",
            why=error.strerror or str(error),
            then="try again; or name a folder on another disk",
            path=self._path,
        )

    # ---- release -------------------------------------------------------------------------------------------

    def release(self, names: Iterable[str]) -> None:
        """End the hold that `ContentWriter.commit` has on contents, once they are kept or given up."""
        self._released.append(tuple(names))

    def drop_released(self) -> None:
        """Remove the contents that nothing in this process names any more."""
        while self._released:
            gone = self._released.popleft()
            self._holders.subtract(gone)
            unnamed = [name for name in gone if self._holders[name] <= 0]
            for name in unnamed:
                del self._holders[name]
            with locked(self.folder):
                for name in unnamed:
                    self._unlink(self._own / name)

    def close(self) -> None:
        """Remove all that this store alone keeps. Nothing in a forked process: it is the opener's."""
        if not self._own.name.startswith(f"{os.getpid()}-"):
            return
        for finalizer in self._finalizers:
            finalizer.detach()
        with locked(self.folder):
            self._remove(self._own)
        os.close(self._lock)

    # ---- inside --------------------------------------------------------------------------------------------

    def _take(self, name: str) -> None:
        """Link a content for this store."""
        mine, shared = self._own / name, self._contents / name
        if mine.exists():
            return
        with locked(self.folder):
            try:
                os.link(shared, mine)
            except FileNotFoundError:
                self.place(name)  # raises
            except OSError as error:
                raise self.refused(error) from error

    def add(self, temporary: Path, name: str) -> None:
        """Make a file that was written whole a content."""
        mine, shared = self._own / name, self._contents / name
        with locked(self.folder):
            with suppress(FileExistsError):
                os.link(temporary, shared)
            temporary.unlink()
            with suppress(FileExistsError):
                os.link(shared, mine)
        self._holders[name] += 1

    def _sweep(self) -> None:
        """Remove what processes have left that are gone."""
        for owner in (self.folder / "owners").iterdir():
            with locked(owner, wait=False) as free:
                if free:
                    self._remove(owner)
        for content in self._contents.iterdir():
            self._unlink_alone(content)

    def _remove(self, owner: Path) -> None:
        for file in owner.iterdir():
            self._unlink(file)
        shutil.rmtree(owner, ignore_errors=True)

    def _unlink(self, mine: Path) -> None:
        mine.unlink(missing_ok=True)
        if not mine.name.startswith(TEMPORARY):
            self._unlink_alone(self._contents / mine.name)

    def _unlink_alone(self, content: Path) -> None:
        with suppress(FileNotFoundError):
            if content.stat().st_nlink == 1:
                content.unlink()


class ContentWriter:
    """A file in the making: `write` its parts, then `commit` it, or `drop` it."""

    def __init__(self, store: FileStore, temporary: Path) -> None:
        self._store, self._temporary, self._hash = store, temporary, hashlib.sha256()
        self.size = 0
        try:
            self._file: BinaryIO = open(temporary, "xb", buffering=0)  # noqa: SIM115 (closed by commit or drop)
        except OSError as error:
            raise store.refused(error) from error

    def write(self, part: bytes | memoryview) -> None:
        """Append a part. Raises WriteError."""
        left = memoryview(part)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self.drop()
            raise self._store.refused(error) from error
        self._hash.update(part)
        self.size += len(part)

    def commit(self) -> tuple[str, int]:
        """Make it a content; its sha256 and its bytes. It is held until `FileStore.release`."""
        name = self._hash.hexdigest()
        try:
            os.fchmod(self._file.fileno(), 0o400)
            self._file.close()
            self._store.add(self._temporary, name)
        except OSError as error:
            self.drop()
            raise self._store.refused(error) from error
        return name, self.size

    def drop(self) -> None:
        """Remove it."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class KeepingFiles:
    """The store of a sandbox, opened when it is first needed, and what every sandbox can do with it.

    Args:
        folder: the setting; None: `default_folder`.
        path: of the sandbox in the configuration.
    """

    def __init__(self, folder: str | Path | None, path: str) -> None:
        self._folder, self._path = None if folder is None else Path(folder), path
        self._store: FileStore | None = None

    @property
    def store(self) -> FileStore:
        """The store. Raises WriteError."""
        if self._store is None:
            self._store = FileStore(self._folder, f"{self._path}.keep_files_in")
        return self._store

    def kept(self, files: KeptFiles, path: str) -> Path:
        """The file with a content. Raises SystemFault where this machine lacks it."""
        return self.store.place(next(name for known, name, _ in files.files if known == path))

    def given(self, program: Program, files: KeptFiles) -> Program:
        """The program with the kept files among its own; of a path that both have, its own counts.

        Raises:
            SystemFault: this machine lacks a content.
        """
        self.store.drop_released()
        known: dict[str, bytes | memoryview] = {
            path: self.store.content(name) for path, name, _ in files.files
        }
        return replace(program, files={**known, **program.files})

    async def run_on(
        self,
        run: Callable[[Program], Awaitable[Ran]],
        program: Program,
        files: KeptFiles,
        most_mb: int,
    ) -> tuple[Ran, KeptFiles]:
        """`KeepsFiles.run_on` for a sandbox that takes and returns files as bytes.

        A program that was ended without any file to bring back leaves the files as they were.

        Args:
            run: of the sandbox.
        """
        ran = await run(self.given(program, files))
        if not ran.files and not ran.ok:
            return ran, self.store.keep(files.files)
        room, entries, left = most_mb << 20, list[Entry](), list[str]()
        try:
            for path, data in sorted(ran.files.items()):
                if path in program.files:
                    continue
                if len(data) > room:
                    left.append(path)
                    continue
                writer = self.store.writer()
                writer.write(data)
                entries.append((path, *writer.commit()))
                room -= len(data)
            kept = self.store.keep(entries)
        finally:
            self.store.release([name for _, name, _ in entries])
        reason = f"no room to bring back {', '.join(left[:20])}" if left else ""
        return replace(ran, files={}, reason="; ".join(filter(None, [ran.reason, reason]))), kept

    def close(self) -> None:
        """Remove what this store alone keeps."""
        if self._store is not None:
            self._store.close()
            self._store = None
