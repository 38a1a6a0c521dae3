"""The report as one HTML file: what it holds, and how it is written."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from coterie.api.rows import LARGEST, number_of, run_folders
from coterie.api.run_record import equal, stated
from coterie.core.errors import MissingExtra, UserError
from coterie.core.storage.atomic import write_atomic, written
from coterie.recipes import flatten
from coterie.secret_settings import without_secrets
from coterie.viewing.report import blocks, charts
from coterie.viewing.report.reading import ReportedRun, read_run
from coterie.viewing.report.summary import summary, warnings
from coterie.viewing.report.trees import DIGITS
from coterie.viewing.series import RunRows, configurations, curve, short_names
from coterie.viewing.text import written_out

FORMAT = 1
"""Of the embedded data."""
SCRIPTS = (
    "uPlot/uPlot.iife.min.js",
    *("data.js", "text.js", "dom.js", "theme.js", "charts.js", "metrics.js", "roles.js"),
    *("filters.js", "list.js", "tree.js", "tokens.js", "actions.js", "episode.js", "compare.js"),
    *("search.js", "keys.js", "places.js", "main.js"),
)
"""In the order in which they run."""
STYLES = ("uPlot/uPlot.min.css", "base.css", "charts.css", "explorer.css", "narrow.css")


def report(runs: str | Path | Sequence[str | Path], out: str | Path) -> Path:
    """Write the report of one or several runs as one HTML file that needs no network.

    Args:
        runs: run folders, or folders of runs, such as that of `coterie run --seeds`.
        out: the file; it is replaced as a whole.

    Returns:
        The file's path.

    Raises:
        RunFolderError: a folder is no run's, or the run has nothing to report yet.
        MissingExtra: jinja2 is not installed.
        UserError: no run, the same run twice, or `out` is a folder or has a suffix that isn't HTML's.
        WriteError: the file can't be written.
    """
    environment = _environment()
    named = [Path(path) for path in ([runs] if isinstance(runs, str | Path) else runs)]
    paths = [run for path in named for run in run_folders(path) or [path]]
    out = Path(out)
    _check(paths, out)
    text = page(environment, [read_run(path) for path in paths])
    with written(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, text)
    return out


def page(environment: Any, runs: Sequence[ReportedRun]) -> str:
    """The page's HTML."""
    rounded = sum(blocks.bytes_of(run.folder.rollout_files()) for run in runs) > blocks.EXACT_BYTES
    packed = [blocks.pack(run, rounded) for run in runs]
    data, texts, rules = _episodes(runs, packed)
    main = _main(runs, packed, rules, rounded)
    together = main["groups"]
    embedded = {"main": blocks.dumps(main), "episodes": blocks.dumps(data)}
    embedded |= {f"block-{number}": text for number, text in enumerate(texts)}
    style = "\n".join(asset(name) for name in STYLES)
    script = "\n".join(asset(name) for name in SCRIPTS)
    facts = [
        {
            **summary(run),
            "warnings": [*warnings(run, of)],
            "changes": changes(run),
            "settings": [(path, shown(value, path)) for path, value in settings(run).items()],
            "coaches": run.coaches,
            "evaluations": run.evaluations,
        }
        for run, of in zip(runs, packed, strict=True)
    ]
    return str(
        environment.get_template("report.html").render(
            title=", ".join(labels(runs)),
            labels=labels(runs),
            runs=facts,
            notes=[note for group in together for note in group["notes"]],
            colours=_colours(together),
            rules=rules,
            digits=DIGITS if rounded else None,
            differing=differing(runs) if len(runs) > 1 else [],
            environments={of["environment"] for of in facts},
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            version=_version(),
            style=style,
            script=script,
            policy=_policy(style, script),
            blocks={name: blocks.encoded(text) for name, text in embedded.items()},
        )
    )


def labels(runs: Sequence[ReportedRun]) -> list[str]:
    """A name for each run: its folder's, with as many folders above it as tell runs apart."""
    return short_names([run.folder.path.resolve() for run in runs])


def visible(text: Any) -> str:
    """A text with symbols for control characters and for what is not seen, or reorders or hides others."""
    return written_out(str(text), symbol)


def symbol(character: str) -> str:
    """`␀` of a control character; `⟨U+202E⟩` of one that has no symbol."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def number(value: Any, digits: int = 3) -> str:
    """A number for people; what is none is a dash."""
    value = number_of(value) if not isinstance(value, int) or abs(value) > LARGEST else value
    if value != value:
        return "–"
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def _episodes(
    runs: Sequence[ReportedRun], packed: Sequence[blocks.PackedRun]
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The index of all episodes, the texts of their blocks, and a rule a run (empty: all are there)."""
    texts: list[str] = []
    indices, rules = [], []
    for of in packed:
        trees, rule = blocks.kept(of, blocks.BYTES // len(runs))
        in_blocks = [*blocks.in_blocks(trees)]
        indices.append(blocks.episode_index(trees, in_blocks, len(texts)))
        texts += map(blocks.block_json, in_blocks)
        rules.append(rule)
    return {"runs": indices}, texts, rules


def _main(
    runs: Sequence[ReportedRun],
    packed: Sequence[blocks.PackedRun],
    rules: Sequence[str],
    rounded: bool,
) -> dict[str, Any]:
    """What the page draws first: metrics, charts, and what each role did."""
    names = [*dict.fromkeys(name for run in runs for row in run.rows for name in row if name != "step")]
    roles = [*dict.fromkeys(role for run in runs for role in run.team)]
    return {
        "format": FORMAT,
        "digits": DIGITS if rounded else None,
        "runs": [
            {
                "label": label,
                "team": run.team,
                "steps": run.steps,
                "columns": charts.columns(run.rows),
                "gaps": charts.gaps(run.rows),
                "evaluations": run.evaluations,
                "coaches": run.coaches,
                "roles": of.roles,
                "recorded": of.recorded,
                "all_trees": of.all_trees,
                "all_episodes": of.all_episodes,
                "rule": rule,
            }
            for label, run, of, rule in zip(labels(runs), runs, packed, rules, strict=True)
        ],
        "groups": groups(runs),
        "charts": charts.charts_of(names, roles),
        "metrics": charts.descriptions(names),
    }


def _colours(groups: Sequence[dict[str, Any]]) -> dict[int, int]:
    """Run -> its configuration's colour, as in the charts; of a single configuration lines have others."""
    if len(groups) < 2:
        return {}
    return {run: colour for colour, of in enumerate(groups) for run in (*of["runs"], *of["copies"])}


def _environment() -> Any:
    """jinja2 with autoescape: models wrote some of what the page shows.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", "report", needed_by="the report") from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(partial(_file, "templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"visible": visible, "number": number}
    return environment


def _check(paths: Sequence[Path], out: Path) -> None:
    if not paths:
        raise UserError("no run to report", fix="name a run's folder")
    resolved = [path.resolve() for path in paths]
    twice = [path for path in paths if resolved.count(path.resolve()) > 1]
    if twice:
        raise UserError(f"{twice[0]} is named twice", fix="name each run once")
    if out.is_dir():
        raise UserError(f"{out} is a folder", why="the report is one file", fix=f"-o {out / 'report.html'}")
    if out.suffix.lower() not in ("", ".html", ".htm"):
        fix = f"-o {out.with_suffix('.html')}"
        raise UserError(f"{out} is no name of a report", why="it is an HTML file", fix=fix)


def _policy(style: str, script: str) -> str:
    """A content security policy: nothing but this page's own style and script."""
    digests = (hashlib.sha256(text.encode()).digest() for text in (style, script))
    of_style, of_script = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {of_script}; style-src {of_style}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def asset(name: str) -> str:
    """The text of a style or a script of the page."""
    text = _file("assets", name)
    if "</" + "script" in text or "<!--" in text:
        raise AssertionError(f"{name} would end the element that it is in")
    return text.replace("\r\n", "\n")


def _file(folder: str, name: str) -> str:
    return resources.files(__package__).joinpath(folder, *name.split("/")).read_text(encoding="utf-8")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("coterie")
    except PackageNotFoundError:
        return ""


def groups(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """The runs by configuration: `{"label", "runs", "bands", "copies", "notes"}`.

    `runs` are their indices. `bands` has of each metric the mean and 95 % interval over seeds at each step:
    `{metric: {"steps", "mean", "low", "high", "counts"}}`; None: one run. `counts`: runs with a value at the
    step, which the mean is of. `left_out`: last steps that not all reached. `copies` are runs whose seed
    another one has, which count nowhere; `notes` say so.
    """
    rows = [RunRows(run.folder.path, settings(run), run.rows) for run in runs]
    places = {id(of): index for index, of in enumerate(rows)}
    together = []
    for configuration in configurations(rows):
        of = [places[id(run)] for run in configuration.runs]
        bands = _bands(configuration.runs) if len(of) > 1 else None
        together.append(
            {
                "label": configuration.label,
                "runs": of,
                "bands": bands,
                "copies": [places[id(copy)] for copy, _ in configuration.copies],
                "notes": configuration.notes,
            }
        )
    return together


def _bands(runs: Sequence[RunRows]) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(name for run in runs for name in run.names if not name.endswith("_ci95"))
    bands = {}
    for name in names:
        of = curve(runs, name)
        bands[name] = {
            "steps": [int(step) for step in of.x],
            "mean": [_known(value) for value in of.values],
            "low": [_known(value) for value in of.low],
            "high": [_known(value) for value in of.high],
            "counts": of.counts.tolist(),
            "left_out": of.left_out,
        }
    return bands


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


ABSENT = object()
UNEQUAL_ANYWAY = {"summary"}
"""Settings that say nothing of what is learned."""


def settings(run: ReportedRun) -> dict[str, Any]:
    """A run's settings by dotted path, with the defaults of its plugins where it recorded them."""
    return stated(run.record.settings if run.record is not None else dict(run.config))


def differing(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """Settings and versions that are not equal in all runs: `{"path", "values": [one a run]}`."""
    tables = [
        settings(run)
        | {f"version of {name}": of for name, of in (run.record.used if run.record else {}).items()}
        for run in runs
    ]
    rows = []
    for path in dict.fromkeys(path for table in tables for path in table):
        values = [table.get(path, ABSENT) for table in tables]
        if path not in UNEQUAL_ANYWAY and any(not _same(values[0], value) for value in values):
            rows.append({"path": path, "values": [shown(value, path) for value in values]})
    return rows


def changes(run: ReportedRun) -> list[dict[str, Any]]:
    """What resumes changed: `{"step", "path", "before", "after"}`."""
    rows = []
    for change in run.record.changes if run.record is not None else ():
        for kind in ("settings", "versions", "files"):
            for path, (before, after) in (change.get(kind) or {}).items():
                values = {"before": shown(before, path), "after": shown(after, path)}
                rows.append({"step": change["step"], "path": path, **values})
    return rows


def shown(value: Any, path: str = "") -> str:
    """A setting's value as text, without secrets; `path` is the setting's."""
    if value is ABSENT:
        return "(not set)"
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        inner = flatten(dict(value))
        return ", ".join(f"{name}: {shown(of, f'{path}.{name}')}" for name, of in inner) or "{}"
    return str(without_secrets(value, path.split(".")))


def _same(first: Any, second: Any) -> bool:
    if first is ABSENT or second is ABSENT:
        return first is second
    return equal(first, second)
