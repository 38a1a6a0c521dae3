"""Errors: what went wrong, why, and how to fix it.

CoterieError
├── UserError            bad input: the command exits with code 2 and prints no traceback
│   ├── ConfigError      a setting is wrong; carries the dotted path of the key
│   ├── PluginError      a plugin is broken, missing or ambiguous; carries its distribution
│   ├── MissingExtra     an optional dependency is not installed; names the extra
│   ├── DataError        a line of the user's data is wrong; carries file, line and field
│   └── RunFolderError   a run folder can't be used (no run, changed config, damaged checkpoint)
├── SystemFault          ours or the world's doing (5xx, lost worker): the score is *missing*
├── PolicyFault          the output's doing (verifier time-out on it): scored with the source's floor
└── TooManyMissing       the share of missing scores passed `schedule.max_missing`: the run stops
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoterieError(Exception):
    """Base of every error that Coterie raises on purpose."""


class UserError(CoterieError):
    """Something the user can fix. `what` happened, `why`, and how to `fix` it."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", path: str = "") -> None:
        self.what, self.why, self.fix, self.path = what, why, fix, path
        super().__init__(what)

    def __str__(self) -> str:
        head = f"{self.path}: {self.what}" if self.path else self.what
        lines = [head]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class ConfigError(UserError):
    """A setting is wrong. `path` is the dotted key, e.g. `team.roles.planner.policy`."""


class PluginError(UserError):
    """A plugin can't be loaded, is ambiguous, or doesn't fit its kind."""


class MissingExtra(UserError):
    """An optional dependency is needed and absent."""

    def __init__(self, package: str, extra: str, *, needed_by: str = "") -> None:
        self.package, self.extra = package, extra
        by = f" (needed by {needed_by})" if needed_by else ""
        super().__init__(
            f"the package '{package}' is not installed{by}",
            fix=f"pip install 'coterie[{extra}]'",
        )


class DataError(UserError):
    """A record of the user's data is wrong: which file, line and field."""

    def __init__(self, file: str, line: int, field: str, what: str, *, fix: str = "") -> None:
        self.file, self.line, self.field = file, line, field
        super().__init__(f"{file}, line {line}, field '{field}': {what}", fix=fix)


class RunFolderError(UserError):
    """A run folder can't be used as asked."""


class SystemFault(CoterieError):
    """Not the policy's doing: a lost connection, a dead worker, a spent budget. The score is missing."""


class PolicyFault(CoterieError):
    """The output's doing: it hung its verifier or crashed its sandbox twice. Scored with the floor."""


class TooManyMissing(CoterieError):
    """The share of missing scores in a step passed the configured bound."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to a misspelt one, or None."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` or the list of what there is: the tail of an error message."""
    known = sorted(known)
    near = nearest(word, known)
    if near is not None:
        return f"did you mean '{near}'?"
    return "known: " + (", ".join(known) if known else "none")
