"""Compare the results of two commits bit for bit: the evidence for a refactoring.

    python benchmarks/reference.py BASE HEAD [--jobs 'tabular-*'] [--processes 2]

Runs the same short trainings with the code of both commits, on this machine and in this environment, and
compares what was sampled, what it was worth, the metrics and the weights. Exits with 0 where all is equal,
with 1 where anything differs, and with 2 where it can't start.

    python benchmarks/reference.py --golden > tests/golden/tabular_runs.json

prints fingerprints of the tabular runs of the working tree instead; `make test` holds the code to them.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import io
import json
import os
import platform
import shlex
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import click
from reference_jobs import ALGORITHMS, JOBS, ROOT, Job, Outcome, environment, run, tabular
from reference_runs import counts, differences, fingerprint, read_run, unshared
from rich.console import Console
from rich.markup import escape
from rich.table import Table

SIDES = ("base", "head")
SHOWN = 5
"""Differences of a job that the JSON lists; the table shows the first."""
PACKAGES = ("numpy", "torch", "transformers")


@click.command(help=__doc__.replace("\n\n    python", "\n\n\b\n    python"))
@click.argument("base", required=False)
@click.argument("head", required=False)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=ROOT / "benchmarks" / "results" / "reference.json",
    help="Where the report goes [benchmarks/results/reference.json].",
)
@click.option("--jobs", "patterns", multiple=True, metavar="NAME", help="Only these; may have * [all].")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep checkouts and runs here.")
@click.option("--golden", is_flag=True, help="Print fingerprints of the working tree's tabular runs.")
def main(
    base: str | None,
    head: str | None,
    out: Path,
    patterns: tuple[str, ...],
    processes: int,
    keep: Path | None,
    golden: bool,
) -> None:
    if golden:
        lines = (f"{json.dumps(name)}: {json.dumps(kept)}" for name, kept in fingerprints(processes).items())
        click.echo("{\n" + ",\n".join(lines) + "\n}")  # a line for each algorithm
        return
    if base is None or head is None:
        why = f"got {base} alone" if base else "got none"
        raise usage_error("two commits are needed", why, "name both, e.g. main~1 main")
    jobs = selected(patterns)
    commits = {side: commit_of(name) for side, name in zip(SIDES, (base, head), strict=True)}
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise usage_error(
            f"{keep} is not empty", "old runs would be taken for new ones", "name another folder"
        )
    with tempfile.TemporaryDirectory(prefix="reference-") as temporary:
        folder = (keep or Path(temporary)).resolve()
        for side, commit in commits.items():
            check_out(commit, folder / side / "checkout")
        outcomes = run_all(jobs, folder, processes)
        rows = [compared(job, folder, outcomes) for job in jobs]
    report = {
        "commits": commits,
        "equal": all(row["equal"] for row in rows),
        **machine(processes),
        "jobs": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    show(report)
    sys.exit(0 if report["equal"] else 1)


def usage_error(what: str, why: str, fix: str) -> click.UsageError:
    """Bad usage; click exits with 2."""
    return click.UsageError(f"{what}\n  why: {why}\n  fix: {fix}")


def selected(patterns: Sequence[str]) -> list[Job]:
    """The jobs whose names match any of the patterns; all where there is none."""
    for pattern in patterns:
        if not fnmatch.filter([job.name for job in JOBS], pattern):
            names = ", ".join(job.name for job in JOBS)
            raise usage_error(
                f"unknown job '{pattern}'", "no job's name matches it", f"name some of: {names}"
            )
    return [job for job in JOBS if not patterns or any(fnmatch.fnmatch(job.name, p) for p in patterns)]


# ------------------------------------------------------------------------------------------------ checkouts


def commit_of(name: str) -> str:
    """The hash of a commit, branch or tag."""
    command = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        raise usage_error("git is missing", "checkouts are made by git", "install git") from None
    if done.returncode:
        why = done.stderr.strip() or "this repository has no such commit, branch or tag"
        raise usage_error(f"unknown commit '{name}'", why, "choose one that `git log --all --oneline` lists")
    return done.stdout.strip()


def check_out(commit: str, target: Path) -> None:
    """Write a commit's files, and make sure that they are what a job imports."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    target.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")
    _install(target)
    done = subprocess.run(
        [sys.executable, "-c", "import coterie; print(coterie.__file__)"],
        cwd=target.parent,
        env=environment(target),
        capture_output=True,
        text=True,
    )
    if not done.stdout.strip().startswith(str(target)):
        why = (done.stderr or f"python imports {done.stdout}").strip()
        raise usage_error(
            f"commit {commit[:12]} can't be run", why, "choose a commit whose `coterie` imports here"
        )


def _install(checkout: Path) -> None:
    """Declare the checkout's entry points: those of an installed Coterie may name modules that have moved."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    info = checkout / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{entry} = {target}\n" for entry, target in entries.items())
        for group, entries in project.get("entry-points", {}).items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))


# ----------------------------------------------------------------------------------------------------- jobs


def run_all(jobs: Sequence[Job], folder: Path, processes: int) -> dict[tuple[str, str], Outcome]:
    """(job, side) -> outcome. A job's two sides are neighbours, so that their times are comparable."""
    console = Console(stderr=True)
    futures: dict[tuple[str, str], Future[Outcome]] = {}
    with ThreadPoolExecutor(processes) as pool:
        for job in jobs:
            for side in SIDES:
                (folder / side / "runs").mkdir(exist_ok=True)
                out = folder / side / "runs" / job.name
                futures[job.name, side] = pool.submit(run, job, folder / side / "checkout", out)
        for (name, side), future in futures.items():
            outcome = future.result()
            ended = "failed after " if outcome.error else ""
            console.print(f"{name} {side}: {ended}{outcome.seconds:.1f} s", highlight=False)
    return {place: future.result() for place, future in futures.items()}


def compared(job: Job, folder: Path, outcomes: dict[tuple[str, str], Outcome]) -> dict[str, Any]:
    """A job's row of the report."""
    processes = {side: outcomes[job.name, side] for side in SIDES}
    row: dict[str, Any] = {
        "job": job.name,
        "command": shlex.join(["coterie", *job.words(Path("DIR"))]).replace(f"{ROOT}/", ""),
        "seconds": {side: round(outcome.seconds, 1) for side, outcome in processes.items()},
    }
    errors = {side: outcome.error for side, outcome in processes.items() if outcome.error}
    if errors:
        return {**row, "equal": False, "errors": errors}
    base, head = (read_run(folder / side / "runs" / job.name) for side in SIDES)
    listed = [
        {"where": difference.where, "base": difference.base, "head": difference.head}
        for difference in islice(differences(base, head), SHOWN)
    ]
    return {
        **row,
        **counts(base),
        "equal": not listed,
        "differences": listed,
        "unshared": unshared(base, head),
    }


def fingerprints(processes: int) -> dict[str, dict[str, Any]]:
    """algorithm -> fingerprint of its tabular run with the code of the working tree."""
    with tempfile.TemporaryDirectory(prefix="reference-") as folder, ThreadPoolExecutor(processes) as pool:
        futures = {
            algorithm: pool.submit(run, tabular(algorithm), ROOT, Path(folder) / algorithm)
            for algorithm in ALGORITHMS
        }
        for algorithm, future in futures.items():
            if error := future.result().error:
                raise click.ClickException(f"the run of {algorithm} failed\n  why: {error}\n  fix: repair it")
        return {algorithm: fingerprint(Path(folder) / algorithm) for algorithm in ALGORITHMS}


# --------------------------------------------------------------------------------------------------- report


def machine(processes: int) -> dict[str, Any]:
    """The versions and the processor, on which floats and times depend."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "machine": {"versions": versions, "processor": platform.machine(), "cpus": os.cpu_count()},
        "processes": processes,
    }


def show(report: dict[str, Any]) -> None:
    """Print the table, fields that were left out, and the verdict."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    base, head = (report["commits"][side][:12] for side in SIDES)
    table = Table(title=f"{base} and {head}")
    for name in ("job", "steps", "rows", "tokens", "seconds", "equal?", "first difference"):
        right = name in ("steps", "rows", "tokens", "seconds")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in report["jobs"]:
        numbers = [f"{row[name]:,}" if name in row else "-" for name in ("steps", "rows", "tokens")]
        seconds = " / ".join(f"{row['seconds'][side]:.1f}" for side in SIDES)
        table.add_row(row["job"], *numbers, seconds, "yes" if row["equal"] else "NO", escape(first(row)))
    console.print(table)
    for side in SIDES:
        fields = {field for row in report["jobs"] for field in row.get("unshared", {}).get(side, ())}
        if fields:
            console.print(f"not compared, of {side} alone: {', '.join(sorted(fields))}", highlight=False)
    unequal = [row["job"] for row in report["jobs"] if not row["equal"]]
    verdict = f"{len(unequal)} of {len(report['jobs'])} jobs differ" if unequal else "all jobs are equal"
    total = " / ".join(f"{sum(row['seconds'][side] for row in report['jobs']):.0f}" for side in SIDES)
    console.print(
        f"{verdict}; seconds of all jobs: {total}, in {report['processes']} processes", highlight=False
    )


def first(row: dict[str, Any]) -> str:
    """The first difference of a row of the report, in words."""
    if "errors" in row:
        side, error = next(iter(row["errors"].items()))
        lines = error.splitlines()
        # Coterie's own errors begin so; of anything else, the traceback's end tells most.
        return f"{side} failed: " + next((line for line in lines if line.startswith("Error: ")), lines[-1])
    if row["equal"]:
        return ""
    difference = row["differences"][0]
    return f"{difference['where']}: {difference['base']} / {difference['head']}"


if __name__ == "__main__":
    main()
