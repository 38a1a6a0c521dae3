"""The generated parts of docs/kinds/*.md: where a kind stands, its members, its values, an example.

All of it is read from the Protocols and the classes that their methods name, so that no page lags behind.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

EXAMPLE_NAMES = {
    "chat_format": "plain-turns",
    "chat_model": "length-grader",
    "column": "countdown",
    "command": "show-tasks",
    "data_source": "small-mazes",
    "engine": "steady-words",
    "environment": "countdown",
    "estimator": "sibling-tanh",
    "executor": "slowest-named",
    "loss": "spo",
    "overlay": "warmer",
    "recipe": "countdown",
    "reward": "brevity",
    "role": "short-answer",
    "sampler": "recovery",
    "sandbox": "patient",
    "study": "learns-at-all",
    "tool": "adder",
    "tracker": "sqlite",
    "trainer": "table-trainer",
    "transition": "reminder",
}
"""Kind -> the name of its example, in place of the template's `example-name`."""

MORE_TYPES = {
    "environment": ("Action",),
    "reward": ("ActionView", "JointView", "SiblingsView", "EpisodeView", "PlayedAction", "Action", "Task"),
    "estimator": ("Tree", "Node", "Decision", "JointAction"),
    "loss": ("TokenBatch", "Surrogate"),
    "chat_format": ("Codec", "DescribesTools", "HasTokenIds"),
    "transition": ("Action",),
    "role": ("HistoryEntry", "Action"),
    "executor": ("RolloutSide", "EngineClient"),
}
"""Kind -> values that its methods receive inside of others, or behind `Any`."""

SCHEMAS = {
    "study": (
        *(f"coterie.studies.study:{name}" for name in ("Study", "Method", "Claim", "ClaimResult")),
        "coterie.stats:Interval",
        "coterie.studies.study:Analysis",
        *(f"coterie.studies.columns:{name}" for name in ("Column", "Variant", "Scale")),
    ),
    "column": (
        "coterie.studies.columns:ColumnConfig",
        "coterie.studies.columns:Variant",
        "coterie.studies.columns:Scale",
    ),
    "recipe": ("coterie.core.config.schema:RunConfig",),
}
"""Kind without a Protocol -> the classes of what its target holds."""

PLAIN = ("tool", "data_source", "overlay", "command")
"""Kinds whose members receive and return no class of Coterie's."""

LANGUAGES = {".py": "python", ".yaml": "yaml", ".jsonl": "json"}
EMPTY = {"dict": "{}", "list": "[]"}


def kind_parts(kind: str) -> tuple[tuple[str, Callable[[], str]], ...]:
    """(name, maker) of every generated part of a kind's page."""
    parts = {"facts": facts, "members": members, "values": values, "example": example}
    return tuple(
        (name, partial(make, kind)) for name, make in parts.items() if name != "values" or kind not in PLAIN
    )


def facts(kind: str) -> str:
    """One row: where a recipe names the kind, its hook, its Protocol, its check, the built-in ones."""
    import coterie.testing
    from coterie.compose.kinds import PROTOCOL
    from coterie.compose.tables import MAPS, TABLES
    from coterie.discovery import plugins

    where = {of: f"`{table}`" for table, of in TABLES.items()}
    where |= {of: f"`{table}.<name>`" for table, of in MAPS.items()} | {"role": "`team.roles.<name>`"}
    check = f"check_{kind}" if f"check_{kind}" in coterie.testing.__all__ else "check_plugin"
    ours = [name for name in plugins().registry.names(kind) if built_in(kind, name)]
    shown = ", ".join(f"`{name}`" for name in sorted(ours)[:14]) + (", ..." if len(ours) > 14 else "")
    rows = [
        ("in a recipe", where.get(kind, "–")),
        ("hook", f"`register_{plural(kind)}(register)`"),
        ("Protocol", f"`coterie.{PROTOCOL[kind].__name__}`" if kind in PROTOCOL else "–"),
        ("check", f"`coterie.testing.{check}`"),
        ("built in", shown or "–"),
    ]
    if kind in PROTOCOL:
        links = {"kinds": "Protocols and views", "values": "values", "members": "optional members"}
        rows.append(("reference", ", ".join(f"[{text}](../api/{page}.md)" for page, text in links.items())))
    elif kind == "study":
        rows.append(("reference", "[for studies](../api/studies.md)"))
    return "\n".join(
        [f"| kind | `{kind}` |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    )


def built_in(kind: str, name: str) -> bool:
    """Whether Coterie itself registers the name."""
    from coterie.discovery import plugins

    return plugins().registry.find(kind, name, path=kind).distribution == "coterie"


def plural(kind: str) -> str:
    """`sandbox` -> `sandboxes`, as the hooks have it."""
    return {"sandbox": "sandboxes", "loss": "losses", "study": "studies"}.get(kind, f"{kind}s")


def members(kind: str) -> str:
    """The Protocol as it is written, and the table of optional members."""
    from coterie.compose.kinds import CAPABILITIES, PROTOCOL

    if kind not in PROTOCOL:
        return target(kind)
    source = textwrap.dedent(inspect.getsource(PROTOCOL[kind])).removeprefix("@runtime_checkable\n")
    parts = ["```python", source.strip(), "```"]
    if capabilities := CAPABILITIES.get(kind, ()):
        parts += ["", "### Optional members", "", "| member | what it is | capability |", "|---|---|---|"]
        for capability in capabilities:
            for written, text in documented(capability):
                parts.append(f"| `{cell(written)}` | {cell(text)} | `{capability.__name__}` |")
    return "\n".join(parts)


def target(kind: str) -> str:
    """What is registered for a kind without a Protocol: the hook, and the fields of its file or class."""
    from coterie.discovery import hookspecs

    hook = getattr(hookspecs, f"register_{plural(kind)}")
    signature = str(inspect.signature(hook)).replace("'", "")
    return f"```python\ndef {hook.__name__}{signature}: ...\n```\n\n{hook.__doc__}"


def values(kind: str) -> str:
    """The fields of every value that the members receive or return."""
    parts: list[str] = []
    for value in value_types(kind):
        first = (value.__dict__.get("__doc__") or "").strip().split("\n\n")[0]
        text = "" if re.match(rf"{value.__name__}\(", first) else " ".join(first.split())
        rows = [
            f"| `{cell(written)}` | {cell(what)} |" for written, what in documented(value, all_fields=True)
        ]
        parts += [f"### {value.__name__}", "", *([text, ""] if text else [])]
        parts += ["| member | what it is |", "|---|---|", *rows, ""]
    return "\n".join(parts).strip()


def value_types(kind: str) -> list[type]:
    """The classes of Coterie's that the members of a kind name in their annotations, in that order."""
    import coterie
    from coterie.compose.kinds import CAPABILITIES, PROTOCOL

    if kind not in PROTOCOL:
        return [pkgutil.resolve_name(name) for name in SCHEMAS[kind]]
    types: dict[str, type] = {}
    for protocol in (PROTOCOL[kind], *CAPABILITIES.get(kind, ())):
        names = vars(inspect.getmodule(protocol))
        for word in re.findall(r"\w+", " ".join(annotations(protocol))):
            value = names.get(word)
            if inspect.isclass(value) and value not in (protocol, *PROTOCOL.values()) and described(value):
                types.setdefault(word, value)
    for name in MORE_TYPES.get(kind, ()):
        types.setdefault(name, getattr(coterie, name))
    return list(types.values())


def annotations(protocol: type) -> Iterator[str]:
    """Every annotation of a class and of its methods, as it is written."""
    for node in ast.walk(class_of(protocol)):
        if isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation is not None:
            yield ast.unparse(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            yield ast.unparse(node.returns)


def described(value: type) -> bool:
    """Whether a class is a value of Coterie's with fields, or what a method can call."""
    if not value.__module__.startswith(("coterie.core", "coterie.discovery.members", "coterie.spans")):
        return False
    fields = hasattr(value, "model_fields") or hasattr(value, "_fields")
    return dataclasses.is_dataclass(value) or fields or getattr(value, "_is_protocol", False)


def class_of(value: type) -> ast.ClassDef:
    """The definition of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    assert isinstance(body, ast.ClassDef)
    return body


def documented(value: type, *, all_fields: bool = False) -> Iterator[tuple[str, str]]:
    """(member as it is written, its docstring) of each member of a class.

    Args:
        all_fields: fields without a docstring too, with the comment behind them or their `description`.
    """
    lines = textwrap.dedent(inspect.getsource(value)).splitlines()
    body = class_of(value).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and shown(node, all_fields):
            yield signature(node), ast.get_docstring(node) or ""
        elif isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                yield field_text(node), str(following.value.value)
            elif all_fields:
                comment = re.search(r"  # (.*)$", lines[node.lineno - 1])
                yield field_text(node), comment[1] if comment else description(node)


def shown(node: ast.FunctionDef | ast.AsyncFunctionDef, all_fields: bool) -> bool:
    """Whether a method is one for readers; validators of a schema are none."""
    if node.name.startswith("_") and node.name != "__call__":
        return node.name in ("__len__", "__getitem__", "__iter__") and all_fields
    return not any("validator" in ast.unparse(decorator) for decorator in node.decorator_list)


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A method with its arguments and their types; a property as a field."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
        return node.name + returns.replace(" -> ", ": ")
    node.args.args = [argument for argument in node.args.args if argument.arg not in ("self", "cls")]
    start = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{start}{node.name}({ast.unparse(node.args)}){'' if returns == ' -> None' else returns}"


def field_text(node: ast.AnnAssign) -> str:
    """A field as `name: type = default`."""
    text = f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}"
    if node.value is None:
        return text
    if not isinstance(node.value, ast.Call):
        return f"{text} = {ast.unparse(node.value)}"
    factory = [ast.unparse(k.value) for k in node.value.keywords if k.arg == "default_factory"]
    given = [*(EMPTY.get(name, f"{name}()") for name in factory), *map(ast.unparse, node.value.args[:1])]
    return f"{text} = {given[0]}" if given and given[0] != "..." else text


def description(node: ast.AnnAssign) -> str:
    """The `description` of a schema's field."""
    keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
    text = [k.value for k in keywords if k.arg == "description"]
    return str(ast.literal_eval(text[0])) if text else ""


def cell(text: str) -> str:
    """A text in a cell of a table; "Raises:" and "Args:" begin a sentence of their own."""
    return " ".join(text.split()).replace("|", "\\|")


def example_files(kind: str) -> dict[str, str]:
    """The scaffold's one-file form of a kind, by name of the file, with a typical name."""
    from coterie.scaffold.kinds import KINDS, template
    from coterie.scaffold.names import derived
    from coterie.scaffold.package import recipe

    names = derived(EXAMPLE_NAMES[kind], EXAMPLE_NAMES[kind].replace("-", "_"))
    files = {f"{names.module}.py": template(f"kinds/{kind}.py")}
    files |= {name: template(f"kinds/{name}") for name in KINDS[kind].files}
    if kind == "recipe":
        files["example-name-smoke.yaml"] = recipe([KINDS["environment"], KINDS["role"]], own_game=False)
    return {names.filled(name): names.filled(text).strip() + "\n" for name, text in files.items()}


def example(kind: str) -> str:
    """The template of the kind, as `coterie new --file` writes it."""
    return "\n\n".join(
        f'```{LANGUAGES[Path(name).suffix]} title="{name}"\n{text}```'
        for name, text in example_files(kind).items()
    )
