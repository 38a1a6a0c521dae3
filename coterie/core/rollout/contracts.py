"""Checks of what a plugin's method returned. Each error names the plugin, its distribution and the method.

Those of a rollout take about a microsecond a call; those of a step, about a microsecond a branch.
"""

from __future__ import annotations

import json
from asyncio import isfuture
from collections.abc import Collection, Iterable, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from numbers import Integral
from typing import Any, NoReturn, SupportsFloat, TypeVar

import numpy as np

from coterie.core.errors import PluginError, did_you_mean
from coterie.core.plugins.origin import origin_of, place as at
from coterie.core.protocols import Rollout, RolloutJob, ScoredRollout
from coterie.core.types import TEAM, Call, Credit, Key, Message, Request, Score, Step, Tree, Weights
from coterie.core.types.messages import encodable

T = TypeVar("T")
FRAMEWORK_METRICS = frozenset(
    ("", "advantage", "curriculum", "empty", "episodes", "eval", "faults", "finish_length", "length",
     "machine", "missing", "outcome", "outcome_committed", "policy", "prompts", "reward", "score",
     "selection", "signal", "step", "success", "success_committed", "time", "tokens", "turns_to_success")
)  # fmt: skip
"""First parts of the names in a step's row of metrics that no plugin may use."""
FEEDBACK_CHARACTERS = 4_000
"""A longer text of feedback is cut and marked, since the policy that reads it pays for too long a prompt."""


def check_async(plugin: Any, method: str, returned: Any, wanted: bool = True) -> Any:
    """Of a method that is `async def` in its kind's Protocol: an awaitable, which is returned; else none."""
    if isawaitable(returned) is not wanted:
        refuse(plugin, method, returned, f"`{method}` must {'' if wanted else 'not '}be `async def`")
    return returned


def check_given(plugin: Any, method: str, returned: T | None, kind: str) -> T:
    """Of a method that makes something, which a method that ends without `return` forgets."""
    if returned is None:
        refuse(plugin, method, returned, f"return a coterie.{kind}")
    return returned


def check_messages(role: Any, messages: Any) -> tuple[Message, ...]:
    """Of `Role.render`: a sequence of {"role": ..., "content": ...}, both texts; one at least.

    The messages are returned with contents that a tokenizer takes.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        refuse(role, "render", messages, 'return a list of {"role": "user", "content": text}')
    for message in messages:
        try:
            known = message["role"] in ("system", "user", "assistant", "tool")
            sound = known and isinstance(message["content"], str)
        except (TypeError, KeyError):
            sound = False
        if not sound:
            fix = 'a message is {"role": "user" (or system, assistant, tool), "content": text}'
            refuse(role, "render", message, fix)
    return tuple({**message, "content": encodable(message["content"])} for message in messages)


def check_feedback(plugin: Any, sentences: Any, method: str = "tell") -> list[str]:
    """Of `TransitionMode.tell`, and `ShowsFeedback.feedback` in a list: sentences, as a prompt shows them."""
    if not isinstance(sentences, Sequence) or isinstance(sentences, str):
        refuse(plugin, method, sentences, "return a list of texts, e.g. [sentence]")
    for sentence in sentences:
        if not isinstance(sentence, str):
            refuse(plugin, method, sentence, "every sentence is a text")
    most = FEEDBACK_CHARACTERS
    return [text if len(text) <= most else text[:most] + " [...]" for text in map(encodable, sentences)]


def check_step(environment: Any, step: Any) -> None:
    """Of `Environment.step`: a `Step` with scores of declared components."""
    if not isinstance(step, Step):
        refuse(environment, "step", step, "return a coterie.Step")
    check_scores(environment, "step", step.scores)


def check_source(
    source: Any, returned: Any, tables: int | None = None, per_role: Collection[str] = ()
) -> None:
    """Of `RewardSource.score`: a table of scores, or as many as `tables` (scopes siblings, trajectory)."""
    if tables is None:
        check_scores(source, "score", returned)
        for component in per_role:
            if (TEAM, component) in returned:
                refuse(source, "score", returned, f"the team has no '{component}', which is `per_role`")
        return
    if not isinstance(returned, Sequence) or isinstance(returned, str) or len(returned) != tables:
        refuse(source, "score", returned, f"a list of tables, one for each of {tables} actions")
    for table in returned:
        check_scores(source, "score", table)


def check_scores(plugin: Any, method: str, table: Any) -> None:
    """Scores by (role or TEAM, component): numbers or None, of the plugin's components."""
    if not isinstance(table, Mapping):
        refuse(plugin, method, table, "scores are {(role, component): number}; coterie.TEAM is a role")
    for place, given in table.items():
        value = given.value if isinstance(given, Score) else given
        if not isinstance(place, tuple) or len(place) != 2:
            refuse(plugin, method, place, "the key of a score is (role or coterie.TEAM, component)")
        if place[1] not in plugin.components:
            near = did_you_mean(str(place[1]), plugin.components)
            refuse(plugin, method, place[1], f"declare the component in `components` ({near})")
        if not (value is None or isinstance(value, float) or converts(value)):  # the slow one last
            refuse(plugin, method, value, f"'{place[1]}' is a number, or None where the score is missing")
        if isinstance(given, Score) and not all(isinstance(t, str) for t in (given.comment, given.reason)):
            refuse(plugin, method, given, f"the comment and the reason of '{place[1]}' are texts")


def check_acting(environment: Any, roles: Any, known: Collection[str]) -> None:
    """Of `Environment.acting_roles`: None, or a tuple of roles of the team, each once."""
    if roles is None:
        return
    if not isinstance(roles, tuple):
        refuse(environment, "acting_roles", roles, "return a tuple of roles, () at the end, or None")
    for role in roles:
        if role not in known:
            refuse(environment, "acting_roles", role, f"roles of the team; {did_you_mean(str(role), known)}")
    if len(set(roles)) < len(roles):
        refuse(environment, "acting_roles", roles, "name each role once")


def check_credit(estimator: Any, returned: Any, trees: Sequence[Tree]) -> Any:
    """Of `AdvantageEstimator.__call__`: (Credit of branches of these trees, the next state as JSON).

    Returns:
        the next state as a checkpoint gives it back, so that a resumed run goes on as this one.
    """
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Credit)):
        refuse(estimator, "__call__", returned, "return (coterie.Credit(...), state)")
    credit, state = returned
    sampled = {key: action.tokens for tree in trees for key, _, action in tree.actions()}
    for part in ("advantage", "weight", "target", "returns"):
        if not isinstance(table := getattr(credit, part), Mapping):
            refuse(estimator, "__call__", table, f"Credit.{part}: a table of numbers by branch")
        for key, value in table.items():
            fix = "a key is that of a branch of the batch: node.key.of_branch(role, index)"
            if isinstance(key, Key) and key in sampled:
                fix = _number_of_branch(part, value, sampled[key])
            if fix:
                at = key.text() if isinstance(key, Key) else key
                refuse(estimator, "__call__", {at: value}, f"Credit.{part}: {fix}")
    check_metrics(estimator, "__call__", credit.metrics)
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError):
        refuse(estimator, "__call__", state, "a state of plain JSON: a checkpoint keeps it")


def _number_of_branch(part: str, value: Any, tokens: int) -> str:
    """What the value of a branch with so many sampled tokens has to be; empty: it is."""
    try:
        if not np.isfinite(value).all():
            return "a finite number, or no entry for a branch"
    except TypeError:
        return "finite numbers by branch, or none for a branch"
    if part == "weight":
        return "" if np.ndim(value) == 0 and value >= 0 else "one number, which is not negative"
    if np.shape(value) == (tokens,) or (part != "target" and np.ndim(value) == 0):
        return ""
    which = "an array" if part == "target" else "one number, or an array"
    return f"{which} with a number for each of the branch's {tokens} sampled tokens, shape ({tokens},)"


def check_metric_names(plugin: Any, method: str, names: Iterable[Any]) -> None:
    """Of metrics that a plugin reports: none has a name of the framework's."""
    for name in names:
        if not isinstance(name, str) or name.partition("/")[0] in FRAMEWORK_METRICS:
            fix = f"'{name}' is a metric of the framework's: begin its name with '{origin_of(plugin).name}/'"
            refuse(plugin, method, f"the metric {name!r}", fix)


def check_metrics(plugin: Any, method: str, metrics: Any) -> None:
    """Of metrics that a plugin reports: numbers by names that are none of the framework's."""
    check_table(plugin, method, metrics)
    check_metric_names(plugin, method, metrics)
    for name, number in metrics.items():
        if not converts(number):
            refuse(plugin, method, {name: number}, "metrics are numbers; NaN: there is none")


def check_rollout(executor: Any, job: RolloutJob, rollout: Any) -> Rollout:
    """Of `Executor.play`: the rollout of the job."""
    if not (isinstance(rollout, Rollout) and isinstance(rollout.tree, Tree) and isfuture(rollout.scored)):
        refuse(executor, "play", rollout, "return the Rollout of the rollout side: a Tree, and a future")
    tree = rollout.tree
    if (tree.task.id, tree.epoch, tree.chain) != (job.task.id, job.epoch, job.chain):
        what = f"the rollout of task {tree.task.id}, epoch {tree.epoch}, chain {tree.chain}"
        fix = f"return that of the job: task {job.task.id}, epoch {job.epoch}, chain {job.chain}"
        refuse(executor, "play", what, fix)
    return rollout


def check_scored(executor: Any, scored: Any) -> ScoredRollout:
    """Of `Rollout.scored`: what the rollout side wrote of the tree."""
    if not isinstance(scored, ScoredRollout):
        refuse(executor, "play", scored, "the result of `Rollout.scored` is the side's ScoredRollout")
    return scored


def check_call(engine: Any, request: Request, call: Any) -> Call:
    """Of `Engine.generate`: a Call with a version; of several versions, with one number of tokens each."""
    if not isinstance(call, Call):
        refuse(engine, "generate", call, "return a coterie.Call")
    if not isinstance(call.version, Integral):
        refuse(
            engine, "generate", call.version, "Call.version is Weights.version of the weights that drew it"
        )
    runs = call.version_runs
    try:
        versions, tokens = zip(*runs, strict=True) if runs else ((call.version,), (len(call.token_ids),))
        whole = all(isinstance(number, Integral) for number in (*versions, *tokens))
        sound = whole and isinstance(runs, tuple) and sum(tokens) == len(call.token_ids)
        sound = sound and min(versions) == call.version and (not runs or min(tokens) > 0)
    except (TypeError, ValueError):
        sound = False
    if not sound or (runs and request.version is not None):
        fix = "version_runs are pairs (version, tokens) that add up to the call's tokens, and the oldest is "
        fix += "Call.version; () where Request.version names one"
        refuse(engine, "generate", runs, fix)
    check_version(engine, request, call)
    return call


def check_version(engine: Any, request: Request, call: Call) -> None:
    """Of `generate`, also of an executor's client: the version asked for; an aborted call is lost anyway."""
    if request.version not in (None, call.version) and call.finish != "abort":
        what = f"a call of version {call.version} of policy '{request.policy}'"
        fix = f"draw with Request.version ({request.version}); raise SystemFault where it is gone"
        refuse(engine, "generate", what, fix)


def check_weights(
    trainer: Any, method: str, weights: Any, policy: str, version: int | None = None
) -> Weights:
    """Of `Trainer.weights` and `weights_at`: weights of the policy, of the version that was asked for."""
    checked: Weights = check_given(trainer, method, weights, "Weights")
    sound = isinstance(weights, Weights) and weights.policy == policy
    if not sound or not isinstance(weights.version, Integral) or version not in (None, weights.version):
        of = "" if version is None else f" and version {version}"
        refuse(
            trainer,
            method,
            weights,
            f"return coterie.Weights of policy '{policy}'{of}; versions are integers",
        )
    return checked


def check_table(plugin: Any, method: str, returned: Any) -> None:
    """Of a method that returns values by name."""
    if not isinstance(returned, Mapping):
        refuse(plugin, method, returned, "return a mapping")


def check_updated(trainer: Any, updated: Any, policies: Collection[str]) -> None:
    """Of `Trainer.update`: by policy of the run, numbers by name."""
    check_table(trainer, "update", updated)
    for policy, metrics in updated.items():
        if policy not in policies or not isinstance(metrics, Mapping):
            fix = f"return {{policy: {{name: number}}}}, of policies of the run: {', '.join(policies)}"
            refuse(trainer, "update", {policy: metrics}, fix)
        for name, number in metrics.items():
            if not isinstance(name, str) or not converts(number):
                fix = "metrics are numbers by name; NaN: there is none"
                refuse(trainer, "update", {policy: {name: number}}, fix)


def converts(value: Any) -> bool:
    """Whether `float(value)` is a number: not of an array of several, nor of an integer beyond all floats."""
    try:
        return isinstance(value, SupportsFloat) and isinstance(float(value), float)
    except Exception:  # whatever the conversion of a plugin's own type raises
        return False


def refuse(plugin: Any, method: str, returned: Any, fix: str) -> NoReturn:
    if iscoroutine(returned):
        returned.close()  # else Python warns that it was never awaited
    origin = origin_of(plugin)
    code = getattr(getattr(type(plugin), method, None), "__code__", None)
    where = at(code.co_filename, code.co_firstlineno) if code and origin.distribution != "coterie" else ""
    what = f"{origin}: {method} returned {returned!r:.200}{where}"
    raise PluginError(what, path=origin.path, fix=fix)
