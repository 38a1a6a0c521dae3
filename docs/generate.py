"""Write what is made from the code: `python docs/generate.py`. A test fails when a file is stale.

`docs/cli.md` is generated whole. On other pages a generated table is between two comments,
`<!-- Made by docs/generate.py: NAME. -->` and `<!-- End of NAME. -->`. Of the public names
(`coterie/public.py`) it also makes the stubs for type checkers and `tests/golden/public_names.txt`. A public
name that is gone must be meant: `python docs/generate.py --remove NAME`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import click

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # a test runs this file by its path

from kind_parts import cell as _cell, documented, kind_parts  # noqa: E402

from coterie.core.plugins import KINDS  # noqa: E402
from coterie.scaffold.code import Import, import_text  # noqa: E402

HEAD = """\
# The command line

<!-- Made by docs/generate.py from the commands' own help: change it there. -->

Exit codes: 0 success; 1 failure; 2 wrong input, and the message says what is wrong, why and how to fix it;
130 interrupted. Output for machines goes to stdout, progress and warnings to stderr; `COTERIE_DEBUG=1` adds
the traceback to messages about wrong input. `coterie --help` also lists the commands of installed plugins.
"""


def cli_page() -> str:
    """`docs/cli.md`."""
    return HEAD + "".join(f"\n## {title}\n\n```text\n{text}\n```\n" for title, text in helps())


def helps() -> Iterator[tuple[str, str]]:
    """(heading, help text) of the group and of each built-in command."""
    from coterie.cli.main import COMMANDS, cli

    group = click.Context(cli, info_name="coterie", terminal_width=100, **cli.context_settings)
    # Plugins that happen to be installed here are no part of the page.
    yield "coterie", cli.get_help(group).partition("\n\nCommands of plugins")[0]
    for name in COMMANDS:
        command = cli.get_command(group, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=group) as context:
            yield f"coterie {name}", command.get_help(context)
            for subname in command.list_commands(context) if isinstance(command, click.Group) else ():
                subcommand = command.get_command(context, subname)
                assert subcommand is not None
                with click.Context(subcommand, info_name=subname, parent=context) as subcontext:
                    yield f"coterie {name} {subname}", subcommand.get_help(subcontext)


def hooks_table() -> str:
    """Every hook, with its signature and its docstring."""
    from coterie.compose.described import hooks

    rows = ["| hook | what it is for |", "|---|---|"]
    return "\n".join([*rows, *(f"| `{hook.name}{hook.signature}` | {hook.sentence} |" for hook in hooks())])


def kinds_table() -> str:
    """Every kind: where a configuration names it, its Protocol, its check."""
    import coterie.testing
    from coterie.compose.kinds import PROTOCOL
    from coterie.compose.tables import MAPS, TABLES
    from coterie.core.plugins import KINDS

    where = {kind: f"`{table}`" for table, kind in TABLES.items()}
    where |= {kind: f"`{table}.<name>`" for table, kind in MAPS.items()} | {"role": "`team.roles.<name>`"}
    rows = ["| kind | in a recipe | Protocol | check |", "|---|---|---|---|"]
    for kind in KINDS:
        protocol = f"`{PROTOCOL[kind].__name__}`" if kind in PROTOCOL else "–"
        check = f"check_{kind}" if f"check_{kind}" in coterie.testing.__all__ else "check_plugin"
        rows.append(f"| [{kind}]({kind}.md) | {where.get(kind, '–')} | {protocol} | `{check}` |")
    return "\n".join(rows)


def rules_table() -> str:
    """The combinations of pieces that an estimator refuses."""
    from coterie.plugins.algos.blocks.estimator import RULES

    rows = ["| this | needs | because |", "|---|---|---|"]
    return "\n".join([*rows, *(f"| {rule.when} | {rule.needs} | {rule.why} |" for rule in RULES)])


def sicknesses_table() -> str:
    """The known sicknesses of runs: how each is seen, what it means, and what helps."""
    from coterie.analysis.diagnosis.run import RULES

    rows = ["| sickness | metrics | one sees | it means | what helps |", "|---|---|---|---|---|"]
    for rule in RULES:
        metrics = ", ".join(f"`{name}`" for name in rule.metrics)
        texts = " | ".join(_with_code(_cell(text)) for text in (rule.sees, rule.means, rule.helps))
        rows.append(f"| `{rule.kind}` ({rule.grade}) | {metrics} | {texts} |")
    return "\n".join(rows)


def _with_code(text: str) -> str:
    """A text of the command line with its settings, commands and metrics as code."""
    setting = r"[a-z_]+(?:\.(?:<name>|[a-z_]+))+(?:=(?:\{[^}]*\}|[\w@:.<>-]*\w))?"
    command = (
        r"coterie (?:credit|episodes|check|run|doctor|sandbox check)(?: RUN)?(?: --\w+(?: '[^']*'| RUN)?)?"
    )
    metric = r"\w+/(?:<\w+>|\w+)"
    return re.sub(rf"(?<![`\w./])(?:{command}|{setting}|{metric})(?![`\w])", r"`\g<0>`", text)


def vendors_table() -> str:
    """Every vendor of chat models with OpenAI's protocol."""
    from coterie.backends.remote.vendors import VENDORS

    rows = ["| `vendor` | address | key | JSON |", "|---|---|---|---|"]
    for name, vendor in sorted(VENDORS.items()):
        key = f"`{vendor.key}`" if vendor.key else "none"
        rows.append(f"| `{name}` | {vendor.base_url} | {key} | {vendor.json} |")
    return "\n".join(rows)


def overlays_table() -> str:
    """The overlays that Coterie brings."""
    from coterie.recipes import list_overlays

    rows = ["| overlay | what it does |", "|---|---|"]
    ours = [info for info in list_overlays() if info.distribution == "coterie"]
    return "\n".join([*rows, *(f"| `{info.name}` | {info.summary} |" for info in ours)])


def metrics_table() -> str:
    """Every metric of data science, what it takes, and its other names."""
    from coterie.plugins.envs.data_science.metrics.metric import ALIASES, METRICS

    rows = ["| metric | better | predicted is | a prediction is | other names |", "|---|---|---|---|---|"]
    for name, metric in METRICS.items():
        others = ", ".join(f"`{alias}`" for alias, target in ALIASES.items() if target == name)
        rows.append(f"| `{name}` | {metric.direction} | {metric.kind} | {metric.takes} | {others or '–'} |")
    return "\n".join(rows)


def dsbench_table() -> str:
    """Every task of DSBench, and what it is scored by."""
    from coterie.plugins.envs.data_science.metrics.dsbench import DSBENCH

    rows = ["| task | metric | id | predicted |", "|---|---|---|---|"]
    for task, entry in DSBENCH.items():
        targets = ", ".join(f"`{target}`" for target in entry.targets[:3])
        more = f" and {len(entry.targets) - 3} more" if len(entry.targets) > 3 else ""
        where = f", where `{entry.rows[0]}` is {entry.rows[1]}" if entry.rows else ""
        rows.append(f"| {task} | `{entry.metric}` | `{entry.id}` | {targets}{more}{where} |")
    return "\n".join(rows)


def names_table() -> str:
    """Every metric, by group, with its unit, range and the rows that have it."""
    from coterie.viewing.metric_names import GROUPS

    parts = []
    for title, group in GROUPS.items():
        parts += [
            f"## {title}",
            "",
            "| metric | unit | range | meaning | better | where |",
            "|---|---|---|---|---|---|",
        ]
        for metric in group:
            star = " ★" if metric.first else ""
            cells = (
                metric.unit,
                metric.range,
                metric.meaning,
                metric.better or "–",
                metric.when or "every run",
            )
            parts.append(f"| `{metric.pattern}`{star} | {' | '.join(map(_cell, cells))} |")
        parts.append("")
    return "\n".join(parts).strip()


def fields_table() -> str:
    """What episodes are searched by."""
    from coterie.viewing.episode_fields import FIELDS, OF_ROLES

    rows = ["| field | meaning |", "|---|---|"]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items()]
    names = ", ".join(f"`{name}`" for name in OF_ROLES)
    return "\n".join([*rows, "", f"A role has {names} of its own, as in `reward.planner`."])


SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Runs from Python",
        "runs",
        ("coterie.api", "coterie.analysis", "coterie.estimate", "coterie.recipes", "coterie.viewing"),
    ),
    (
        "What every plugin uses",
        "plugins",
        ("coterie.core.plugins", "coterie.discovery", "coterie.core.config", "coterie.compose"),
    ),
    ("Errors", "errors", ("coterie.core.errors",)),
    ("Values", "values", ("coterie.core.types", "coterie.spans")),
    (
        "Kinds: their Protocols, and what their methods receive and return",
        "kinds",
        ("coterie.core.protocols",),
    ),
    ("Optional members", "members", ()),
    ("For samplers", "samplers", ("coterie.plugins.samplers", "coterie.core.rollout.turns")),
    ("For estimators", "estimators", ("coterie.plugins.algos", "coterie.core.rollout.rewards")),
    ("For losses", "losses", ("coterie.plugins.losses",)),
    ("For sources that judge programs", "outputs", ("coterie.plugins.outputs", "coterie.answers")),
    ("For vendors of chat models", "vendors", ("coterie.backends.chat_models", "coterie.backends.remote")),
    ("For engines and trainers", "engines", ("coterie.backends", "coterie.core.concurrency")),
    (
        "For studies, and other programs around runs",
        "studies",
        ("coterie.studies", "coterie.stats", "coterie.core.storage"),
    ),
)
"""Sections of docs/public_names.md, their pages in docs/api, and the modules whose names they list."""


def public_names() -> dict[str, list[str]]:
    """Every public name, by the title of its section, in alphabetical order."""
    import coterie
    from coterie.compose.kinds import CAPABILITIES

    capabilities = {capability.__name__ for several in CAPABILITIES.values() for capability in several}
    capabilities |= {"DescribesTools", "HasTokenIds"}  # of codecs
    names: dict[str, list[str]] = {title: [] for title, _, _ in SECTIONS}
    for name in sorted(set(coterie.__all__) - {"__version__"}, key=lambda name: (name.lower(), name)):
        section = "Optional members" if name in capabilities else None
        names[section or section_of(name)].append(name)
    return names


def section_of(name: str) -> str:
    """The title of the section that lists the module of a public name."""
    for title, _, modules in SECTIONS:
        if module_of(name).startswith(modules):
            return title
    raise ValueError(f"no section of docs/generate.py lists {module_of(name)}, the module of coterie.{name}")


def module_of(name: str) -> str:
    """The module of a public name."""
    import coterie

    return coterie.MODULE_OF.get(name, "coterie.core.plugins")


def public_table() -> str:
    """Every public name, by section, with the first sentence of its docstring."""
    parts = []
    for title, page, _ in SECTIONS:
        rows = [f"| `{name}` | {described(name, module_of(name))} |" for name in public_names()[title]]
        parts += [f"## {title}", "", f"In full: [{title.partition(':')[0]}](api/{page}.md).", ""]
        parts += ["| name | what it is |", "|---|---|", *rows, ""]
    return "\n".join(parts).strip()


API_HEAD = """\
<!-- Made by docs/generate.py. mkdocstrings writes the rest when the site is built. -->

Import these names from `coterie`. [Public names](../public_names.md) lists all of them in a line each."""


def api_pages() -> dict[str, str]:
    """A page for each section, from which mkdocstrings makes the reference of its names."""
    pages = {}
    for title, page, _ in SECTIONS:
        names = [f"::: coterie.{name}" for name in public_names()[title]]
        pages[f"api/{page}.md"] = "\n\n".join([f"# {title.partition(':')[0]}", API_HEAD, *names]) + "\n"
    return pages


def described(name: str, module: str) -> str:
    """The first sentence of a public name's docstring.

    An alias or a constant has its docstring below it; a Protocol without one is described by its members.
    """
    import coterie

    value = getattr(coterie, name)
    text = ""
    if inspect.isclass(value) or inspect.isfunction(value):
        text = value.__dict__.get("__doc__") or "" if inspect.isclass(value) else value.__doc__ or ""
        if not text and getattr(value, "_is_protocol", False):
            return " ".join(f"`{_cell(member)}`: {_cell(what)}" for member, what in documented(value))
    else:
        text = below(name, "coterie" if name == "hookimpl" else module)
    if not text.strip():
        raise ValueError(f"coterie.{name} has no docstring: write one sentence in {module}")
    sentence = re.split(r"(?<=[^.]\.)\s+(?=[A-Z(])", " ".join(text.split("\n\n")[0].split()))[0]
    return _cell(sentence)


def below(name: str, module: str) -> str:
    """The text below an assignment to `name`, in a module or in the files of a package."""
    file = Path(inspect.getfile(importlib.import_module(module)))
    for path in sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, following in itertools.pairwise(body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets) and (
                isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            ):
                return str(following.value.value)
    return ""


def teeth_table() -> str:
    """What the conformance kit catches, by operator and by kind."""
    stored = json.loads((DOCS.parent / "benchmarks" / "results" / "kit_teeth.json").read_text())["summary"]
    rows = [
        f"{stored['caught']} of {stored['mutants']} mutants are caught, and none of the "
        f"{len(stored['kinds'])} examples is complained about.",
        "",
        "| operator | the plugin | mutants |",
        "|---|---|---|",
        *(f"| `{row['operator']}` | {row['what']} | {row['mutants']} |" for row in stored["operators"]),
        "",
        "By kind: " + ", ".join(f"{kind} {count}" for kind, count in stored["kinds"].items()) + ".",
    ]
    return "\n".join(rows)


PARTS: dict[str, tuple[tuple[str, Callable[[], str]], ...]] = {
    "writing_plugins.md": (("hooks", hooks_table), ("teeth", teeth_table)),
    "kinds/index.md": (("kinds", kinds_table),),
    **{f"kinds/{kind}.md": kind_parts(kind) for kind in KINDS},
    "algorithms.md": (("rules", rules_table),),
    "public_names.md": (("public", public_table),),
    "recipes.md": (("overlays", overlays_table),),
    "chat_models.md": (("vendors", vendors_table),),
    "metrics.md": (("names", names_table),),
    "doctor.md": (("sicknesses", sicknesses_table),),
    "viewing.md": (("fields", fields_table),),
    "data_science.md": (("metrics", metrics_table), ("dsbench", dsbench_table)),
}
"""Page -> its generated parts, by name."""


def with_parts(page: str) -> str:
    """The text of a page, its generated parts made anew."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, make in PARTS[page]:
        begin, end = f"<!-- Made by docs/generate.py: {name}. -->\n", f"\n<!-- End of {name}. -->"
        between = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        part = f"{begin}\n{make()}\n{end}"
        text, count = between.subn(lambda _, part=part: part, text)
        if count != 1:
            raise ValueError(f"docs/{page} has {count} places for '{name}': write {begin.strip()} once")
    return text


STUB_HEAD = """\
import pluggy

"""
STUB_END = """
__version__: str
hookimpl: pluggy.HookimplMarker"""
NAMES = "../tests/golden/public_names.txt"


def stub(modules: Mapping[str, str], source: str, begin: str = "", end: str = "") -> str:
    """The stub of a package whose names load on first use: type checkers read it, and Python doesn't.

    Args:
        modules: name -> the module that it is defined in.
        source: the file beside the stub in which these names are written.
        begin, end: what it has before and after these names, as Python.
    """
    head = f"# Made by docs/generate.py from {source}: change it there.\n\n"
    # `X as X` says that the package gives X away.
    imports = import_text([Import(module, name, name) for name, module in modules.items()])
    return f"{head}{begin}{imports}{end}\n__all__: list[str]\n"


def pages() -> dict[str, str]:
    """Path from docs/ -> text of every file that is generated, or has generated parts."""
    import coterie
    import coterie.testing

    names = stub(coterie.MODULE_OF, "public.py", STUB_HEAD, STUB_END)
    return {
        "cli.md": cli_page(),
        **api_pages(),
        **{page: with_parts(page) for page in PARTS},
        "../coterie/__init__.pyi": names,
        "../coterie/testing/__init__.pyi": stub(coterie.testing.MODULE_OF, "__init__.py"),
        NAMES: "".join(f"{name}\n" for name in sorted(coterie.__all__)),
    }


def check_removed(meant: Sequence[str]) -> None:
    """End where a public name is gone that isn't among those that are meant to go."""
    import coterie

    before = (DOCS / NAMES).read_text(encoding="utf-8").split()
    gone = sorted(set(before) - set(coterie.__all__) - set(meant))
    if gone:
        rule = "a public name follows the deprecation rule of docs/public_names.md"
        sys.exit(f"coterie.{gone[0]} is gone: {rule}. If it may go: --remove {' '.join(gone)}")


if __name__ == "__main__":
    check_removed(sys.argv[2:] if sys.argv[1:2] == ["--remove"] else ())
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
