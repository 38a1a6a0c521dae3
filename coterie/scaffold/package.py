"""The two forms: a package, with all that a repository needs, and a module for `-p`; each with its recipe."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.scaffold.code import Import, import_text, module_text, read_source
from coterie.scaffold.kinds import KINDS, Kind, exemplified, template
from coterie.scaffold.names import Names
from coterie.scaffold.smoke import CALLS, recipe, scripted

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
