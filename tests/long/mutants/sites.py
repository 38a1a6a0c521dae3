"""The places where a mutant can be made, and the mutants' texts.

A site is known by its function, its operator and the text it changes, not by its file or line: so it can be
recognised after the function has moved.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.long.mutants.operators import Place, mutations

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef)
LOGGERS = ("log", "logger", "logging", "warnings")
UNSEEN = {
    "annotation",
    "returns",
    "decorator_list",
    "type_params",
    "bases",
    "pattern",
    "exc",
    "cause",
}
"""Fields whose content isn't mutated: types, and what errors say."""


@dataclass(frozen=True)
class Site:
    """One mutant: `path[start:end]`, in bytes, becomes `replacement`."""

    path: str
    qualname: str
    """Of the function or class, nested ones after a dot; "" at the top of a module."""
    operator: str
    text: str
    """The changed expression or statement; of a constant, what holds it."""
    shape: str
    """`text` with every local name masked."""
    start: int
    end: int
    replacement: str
    lines: tuple[int, int]
    """First and last line of the changed text."""
    statement: tuple[int, int]
    """The same, of the statement around it (of its head, where it has a body)."""
    names: tuple[str, ...]
    """What to look for to see the change used, where the code is run at import: names it defines."""
    ordinal: int = 0
    """Which one among the function's sites of equal operator and text."""
    shape_ordinal: int = 0
    shape_count: int = 1
    """How many sites of the function have this operator and shape."""


@dataclass(frozen=True)
class _Around:
    """What is around a node."""

    place: Place
    qualname: tuple[str, ...]
    locals: frozenset[str]
    statement: ast.stmt | None
    names: tuple[str, ...]


def mutated(source: bytes, site: Site) -> bytes:
    """The file's content with the mutant in it."""
    return source[: site.start] + site.replacement.encode() + source[site.end :]


def sites(source: bytes, path: str) -> list[Site]:
    """A file's sites, in the order of the text."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    top = _Around(Place(tree, "", runs=False), (), frozenset(), None, ())
    drafts, seen = [], set()
    for node, around in _nodes(tree, top):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        fitting = list(mutations(node, around.place))
        text, shape = _texts(node, around) if fitting else ("", "")
        for operator, replacement in fitting:
            if (start, end, replacement) not in seen:
                seen.add((start, end, replacement))
                drafts.append(
                    Site(
                        path=path,
                        qualname=".".join(around.qualname),
                        operator=operator,
                        text=text,
                        shape=shape,
                        start=start,
                        end=end,
                        replacement=replacement,
                        lines=(node.lineno, node.end_lineno),
                        statement=_head(around.statement),
                        names=() if around.place.runs else around.names,
                    )
                )
    return numbered(sorted(drafts, key=lambda site: (site.start, site.end)))


def tree_sites(root: Path, folder: str) -> list[Site]:
    """The sites of every Python file in a folder of the tree."""
    files = sorted((root / folder).rglob("*.py"))
    return [site for file in files for site in sites(file.read_bytes(), file.relative_to(root).as_posix())]


def numbered(ordered: Iterable[Site]) -> list[Site]:
    """The same sites, counted among their equals."""
    ordered = list(ordered)
    counts = Counter((site.qualname, site.operator, site.shape) for site in ordered)
    texts: Counter[tuple[str, ...]] = Counter()
    shapes: Counter[tuple[str, ...]] = Counter()
    result = []
    for site in ordered:
        text, shape = (site.qualname, site.operator, site.text), (site.qualname, site.operator, site.shape)
        result.append(
            dataclasses.replace(
                site, ordinal=texts[text], shape_ordinal=shapes[shape], shape_count=counts[shape]
            )
        )
        texts[text] += 1
        shapes[shape] += 1
    return result


# --------------------------------------------------------------------------------------------- walking a file


def _nodes(node: ast.AST, around: _Around) -> Iterator[tuple[ast.AST, _Around]]:
    """Every node that may be mutated, with what is around it."""
    for name, value in ast.iter_fields(node):
        if name in UNSEEN or (isinstance(node, ast.ClassDef) and name == "keywords"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _skipped(child):
                inside = _inside(node, name, child, around)
                if hasattr(child, "lineno"):
                    yield child, inside
                yield from _nodes(child, inside)


def _inside(node: ast.AST, field: str, child: ast.AST, around: _Around) -> _Around:
    """What is around a child of the node."""
    qualname, hidden, names, runs = around.qualname, around.locals, around.names, around.place.runs
    if isinstance(node, ast.ClassDef):
        qualname, runs, names = (*qualname, node.name), False, (node.name,)
    elif isinstance(node, FUNCTIONS):
        qualname, hidden = (*qualname, node.name), hidden | local_names(node)
        # Defaults are values of the definition: they're made when it is run, and used by callers.
        runs, names = field == "body" or runs, (node.name,)
    elif isinstance(node, ast.Lambda):
        runs = field == "body" or runs
    elif isinstance(node, ast.Assign | ast.AnnAssign) and not runs:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = (*(target.id for target in targets if isinstance(target, ast.Name)), *names)
    statement = child if isinstance(child, ast.stmt) else around.statement
    return _Around(Place(node, field, runs), qualname, hidden, statement, names)


def local_names(function: ast.AST) -> frozenset[str]:
    """Names that a function binds, inner functions' and comprehensions' among them; not `self` and `cls`."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return frozenset(names - {"self", "cls"})


def _skipped(node: ast.AST) -> bool:
    """Whether nothing in the node is worth a mutant: texts, types, logs, and what runs on no machine."""
    if isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Expr | ast.Await):
        return _skipped(node.value)
    if isinstance(node, ast.Call):
        return _logs(node.func) or _is_error(node.func)
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, FUNCTIONS):
        return all(isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) for line in node.body)
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    return isinstance(node, ast.expr_context | ast.operator | ast.cmpop | ast.boolop | ast.unaryop)


def _logs(function: ast.expr) -> bool:
    head = function.value if isinstance(function, ast.Attribute) else function
    return isinstance(head, ast.Name) and head.id in LOGGERS


def _is_error(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name.endswith(("Error", "Warning"))


# --------------------------------------------------------------------------------------------- what a site is


def _texts(node: ast.AST, around: _Around) -> tuple[str, str]:
    """The text that a site is known by, and the same with local names masked."""
    host = node
    if isinstance(node, ast.Constant):
        host = around.place.parent
    if isinstance(host, ast.arguments):
        argument, default = _argument(host, node)
        return f"{argument}={ast.unparse(default)}", f"_={ast.unparse(default)}"
    if isinstance(host, ast.Raise):
        text = f"raise {ast.unparse(getattr(host.exc, 'func', host.exc))}" if host.exc else "raise"
        return text, text
    if isinstance(host, ast.AnnAssign):
        host = ast.copy_location(ast.Assign([host.target], host.value), host)
    if isinstance(host, ast.stmt) and hasattr(host, "body"):
        host = node
    return ast.unparse(host), ast.unparse(_Masking(around.locals).visit(copy.deepcopy(host)))


def _argument(arguments: ast.arguments, default: ast.AST) -> tuple[str, ast.AST]:
    """The argument's name that a default belongs to."""
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((argument.arg, value) for argument, value in pairs if value is default)


class _Masking(ast.NodeTransformer):
    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("_", node.ctx) if node.id in self.names else node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg("_") if node.arg in self.names else node


def _head(statement: ast.stmt | None) -> tuple[int, int]:
    if statement is None:
        return (1, 1)
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) and body else statement.end_lineno
    return (statement.lineno, max(statement.lineno, last or statement.lineno))
