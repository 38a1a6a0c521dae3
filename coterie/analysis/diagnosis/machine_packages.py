"""What is installed: versions, extras, plugins."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from coterie.analysis.diagnosis.health import HealthCheck, fault, ok, warning
from coterie.api.run_record import LIBRARIES
from coterie.discovery import plugins
from coterie.extras import EXTRA_OF

WHOLE = ("all", "dev", "docs", "test")
"""Extras that no plugin asks for."""


def versions() -> Iterator[HealthCheck]:
    """Python, Coterie, the libraries that results depend on, and the distributions of plugins."""
    python = platform.python_version()
    needed = metadata.metadata("coterie")["Requires-Python"] or ""
    if needed and not SpecifierSet(needed).contains(python, prereleases=True):
        yield fault("python", f"Python {python}, and Coterie needs {needed}", f"install Python {needed}")
    distributions = {report.distribution for report in plugins().reports if report.version}
    known = {name: version_of(name) for name in (*LIBRARIES, *sorted(distributions - {*LIBRARIES}))}
    installed = {name: version for name, version in known.items() if version}
    text = ", ".join(f"{name} {version}" for name, version in installed.items())
    yield ok("versions", f"python {python}, {text}", python=python, **installed)


def version_of(distribution: str) -> str:
    """The installed version; empty: it isn't installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def extras() -> Iterator[HealthCheck]:
    """The extras: installed, missing, or broken. Nothing is imported."""
    missing: list[str] = []
    installed: dict[str, list[str]] = {}
    for extra, needs in sorted(_requirements().items()):
        if extra in WHOLE:
            continue
        absent = [need.name for need in needs if not version_of(need.name)]
        wrong = [
            f"{need.name} {version} is not {need.specifier}"
            for need in needs
            if (version := version_of(need.name)) and not need.specifier.contains(version, prereleases=True)
        ]
        modules = [module for module, of in EXTRA_OF.items() if of == extra]
        gone = [] if absent else [module for module in modules if not _importable(module)]
        if wrong:
            yield warning(f"extra {extra}", "; ".join(wrong), f'pip install --upgrade "coterie[{extra}]"')
        elif gone:
            what = f"installed, but {', '.join(gone)} can't be imported"
            yield fault(f"extra {extra}", what, f'pip install --force-reinstall "coterie[{extra}]"')
        elif absent:  # packages are often another extra's too, so that a part is there by chance
            missing.append(extra)
        else:
            installed[extra] = [f"{need.name} {version_of(need.name)}" for need in needs]
    says = f"installed: {', '.join(installed) or 'none'}"
    if missing:
        says += f'; not installed: {", ".join(missing)} (pip install "coterie[{missing[0]}]" where needed)'
    yield ok("extras", says, installed=installed, missing=missing)


def _requirements() -> dict[str, list[Requirement]]:
    """What each extra of Coterie asks for on this machine."""
    by_extra: dict[str, list[Requirement]] = {}
    names = metadata.metadata("coterie").get_all("Provides-Extra") or []
    for text in metadata.requires("coterie") or []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        for extra in names:
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                by_extra.setdefault(extra, []).append(requirement)
    return by_extra


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def plugin_faults() -> Iterator[HealthCheck]:
    """What is wrong with plugins, as `coterie plugins` reports it."""
    from coterie.recipes.listing import broken_files

    reports = plugins().reports
    healthy = 0
    for report in reports:
        errors = [*report.errors, *broken_files(report.provides, report.distribution)]
        name = f"plugin {report.distribution}"
        if errors:
            fix = (
                f"correct it or uninstall it; coterie plugins show {report.distribution} has the whole error"
            )
            yield fault(name, " ".join(errors[0].split())[:400], fix)
        elif report.warnings:
            yield warning(name, " ".join(report.warnings[0].split())[:400], "tell its authors")
        else:
            healthy += 1
    yield ok("plugins", f"{healthy} of {len(reports)} without a fault")
