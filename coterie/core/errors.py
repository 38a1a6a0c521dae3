"""Errors: what went wrong, why, and how to fix it.

CoterieError
├── UserError            bad input: the command exits with code 2 and prints no traceback
│   ├── ConfigError      a setting is wrong; carries the dotted path of the key
│   │   └── NoFileError  it names a file that isn't there
│   ├── PluginError      a plugin is broken, missing or ambiguous; carries its distribution
│   ├── MissingExtra     an optional dependency is not installed; names the extra
│   ├── DataError        a line of the user's data is wrong; carries file, line and field
│   ├── RunFolderError   a run folder can't be used (no run, changed config, damaged checkpoint)
│   └── WriteError       the disk is full or read-only, or writing is not permitted
├── SystemFault          the system failed (HTTP 5xx, lost worker): the score is missing
├── PolicyFault          the output caused the failure (verifier time-out): the score is the source's floor
└── TooManyMissing       the share of missing scores exceeds `schedule.max_missing`: the run stops
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from coterie.machine import write_fix


class CoterieError(Exception):
    """Base of every error that Coterie raises on purpose."""


class UserError(CoterieError):
    """An error that the user can fix.

    Args:
        what: what is wrong, in one line.
        why: the cause, where `what` does not name it.
        fix: what the user can do.
        path: dotted path of the setting, e.g. `team.roles.planner.policy`.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "", path: str = "") -> None:
        self.what, self.why, self.fix, self.path = what, why, fix, path
        super().__init__(what)

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.what}" if self.path else self.what]
        lines += [f"  {name}: {text}" for name, text in (("why", self.why), ("fix", self.fix)) if text]
        return "\n".join(lines)


class ConfigError(UserError):
    """A setting is wrong; `path` names it."""


class NoFileError(ConfigError):
    """A setting names a file that isn't there, or a folder in its place."""


class PluginError(UserError):
    """A plugin can't be loaded, is ambiguous, or lacks a method of its kind."""


class MissingExtra(UserError):
    """An optional dependency is not installed. `instead` is another way out, e.g. `engine.type=hf`."""

    def __init__(self, package: str, extra: str, *, needed_by: str = "", instead: str = "") -> None:
        self.package, self.extra = package, extra
        by, other = f" (needed by {needed_by})" if needed_by else "", f", or set {instead}" if instead else ""
        fix = f"pip install 'coterie[{extra}]'{other}"
        super().__init__(f"the package '{package}' is not installed{by}", fix=fix)


class DataError(UserError):
    """A record of the user's data is wrong; the message names the file, line and field.

    Args:
        field: `-` where the line as a whole is wrong.
    """

    def __init__(self, file: str, line: int, field: str, what: str, *, fix: str = "") -> None:
        self.file, self.line, self.field = file, line, field
        where = "" if field == "-" else f", field '{field}'"
        super().__init__(f"{file}, line {line}{where}: {what}", fix=fix)


class RunFolderError(UserError):
    """A run folder can't be used: it holds no run, another configuration, or a damaged checkpoint."""


class WriteError(UserError):
    """A file can't be written. `fix` is, if it isn't given, what helps against `why`, and then `then`."""

    def __init__(self, what: str, *, why: str = "", then: str = "try again", **more: str) -> None:
        super().__init__(what, why=why, **{"fix": f"{write_fix(why)}, then {then}", **more})


class SystemFault(CoterieError):
    """A failure that the policy's output did not cause, e.g. a lost connection. The score is missing."""


class PolicyFault(CoterieError):
    """A failure that the policy's output caused, e.g. a verifier time-out. The score is the floor."""


class TooManyMissing(CoterieError):
    """The share of a source's missing scores, or of lost joint actions, exceeds `max_missing` in a step."""


def type_text(value: object) -> str:
    """What a value is, for a message: `None`, `a list` or `an int`."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to a misspelt one, or None."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: `did you mean 'x'?`, or the known words."""
    known = sorted(known)
    near = nearest(word, known)
    return f"did you mean '{near}'?" if near is not None else f"known: {', '.join(known) or 'none'}"
