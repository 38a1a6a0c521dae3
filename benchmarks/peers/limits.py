"""The machine's limits for a model: its matrix products alone, and how fast memory is read.

A process of its own, with the threads of the peers that it is compared with. Every product has the shapes of
the model and as many rows as the step's; nothing else is computed, so a step that takes as long as this has
no other cost.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import common

DTYPES = ("float32", "bfloat16")
clock = time.perf_counter
"""Of all measurements. A processor's, at one thread, tells more where others work on the machine too."""


def main() -> None:
    global clock
    parser = common.parser(__doc__)
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    args = parser.parse_args()
    case = common.start(args)
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    import torch

    config = json.loads((case.model / "config.json").read_text(encoding="utf-8"))
    with torch.no_grad():
        report: dict[str, Any] = {
            "name": "limits",
            "threads": case.threads,
            "bandwidth": bandwidth(),
            "square_gflops": {dtype: square(getattr(torch, dtype)) for dtype in DTYPES},
            "update": {dtype: update(config, case, getattr(torch, dtype)) for dtype in DTYPES},
            "decode": {dtype: decode(config, case, getattr(torch, dtype)) for dtype in DTYPES},
            "prefill": {dtype: prefill(config, case, getattr(torch, dtype)) for dtype in DTYPES},
        }
    line = json.dumps(report)
    if case.json is not None:
        case.json.write_text(line + "\n", encoding="utf-8")
    print(line)


def layer_shapes(config: dict[str, Any]) -> list[tuple[int, int]]:
    """(in, out) of the linear layers of one block."""
    hidden, mlp, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    return [(hidden, heads), (hidden, kv), (hidden, kv), (heads, hidden), *[(hidden, mlp)] * 2, (mlp, hidden)]


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """The median of a few repetitions, after one that warms up."""
    work()
    taken = []
    for _ in range(repeats):
        begun = clock()
        work()
        taken.append(clock() - begun)
    return statistics.median(taken)


def square(dtype: Any, size: int = 2048) -> float:
    """GFLOP/s of a large square product: the best that the library does."""
    import torch

    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    return 2e-9 * size**3 / seconds(lambda: torch.nn.functional.linear(left, right))


def bandwidth() -> dict[str, float]:
    """GB/s of reading and of copying 512 MiB."""
    import torch

    source = torch.ones(2**27)
    target = torch.empty_like(source)
    read = source.nbytes / seconds(lambda: source.sum(), 5)
    copied = 2 * source.nbytes / seconds(lambda: target.copy_(source), 5)
    return {"read": read * 1e-9, "copy": copied * 1e-9}


def triple(rows: int, shape: tuple[int, int], dtype: Any) -> dict[str, float]:
    """Seconds of y = x w, of dx = dy w and of dw = dy' x, with `rows` rows."""
    import torch

    wide, out = shape
    x, w = torch.randn(rows, wide).to(dtype), torch.randn(out, wide).to(dtype)
    dy = torch.randn(rows, out).to(dtype)
    return {
        "forward": seconds(lambda: torch.nn.functional.linear(x, w)),
        "dx": seconds(lambda: dy @ w),
        "dw": seconds(lambda: dy.T @ x),
    }


def update(config: dict[str, Any], case: common.Case, dtype: Any) -> dict[str, dict[str, float]]:
    """Seconds of an update's products in the blocks and in the head; prompts are computed once.

    The last token of a completion predicts nothing that is trained, so no block reads it.
    """
    rows = case.prompts * case.prompt_tokens + case.sequences * (case.new_tokens - 1)
    blocks = dict.fromkeys(("forward", "dx", "dw"), 0.0)
    known: dict[tuple[int, int], dict[str, float]] = {}
    for shape in layer_shapes(config):
        if shape not in known:
            known[shape] = triple(rows, shape, dtype)
        for product, taken in known[shape].items():
            blocks[product] += taken * config["num_hidden_layers"]
    trained = case.sequences * case.new_tokens
    chunk = min(trained, 256)
    head = triple(chunk, (config["hidden_size"], config["vocab_size"]), dtype)
    return {"blocks": blocks, "head": {name: taken * trained / chunk for name, taken in head.items()}}


def decode(config: dict[str, Any], case: common.Case, dtype: Any) -> float:
    """Seconds of the products of one token of each sequence; no weight is in a cache, as in a step."""
    import torch

    layers = min(config["num_hidden_layers"], 8)
    weights = [
        [torch.randn(out, wide).to(dtype) for wide, out in layer_shapes(config)] for _ in range(layers)
    ]
    inputs = {wide: torch.randn(case.sequences, wide).to(dtype) for wide, _ in layer_shapes(config)}
    head = torch.randn(config["vocab_size"], config["hidden_size"]).to(dtype)

    def blocks() -> None:
        for layer in weights:
            for weight in layer:
                torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    taken = seconds(blocks, 5) * config["num_hidden_layers"] / layers
    return taken + seconds(lambda: torch.nn.functional.linear(inputs[config["hidden_size"]], head), 5)


def prefill(config: dict[str, Any], case: common.Case, dtype: Any) -> float:
    """Seconds of the products of all distinct prompts in the blocks."""
    import torch

    rows, taken = case.prompts * case.prompt_tokens, 0.0
    for wide, out in layer_shapes(config):
        x, w = torch.randn(rows, wide).to(dtype), torch.randn(out, wide).to(dtype)
        taken += seconds(lambda x=x, w=w: torch.nn.functional.linear(x, w))
    return taken * config["num_hidden_layers"]


if __name__ == "__main__":
    main()
