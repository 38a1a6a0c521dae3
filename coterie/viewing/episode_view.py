"""An episode as text to read: who was asked what, what it answered, and what that was worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.text import Text

from coterie.api.episodes import RecordedAction, RecordedEpisode, Row, mean_advantage, tokens_of
from coterie.viewing.find_episodes import Match
from coterie.viewing.text import harmless, one_line, shortened

HEAD = ("success", "turns", "reward", "return", "advantage", "tokens", "faults", "lost", "missing")
"""Fields that the first line of an episode has, where they say something."""


@dataclass(frozen=True, slots=True)
class Detail:
    """How much of an episode is shown."""

    full: bool = False
    """All lines of prompts, answers and tool results."""
    role: str | None = None
    """Only the actions of one role."""


def episode_lines(match: Match, detail: Detail) -> Iterator[Text]:
    """An episode, line by line. Control characters are written out, and nothing is markup."""
    episode = match.episode
    run = f"{one_line(match.run)}  " if match.run else ""
    best = "  (chosen by reward: the best of several)" if episode.selected else ""
    yield Text(f"{run}step {episode.tree.step}  {one_line(episode.key)}{best}", style="bold")
    pairs = [(name, match.fields.get(name)) for name in HEAD]
    shown = [pair for pair in pairs if pair[0] in ("success", "turns", "reward") or pair[1] not in (None, 0)]
    yield Text("  ".join(f"{name} {_number(value)}" for name, value in shown), style="cyan")
    hidden = 0
    for action in episode.actions:
        if detail.role not in (None, action.role):
            hidden += 1
            continue
        yield from _action(action, detail)
    if hidden:
        yield Text(f"  ({hidden} actions of other roles)", style="dim")
    yield from _end(episode)


def _action(action: RecordedAction, detail: Detail) -> Iterator[Text]:
    branch = action.branch
    facts = [f"reward {_number(action.reward)}"]
    advantage = mean_advantage(branch)
    facts.append("not trained" if advantage is None else f"advantage {_number(advantage)}")
    facts.append(f"{tokens_of(branch)} tokens")
    if len(action.siblings) > 1:
        rewards = [_number(row["reward"]) for row in action.siblings]
        several = ", ".join(rewards if len(rewards) <= 8 else [*rewards[:7], "..."])
        facts.append(f"branch {branch['branch']} of {len(rewards)}, their rewards {several}")
    who = f"{one_line(action.role)} ({one_line(branch['policy'] or 'silent')})"
    yield Text.assemble(
        (f"  turn {action.node.turn + 1}  {who}", "bold magenta"), "  ", ("  ".join(facts), "cyan")
    )
    yield from _block("|", str(action.prompt["prompt"]), "dim", detail, first=2, last=4)
    if branch.get("thought"):
        yield from _block("~", branch["thought"], "italic", detail, first=3, last=3)
    for result in branch.get("tool_results", ()):
        yield from _block("=", str(result), "blue", detail, first=3, last=3)
    yield from _block(">", branch["completion"] or "(nothing)", "", detail, first=20, last=8)
    yield from _marks(branch)
    yield from _scores(branch)


def _block(mark: str, text: str, style: str, detail: Detail, *, first: int, last: int) -> Iterator[Text]:
    lines = harmless(text).expandtabs(4).split("\n")
    if not detail.full:
        lines = shortened(text, first=first, last=last, width=600)
    for line in lines:
        yield Text(f"    {mark} {line}", style=style)


def _marks(branch: Row) -> Iterator[Text]:
    """What went wrong with an action."""
    if branch["fault"] is not None:
        kind = {"policy": "not readable", "system": "lost"}.get(
            branch["fault"]["kind"], branch["fault"]["kind"]
        )
        yield Text(f"    ! {kind}: {one_line(branch['fault']['reason'], 600)}", style="red")
    if branch["calls"] and branch["calls"][-1]["finish"] == "length":
        yield Text("    ! max_new_tokens ended it", style="yellow")
    if branch.get("tool_limit"):
        yield Text("    ! it reached the most calls of tools", style="yellow")


def _scores(row: Row) -> Iterator[Text]:
    """Scores, and what their sources say of them."""
    scores: Mapping[str, float | None] = row["scores"]
    if scores:
        parts = (
            f"{one_line(name)} {'missing' if value is None else _number(value)}"
            for name, value in scores.items()
        )
        yield Text(f"    scores: {', '.join(parts)}", style="cyan")
    for name, reason in {**row.get("reasons", {}), **row.get("comments", {})}.items():
        yield Text(f"      {one_line(name)}: {one_line(reason, 600)}", style="dim")


def _end(episode: RecordedEpisode) -> Iterator[Text]:
    end = episode.end
    if end is None:
        yield Text("  end: no joint action of the last stage could go on", style="red")
        return
    shown = [action.branch["fault"] for action in episode.actions]
    if end["fault"] is not None and end["fault"] not in shown:
        yield Text(
            f"  ! {one_line(end['fault']['kind'])}: {one_line(end['fault']['reason'], 600)}", style="red"
        )
    if not end["branches"]:
        yield Text("  ! a prompt outgrew the context", style="yellow")
    reasons = {**end.get("reasons", {}), **end.get("comments", {})}
    for name, reason in reasons.items():
        yield Text(f"    {one_line(name)}: {one_line(reason, 600)}", style="dim")
    outcome = ", ".join(f"{one_line(name)} {_number(value)}" for name, value in episode.outcome.items())
    how = (
        "the environment ended it"
        if end["terminated"]
        else "a limit or a fault ended it"
        if end["truncated"]
        else ""
    )
    yield Text(f"  end: {'; '.join(filter(None, (outcome or 'no outcome', how)))}", style="bold")


def _number(value: object) -> str:
    """A number to read; `missing` where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "missing"
    if isinstance(value, (int, float)):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return one_line(value)
