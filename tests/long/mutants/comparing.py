"""The base: what the tests made of the mutants of an earlier commit; and the same mutants today."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.long.mutants.covering import PACKAGE
from tests.long.mutants.judging import Judges, Verdict, described
from tests.long.mutants.matching import Finder, Known, Renames, in_seeded_order, known
from tests.long.mutants.sites import Site, tree_sites

WANTED = 200
"""Mutants that are compared."""
SPARE = 60
"""Mutants of the base beyond these, for sites that are gone."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Entry:
    """A mutant of the base, and what became of it there."""

    known: Known
    verdict: Verdict
    where: str
    """For the reader: the line it was on."""

    def row(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self.known), **dataclasses.asdict(self.verdict), "where": self.where}

    @classmethod
    def read(cls, row: dict[str, Any]) -> Entry:
        parts = [
            kind(**{field.name: row[field.name] for field in dataclasses.fields(kind)})
            for kind in (Known, Verdict)
        ]
        return cls(*parts, row["where"])


def record(file: Path, folder: Path, root: Path, commit: str, seed: int, say: Say) -> str:
    """Judge the mutants of the core as it is, and write the base file; returns what it says."""
    core = tree_sites(root, f"{PACKAGE}/core")
    pairs = in_seeded_order(known(core, tree_sites(root, PACKAGE)), seed)[: WANTED + SPARE]
    with Judges(folder, root, say) as judges:
        reach = judges.reach()
        reach.skip = set(reach.slow())
        verdicts = judges.verdicts([site for _, site in pairs], reach)
    entries = [
        Entry(what, verdict, f"{site.path}:{site.lines[0]}")
        for (what, site), verdict in zip(pairs, verdicts, strict=True)
    ]
    killed = sum(entry.verdict.killed for entry in entries[:WANTED])
    head = {"commit": commit, "seed": seed, "sites": len(core), "wanted": WANTED, "killed": killed}
    head["slow"] = sorted(reach.skip)
    rows = ",\n".join(json.dumps(entry.row(), ensure_ascii=False) for entry in entries)
    file.write_text(
        json.dumps(head, ensure_ascii=False)[:-1] + f', "mutants": [\n{rows}\n]}}\n', encoding="utf-8"
    )
    return f"{killed} of {WANTED} mutants killed at {commit}, of {len(core)} that could be made"


@dataclass(frozen=True)
class Pair:
    """A mutant of the base, and the same one today."""

    entry: Entry
    site: Site
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    commit: str
    pairs: Sequence[Pair]
    lost: Sequence[Entry]
    """Mutants of the base that can't be made any more, with the spare ones in their place."""

    @property
    def before(self) -> int:
        return sum(pair.entry.verdict.killed for pair in self.pairs)

    @property
    def now(self) -> int:
        return sum(pair.verdict.killed for pair in self.pairs)

    def __str__(self) -> str:
        newly = [pair for pair in self.pairs if pair.entry.verdict.killed and not pair.verdict.killed]
        still = [pair for pair in self.pairs if not pair.entry.verdict.killed and not pair.verdict.killed]
        gained = [pair for pair in self.pairs if not pair.entry.verdict.killed and pair.verdict.killed]
        lines = [
            f"{len(self.pairs)} mutants of {self.commit}: {self.before} killed before, {self.now} now",
            f"survive now, killed before ({len(newly)}):",
            *(f"  {described(pair.site)} -- by {pair.entry.verdict.killer}" for pair in newly),
            f"killed now, survived before ({len(gained)}):",
            *(f"  {described(pair.site)} -- by {pair.verdict.killer}" for pair in gained),
            f"survive now as before ({len(still)}):",
            *(f"  {described(pair.site)}" for pair in still),
            f"gone, with a spare one in its place ({len(self.lost)}):",
            *(f"  {entry.where} {entry.known.qualname} [{entry.known.operator}]" for entry in self.lost),
        ]
        return "\n".join(lines)


def matched(entries: Sequence[Entry], finder: Finder) -> tuple[list[tuple[Entry, Site]], list[Entry]]:
    """The first entries whose sites are still there, as many as are wanted, and those that are gone."""
    pairs: list[tuple[Entry, Site]] = []
    lost, taken = [], set()
    for entry in entries:
        if len(pairs) == WANTED:
            break
        site = finder.site(entry.known)
        if site is None or site in taken:
            lost.append(entry)
        else:
            taken.add(site)
            pairs.append((entry, site))
    return pairs, lost


def compare(file: Path, folder: Path, root: Path, say: Say) -> Comparison:
    """Judge the base's mutants on the tree as it is."""
    base = json.loads(file.read_text(encoding="utf-8"))
    entries = [Entry.read(row) for row in base["mutants"]]
    pairs, lost = matched(entries, Finder(tree_sites(root, PACKAGE), Renames.read()))
    with Judges(folder, root, say) as judges:
        reach = judges.reach(base["slow"])
        killers = [entry.verdict.killer for entry, _ in pairs]
        verdicts = judges.verdicts([site for _, site in pairs], reach, killers)
    return Comparison(
        base["commit"],
        [Pair(entry, site, verdict) for (entry, site), verdict in zip(pairs, verdicts, strict=True)],
        lost,
    )
