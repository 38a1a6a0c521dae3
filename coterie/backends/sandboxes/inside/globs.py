"""The globs of files that come back. Sent to SandboxFusion servers too: Python 3.9 or later."""

from __future__ import annotations

import fnmatch


def matches(path: list[str], glob: list[str]) -> bool:
    """Whether a path fits a glob, both as lists of names: `**` stands for any folders, at the end for all
    below. The time is that of the two lengths' product."""
    last = len(glob) - 1
    places = {0}  # of the glob, that the next name may fit
    for name in path:
        for at in sorted(places):
            while at < last and glob[at] == "**":
                at += 1
                places.add(at)
        places = {
            after
            for at in places
            if at <= last and (glob[at] == "**" or fnmatch.fnmatchcase(name, glob[at]))
            for after in ({at, at + 1} if glob[at] == "**" and at == last else {at + (glob[at] != "**")})
        }
    return len(glob) in places
