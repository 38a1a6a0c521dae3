"""The kinds that can be scaffolded: their templates, their hooks, and what they need beside them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.scaffold.code import TemplateParts, read_source
from coterie.scaffold.files import ScaffoldError

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of plugin."""

    name: str
    needs: tuple[str, ...] = ()
    """Kinds without which it can't be run."""
    why: str = ""
    """Why it needs them."""
    files: tuple[str, ...] = ()
    """Files beside its module."""
    module: bool = True
    """Whether a package has a module of it; False: its files are registered by their paths."""

    @property
    def source(self) -> TemplateParts:
        """Its one-file example."""
        return read_source(template(f"kinds/{self.name}.py"))

    @property
    def phrase(self) -> str:
        """The kind with its article: `an environment`."""
        return f"{'an' if self.name[0] in 'aeio' else 'a'} {self.words}"

    @property
    def words(self) -> str:
        """The kind for readers: `chat model`."""
        return self.name.replace("_", " ")


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        # In the order in which an episode meets them, which is the order in files.
        Kind("environment", ("role",), "a game is played by roles, which write its prompts"),
        Kind("data_source", files=("example_name.jsonl",)),
        Kind("role"),
        Kind("transition", ("role",), "feedback is shown by a role"),
        Kind("tool"),
        Kind("sandbox"),
        Kind("reward"),
        Kind("chat_model"),
        Kind("estimator"),
        Kind("loss"),
        Kind("sampler"),
        Kind("executor"),
        Kind("chat_format", ("engine",), "engines that read a chat format need torch, and this one doesn't"),
        Kind("engine"),
        Kind("trainer", ("engine",), "an engine reads the trainer's weights"),
        Kind("tracker"),
        Kind("recipe", module=False),
        Kind("overlay", files=("example_name_overlay.yaml",), module=False),
        Kind("column", files=("example_name_column.yaml",), module=False),
        Kind("study", ("column",), "a study compares its methods on columns"),
        Kind("command"),
    )
}


def with_needed(names: Sequence[str]) -> tuple[list[Kind], dict[str, str]]:
    """The kinds in their order, with those that they need.

    Returns:
        the kinds; by name of a kind that was added: why.

    Raises:
        ScaffoldError: a name is unknown or given twice, or there is none.
    """
    if not names:
        raise ScaffoldError("there is no kind", fix=f"--kind KIND; the kinds are {', '.join(sorted(KINDS))}")
    chosen: dict[str, str] = {}
    for given in names:
        name = given.replace("-", "_")
        if name not in KINDS:
            near = difflib.get_close_matches(name, KINDS, n=1, cutoff=0.6)
            known = f"the kinds are {', '.join(sorted(KINDS))}"
            fix = f"did you mean '{near[0]}'?" if near else "choose one of them"
            raise ScaffoldError(f"'{given}' is no kind of plugin", why=known, fix=fix)
        if name in chosen:
            raise ScaffoldError(f"--kind {name} is given twice", fix="leave one of them out")
        chosen[name] = ""
    added = {
        needed: KINDS[name].why for name in chosen for needed in KINDS[name].needs if needed not in chosen
    }
    return [kind for name, kind in KINDS.items() if name in chosen or name in added], added


def exemplified(kinds: Sequence[Kind]) -> list[Kind]:
    """The kinds of which a check needs an example."""
    return [kind for kind in kinds if (TEMPLATES / "examples" / f"{kind.name}.py").is_file()]


def template(name: str) -> str:
    """The text of a template."""
    return (TEMPLATES / name).read_text(encoding="utf-8")
