"""The diagnosis of a machine: what of it a run would meet, a line each, with its fix."""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, overload

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from coterie.analysis.diagnosis import machine_hardware
from coterie.analysis.diagnosis.machine_hardware import HealthCheck, fault, ok, warning
from coterie.analysis.diagnosis.run import RunDiagnosis, diagnose_run
from coterie.analysis.diagnosis.sandboxes import check_sandbox
from coterie.api.run_record import LIBRARIES
from coterie.core.errors import CoterieError
from coterie.discovery import plugins
from coterie.extras import EXTRA_OF


@dataclass(frozen=True, slots=True)
class MachineDiagnosis:
    """What was checked of this machine."""

    checks: tuple[HealthCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether a run would meet nothing that is broken."""
        return all(check.status != "fault" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return {"ok": self.ok, "checks": [check.as_dict() for check in self.checks]}


def sandbox() -> Iterator[HealthCheck]:
    """Whether programs run, and which protections are missing, as `coterie sandbox check` shows them."""
    more = "coterie sandbox check shows each protection"
    try:
        checked = check_sandbox({})
    except CoterieError as error:
        yield fault("sandbox", " ".join(str(error).split())[:400], more)
        return
    if not checked.works:
        result = checked.result
        what = f"it does not run programs: {result.status} {result.reason} {result.stderr}"
        yield fault("sandbox", " ".join(what.split())[:400], more)
        return
    missing = [row for row in checked.protections if not row.active]
    active = len(checked.protections) - len(missing)
    if missing:
        needs = sorted({row.needs for row in missing if row.needs})
        what = f"{len(missing)} protections are missing: {', '.join(row.name for row in missing)}"
        fix = f"programs of a model need {'; '.join(needs) or 'another host'}. {more}"
        yield warning("sandbox", what, fix, missing=[row.name for row in missing])
    else:
        yield ok("sandbox", f"it runs programs, and all {active} protections are active")


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
        gone = [] if absent else [module for module in modules if not importable(module)]
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


def importable(module: str) -> bool:
    """Whether a module is found; it is not imported."""
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


GAME = "coterie.analysis.diagnosis.self_test_game"
LIMIT = 10.0
"""Seconds until the run is ended."""
STEPS = 12
LEAST_GAIN = 0.2
"""By which success must rise; in the run it rises from about .1 to 1."""

RUN: dict[str, Any] = {
    "env": {"type": f"{GAME}:LetterGame"},
    "team": {
        "order": [["first", "second"]],
        "roles": {role: {"type": f"{GAME}:LetterRole", "policy": role} for role in ("first", "second")},
    },
    "policies": {role: {"model": {"init": "tabular"}} for role in ("first", "second")},
    "sampler": {"branches": 4, "pairing": "cross", "sampling": {"max_new_tokens": 1}},
    "algorithm": "at_grpo",
    "engine": "tabular",
    "trainer": {"type": "tabular", "learning_rate": 2.0},
    "schedule": {"steps": STEPS, "tasks_per_step": 8, "evaluate_every": 0, "checkpoint_every": 0},
}
"""Two tables of logits: no optional package takes part."""


def self_test(limit: float = LIMIT) -> HealthCheck:
    """Make the run in a process of its own and in a temporary folder, and end it after `limit` seconds."""
    name, begin = "self-test", time.perf_counter()
    report = "run it by hand for all it prints: python -m coterie.analysis.diagnosis.machine FOLDER"
    with tempfile.TemporaryDirectory(prefix="coterie-doctor-") as folder:
        command = [sys.executable, "-m", __name__, folder]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            why = f"a run of {STEPS} tiny steps took more than {limit:g} seconds"
            return warning(name, why, "set OMP_NUM_THREADS=1, end what else uses the cores, and try again")
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        return fault(name, f"a tiny run ended with code {done.returncode}: {last[:300]}", report)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    before, after = result["before"], result["after"]
    if after - before < LEAST_GAIN:
        what = f"a tiny run learned nothing: success {before:.2f} before, {after:.2f} after"
        return fault(name, what, report, **result)
    says = f"a run of {STEPS} steps learned ({before:.2f} to {after:.2f}), saved, and was evaluated"
    return ok(name, f"{says}, in {seconds:.1f} s", **result, seconds=round(seconds, 1))


def make(folder: Path) -> dict[str, float]:
    """Train the run in `folder` and evaluate its first and its last checkpoint: mean success of each."""
    from coterie.api.evaluate import evaluate
    from coterie.api.train import train

    train(RUN, out=folder / "run")
    return {
        name: evaluate(folder / "run", split="val", tasks=8, samples=4, checkpoint=step).success.mean
        for name, step in (("before", 0), ("after", STEPS))
    }


if __name__ == "__main__":
    print(json.dumps(make(Path(sys.argv[1]))))


CHECKS: dict[str, Callable[[], Iterable[HealthCheck]]] = {
    "versions": versions,
    "extras": extras,
    "plugins": plugin_faults,
    "gpu": machine_hardware.gpus,
    "threads": machine_hardware.threads,
    "memory": machine_hardware.memory,
    "disk": machine_hardware.disks,
    "shared memory": machine_hardware.shared_memory,
    "open files": machine_hardware.open_files,
    "sandbox": sandbox,
}
"""By name, what yields the lines of a check; in the order in which they are shown."""


def diagnose_machine(*, with_self_test: bool = True) -> MachineDiagnosis:
    """Check this machine. A check that fails itself is a line too, and hides no other one.

    Args:
        with_self_test: whether to make a run of seconds as well.
    """
    lines: list[HealthCheck] = []
    checks = {**CHECKS, **({"self-test": lambda: [self_test()]} if with_self_test else {})}
    for name, check in checks.items():
        try:
            lines += check()
        except Exception as error:  # whatever a machine makes of a check
            why = f"the check itself failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            lines.append(warning(name, why, "please report it, with this line"))
    return MachineDiagnosis(tuple(lines))


WHOLE = ("all", "dev", "docs", "test")
"""Extras that no plugin asks for."""


@overload
def doctor(folder: None = None, *, self_test: bool = True) -> MachineDiagnosis: ...


@overload
def doctor(folder: Path | str, *, self_test: bool = True) -> RunDiagnosis: ...


def doctor(folder: Path | str | None = None, *, self_test: bool = True) -> MachineDiagnosis | RunDiagnosis:
    """Say what is wrong with this machine, or with a run.

    Args:
        folder: a run's folder, whose metrics and rollout files are searched for known sicknesses; None: this
            machine is checked.
        self_test: of the machine, whether to train a tiny run of seconds too.

    Raises:
        RunFolderError: the folder is no run's, or its rows are damaged.
    """
    return diagnose_machine(with_self_test=self_test) if folder is None else diagnose_run(folder)
