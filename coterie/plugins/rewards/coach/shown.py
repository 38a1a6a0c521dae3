"""What a coach is shown of actions: from views, and from what the environment tells of the work, checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from coterie.core.errors import ConfigError, PluginError, did_you_mean
from coterie.core.plugins.origin import failure, origin_of, plugin_call
from coterie.core.protocols import ActionView, EpisodeView
from coterie.core.protocols.reward import PlayedAction
from coterie.core.types import Task, as_tuple
from coterie.discovery.members import Brief, ShowsWork, Work
from coterie.discovery.optional import EnvironmentDefaults, with_defaults
from coterie.plugins.rewards.coach.prompts import (
    ShownAction,
    ShownTask,
    files_text,
    reference,
    team_text,
)

log = logging.getLogger("coterie")


Part = TypeVar("Part", Brief, Work)


def brief_fault(brief: Any, roles: Collection[str]) -> str:
    """What is wrong with what a `brief` returned; empty: nothing."""
    if not isinstance(brief, Brief):
        return f"returned {brief!r:.200} and no coterie.Brief"
    if not isinstance(brief.problem, str):
        return f"problem is {brief.problem!r:.200} and no text"
    for name in ("duties", "limits", "required"):
        table = getattr(brief, name)
        if not isinstance(table, Mapping):
            return f"{name} is {table!r:.200} and no table by role"
        for role, value in table.items():
            if role not in roles:
                return f"{name} names '{role}', and the roles are {', '.join(roles)}"
            listed = name == "required"
            if not (_texts(value) if listed else isinstance(value, str)):
                return f"{name} of {role} is {value!r:.200} and no {'list of names' if listed else 'text'}"
    return "" if _texts(brief.available) else f"available is {brief.available!r:.200} and no list of lines"


def work_fault(work: Any) -> str:
    """What is wrong with what a `work` returned; empty: nothing."""
    if not isinstance(work, Work):
        return f"returned {work!r:.200} and no coterie.Work"
    for name in ("output", "files", "outcome"):
        if not isinstance(getattr(work, name), str):
            return f"{name} is {getattr(work, name)!r:.200} and no text"
    return ""


def _texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _returned(
    environment: Any, method: str, kind: type[Part], fault: Callable[[Any], str], *arguments: Any
) -> Part:
    """What a method of the environment returned: a mistake in it is the environment's, and not the coach's.

    Args:
        fault: what is wrong with a value; empty: nothing.

    Raises:
        PluginError: the method raised something, or gave no value of the kind.
    """
    origin = origin_of(environment)
    try:
        with plugin_call(environment, method):
            returned = getattr(environment, method)(*arguments)
    except PluginError:
        raise
    except Exception as error:  # a fault of it would be scored as one of the action
        raise PluginError(failure(environment, method, error), path=origin.path) from error
    if wrong := fault(returned):
        fix = f"return a coterie.{kind.__name__}, all of whose parts are texts"
        raise PluginError(f"{origin}: {method}: {wrong}", path=origin.path, fix=fix)
    return returned


class ShownWork:
    """Makes what is shown by a coach's settings.

    Args:
        config: of the coach.
        build: of its constructor.

    Raises:
        ConfigError: `guidance` names a role that the team doesn't have, or `outcome` is asked of an
            environment that tells none.
    """

    def __init__(self, config: Any, build: Any) -> None:
        self.config, self.path = config, build.path
        self.order: Sequence[Sequence[str]] = as_tuple(build.run.team.order)
        self.environment: Any = build.environment
        self._roles = [role for stage in self.order for role in stage]
        self._turns: int = build.run.team.max_turns
        self._tells = isinstance(self.environment, ShowsWork)
        self._last = self.order[-1]
        self._lacks_reference = False
        """Whether a task without a reference answer was warned of."""
        self._check()

    def _check(self) -> None:
        roles = self._roles
        stray = [role for role in self.config.guidance if role not in roles]
        if stray:
            raise ConfigError(
                f"the team has no role '{stray[0]}'",
                path=f"{self.path}.guidance.{stray[0]}",
                why=f"its roles are {', '.join(roles)}",
                fix=did_you_mean(stray[0], roles),
            )
        if self.config.outcome != "none" and not self._tells:
            raise ConfigError(
                "the environment tells no computed outcome",
                path=f"{self.path}.outcome",
                why=f"{type(self.environment).__name__} has no brief and no work (coterie.ShowsWork)",
                fix="set outcome: none; ground_truth shows the reference answer",
            )

    @property
    def most_actions(self) -> int:
        """Of an episode."""
        often = with_defaults(self.environment, EnvironmentDefaults).actions_per_turn
        return self._turns * sum(often.get(role, 1) for stage in self.order for role in stage)

    def of_action(self, view: ActionView) -> tuple[ShownAction, ShownTask]:
        """An action, and its task."""
        last = view.role in self._last
        work = self._work(view.role, view.info)
        shown = ShownAction(
            role=view.role,
            turn=view.turn,
            messages=view.messages,
            action=view.action,
            guidance=self.config.guidance.get(view.role, ""),
            output=work.output,
            files=work.files or files_text(view.observation, view.state),
            outcome=work.outcome if self._shows(self.config.outcome, last) else "",
        )
        return shown, self._task(view.task, last, {})

    def of_episode(self, view: EpisodeView) -> tuple[list[tuple[PlayedAction, ShownAction]], ShownTask]:
        """The actions of an episode that the engine did not abort, and their task."""
        infos = {
            node.key.of_branch(role, branch): node.joints[index].info
            for node, index in view.path
            for role, branch in node.joints[index].branches.items()
        }
        outcome = self._outcome(view) if self.config.outcome == "all" else ""
        each = self.config.per == "action"
        shown = []
        for at in view.actions:
            if not at.action.trainable:
                continue
            work, role = self._work(at.decision.role, infos[at.key]), at.decision.role
            action = ShownAction(
                role=role,
                turn=at.node.turn,
                messages=at.decision.messages,
                action=at.action,
                guidance=self.config.guidance.get(role, "") if each else "",
                output=work.output,
                files=work.files or files_text(at.decision.observation),
                outcome=outcome if each else "",
            )
            shown.append((at, action))
        task = self._task(view.task, False, {} if each else self.config.guidance)
        return shown, task._replace(outcome="" if each else outcome)

    def _outcome(self, view: EpisodeView) -> str:
        """What the episode came to: the last joint action's, for the first role of it that has one."""
        texts = (self._work(role, view.leaf.info).outcome for role in view.leaf.branches)
        return next((text for text in texts if text), "")

    def _work(self, role: str, info: Mapping[str, Any]) -> Work:
        if not self._tells:
            return Work()
        return _returned(self.environment, "work", Work, work_fault, role, info)

    def _task(self, task: Task, last: bool, guidance: Mapping[str, str]) -> ShownTask:
        brief: Brief | None = None
        if self._tells:
            brief = _returned(
                self.environment, "brief", Brief, lambda brief: brief_fault(brief, self._roles), task
            )
        answer = self._reference(task) if self._shows(self.config.ground_truth, last) else None
        return ShownTask(team_text(self.order, brief, guidance), answer)

    def _shows(self, setting: str, last: bool) -> bool:
        """Whether a setting `none | last | all` shows something with an action (of the last role, or not)."""
        return setting == "all" or (setting == "last" and last)

    def _reference(self, task: Task) -> str | None:
        """The task's reference answer; the first task without one is warned of."""
        if task.answer is None and not self._lacks_reference:
            self._lacks_reference = True
            log.warning(
                "%s.ground_truth=%s: task '%s' has no reference answer (Task.answer), so the coach scores it "
                "without one; later ones are not listed",
                self.path, self.config.ground_truth, task.id,
            )  # fmt: skip
        return reference(task.answer)
