"""The two forms, a package with what a repository needs and a module for `-p`; the smoke recipe of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coterie.scaffold.code import Import, import_text, module_text, read_source
from coterie.scaffold.kinds import KINDS, TEMPLATES, Kind, exemplified, template
from coterie.scaffold.names import Names

REGISTERED = {"command": "example-command", "recipe": "example-name-smoke"}
"""By kind: the name that is registered, where that isn't the component's."""
API = '''coterie_api = ">=1.0,<2"
"""The versions of Coterie's plugin interface that this package is for."""'''
GAME = """A game for the smoke recipe and the tests: count down, one number an answer.

It isn't registered. A recipe names it as `example_module.game:Countdown`."""


def package(names: Names, kinds: Sequence[Kind], author: str = "") -> dict[str, str]:
    """The files of a package, by their paths in its folder.

    Args:
        kinds: with those that they need, in their order.
    """
    own_game = all(kind.name != "environment" for kind in kinds)
    registered = {kind.name for kind in kinds}
    module: dict[str, str] = {"__init__.py": hooks_text(names, kinds), "py.typed": ""}
    module |= _modules(kinds)
    if own_game:
        module["game.py"] = game_text()
    if scripted(kinds):
        script = read_source(template("package/script.py"))
        body = script_body(script.body, kinds, own_game=True)
        module["script.py"] = module_text(script.docstring, script.imports, [body])
    if examples := exemplified(kinds):
        module["examples.py"] = _examples_text(examples)
    module["smoke.yaml"] = recipe(kinds, own_game=True)
    module |= {
        name: template(f"kinds/{name}").replace("example_recipe", "smoke.yaml")
        for kind in kinds
        for name in kind.files
    }
    tests = {"test_package.py": template("tests/test_package.py")}
    for name in registered - {"recipe"}:
        tests[f"test_{name}.py"] = template(f"tests/test_{name}.py")
    files = {
        "pyproject.toml": _pyproject(kinds, author),
        "README.md": template("package/README.md").replace("example-table", _table(kinds)),
        ".gitignore": template("package/gitignore"),
        ".github/workflows/ci.yml": template("package/ci.yml"),
        **{f"example_module/{name}": text for name, text in sorted(module.items())},
        **{f"tests/{name}": _test_text(text) for name, text in sorted(tests.items())},
    }
    game = "example_module.game:Countdown" if own_game else "example_name"
    counter = "example_module.game:Counter" if own_game else "example_name"
    return {
        names.filled(path): names.filled(
            text.replace("example_game:Countdown", game).replace("example_game:Counter", counter)
        )
        for path, text in files.items()
    }


def _modules(kinds: Sequence[Kind]) -> dict[str, str]:
    """A module of each kind that has one; a function that an earlier one has is imported from there."""
    texts: dict[str, str] = {}
    homes: dict[str, tuple[str, str]] = {}
    for kind in kinds:
        if not kind.module:
            continue
        source = kind.source
        shared = [name for name, text in source.functions.items() if homes.get(name, ("", ""))[1] == text]
        imports = [*source.imports, *(Import(f"example_module.{homes[name][0]}", name) for name in shared)]
        body = without(source.body, shared)
        texts[f"{kind.name}.py"] = module_text(source.docstring, imports, [body], "example_module")
        homes |= {name: (kind.name, text) for name, text in source.functions.items() if name not in shared}
    return texts


def hooks_text(names: Names, kinds: Sequence[Kind]) -> str:
    """The module of the entry point: one hook a kind, with targets that are imported when they are chosen."""
    hooks = []
    for kind in (*kinds, *([] if any(kind.name == "recipe" for kind in kinds) else [KINDS["recipe"]])):
        for hook, target in kind.source.targets:
            name = REGISTERED.get(kind.name, "example_name")
            where = f"example_module.{kind.name}:{target}"
            if not kind.module:
                where = f"example_module:{kind.files[0] if kind.files else 'smoke.yaml'}"
            hooks.append(
                f'@hookimpl\ndef {hook}(register: Register) -> None:\n    register("{name}", "{where}")'
            )
    used = {Import("coterie", "Register"), Import("coterie", "hookimpl")}
    if examples := exemplified(kinds):
        used.add(Import("collections.abc", "Callable"))
        lines = [
            f'    register("{kind.name}", "example_name", "example_module.examples:{kind.name.upper()}")'
            for kind in examples
        ]
        hook = "@hookimpl\ndef register_examples(register: Callable[[str, str, str], None]) -> None:"
        hooks.append("\n".join([hook, *lines]))
    imports = import_text(used)
    text = f'"""{summary(kinds)}"""\n\n{imports}\n{API}'
    return "\n\n\n".join([text, *hooks]) + "\n"


def game_text() -> str:
    """The game of a package without an environment: an environment and a role that aren't registered."""
    sources = [KINDS["environment"].source, KINDS["role"].source]
    imports = {entry for source in sources for entry in source.imports}
    text = module_text(GAME, imports, [source.body for source in sources])
    return text.replace("ExampleNameEnvironment", "Countdown").replace("ExampleNameRole", "Counter")


def _examples_text(kinds: Sequence[Kind]) -> str:
    sources = [read_source(template(f"examples/{kind.name}.py")) for kind in kinds]
    imports = [entry for source in sources for entry in source.imports]
    body = "\n\n".join(source.body for source in sources)
    return module_text(sources[0].docstring, imports, [body], "example_module")


def _test_text(text: str) -> str:
    source = read_source(text)
    return module_text(source.docstring, source.imports, [source.body], "example_module")


def _pyproject(kinds: Sequence[Kind], author: str) -> str:
    text = template("package/pyproject.toml").replace(
        "Plugins for Coterie: example-kinds", summary(kinds).rstrip(".")
    )
    line = 'authors = [{ name = "example-author" }]\n'
    quoted = author.replace("\\", "\\\\").replace('"', '\\"')
    return text.replace(line, line.replace("example-author", quoted) if author else "")


def _table(kinds: Sequence[Kind]) -> str:
    """What is in the package, as a Markdown table."""
    rows = ["| kind | name | what it is |", "|---|---|---|"]
    for kind in kinds:
        name = REGISTERED.get(kind.name, "example_name")
        first, _, what = kind.source.docstring.splitlines()[0].partition(": ")
        rows.append(f"| {kind.words} | `{name}` | {what.rstrip('.') or first} |")
    return "\n".join(rows)


def one_file(names: Names, kinds: Sequence[Kind]) -> dict[str, str]:
    """The files of the one-file form, by name: the module first, then its recipe.

    Args:
        kinds: with those that they need, in their order.
    """
    imports: set[Import] = set()
    bodies, hooks = list[str](), list[str]()
    functions: dict[str, str] = {}
    files: dict[str, str] = {}
    for kind in kinds:
        source = kind.source
        imports |= set(source.imports)
        bodies.append(without(source.body, [name for name in source.functions if name in functions]))
        functions |= source.functions
        hooks.append(source.hooks)
        for name in kind.files:
            text = template(f"kinds/{name}").replace("example_recipe", f"{names.recipe}.yaml")
            files[names.filled(name)] = names.filled(text)
    if scripted(kinds):
        script = read_source(template("package/script.py"))
        imports |= set(script.imports)
        bodies.append(script_body(script.body, kinds, own_game=False))
    if examples := exemplified(kinds):
        sources = [read_source(template(f"examples/{kind.name}.py")) for kind in examples]
        imports |= {entry for source in sources for entry in source.imports if "example_" not in entry.module}
        imports.add(Import("collections.abc", "Callable"))
        bodies += [source.body for source in sources]
        hooks.append(_examples_hook(examples))
    docstring = kinds[0].source.docstring if len(kinds) == 1 else several(kinds)
    docstring += f"\n\n    coterie run {names.recipe}.yaml -p {names.module}.py"
    text = module_text(docstring, imports, [*bodies, *hooks])
    played = names.filled(recipe(kinds, own_game=False).replace("example_script:", f"{names.module}:"))
    return {f"{names.module}.py": names.filled(text), f"{names.recipe}.yaml": played, **files}


def _examples_hook(kinds: Sequence[Kind]) -> str:
    lines = [f'    register("{kind.name}", "example_name", {kind.name.upper()})' for kind in kinds]
    head = "def register_examples(register: Callable[[str, str, Example], None]) -> None:"
    return "\n".join(["@hookimpl", head, '    """What `coterie check` tries; a run reads none."""', *lines])


def without(body: str, functions: Sequence[str]) -> str:
    """A body without functions that another body has word for word."""
    if not functions:
        return body
    source = read_source(f'"""A."""\n\n{body}\n')
    for name in functions:
        body = body.replace(source.functions[name], "").replace("\n\n\n\n\n", "\n\n\n").strip("\n")
    return body


def several(kinds: Sequence[Kind]) -> str:
    """The docstring of a module with several kinds."""
    lines = [f"- {kind.source.docstring.splitlines()[0]}" for kind in kinds]
    return "\n".join([summary(kinds), "", *lines])


def summary(kinds: Sequence[Kind]) -> str:
    """What the plugins are, in a line that fits."""
    line = f"Plugins for Coterie: {listed(kinds)}."
    return line if len(line) <= 100 else f"Plugins for Coterie, of {len(kinds)} kinds."


def listed(kinds: Sequence[Kind]) -> str:
    """`an environment, a role and a reward`."""
    words = [kind.phrase for kind in kinds]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def script_body(body: str, kinds: Sequence[Kind], *, own_game: bool) -> str:
    """The body of the script that stands for a model."""
    calls = ", ".join(f'"{CALLS[kind.name]}"' for kind in kinds if kind.name in CALLS)
    comma = "" if ", " in calls else ","
    answer = "str(int(prompt[:1]) - 1)  # the prompt begins with the number" if own_game else '"R"'
    return body.replace('("example_calls",)', f"({calls}{comma})").replace("request.key.role", answer)


CALLS = {"tool": "<add>2 3.5</add>", "sandbox": "```python\\nprint(2 + 3.5)\\n```"}
"""By kind: what a reply has to have in it, so that the component is called; as Python text."""
_OTHER_GAME = ("environment", "role", "transition", *CALLS)
"""Kinds that don't go with the game of `data_source`."""
_LINE = re.compile(r"( *)([\w.-]+):(?: +(.*))?$")


# ---- the smoke recipe: a base, and over it what each kind changes; comments and their order are kept -------


def recipe(kinds: Sequence[Kind], *, own_game: bool) -> str:
    """The smoke recipe, in which every kind but those of `left_out` is at work, with placeholders.

    Args:
        own_game: whether the package has a game; else one of Coterie's is played where no kind is one.
    """
    names = [kind.name for kind in kinds]
    layers = ["base"]
    if not own_game and "environment" not in names:
        layers.append("builtin")
    for name in names:
        if name not in left_out(kinds) and (TEMPLATES / "smoke" / f"{name}.yaml").is_file():
            layers.append(name)
    layers += ["script"] * scripted(kinds)
    return merged(template(f"smoke/{name}.yaml") for name in layers)


def left_out(kinds: Sequence[Kind]) -> dict[str, str]:
    """The kinds that the smoke recipe doesn't use, with the reason."""
    others = [kind for kind in kinds if kind.name in _OTHER_GAME]
    if not others or all(kind.name != "data_source" for kind in kinds):
        return {}
    return {"data_source": f"its mazes are Plan-Path's, and {others[0].phrase} goes with another game"}


def scripted(kinds: Sequence[Kind]) -> bool:
    """Whether a function stands for the model: a tool or a sandbox is to be called, without an engine."""
    names = {kind.name for kind in kinds}
    return bool(names & CALLS.keys()) and "engine" not in names


@dataclass(slots=True)
class YamlBlock:
    """What stands under a key: a value in its line, or keys of its own, in their order."""

    value: str = ""
    comments: list[str] = field(default_factory=list)
    keys: dict[str, YamlBlock] = field(default_factory=dict)


def merged(texts: Iterable[str]) -> str:
    """The YAML of texts that lie over each other, the last on top.

    Each text is block-style YAML of two spaces a level, with a key in every line. Keys of one place are
    joined; two lists in brackets are joined too; of two other values the upper one counts.
    """
    root = YamlBlock()
    for text in texts:
        _lay(root, _parsed(text))
    return "".join(f"{line}\n" for line in _lines(root, ""))


def _parsed(text: str) -> YamlBlock:
    root = YamlBlock()
    path, comments = [root], list[str]()
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comments.append(line.strip())
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"{line!r} is no `key: value`")
        del path[len(match[1]) // 2 + 1 :]
        block = path[-1].keys[match[2]] = YamlBlock(match[3] or "", comments)
        path.append(block)
        comments = []
    return root


def _lay(under: YamlBlock, over: YamlBlock) -> None:
    for key, block in over.keys.items():
        present = under.keys.get(key)
        if present is None:
            first = key in ("type", "with")  # where people look for it
            under.keys = {key: block, **under.keys} if first else {**under.keys, key: block}
        elif block.keys and present.keys:
            present.comments += block.comments
            _lay(present, block)
        elif block.value.startswith("[") and present.value.startswith("["):
            present.value = f"{present.value[:-1]}, {block.value[1:]}"
        else:
            under.keys[key] = block


def _lines(block: YamlBlock, indent: str) -> Iterable[str]:
    for key, inner in block.keys.items():
        yield from (f"{indent}{comment}" for comment in inner.comments)
        yield f"{indent}{key}: {inner.value}".rstrip()
        yield from _lines(inner, f"{indent}  ")
