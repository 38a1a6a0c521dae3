"""Find the sites of an earlier commit in the tree as it is now.

Names that have changed since are in a table, old -> new. A key with a dot, such as `Old.method`, is a whole
qualname; any other key is an identifier, wherever it stands in the qualname or the text. Both sides are
rewritten with the table, so an identifier that kept its old name in places still matches.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.long.mutants.sites import Site, numbered

RENAMES = Path(__file__).with_name("renames.json")


@dataclass(frozen=True)
class Known:
    """What is kept of a site: all that is needed to recognise it."""

    qualname: str
    operator: str
    text: str
    ordinal: int
    shape: str
    shape_ordinal: int
    shape_count: int
    unique: bool
    """No other site of the whole package has this operator and text."""


class Renames:
    """Names that have changed: `Renames({"Strands": "ActiveRollouts", "Play.codec": "codec_of"})`."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self.qualnames = {old: new for old, new in table.items() if "." in old}
        self.words = {old: new for old, new in table.items() if "." not in old}
        alternatives = "|".join(map(re.escape, sorted(self.words, key=len, reverse=True)))
        self._pattern = re.compile(rf"\b(?:{alternatives})\b") if alternatives else None

    @classmethod
    def read(cls, path: Path = RENAMES) -> Renames:
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def text(self, text: str) -> str:
        return self._pattern.sub(lambda hit: self.words[hit[0]], text) if self._pattern else text

    def qualname(self, qualname: str) -> str:
        return self.text(self.qualnames.get(qualname, qualname))


def known(candidates: Sequence[Site], everywhere: Sequence[Site]) -> list[tuple[Known, Site]]:
    """The sites that can be recognised, each with what it is recognised by.

    Left out is a site of which `everywhere`, the whole package, has a double: same function name, operator,
    text and ordinal.
    """
    doubles, texts = defaultdict(int), defaultdict(int)
    for site in everywhere:
        doubles[site.qualname, site.operator, site.text, site.ordinal] += 1
        texts[site.operator, site.text] += 1
    return [
        (_known(site, texts[site.operator, site.text] == 1), site)
        for site in candidates
        if doubles[site.qualname, site.operator, site.text, site.ordinal] == 1
    ]


def _known(site: Site, unique: bool) -> Known:
    values = {field.name: getattr(site, field.name, unique) for field in dataclasses.fields(Known)}
    return Known(**values)


def in_seeded_order(pairs: Iterable[tuple[Known, Site]], seed: int) -> list[tuple[Known, Site]]:
    """An order that depends on nothing but the seed and the sites."""
    ordered = sorted(pairs, key=lambda pair: dataclasses.astuple(pair[0]))
    random.Random(seed).shuffle(ordered)
    return ordered


class Finder:
    """Finds known sites among those of a tree."""

    def __init__(self, sites: Sequence[Site], renames: Renames) -> None:
        self.renames = renames
        by_file: dict[str, list[Site]] = defaultdict(list)
        for site in sites:
            by_file[site.path].append(self._renamed(site))
        self._texts: dict[tuple[object, ...], list[Site]] = defaultdict(list)
        self._shapes: dict[tuple[object, ...], list[Site]] = defaultdict(list)
        self._anywhere: dict[tuple[str, str], list[Site]] = defaultdict(list)
        for file in by_file.values():
            for site in numbered(file):
                self._texts[site.qualname, site.operator, site.text, site.ordinal].append(site)
                shape = (site.qualname, site.operator, site.shape, site.shape_ordinal, site.shape_count)
                self._shapes[shape].append(site)
                self._anywhere[site.operator, site.text].append(site)

    def site(self, known: Known) -> Site | None:
        """The one site that the known one has become; None: there is none, or several could be it.

        The same text in the same function comes first, then the same text but for local names, then a text
        that is the only one of its kind, whatever function holds it.
        """
        wanted = self._renamed(known)
        shape = (wanted.qualname, wanted.operator, wanted.shape, wanted.shape_ordinal, wanted.shape_count)
        candidates = [
            self._texts.get((wanted.qualname, wanted.operator, wanted.text, wanted.ordinal), []),
            self._shapes.get(shape, []),
            self._anywhere.get((wanted.operator, wanted.text), []) if wanted.unique else [],
        ]
        return next((group[0] for group in candidates if len(group) == 1), None)

    def _renamed(self, site: Site | Known) -> Site | Known:
        return dataclasses.replace(
            site,
            qualname=self.renames.qualname(site.qualname),
            text=self.renames.text(site.text),
            shape=self.renames.text(site.shape),
        )
