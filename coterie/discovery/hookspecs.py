"""Every hook that a plugin may implement. A hook is a signature and a sentence.

    from coterie import hookimpl

    @hookimpl
    def register_environments(register):
        register("countdown", "my_package.countdown:Countdown")

`register(name, target)` takes an object or a lazy `"module:attribute"`, which is imported when a run
chooses it. Registration hooks are called when the plugin is loaded. A plugin whose module imports a large
library names its `Config` (a trainer or an engine its `Policy` too) in a module that doesn't:
`register("big", "my_package.trainer:Big", config="my_package.settings:BigConfig")`. Configurations are then
shown and checked without the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import pluggy

from coterie.core.types import Scores, Tree

hookspec = pluggy.HookspecMarker("coterie")


class Register(Protocol):
    """What a registration hook is given."""

    def __call__(
        self, name: str, target: Any, config: str | type | None = None, policy: str | type | None = None
    ) -> None:
        """Make `target` (an object, or `"module:attribute"`) known by `name`.

        Args:
            config: the target's own `Config`, a class or `"module:Class"`; default: read from the target.
            policy: the same for the `Policy` of a trainer or an engine.
        """


class RegisterExample(Protocol):
    """What `register_examples` is given."""

    def __call__(self, kind: str, name: str, target: Any) -> None:
        """Say how a component is tried.

        Args:
            kind, name: of the component, as it is registered.
            target: a `coterie.testing.Example`, several in a list, or a lazy `"module:attribute"` that names
                either. It is imported when the component is checked, and by no run.
        """


_FILE = 'a path of a YAML file, or `"package:file.yaml"`.'
_REGISTERED = {
    "register_environments": "environments: turn-based games (`coterie.Environment`).",
    "register_roles": "roles: how a prompt is written and an answer is read (`coterie.Role`).",
    "register_rewards": "reward sources (`coterie.RewardSource`).",
    "register_estimators": "advantage estimators: the algorithms (`coterie.AdvantageEstimator`).",
    "register_losses": "losses: per-token surrogates (`coterie.Loss`).",
    "register_transitions": "transition modes: the feedback that roles get between turns "
    "(`coterie.TransitionMode`).",
    "register_samplers": "samplers: how trees grow (`coterie.Sampler`).",
    "register_engines": "engines: what generates tokens (`coterie.Engine`).",
    "register_trainers": "trainers: what updates weights (`coterie.Trainer`).",
    "register_executors": "executors: where episodes run (`coterie.Executor`).",
    "register_sandboxes": "sandboxes: where programs that a model wrote run (`coterie.Sandbox`).",
    "register_tools": "tools that a role may call inside an action (`coterie.Tool`).",
    "register_chat_formats": "chat formats: messages to text (`coterie.ChatFormat`).",
    "register_chat_models": "chat models, which coaches and transition modes ask (`coterie.ChatModel`).",
    "register_data_sources": "data sources (`coterie.DataSource`).",
    "register_trackers": "trackers: where the metrics of every step go (`coterie.Tracker`).",
    "register_recipes": f"recipes: {_FILE}",
    "register_overlays": f"overlays, which go over many recipes: {_FILE}",
    "register_columns": f"columns of studies: {_FILE}",
    "register_studies": "studies: whole comparisons, which `coterie reproduce NAME` runs (`coterie.Study`).",
    "register_commands": "commands: click commands that `coterie NAME` runs.",
}
"""Registration hook -> what plugins register in it; all have one signature."""


def _registration(name: str, what: str) -> Callable[[Register], None]:
    def hook(register: Register) -> None: ...

    hook.__name__ = hook.__qualname__ = name
    hook.__doc__ = f"Register {what}"
    return cast(Callable[[Register], None], hookspec(historic=True)(hook))


globals().update({name: _registration(name, what) for name, what in _REGISTERED.items()})


@hookspec(historic=True)
def register_examples(register: RegisterExample) -> None:
    """Register examples of components, with which `coterie check` tries them."""


@hookspec
def episode_ended(tree: Tree, scores: Scores, evaluation: bool) -> None:
    """Observe: one tree was played. Exceptions are logged with the plugin's name and go no further."""


@hookspec
def step_ended(step: int, metrics: Mapping[str, Any]) -> None:
    """Observe: one training step is done. Exceptions are logged with the plugin's name and go no further."""


WHEN = {
    "episode_ended": "after each tree is played and scored, in the process that trains or evaluates",
    "step_ended": "at the end of each training step, when its metrics are written",
}
"""When a hook is called that observes; the others are called once, when the plugin is loaded."""
