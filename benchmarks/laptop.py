"""Time and memory of the recipes that have a scale `laptop`, with a stand-in for its model.

    python benchmarks/laptop.py [--recipes magrpo_tldr ...] [--threads 2] [--clock cpu]

The stand-in has the shape of SmolLM2-135M and random weights (`real_models.py`): time and memory are those
of the shape, and rewards say nothing. Its answers are as long as allowed, since a model that has read
nothing never ends one; so the time is that of the longest answers. Posts and abstracts are made of the posts
that come with Coterie, as long as those of TL;DR and arXiv. A reward that is a hash of the text is added, so
that every action has an advantage and is trained on.

Run three steps of each recipe, the second with an evaluation, in a process of its own, and derive the whole
schedule: start + steps * the third step + evaluations * one. Print a Markdown table, and write it to
docs/laptop.md and the numbers to results/laptop.json. Exit with 1 where a recipe takes more than an hour or
4 GB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "laptop.json"
PAGE = HERE.parent / "docs" / "laptop.md"
BEGIN, END = "<!-- Made by benchmarks/laptop.py. -->", "<!-- End of what benchmarks/laptop.py makes. -->"
"""Lines of the page between which the script writes."""
RECIPES = ("magrpo_tldr", "grpo_tldr", "magrpo_arxiv", "team_task", "mathchat_coach", "plan_path")
WORDS = {"tldr": (100, 340), "arxiv": (120, 260)}
"""Fewest and most words of a made source: most of TL;DR's posts and of arXiv's abstracts are so long."""
SOURCES = 400
MEMORY, SECONDS = 4e9, 3600.0
"""Bytes and seconds that a recipe may take."""
STEPS, EVALUATED = 3, 2
"""Steps that are run, and the one that is evaluated; the first also pays for what is made once."""


def sources(kind: str) -> Iterator[dict[str, str]]:
    """Made sources of a kind of writing: sentences of the posts that come with Coterie, in any order."""
    from coterie.backends.data import shipped

    lines = Path(shipped.__file__).with_name("posts.jsonl").read_text(encoding="utf-8").splitlines()
    sentences = [s for line in lines for s in json.loads(line)["prompt"].split(". ")]
    draw, (least, most) = random.Random(0), WORDS[kind]
    for index in range(SOURCES):
        words: list[str] = []
        length = draw.randint(least, most)
        while len(words) < length:
            words += f"{draw.choice(sentences).rstrip('.')}.".split()
        yield {"id": f"made-{index}", "prompt": " ".join(words[:length])}


def noise(view: Any) -> float:
    """A number from 0 to 1 that is the text's."""
    return zlib.crc32(view.action.text.encode()) / 2**32


def overrides(recipe: str, model: Path, folder: Path) -> list[str]:
    """The settings of a short run on the stand-in."""
    from coterie import load

    given = [f"policies.*.model={json.dumps(str(model))}"]
    env = load(recipe, scale="laptop").config.env
    if env["type"] == "writing":
        file = folder / f"{env['kind']}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in sources(env["kind"])), encoding="utf-8")
        given.append(f"data={{type: jsonl, path: {json.dumps(str(file))}}}")
    given.append("rewards.noise={type: function, function: 'laptop:noise', scope: action}")
    return [*given, f"schedule.steps={STEPS}", f"schedule.evaluate_every={EVALUATED}"]


class Watch:
    """A display of progress that notes a clock after each step.

    Args:
        clock: `wall` or `cpu`. The second, with one thread, is right beside other work too.
    """

    def __init__(self, clock: str) -> None:
        self._now = {"wall": time.perf_counter, "cpu": time.process_time}[clock]
        self._marks = [self._now()]

    def __call__(self, done: int, total: int, metrics: Mapping[str, Any] | None = None) -> None:
        self._marks.append(self._now())

    def say(self, text: str) -> None:
        """Show nothing."""

    def follow(self, processes: Any) -> None:
        """Show nothing."""

    def seconds(self) -> dict[str, float]:
        """Of the start, a step and an evaluation."""
        first, evaluated, last = (b - a for a, b in itertools.pairwise(self._marks))
        return {"start": max(first - last, 0.0), "step": last, "evaluation": max(evaluated - last, 0.0)}


def run(recipe: str, model: Path, clock: str, folder: Path) -> dict[str, Any]:
    """Run a recipe's steps in this process; seconds of its parts, tokens of a step, peak memory in bytes."""
    import coterie
    from coterie.api.rows import read_metrics
    from coterie.core.storage.run_folder import RunFolder

    watch = Watch(clock)
    given = overrides(recipe, model, folder)
    result = coterie.train(recipe, scale="laptop", overrides=given, out=folder / "run", progress=watch)
    row = list(read_metrics(RunFolder(result.folder).metrics))[-1]
    return {
        "seconds": watch.seconds(),
        "rollouts_share": row["time/rollouts"] / row["time/step"],
        "generated_tokens": int(row["tokens/generated"]),
        "trained_tokens": int(
            sum(v for name, v in row.items() if re.fullmatch(r"policy/[^/]+/tokens", name))
        ),
        "prompt_tokens": int(row["tokens/prompt"]),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure(recipe: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a recipe in a process of its own; what it took, and what its whole schedule takes.

    Raises:
        RuntimeError: the run failed.
    """
    from coterie import load

    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads)),
    }
    words = [
        sys.executable,
        __file__,
        "--child",
        recipe,
        "--model",
        str(options.model),
        "--clock",
        options.clock,
    ]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{recipe} failed with exit code {done.returncode}")
    result = json.loads(done.stdout.splitlines()[-1])
    schedule, seconds = load(recipe, scale="laptop").config.schedule, result["seconds"]
    evaluations = schedule.steps // schedule.evaluate_every
    whole = seconds["start"] + schedule.steps * seconds["step"] + evaluations * seconds["evaluation"]
    return {
        "recipe": recipe,
        "steps": schedule.steps,
        "evaluations": evaluations,
        "whole_seconds": whole,
        "met": whole <= SECONDS and result["peak_bytes"] <= MEMORY,
        **result,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The table of docs/laptop.md."""
    head = [
        "recipe",
        "steps",
        "tokens a step: prompts",
        "generated",
        "a step",
        "an evaluation",
        "all",
        "peak memory",
    ]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        lines.append([
            f"`{row['recipe']}`",
            str(row["steps"]),
            f"{row['prompt_tokens']:,}",
            f"{row['generated_tokens']:,}",
            f"{row['seconds']['step']:.0f} s",
            f"{row['seconds']['evaluation']:.0f} s",
            f"{row['whole_seconds'] / 60:.0f} min",
            f"{row['peak_bytes'] / 1e9:.1f} GB",
        ])  # fmt: skip
    return (
        "\n".join(f"| {' | '.join(line)} |" for line in lines)
        .replace("| --- ", "|---")
        .replace("--- |", "---|")
    )


def stored_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of an earlier call that were measured alike."""
    if not options.json.exists():
        return []
    rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if (row["threads"], row["clock"]) == (options.threads, options.clock)]


def part(stored: dict[str, Any]) -> str:
    """The part of docs/laptop.md that the script writes: the table, and what it was measured on."""
    rows, machine = stored["rows"], stored["machine"]
    if not rows:
        return "The times are not measured yet: `python benchmarks/laptop.py` writes them here."
    clocks = {"wall": "seconds that passed", "cpu": "seconds of the processor"}
    [(threads, clock)] = {(row["threads"], row["clock"]) for row in rows}
    return (
        f"{table(rows)}\n\n{machine['processor']}, {threads} thread{'s' * (threads > 1)}, {clocks[clock]}; "
        f"PyTorch {machine['torch']}, transformers {machine['transformers']}."
    )


def write_page(stored: dict[str, Any], page: Path = PAGE) -> None:
    """Write the page's part anew."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{part(stored)}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument("--model", type=Path, help="folder of the stand-in; made where there is none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--child", choices=RECIPES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.child:
            print(json.dumps(run(options.child, options.model, options.clock, Path(folder))))
            return 0
        import real_models
        from measuring import machine

        options.model = real_models.make("smollm2-135m", options.model or Path(folder, "model"))
        rows = {row["recipe"]: row for row in stored_rows(options)}
        for recipe in options.recipes:
            rows[recipe] = {**measure(recipe, options), "threads": options.threads, "clock": options.clock}
            ordered = [rows[name] for name in RECIPES if name in rows]
            stored = {"machine": machine(), "rows": ordered}
            options.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            print(table([rows[recipe]]).splitlines()[-1], flush=True)
    print(table(ordered))
    if options.json == RESULTS:
        write_page(stored)
    return int(not all(row["met"] for row in ordered))


if __name__ == "__main__":
    sys.exit(main())
