"""What `coterie eval` prints: one evaluation with its metrics, or several in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.output import columns, interval, number, share, table
from coterie.viewing.text import harmless

if TYPE_CHECKING:
    from coterie.api.at_k import AtK
    from coterie.api.compare import Comparison, TeamEvaluation


def print_evaluation(evaluation: TeamEvaluation, split: str) -> None:
    """Print an evaluation for people: success first, then the other metrics in columns."""
    success = evaluation.success.as_dict()
    click.echo(f"success  {interval(success)}  95 % interval over {success['n']:,} {split} tasks\n")
    if evaluation.at_k:
        rows = [(name, interval(row.as_dict()), _left_out(row)) for name, row in evaluation.at_k.items()]
        click.echo(columns(rows, indent=2) + "\n")
    _print_values({name: value for name, value in evaluation.metrics.items() if name != "success"})
    for role, values in evaluation.roles.items():
        click.echo(f"\nrole {role}")
        _print_values(values)
    if evaluation.by_category:
        click.echo(f"\n{categories(evaluation)}")
    if evaluation.comparison is not None:
        print_comparison(evaluation.comparison)
    click.echo(f"\nconfiguration {evaluation.config_digest[:16]}{_facts(evaluation.facts)}")


def categories(evaluation: TeamEvaluation) -> str:
    """Success, and what there is of k samples, by class of tasks."""
    rows = [
        (category, f"{row['success'].interval.n:,}", *(interval(each.as_dict()) for each in row.values()))
        for category, row in evaluation.by_category.items()
    ]
    return table(("category", "tasks", *next(iter(evaluation.by_category.values()))), rows)


def print_several(evaluations: Mapping[str, TeamEvaluation], split: str) -> None:
    """Print several evaluations in one table, and those of each category in others.

    Columns are those that any of them has.
    """
    from coterie.api.at_k import AtK

    names = list(dict.fromkeys(name for each in evaluations.values() for name in each.at_k))
    rows = []
    for source, each in evaluations.items():
        cells = {"success": AtK("success", each.success), **each.at_k}
        rows.append((source, f"{each.success.n:,}", *_cells(cells, ["success", *names])))
    click.echo(f"95 % intervals over {split} tasks\n")
    click.echo(table(("source", "tasks", "success", *names), rows))
    classes = sorted({category for each in evaluations.values() for category in each.by_category})
    for category in classes:
        rows = [
            (source, f"{row['success'].interval.n:,}", *_cells(row, ["success", *names]))
            for source, each in evaluations.items()
            if (row := each.by_category.get(category))
        ]
        click.echo(f"\n{harmless(category) or 'no category'}")
        click.echo(table(("source", "tasks", "success", *names), rows))
    played = {source: each.tasks.contents for source, each in evaluations.items()}
    first = next(iter(played.values()))
    others = [source for source, contents in played.items() if contents != first]
    if others:
        seeds = ", ".join(f"{source}: seed {each.facts['seed']}" for source, each in evaluations.items())
        click.echo(f"\nnot on the same tasks ({seeds}); with a setting such as seed=0 they are", err=True)


def _cells(row: Mapping[str, AtK], names: Sequence[str]) -> list[str]:
    return [interval(row[name].as_dict()) if name in row else "-" for name in names]


def _left_out(row: AtK) -> str:
    return f"{row.left_out} tasks with fewer finished samples left out" if row.left_out else ""


def _facts(facts: Mapping[str, Any]) -> str:
    """The checkpoint and the digests of files, after the configuration's."""
    step = facts.get("checkpoint")
    files = [f"{name} {entry['sha256'][:12]}" for name, entry in facts.get("files", {}).items()
             if "sha256" in entry]  # fmt: skip
    played = "" if step is None else f"  checkpoint of step {step}"
    return played + (f"  files {', '.join(files)}" if files else "")


def print_comparison(comparison: Comparison) -> None:
    """Print both teams and their paired difference."""
    changes = "; ".join(_change_text(change) for change in comparison.changes)
    click.echo(f"\n{changes}: paired by task")
    difference = comparison.difference.as_dict()
    p = f"p {difference['p']:.3g}" if difference["p"] is not None else ""
    rows = [
        ("base", interval(comparison.base.as_dict()), ""),
        ("changed", interval(comparison.changed.as_dict()), ""),
        ("difference", interval(difference), p),
    ]
    click.echo(columns(rows, indent=2))
    differ = {task: value for task, value in comparison.per_task.items() if value}
    click.echo(f"  {len(differ)} of {len(comparison.per_task)} tasks differ" + (":" if differ else ""))
    if differ:
        signed = [(f"{'+' if value > 0 else '-'}{share(abs(value))}", task) for task, value in differ.items()]
        click.echo(columns(signed, indent=4))


def _change_text(change: Mapping[str, Any]) -> str:
    if change["change"] == "policy":
        return f"{change['role']} played by {change['policy']}"
    if change["change"] == "swap":
        return f"policies of {' and '.join(change['roles'])} swapped"
    return f"{change['role']} silent"


def _print_values(values: Mapping[str, Any]) -> None:
    if values:
        click.echo(columns([(name, number(value)) for name, value in values.items()], indent=2))
