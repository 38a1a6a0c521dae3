"""The version of the model that answers: a change in the course of a run is a warning."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from coterie.backends.remote.secrets import redacted
from coterie.core.errors import WriteError
from coterie.core.storage.atomic import write_atomic

log = logging.getLogger("coterie")


class VersionWatch:
    """Compares the versions of answers, also with those of the run before it was resumed.

    Args:
        path: dotted path of the chat model, for the warning.
        model: the name that is asked for.
        file: where the last version is stored; None: it is forgotten with the process.
    """

    def __init__(self, path: str, model: str, file: Path | None) -> None:
        self._path, self._model, self._file = path, model, file
        self._warned: set[tuple[str, str]] = set()
        self.last = self._stored()

    def fresh(self, version: str) -> None:
        """Note the version of an answer that was just sent."""
        version = redacted(version)
        if not version or version == self.last:
            return
        before, self.last = self.last, version
        self._store()
        if before and (before, version) not in self._warned:
            self._warned.add((before, version))
            log.warning(
                "%s: the provider answers '%s' with another version: %s -> %s. Scores of the two may differ, "
                "and stored answers of %s are no longer used. fix: name a fixed version as the model, where "
                "the provider has one",
                self._path, redacted(self._model), before, version, before,
            )  # fmt: skip

    def cached(self, version: str) -> None:
        """Note the version of a stored answer, where no other is known yet."""
        if version and not self.last:
            self.last = version
            self._store()

    def _stored(self) -> str:
        if self._file is None:
            return ""
        try:
            version = json.loads(self._file.read_text(encoding="utf-8"))["version"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""  # of a first process, or damaged: the next answer names the version
        return version if isinstance(version, str) else ""

    def _store(self) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(
                self._file, json.dumps({"model": redacted(self._model), "version": self.last}) + "\n"
            )
        except (WriteError, OSError) as error:
            log.warning(
                "%s: a change of the model's version won't be seen after a resume: %s", self._path, error
            )
            self._file = None
