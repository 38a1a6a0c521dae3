"""The one-file form: a module for `-p`, with the recipe that runs it beside it."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.scaffold.code import Import, module_text, read_source
from coterie.scaffold.kinds import Kind, exemplified, template
from coterie.scaffold.names import Names
from coterie.scaffold.smoke import CALLS, recipe, scripted


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
