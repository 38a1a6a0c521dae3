"""Python text of templates: taken apart, and put together again in other files."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

LINE = 110


@dataclass(frozen=True, slots=True, order=True)
class Import:
    """One imported name."""

    module: str
    name: str = ""
    """Of `from module import name`; empty: `import module`."""
    alias: str = ""

    @property
    def bound(self) -> str:
        """The name that it gives."""
        return self.alias or self.name or self.module.partition(".")[0]


@dataclass(frozen=True, slots=True)
class TemplateParts:
    """A template in parts."""

    docstring: str
    """Without its quotes."""
    imports: tuple[Import, ...]
    body: str
    hooks: str
    """The registration, at the end."""
    defined: tuple[str, ...] = ()
    """Classes and functions of the body."""
    targets: tuple[tuple[str, str], ...] = ()
    """Of each hook: its name, and the name of what it registers."""
    functions: dict[str, str] = field(default_factory=dict)
    """Functions of the body: their text, by name."""

    @property
    def imported(self) -> set[str]:
        return {entry.bound for entry in self.imports}


def read_source(text: str) -> TemplateParts:
    """The parts of a module: a docstring, imports, a body, and functions with `@hookimpl` at the end."""
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    imports: list[Import] = []
    last = tree.body[0]
    hooks: list[ast.FunctionDef] = []
    defined, functions = [], {}
    for node in tree.body[1:]:
        if isinstance(node, ast.Import):
            imports += [Import(name.name, alias=name.asname or "") for name in node.names]
            last = node
        elif isinstance(node, ast.ImportFrom):
            imports += [Import(node.module or "", name.name, name.asname or "") for name in node.names]
            last = node
        elif isinstance(node, ast.FunctionDef) and any(_named(at, "hookimpl") for at in node.decorator_list):
            hooks.append(node)
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            defined.append(node.name)
            if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                functions[node.name] = "".join(lines[node.lineno - 1 : node.end_lineno])
    end = len(lines)
    if hooks:
        end = hooks[0].decorator_list[0].lineno - 1
        while lines[end - 1].startswith("#"):
            end -= 1
    return TemplateParts(
        docstring=(ast.get_docstring(tree) or "").strip(),
        imports=tuple(imports),
        body="".join(lines[last.end_lineno or 0 : end]).strip("\n"),
        hooks="".join(lines[end:]).strip("\n"),
        defined=tuple(defined),
        targets=tuple(_target(hook) for hook in hooks),
        functions=functions,
    )


def _target(hook: ast.FunctionDef) -> tuple[str, str]:
    (call,) = [
        node for node in ast.walk(hook) if isinstance(node, ast.Call) and _named(node.func, "register")
    ]
    target = call.args[1]
    return hook.name, target.id if isinstance(target, ast.Name) else ""


def _named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def module_text(docstring: str, imports: Iterable[Import], parts: Sequence[str], package: str = "") -> str:
    """A module of these parts, with the imports that it uses, in the order and form that ruff gives them.

    Args:
        package: the one whose modules come last among imports; empty: none.
    """
    code = "\n\n\n".join(part for part in parts if part)
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    block = import_text({entry for entry in imports if entry.bound in used}, package)
    # After imports stand two empty lines before a definition, and one before anything else.
    gap = "\n\n" if code.startswith(("class ", "def ", "@", "async def ")) else "\n"
    gap = gap if block else gap[1:]
    end = "\n" if "\n" in docstring else ""
    return f'"""{docstring}{end}"""\n\n{block}{gap}{code}\n'


def import_text(imports: Collection[Import], package: str = "") -> str:
    """Import statements: of the standard library, of others, of the own package; sorted as ruff does."""
    sections: list[list[Import]] = [[], [], []]
    for entry in imports:
        top = entry.module.partition(".")[0]
        sections[2 if top == package else 0 if top in sys.stdlib_module_names else 1].append(entry)
    return "\n".join(_section(section) for section in sections if section)


def _section(imports: Sequence[Import]) -> str:
    lines = [
        f"import {entry.module}{f' as {entry.alias}' if entry.alias else ''}\n"
        for entry in sorted(imports)
        if not entry.name
    ]
    by_module: dict[str, list[Import]] = {}
    for entry in imports:
        if entry.name:
            by_module.setdefault(entry.module, []).append(entry)
    for module in sorted(by_module):
        names = [
            f"{entry.name} as {entry.alias}" if entry.alias else entry.name
            for entry in sorted(by_module[module], key=_by_type)
        ]
        line = f"from {module} import {', '.join(names)}\n"
        if len(line) > LINE + 1:
            line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")\n"
        lines.append(line)
    return "".join(lines)


def _by_type(entry: Import) -> tuple[int, str]:
    """Constants, then classes, then functions, as ruff sorts them."""
    name = entry.name
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return kind, name.lower()
