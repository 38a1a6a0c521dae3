"""`prepare` and `reproduce`: from the name of a study to its plan, and from the plan to its table."""

from __future__ import annotations

import io
import json
import logging
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from coterie import CoterieError, MissingExtra, PluginError, to_json, write_atomic
from coterie.studies import table
from coterie.studies.catalogue import columns_of, load_study
from coterie.studies.graph import StudyPlan, plan
from coterie.studies.runner import Runner, StudyOutcome, Watcher, make_folder

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The table of a study, its files, and the outcome of its jobs."""

    table: Mapping[str, Any]
    markdown: str
    files: Sequence[Path]
    outcome: StudyOutcome


@contextmanager
def code_of(study: str, done: str) -> Iterator[None]:
    """A context in which a study's functions are called: what comes of a wrong one is told as the study's.

    Args:
        done: what can't be done to the study then, e.g. `planned`.

    Raises:
        PluginError: names the study, the exception and its place.
    """
    try:
        yield
    except CoterieError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise PluginError(
            f"study '{study}' can't be {done}: {type(error).__name__}: {error}",
            why=f"raised at {place.filename}, line {place.lineno}",
            fix="its methods, claims and analysis return what docs/kinds/study.md says; what was run is kept",
        ) from error


def prepare(
    name: str,
    *,
    scale: str = "cpu",
    seeds: int = 3,
    first_seed: int = 0,
    columns: Sequence[str] | None = None,
    tokens: int | None = None,
    tasks: int | None = None,
) -> StudyPlan:
    """Resolve and check everything; write nothing.

    Raises:
        UserError: something in the input is wrong.
    """
    study = load_study(name)
    with code_of(name, "planned"):
        if scale in study.refused:  # before any error about columns
            return plan(name, study, (), scale=scale, seeds=seeds, first_seed=first_seed)
        chosen = columns_of(study, columns, scale)
        return plan(
            name, study, chosen, scale=scale, seeds=seeds, first_seed=first_seed, tokens=tokens, tasks=tasks
        )


def reproduce(
    prepared: StudyPlan,
    out: Path,
    *,
    jobs: int,
    watcher: Watcher,
    interrupt: Event | None = None,
    plugin_files: Sequence[str] = (),
    command: str = "",
) -> Reproduction:
    """Run the jobs that are not done; write `table.md`, `table.csv`, `table.json` and `plot.png` to `out`.

    If `out` holds the table of another study, the files go to a subfolder with this study's name.

    Raises:
        RunFolderError: another process works in `out`, or it can't be written.
    """
    begin = time.perf_counter()
    runner = Runner(
        prepared, out, jobs=jobs, watcher=watcher, interrupt=interrupt or Event(), plugin_files=plugin_files
    )
    outcome = runner.run()
    folders = {id_: runner.folder(id_) for id_ in prepared.jobs}
    with code_of(prepared.name, "shown as a table"):
        results = {
            **table.collect(prepared, outcome, folders),
            "wall_seconds": time.perf_counter() - begin,
            "parallel_jobs": jobs,
            "command": command,
            "complete": all(outcome.states.get(id_) == "done" for id_ in prepared.jobs),
        }
        text = table.markdown(results, prepared)
        return Reproduction(results, text, write(results, text, prepared, out), outcome)


def write(results: Mapping[str, Any], text: str, prepared: StudyPlan, out: Path) -> list[Path]:
    """Write the files of a table, each as a whole; return their paths."""
    folder = results_folder(out, prepared.name)
    make_folder(folder)
    files = [folder / "table.md", folder / "table.csv", folder / "table.json"]
    pretty = json.dumps(json.loads(to_json(results)), indent=1, ensure_ascii=False)
    for path, content in zip(files, (text, table.as_csv(results), pretty + "\n"), strict=True):
        write_atomic(path, content)
    try:
        files.append(draw(folder / "plot.png", results, prepared))
    except MissingExtra as error:
        log.warning("no plot: %s", error)
    return files


def results_folder(out: Path, study: str) -> Path:
    """`out`, or a subfolder of it with the study's name if `out` holds the table of another study."""
    try:
        other = json.loads((out / "table.json").read_text(encoding="utf-8"))["study"] != study
    except (OSError, ValueError, KeyError):
        other = False
    return out / study if other else out


BLUE, ORANGE, GREY, LINES = "#2563a8", "#d9822b", "#5c6670", "#e3e6ea"


def draw(path: Path, table: Mapping[str, Any], plan: StudyPlan) -> Path:
    """Draw one panel per column: success by method, or the curves of the study's analysis.

    Raises:
        MissingExtra: matplotlib is not installed.
        WriteError: the file can't be written.
    """
    try:
        from matplotlib.figure import Figure  # pyplot would choose a window system, and keep the figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "torch", needed_by="the plot") from error
    columns = table["columns"]
    figure = Figure(figsize=(max(6.4, 4.6 * len(columns)), 4.8), layout="constrained")
    panels = figure.subplots(1, len(columns), squeeze=False)[0]
    analysis = plan.study.analysis
    for axes, column in zip(panels, columns.values(), strict=True):
        if analysis is not None and analysis.draw is not None:
            curves = {int(seed): values for seed, values in column["analysis"].items()}
            analysis.draw(axes, curves, column["title"])
        else:
            _bars(axes, column)
        axes.spines["top"].set_visible(False)
        axes.grid(axis="y", color=LINES, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=GREY)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    write_atomic(path, picture.getvalue())
    return path


def _bars(axes: Any, column: Mapping[str, Any]) -> None:
    rows = column["rows"]
    for x, row in enumerate(rows):
        success = row["success"]
        if success is None:
            axes.annotate("failed", (x, 2), ha="center", color=GREY, fontsize=8, rotation=90)
        else:
            mean = 100 * success["mean"]
            low, high = (mean if bound is None else 100 * bound for bound in success["ci95"])
            axes.bar(x, mean, width=0.65, color=BLUE, alpha=0.75, yerr=[[mean - low], [high - mean]],
                     error_kw={"capsize": 3, "ecolor": GREY})  # fmt: skip
        points = [100 * seed["success"]["mean"] for seed in row["seeds"] if seed["success"] is not None]
        spread = [x + 0.12 * (i - (len(points) - 1) / 2) for i in range(len(points))]
        axes.plot(spread, points, "o", color=ORANGE, markersize=4, label=_once(axes, "each seed"))
        if row["paper"] is not None:
            axes.plot(x, row["paper"], "D", markerfacecolor="none", markeredgecolor=GREY, markersize=8,
                      label=_once(axes, "paper"))  # fmt: skip
    axes.set_xticks(range(len(rows)), [row["title"] for row in rows], rotation=30, ha="right", fontsize=8)
    axes.set_ylim(-2, 102)
    axes.set_ylabel("success, %")
    axes.set_title(column["title"], loc="left", fontsize=11, fontweight="bold")
    axes.legend(frameon=False, fontsize=8)


def _once(axes: Any, label: str) -> str | None:
    """The label, or None if the legend has it already."""
    return None if label in axes.get_legend_handles_labels()[1] else label
