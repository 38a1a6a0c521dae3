"""The environment `math`: problems whose answers a verifier compares with a reference."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from coterie.core.errors import ConfigError, PolicyFault
from coterie.core.plugins import Plugin
from coterie.core.protocols import DataSource, StepContext, TaskSource
from coterie.core.types import TEAM, Action, ComponentKind, Step, Task, as_tuple
from coterie.core.types.splits import SPLITS, Split
from coterie.discovery.members import Brief, Work
from coterie.plugins.envs.common.code import printing_program, read_program, run_info, run_tool, shortened
from coterie.plugins.envs.common.teams import check_not_lost, check_sandbox
from coterie.plugins.envs.math import answers, compact, generated, shown
from coterie.plugins.envs.math.config import CHAIN, COMPACT_ROLES, ROLES, MathConfig, form_of
from coterie.plugins.envs.math.records import MathSetConfig, Problems, content
from coterie.plugins.envs.math.state import (
    MathObservation,
    MathState,
    MathUtterance,
    Problem,
    Writes,
    unfinished,
)
from coterie.plugins.envs.math.verifier import Verifier

_UNBUILT = re.compile(r"\b(?:SyntaxError|IndentationError|TabError)\b")


class Math(Plugin):
    """Answer a problem of mathematics; success is the verifier's word on the answering role's last answer.

    Sources: the reasoner and the tool of AT-GRPO (arXiv 2510.11062), MathChat of MAPPA (arXiv 2601.23228).
    The forms of a team are in `config.py`. What differs from both: correctness never comes from a coach or
    from agreement, problems of val and test are left out of train, and the executor's two turns are two
    actions.
    """

    Config = MathConfig
    config: MathConfig
    roles = ROLES
    components: Mapping[str, ComponentKind] = {
        # Potentials: staying right over three turns earns no more than becoming right once.
        "correct": "potential",
        "right": "potential",
        "format": "potential",
        "builds": "potential",
        "runs": "potential",
        "sound": "potential",
    }
    """`correct`: the team's answer is right, once its answering role acted. By role: `right`: the answer in
    the role's own message; `format`: the message has what it is to hold; `builds`, `runs`: its program
    compiles and finishes; `sound` (compact): its step follows from what it saw, also where that was wrong."""
    per_role = ("right", "format", "builds", "runs", "sound")
    fields = tuple(field.name for field in fields(MathObservation))

    def __init__(self, config: MathConfig, build: Any) -> None:
        super().__init__(config, build)
        order = as_tuple(build.run.team.order)
        self._form = form_of(order, build.path)
        self._team = tuple(role for stage in order for role in stage)
        self._compact = config.rendering == "compact"
        self._answering = "reasoner" if "reasoner" in self._team else self._team[-1]
        self._turns = 1 if config.executor_loop else config.executor_turns
        self.actions_per_turn = {"code_executor": self._turns} if self._form == CHAIN else {}
        """For `coterie plan`."""
        writers = {"tool", *(() if config.executor_loop else ("code_executor",))}
        writers |= {"solver"} if config.sandbox is not None else set()  # alone it may write programs too
        self._writers = () if self._compact else tuple(role for role in self._team if role in writers)
        self._check(order)
        self.weights = {name: 0.0 for name in self.components} | {"correct": 1.0}
        if self._form != CHAIN:  # the paper's local rewards; a tool has no format, a reasoner no program
            self.weights |= {"right": 0.8, "format": 0.2, "builds": 0.1, "runs": 0.1}
        numbers = config.verify == "numbers" or (config.verify is None and self._compact)
        self._verifier = (
            None if numbers else Verifier(seconds=config.verify_seconds, workers=config.verify_workers)
        )
        self.concurrent = bool(self._verifier or self._writers)
        """Whether steps wait: for the verifier, or for the sandbox."""
        self._problems = self._records()
        if config.apart:
            self._leave_out_sets(config.apart)

    # ---- tasks ---------------------------------------------------------------------------------------------

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """The problems of a split.

        Raises:
            DataError: a record is wrong, or a problem of test is also in val.
            ConfigError: there is no such split, or it has too few problems.
        """
        if self._problems is not None:
            return self._problems.tasks(split, seed)
        return generated.GeneratedProblems(
            split=split,
            seed=seed,
            count=self.config.task_count(split),
            level=self.config.level,
            path=self.build.path,
        )

    def leave_out(self, evaluated: Callable[[], Sequence[Task]]) -> None:
        """Leave problems out of train, before its `draw`. Generated ones are apart by a hash."""
        if self._problems is not None:
            self._problems.elsewhere = evaluated

    def record(self, task: Task) -> dict[str, Any]:
        """The task as JSON: problem and answer; `words`, `expression` and `level` where they are known."""
        problem: Problem = task.payload
        table = {"words": problem.words, "expression": problem.expression, "level": task.stratum}
        return {"problem": problem.text, "answer": task.answer} | {k: v for k, v in table.items() if v}

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record.

        Raises:
            ValueError: it has no text `problem`, or no `answer`.
        """
        texts = {key: record.get(key, "") for key in ("problem", "answer", "words", "expression", "level")}
        for key, text in texts.items():
            if not isinstance(text, str) or (key in ("problem", "answer") and not text.strip()):
                raise ValueError(f"the field '{key}' is no text: {text!r:.60}")
        problem = Problem(text=texts["problem"], words=texts["words"], expression=texts["expression"])
        return Task(id=id, payload=problem, answer=texts["answer"], stratum=texts["level"])

    def fingerprints(self, task: Task) -> dict[str, str]:
        """`content`: the problem's text without what changes only its look."""
        return {"content": content(task.payload.text)}

    def place(self, task: Task) -> str:
        """The record's file and line; empty: the problem is generated."""
        return "" if self._problems is None else self._problems.places.get(task.id, "")

    # ---- the game ------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int) -> MathState:
        return MathState(problem=task.payload, reference=task.answer)

    def acting_roles(self, state: MathState) -> tuple[str, ...] | None:
        """In the chain of three the next role, the executor as often as it may; else `team.order`'s."""
        if state.over:
            return ()
        if self._form != CHAIN:
            return None
        role = self._next(state.transcript)
        return (role,) if role else ()

    def observe(self, state: MathState, role: str) -> MathObservation:
        mine = sum(entry.role == role for entry in state.transcript)
        last = role != "code_executor" or mine + 1 >= self._turns
        # Only words give an answer: an executor that answers for the team says at last what it makes of it.
        failed = role == "code_executor" and unfinished(state.transcript) is not None
        repairs = failed and not (last and role == self._answering)
        text, shown = state.problem.text, ""
        if self._compact:
            text, shown = compact.seen(state, role)
        return MathObservation(
            role=role,
            problem=text,
            transcript=state.transcript,
            shown=shown,
            writes=self._writes(role, last and not repairs),
            last=last,
            rendering=self.config.rendering,
            repairs=repairs,
        )

    async def step(self, state: MathState, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The state with the actions added, and their scores.

        Raises:
            SystemFault: an action was lost, the sandbox failed, or the verifier lost its workers.
        """
        check_not_lost(actions)
        before = {role: self.observe(state, role) for role in actions}
        new = await asyncio.gather(
            *(self._utterance(state, before[role], action, ctx.turn) for role, action in actions.items())
        )
        after = replace(state, transcript=(*state.transcript, *new))
        after = replace(after, over=await self._is_over(after, ctx.turn))
        scores: dict[tuple[str, str], float | None] = {(TEAM, "correct"): self._correct(after)}
        info: dict[str, Any] = {}
        for utterance in new:
            role, faulty = utterance.role, actions[utterance.role].fault is not None
            local = self._local(state, utterance, before[role], faulty)
            scores |= {(role, name): value for name, value in local.items()}
            info[role] = {"answer": utterance.answer, "right": utterance.right, **run_info(utterance.run)}
            if self._compact:
                info[role]["sound"] = bool(local["sound"])
        if after.over:
            latest = after.latest(self._answering)
            info["outcome"] = {"answer": latest and latest.answer, "right": bool(self._correct(after))}
        return Step(state=after, scores=scores, info=info)

    def outcome(self, state: MathState) -> dict[str, float]:
        """`success` of the answering role's last answer; the number of turns and of actions; whether there
        was an answer at all."""
        latest = state.latest(self._answering)
        return {
            "success": self._correct(state),
            "turns": float(state.transcript[-1].turn + 1) if state.transcript else 0.0,
            "actions": float(len(state.transcript)),
            "answered": float(latest is not None and latest.answer is not None),
        }

    async def close(self) -> None:
        """End the verifier's workers."""
        if self._verifier is not None:
            self._verifier.close()

    # ---- the optional part ---------------------------------------------------------------------------------

    def diagnose(self, state: MathState, role: str) -> str:
        """Feedback on the role's last message, without a word on the right answer."""
        return shown.last_message(state, role, agree="tool" in self._team and "reasoner" in self._team)

    def brief(self, task: Task) -> Brief:
        return shown.brief_of(task.payload.text, self._team, self._turns, programs=bool(self._writers))

    def work(self, role: str, info: Mapping[str, Any]) -> Work:
        return shown.work_of(role, info)

    def final_answer(self, task: Task, played: Sequence[Any]) -> str | None:
        return answers.voted(
            [info[self._answering]["answer"] for _, info in played if self._answering in info]
        )

    def vocabulary(self) -> Iterable[str]:
        """Every word of the compact rendering; none of prose."""
        return compact.vocabulary() if self._compact else ()

    def demonstrate(self, state: MathState, role: str, noise: float, rng: np.random.Generator) -> str:
        """The oracle's message.

        In words each digit and sign is random with probability `noise`. In prose it is the reference's answer
        without any work, and with probability `noise` another number.
        """
        if self._compact:
            return compact.demonstration(state, self.observe(state, role), noise, rng)
        answer = state.reference
        if rng.random() < noise:
            answer = str(int(rng.integers(1000)))
        if self.observe(state, role).writes == "program":
            return printing_program(answer)
        return rf"\boxed{{{answer}}}"

    # ---- inside --------------------------------------------------------------------------------------------

    def _check(self, order: Sequence[Sequence[str]]) -> None:
        path, config = self.build.path, self.config
        if self._compact:
            unable = [role for role in self._team if role not in COMPACT_ROLES]
            if unable:
                raise ConfigError(
                    f"the role '{unable[0]}' needs the prose rendering",
                    path=f"{path}.rendering",
                    why="the compact one can't show a program",
                    fix="set env.rendering: prose",
                )
        if config.executor_loop:
            roles = self.build.run.team.roles
            if "code_executor" not in self._team or not roles["code_executor"].get("tools"):
                raise ConfigError(
                    "executor_loop runs programs by the executor's tools, and it has none",
                    path=f"{path}.executor_loop",
                    fix="tools: {python: {type: python}} and team.roles.code_executor.tools: [python]",
                )
            if "executor_turns" in config.model_fields_set:
                raise ConfigError(
                    "with executor_loop the executor acts once",
                    path=f"{path}.executor_turns",
                    fix="remove it; team.roles.code_executor.max_tool_turns limits the loop",
                )
        check_sandbox(order, config.sandbox, self.build.run, path, self._writers)

    def _records(self) -> Problems | None:
        config, path = self.config, self.build.path
        if config.data is not None:
            settings = MathSetConfig(set=config.set)
            return Problems({split: (config.data, settings) for split in SPLITS}, path)
        sources: dict[Split, tuple[DataSource, MathSetConfig]] = {}
        for split in SPLITS:
            settings = getattr(config, split)
            if settings is not None:
                where = f"{path}.{split}"
                made = self.build.make("data_source", settings.table(split, where), where)
                sources[split] = (made, settings)
        return Problems(sources, path) if sources else None

    def _leave_out_sets(self, sets: Sequence[MathSetConfig]) -> None:
        path = f"{self.build.path}.apart"
        if self._problems is None:
            why = "generated problems of train and of other splits are apart already"
            raise ConfigError("nothing reads this", path=path, why=why, fix="remove it")
        kept = []
        for index, settings in enumerate(sets):
            where = f"{path}.{index}"
            made = self.build.make("data_source", settings.table("test", where), where)
            whole = settings.model_copy(update={"draw": None})  # whatever a test draws of it is left out
            kept.append(Problems({"test": (made, whole)}, where))

        def apart() -> list[Task]:
            return [task for problems in kept for task in problems.tasks("test", 0)]

        self._problems.apart = apart

    def _next(self, transcript: Sequence[MathUtterance]) -> str:
        """The next role of the chain; "" at its end."""
        if not transcript:
            return self._team[0]
        last = transcript[-1]
        if last.role == "code_executor":
            written = sum(entry.role == last.role for entry in transcript)
            # One that wrote no program has handed over: no output waits for it.
            if written < self._turns and (self._compact or last.run is not None):
                return last.role
        following = self._team.index(last.role) + 1
        return self._team[following] if following < len(self._team) else ""

    def _writes(self, role: str, last: bool) -> Writes:
        if self._compact:
            return "work" if role == "problem_solver" or not last else "answer"
        return "program" if role == "tool" or (role == "code_executor" and not last) else "answer"

    async def _utterance(self, state: MathState, seen: Any, action: Action, turn: int) -> MathUtterance:
        run, answer, role = None, None, seen.role
        if self._compact:
            answer = compact.answer(action.text, seen.writes)
        else:
            if role in self._writers:
                run = await self._run(action.text)
            text = run.output.strip().rpartition("\n")[2] if run and role == "tool" else action.text
            try:
                answer = answers.find(text)
            except PolicyFault:
                answer = None
        right = answer is not None and await self._equal(answer, state.reference)
        return MathUtterance(turn=turn, role=role, text=action.text, answer=answer, run=run, right=right)

    async def _run(self, text: str) -> Any:
        """The run of a message's program; None without one."""
        try:
            code = read_program(text)
        except PolicyFault:
            return None
        return shortened(await run_tool(self.config.sandbox, code)) if code.strip() else None

    async def _equal(self, answer: str, reference: str) -> bool:
        """Whether the answer is one that the reference accepts. What the answer causes scores as wrong."""
        for accepted in answers.accepted(reference):
            try:
                if self._verifier is None:
                    equal = answers.same_number(answer, accepted)
                else:
                    equal = await self._verifier.equal(answer, accepted)
            except PolicyFault:
                equal = False
            if equal:
                return True
        return False

    async def _is_over(self, state: MathState, turn: int) -> bool:
        """Whether the chain is at its end, the pair agrees, or the one alone gave the same answer twice."""
        if self._form == CHAIN:
            return not self._next(state.transcript)
        if len(self._team) == 1:
            latest = [entry.answer for entry in state.transcript[-2:]]
        else:
            latest = [entry.answer for entry in state.transcript if entry.turn == turn]
        if len(latest) < 2 or any(answer is None for answer in latest):
            return False
        return await self._equal(str(latest[0]), str(latest[1]))

    def _correct(self, state: MathState) -> float:
        latest = state.latest(self._answering)
        return float(latest is not None and latest.right)

    def _local(self, state: MathState, utterance: MathUtterance, seen: Any, faulty: bool) -> dict[str, float]:
        """The components of a role's own message."""
        run, role = utterance.run, utterance.role
        builds = run is not None and not _UNBUILT.search(run.problem)
        held = builds if seen.writes == "program" else utterance.answer is not None
        sound = self._compact and compact.sound(state, seen, utterance.text)
        return {
            "right": float(utterance.right),
            "format": float(held and not faulty and role != "tool"),
            "builds": float(builds),
            "runs": float(run is not None and not run.problem),
            "sound": float(sound),
        }
