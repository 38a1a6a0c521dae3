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

from collections.abc import Mapping
from typing import Any, Protocol

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


@hookspec(historic=True)
def register_environments(register: Register) -> None:
    """Register environments: turn-based games (`coterie.Environment`)."""


@hookspec(historic=True)
def register_roles(register: Register) -> None:
    """Register roles: how a prompt is written and an answer is read (`coterie.Role`)."""


@hookspec(historic=True)
def register_rewards(register: Register) -> None:
    """Register reward sources (`coterie.RewardSource`)."""


@hookspec(historic=True)
def register_estimators(register: Register) -> None:
    """Register advantage estimators: the algorithms (`coterie.AdvantageEstimator`)."""


@hookspec(historic=True)
def register_losses(register: Register) -> None:
    """Register losses: per-token surrogates (`coterie.Loss`)."""


@hookspec(historic=True)
def register_transitions(register: Register) -> None:
    """Register transition modes: the feedback that roles get between turns (`coterie.TransitionMode`)."""


@hookspec(historic=True)
def register_samplers(register: Register) -> None:
    """Register samplers: how trees grow (`coterie.Sampler`)."""


@hookspec(historic=True)
def register_engines(register: Register) -> None:
    """Register engines: what generates tokens (`coterie.Engine`)."""


@hookspec(historic=True)
def register_trainers(register: Register) -> None:
    """Register trainers: what updates weights (`coterie.Trainer`)."""


@hookspec(historic=True)
def register_executors(register: Register) -> None:
    """Register executors: where episodes run (`coterie.Executor`)."""


@hookspec(historic=True)
def register_sandboxes(register: Register) -> None:
    """Register sandboxes: where programs that a model wrote run (`coterie.Sandbox`)."""


@hookspec(historic=True)
def register_tools(register: Register) -> None:
    """Register tools that a role may call inside an action (`coterie.Tool`)."""


@hookspec(historic=True)
def register_chat_formats(register: Register) -> None:
    """Register chat formats: messages to text (`coterie.ChatFormat`)."""


@hookspec(historic=True)
def register_chat_models(register: Register) -> None:
    """Register chat models, which coaches and transition modes ask (`coterie.ChatModel`)."""


@hookspec(historic=True)
def register_data_sources(register: Register) -> None:
    """Register data sources (`coterie.DataSource`)."""


@hookspec(historic=True)
def register_trackers(register: Register) -> None:
    """Register trackers: where the metrics of every step go (`coterie.Tracker`)."""


@hookspec(historic=True)
def register_recipes(register: Register) -> None:
    """Register recipes: a path of a YAML file, or `"package:file.yaml"`."""


@hookspec(historic=True)
def register_overlays(register: Register) -> None:
    """Register overlays, which go over many recipes: a path of a YAML file, or `"package:file.yaml"`."""


@hookspec(historic=True)
def register_columns(register: Register) -> None:
    """Register columns of studies: a path of a YAML file, or `"package:file.yaml"`."""


@hookspec(historic=True)
def register_studies(register: Register) -> None:
    """Register studies: whole comparisons, which `coterie reproduce NAME` runs (`coterie.Study`)."""


@hookspec(historic=True)
def register_commands(register: Register) -> None:
    """Register commands: click commands that `coterie NAME` runs."""


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
