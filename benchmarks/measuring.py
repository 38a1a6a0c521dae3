"""What several benchmarks share: clocks of parts, an environment that counts, sections of a results file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie import Plugin, Step, Task

ENVIRONMENT = ("reset", "acting_roles", "observe", "outcome", "digest")
"""Methods of an environment whose time is not the framework's."""


class Clocks(dict[str, float]):
    """Seconds by part.

    Args:
        clock: returns seconds.
        parts: at their beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, **parts: float) -> None:
        super().__init__(**parts)
        self._clock = clock

    def clocked(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time added to the part's."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                self[part] += self._clock() - begin

        return timed

    def watch(self, part: str, thing: Any, *names: str) -> None:
        """Replace methods of an object by clocked ones."""
        for name in names:
            setattr(thing, name, self.clocked(part, getattr(thing, name)))

    def clear(self) -> None:
        """Set all parts to zero."""
        self.update(dict.fromkeys(self, 0.0))


class Count(Plugin):
    """An environment that counts turns; `score` rates what a role wrote."""

    roles = ()
    components = {"value": "increment"}
    weights: Mapping[str, float] = {}

    def tasks(self, split: str, seed: int) -> Sequence[Task]:
        return [Task(id=f"{split}-{index}") for index in range(10_000)]

    def reset(self, task: Task, seed: int) -> int:
        return 0

    def acting_roles(self, state: int) -> None:
        return None

    def observe(self, state: int, role: str) -> str:
        return f"turn {state}"

    async def step(self, state: int, actions: Mapping[str, Any], ctx: Any) -> Step:
        return Step(
            state=state + 1,
            scores={(role, "value"): self.score(action.parsed) for role, action in actions.items()},
        )

    def score(self, parsed: Any) -> float:
        return float(parsed)

    def outcome(self, state: int) -> dict[str, float]:
        return {"success": 1.0}

    def digest(self, state: int) -> str:
        return str(state)


Section = Callable[[argparse.Namespace], dict[str, Any]]
"""Measures; returns JSON with `bar` (a sentence) and `met`."""


def run_sections(sections: Mapping[str, Section], doc: str, results: Path) -> int:
    """The command line of a benchmark in sections; its exit code is 1 where a bar isn't met.

    A section's result replaces the one that the results file has; those of other sections stay.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(sections), default=list(sections))
    parser.add_argument("--pairs", type=int, default=5, help="repetitions of what is compared in time")
    parser.add_argument("--json", type=Path, default=results)
    options = parser.parse_args()
    met = True
    for name in options.only:
        load, begin = os.getloadavg()[0], time.perf_counter()
        result = sections[name](options)
        result["machine"] = {**machine(), "load_before": round(load, 2)}
        result["seconds"] = round(time.perf_counter() - begin)
        met &= result["met"]
        print(f"{name}: {'met' if result['met'] else 'NOT met'}: {result['bar']}", flush=True)
        print(json.dumps({key: value for key, value in result.items() if key != "bar"}), flush=True)
        stored = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**stored, name: result}, indent=1, sort_keys=True) + "\n"
        options.json.write_text(text, encoding="utf-8")
    return int(not met)


def machine() -> dict[str, Any]:
    """The processor, threads and versions of a measurement."""
    import torch
    import transformers

    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _processor() -> str:
    """The model's name as Linux knows it, or the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.machine())
