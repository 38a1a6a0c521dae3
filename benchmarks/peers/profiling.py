"""Where the time of a step of Coterie goes, by torch's profiler: slower than a run that is timed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PRODUCTS = ("mm", "addmm", "linear", "matmul")
ATTENTION = ("bmm", "baddbmm", "softmax", "attention")
PARTS = (
    "products",
    "attention",
    "norms, elementwise, copies",
    "head",
    "sampling",
    "optimiser",
    "orchestration",
)


class Profile:
    """Profiles the step that follows `begin`.

    Args:
        run: Coterie's; its engine is `hf` and its trainer `torch`.
        vocabulary: tokens of the model.
    """

    def __init__(self, run: Any, vocabulary: int) -> None:
        self._run, self._vocabulary = run, vocabulary
        self._recorded: dict[str, list[Any]] = {"generation": [], "update": []}

    def begin(self) -> None:
        """Record what the engine and the trainer compute from here on.

        A profiler sees the operators of the thread that starts it, so it starts inside of the calls.
        """
        from coterie.backends.engines.sampling import SamplingState
        from coterie.backends.trainers.optim import PolicyOptimizer

        _labelled("sampling", SamplingState, "draw")
        _labelled("optimiser", PolicyOptimizer, "step")
        _labelled("optimiser", PolicyOptimizer, "absorb")
        self._watch("generation", self._run.engine.batcher, "_generate")
        self._watch("update", self._run.trainer, "_update_policy")

    def parts(self, seconds: dict[str, float]) -> dict[str, dict[str, float]]:
        """Seconds by part of generation and of update.

        Args:
            seconds: of the whole of the two, Python between operators included.
        """
        return {
            phase: by_part(events, self._vocabulary, seconds[phase])
            for phase, events in self._recorded.items()
        }

    def _watch(self, phase: str, holder: Any, name: str) -> None:
        function = getattr(holder, name)

        def profiled(*args: Any, **kwargs: Any) -> Any:
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
                result = function(*args, **kwargs)
            self._recorded[phase] += profiler.events()
            return result

        setattr(holder, name, profiled)


def by_part(events: Iterable[Any], vocabulary: int, whole: float) -> dict[str, float]:
    """Seconds by part; what no operator took is `orchestration`.

    Args:
        events: of torch's profiler, with shapes.
        vocabulary: tokens of the model: a product with it is the head's.
        whole: seconds of all, Python between operators included.
    """
    seconds = dict.fromkeys(PARTS, 0.0)
    for event in events:
        if event.is_user_annotation or event.name in ("sampling", "optimiser"):
            continue
        seconds[_part(event, vocabulary)] += event.self_cpu_time_total * 1e-6
    seconds["orchestration"] = max(whole - sum(seconds.values()), 0.0)
    return seconds


def _part(event: Any, vocabulary: int) -> str:
    above = event.cpu_parent
    while above is not None:
        if above.name in ("sampling", "optimiser"):
            return str(above.name)
        if (
            "HeadScores" in above.name
        ):  # the trainer's head in blocks of the vocabulary, and its backward pass
            return "head"
        above = above.cpu_parent
    name = event.name.removeprefix("aten::")
    if any(vocabulary in shape for shape in event.input_shapes if shape):
        return "norms, elementwise, copies" if "embedding" in name else "head"
    if any(word in name for word in ATTENTION):
        return "attention"
    if any(word in name for word in PRODUCTS):
        return "products"
    return "norms, elementwise, copies"


def _labelled(label: str, kind: type, name: str) -> None:
    """Give a method of a class a label that the profiler sees."""
    from torch.profiler import record_function

    function = getattr(kind, name)

    def labelled(*args: Any, **kwargs: Any) -> Any:
        with record_function(label):
            return function(*args, **kwargs)

    setattr(kind, name, labelled)
