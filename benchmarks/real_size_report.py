"""What follows from the runs of real_size.py: medians, shares of the machine's limits, bars and tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIMIT_SHARE = 0.60
"""Least share of the products' limit that an update must reach on the Llama shape."""
TIMES = 1.5
"""Least multiple of TRL's speed, and of plain generate's, on the Llama shape."""
TARGET = 2.0
"""The multiple of TRL's speed that is aimed at."""
JUDGED = "smollm2-135m"

Config = Mapping[str, Any]
Run = Mapping[str, Any]


def block_weights(config: Config) -> int:
    """Weights of the linear layers of all blocks."""
    hidden, mlp, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    return int(config["num_hidden_layers"] * (2 * hidden * heads + 2 * hidden * kv + 3 * hidden * mlp))


def lora_weights(config: Config, rank: int = 16) -> int:
    """Weights of an adapter on all linear layers of the blocks."""
    hidden, mlp, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    ends = 2 * (hidden + heads) + 2 * (hidden + kv) + 3 * (hidden + mlp)
    return int(config["num_hidden_layers"] * rank * ends)


def attention_flops(config: Config, work: Mapping[str, int], *, update: bool) -> float:
    """FLOPs of all blocks' scores and of their products with values; an update's backward pass is twice that.

    A prompt's tokens attend once; a completion's token attends to the prompt and to what precedes it.
    """
    prompt, new = work["prompt_tokens"], work["new_tokens"] - 1
    rows = work["prompts"] * work["siblings"]
    seen = work["prompts"] * prompt * (prompt + 1) / 2 + rows * (new * prompt + new * (new + 1) / 2)
    width = config["num_attention_heads"] * config["head_dim"]
    return float(config["num_hidden_layers"] * 4 * width * seen * (3 if update else 1))


def update_limit(config: Config, work: Mapping[str, int], limits: Sequence[Run], run: Run) -> float:
    """Seconds of the products that an update needs, with nothing else and nothing twice.

    The blocks' and the head's are measured; attention's and an adapter's are counted, at the blocks' speed.
    With LoRA the base has no gradient: its product of dw is not needed.
    """
    dtype, lora = _products_in(run), run["train"] == "lora"
    needed = ("forward", "dx") if lora else ("forward", "dx", "dw")
    measured = [limit["update"][dtype] for limit in limits]
    blocks = statistics.median(sum(each["blocks"][name] for name in needed) for each in measured)
    head = statistics.median(sum(each["head"][name] for name in needed) for each in measured)
    rows = work["prompts"] * work["prompt_tokens"] + work["prompts"] * work["siblings"] * (
        work["new_tokens"] - 1
    )
    speed = 2 * block_weights(config) * rows * len(needed) / blocks
    counted = attention_flops(config, work, update=True)
    counted += 6 * lora_weights(config) * rows if lora else 0
    return float(run["agents"] * (blocks + head + counted / speed))


def generation_limit(config: Config, work: Mapping[str, int], limits: Sequence[Run], run: Run) -> float:
    """Seconds that generation takes at least: a bound by FLOPs or by bytes, the larger one for each token.

    FLOPs at the speed of the prefill's products; bytes of the weights once a token of all sequences, and of
    the keys and values that are read, at the memory's bandwidth. A prompt is computed once.
    """
    dtype, agents = _products_in(run), run["agents"]
    size = 4 if dtype == "float32" else 2
    prompt, new, prompts = work["prompt_tokens"], work["new_tokens"], work["prompts"]
    rows, blocks = prompts * work["siblings"], block_weights(config)
    head = config["hidden_size"] * config["vocab_size"]
    prefill = statistics.median(limit["prefill"][dtype] for limit in limits)
    # A short prefill may be slower than an update's products.
    forward = statistics.median(limit["update"][dtype]["blocks"]["forward"] for limit in limits)
    update_rows = prompts * prompt + rows * (new - 1)
    speed = max(2 * blocks * prompts * prompt / prefill, 2 * blocks * update_rows / forward)
    bandwidth = statistics.median(max(limit["bandwidth"].values()) for limit in limits) * 1e9
    kv = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * size
    width = config["num_attention_heads"] * config["head_dim"] * config["num_hidden_layers"]
    # One base for all roles with adapters; else each role reads its weights.
    copies = 1 if run["train"] == "lora" else agents
    total = agents * (2 * blocks * prompts * prompt + 2 * head * prompts) / speed
    for token in range(1, new):
        flops = agents * rows * (2 * (blocks + head) + 4 * width * (prompt + token))
        read = copies * (blocks + head) * size + agents * kv * (prompts * prompt + rows * token)
        total += max(flops / speed, read / bandwidth)
    return float(total)


def decode_limit(config: Config, work: Mapping[str, int], limits: Sequence[Run], run: Run) -> float:
    """Seconds of generation's products as the library computes them at this number of rows, alone."""
    dtype = _products_in(run)
    steps = statistics.median(limit["decode"][dtype] for limit in limits) * (work["new_tokens"] - 1)
    return float(run["agents"] * (steps + statistics.median(limit["prefill"][dtype] for limit in limits)))


def _products_in(run: Run) -> str:
    return "float32" if run["dtype"] == "float32" else "bfloat16"


# ---------------------------------------------------------------------------------------------------- summary


def summarise(
    runs: Sequence[Run], works: Mapping[str, Any], configs: Mapping[str, Config], clock: str
) -> list[dict[str, Any]]:
    """A row for each shape, number of threads and peer: medians over all measured steps of all turns."""
    groups: dict[tuple[str, int, str], list[Run]] = {}
    for run in runs:
        if "error" not in run and run["group"] != "profile":
            groups.setdefault((run["shape"], run["threads"], run["peer"]), []).append(run)
    rows = []
    for (shape, threads, peer), group in groups.items():
        if peer == "limits":
            continue
        steps = [step[clock] for run in group for step in run["parts"]]
        seconds = {
            part: statistics.median(step[part] for step in steps if part in step)
            for part in ("step", "generation", "update")
            if any(part in step for step in steps)
        }
        work = works[shape]
        tokens = group[0]["agents"] * work["prompts"] * work["siblings"] * work["new_tokens"]
        row: dict[str, Any] = {
            "shape": shape,
            "threads": threads,
            "peer": peer,
            "seconds": {part: round(value, 3) for part, value in seconds.items()},
            "tokens_per_second": round(tokens / seconds["step"], 1),
            "generated_per_second": round(tokens / seconds["generation"], 1),
            "peak_rss_mib": max(run["peak_rss_mib"] for run in group),
            "turns": len(group),
        }
        limits = groups.get((shape, threads, "limits"), [])
        if limits:
            row |= _shares(configs[shape], work, limits, group[0], seconds)
        rows.append(row)
    return rows


def _shares(
    config: Config, work: Mapping[str, int], limits: Sequence[Run], run: Run, seconds: Mapping[str, float]
) -> dict[str, float]:
    """The shares of the limits that a peer reaches."""
    shares = {
        "generation_share": generation_limit(config, work, limits, run) / seconds["generation"],
        "generation_products_share": decode_limit(config, work, limits, run) / seconds["generation"],
    }
    if "update" in seconds:
        shares["update_share"] = update_limit(config, work, limits, run) / seconds["update"]
    return {name: round(value, 3) for name, value in shares.items()}


def bars(summary: Sequence[Run]) -> list[dict[str, Any]]:
    """The bars on the Llama shape, each peer at its best dtype and at float32."""
    judged = []
    for threads in sorted({row["threads"] for row in summary if row["shape"] == JUDGED}):
        rows = {row["peer"]: row for row in summary if (row["shape"], row["threads"]) == (JUDGED, threads)}
        trl, plain = _named(rows, "trl", lora=False), _named(rows, "generate")
        ours = {name: rows[name] for name in ("coterie float32", "coterie bfloat16") if name in rows}
        at = f"{threads} thread{'s' * (threads > 1)}"
        if ours and trl:
            for label, mine, theirs in _pairs(ours, trl, "step"):
                times = theirs["seconds"]["step"] / mine["seconds"]["step"]
                judged.append(_bar(f"a step, {label}, {at}: times TRL's speed", times, TIMES, TARGET))
        if ours and plain:
            for label, mine, theirs in _pairs(ours, plain, "generation"):
                times = theirs["seconds"]["generation"] / mine["seconds"]["generation"]
                judged.append(_bar(f"generation, {label}, {at}: times plain generate's speed", times, TIMES))
        for name, row in ours.items():
            if "update_share" in row:
                what = f"update, {name.split()[1]}, {at}: share of the products' limit"
                judged.append(_bar(what, row["update_share"], LIMIT_SHARE))
    return judged


def _named(rows: Mapping[str, Run], word: str, *, lora: bool | None = None) -> dict[str, Run]:
    return {
        name: row
        for name, row in rows.items()
        if name.startswith(word) and (lora is None or ("lora" in name) == lora)
    }


def _pairs(ours: Mapping[str, Run], theirs: Mapping[str, Run], part: str) -> list[tuple[str, Run, Run]]:
    """(label, ours, theirs): each at the dtype in which it is fastest, and both in float32."""

    def fastest(rows: Mapping[str, Run]) -> Run:
        return min(rows.values(), key=lambda row: float(row["seconds"][part]))

    mine, other = fastest(ours), fastest(theirs)
    pairs = [(f"best dtypes ({mine['peer']} against {other['peer']})", mine, other)]
    in_float = [
        next((row for name, row in rows.items() if "float32" in name.split()), None)
        for rows in (ours, theirs)
    ]
    if in_float[0] is not None and in_float[1] is not None:
        pairs.append(("float32", in_float[0], in_float[1]))
    return pairs


def _bar(what: str, value: float, least: float, target: float | None = None) -> dict[str, Any]:
    bar: dict[str, Any] = {"bar": what, "value": round(value, 3), "least": least, "met": value >= least}
    return bar if target is None else {**bar, "target": target, "target_met": value >= target}


def profiles(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Shares of a step's time by part, in generation and in the update."""
    rows = []
    for run in runs:
        for phase, parts in run.get("profile", {}).items():
            whole = sum(parts.values())
            row = {name: run[name] for name in ("shape", "threads", "peer")}
            shares = {part: round(value / whole, 3) for part, value in parts.items()}
            rows.append({**row, "phase": phase, "seconds": round(whole, 2), "shares": shares})
    return rows


# ----------------------------------------------------------------------------------------------------- tables


def text(result: Mapping[str, Any]) -> str:
    """What is printed: the bars and the tables of the page."""
    lines = [
        f"{'met' if bar['met'] else 'NOT MET'}: {bar['bar']}: {bar['value']:.2f} (at least {bar['least']:.2f}"
        + (
            f", target {bar['target']:.2f} {'met' if bar['target_met'] else 'not met'})"
            if "target" in bar
            else ")"
        )
        for bar in result["bars"]
    ]
    shapes = list(dict.fromkeys(row["shape"] for row in result["summary"]))
    tables = [f"\n{shape}\n\n{step_table(result, shape)}" for shape in shapes]
    return "\n".join([*lines, *tables, "", profile_table(result)])


def page(result: Mapping[str, Any]) -> str:
    """The measured part of docs/real_sizes.md."""
    machine = result["machine"]
    clock = "wall time" if result["clock"] == "wall" else "processor time, since others worked on the machine"
    lines = [f"{machine['processor']}, {machine['cpus']} cores, torch {machine['torch']}; {clock}.", ""]
    for shape in dict.fromkeys(row["shape"] for row in result["summary"]):
        work = result["work"][shape]
        lines += [
            f"`{shape}`, {work['prompts']} prompts of {work['prompt_tokens']} tokens with {work['siblings']} "
            f"completions of {work['new_tokens']}:",
            "",
            step_table(result, shape),
            "",
        ]
    lines += ["| bar, on the Llama shape | at least | measured | |", "|---|---|---|---|"]
    for bar in result["bars"]:
        verdict = "met" if bar["met"] else "**not met**"
        lines.append(f"| {bar['bar']} | {bar['least']:.2f} | {bar['value']:.2f} | {verdict} |")
    limits = [run for run in result["runs"] if run["peer"] == "limits" and "error" not in run]
    lines += ["", "The machine, in the same turns:", "", limits_table(limits)]
    if result["profiles"]:
        lines += [
            "",
            "Where the time goes, by torch's profiler in a run of its own:",
            "",
            profile_table(result),
        ]
    return "\n".join(lines) + "\n"


def limits_table(limits: Sequence[Run]) -> str:
    """The measured limits, in Markdown."""
    head = ["shape", "threads", "read, GB/s", "copy, GB/s", "square product, GFLOP/s: fp32", "bf16",
            "update's products, s: fp32", "bf16", "a token's products, ms: fp32", "bf16"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in limits:
        groups.setdefault((run["shape"], run["threads"]), []).append(run)
    for (shape, threads), group in groups.items():
        cells = [shape, str(threads)]
        for name in ("read", "copy"):
            cells.append(f"{statistics.median(run['bandwidth'][name] for run in group):.1f}")
        for dtype in DTYPES:
            cells.append(f"{statistics.median(run['square_gflops'][dtype] for run in group):.0f}")
        for dtype in DTYPES:
            whole = [sum(sum(part.values()) for part in run["update"][dtype].values()) for run in group]
            cells.append(f"{statistics.median(whole):.2f}")
        for dtype in DTYPES:
            cells.append(f"{1e3 * statistics.median(run['decode'][dtype] for run in group):.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


DTYPES = ("float32", "bfloat16")


def write_page(path: Path, name: str, made: str) -> None:
    """Replace a page's part between `<!-- name -->` and `<!-- /name -->`."""
    before, rest = path.read_text(encoding="utf-8").split(f"<!-- {name} -->\n")
    after = rest.split(f"<!-- /{name} -->")[1]
    path.write_text(f"{before}<!-- {name} -->\n{made}<!-- /{name} -->{after}", encoding="utf-8")


def written(path: Path, name: str) -> str:
    """The part of a page that `write_page` wrote."""
    return path.read_text(encoding="utf-8").split(f"<!-- {name} -->\n")[1].split(f"<!-- /{name} -->")[0]


def step_table(result: Mapping[str, Any], shape: str) -> str:
    """A shape's steps, in Markdown."""
    head = [
        "threads", "peer", "step, s", "generation, s", "update, s", "tokens/s", "update of its limit",
        "generation of its bound", "peak memory",
    ]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in sorted(
        (row for row in result["summary"] if row["shape"] == shape), key=lambda row: row["threads"]
    ):
        seconds = [f"{row['seconds'][part]:.2f}" if part in row["seconds"] else "–" for part in PARTS]
        shares = [f"{row[name]:.0%}" if name in row else "–" for name in ("update_share", "generation_share")]
        cells = [str(row["threads"]), row["peer"], *seconds, f"{row['tokens_per_second']:,.0f}", *shares]
        lines.append("| " + " | ".join([*cells, f"{row['peak_rss_mib']:,} MiB"]) + " |")
    return "\n".join(lines)


PARTS = ("step", "generation", "update")


def profile_table(result: Mapping[str, Any]) -> str:
    """Where the time of Coterie's steps goes, in Markdown."""
    if not result["profiles"]:
        return ""
    parts = list(result["profiles"][0]["shares"])
    head = ["shape", "threads", "peer", "phase", *parts]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in result["profiles"]:
        cells = [row["shape"], str(row["threads"]), row["peer"].removesuffix(" profiled"), row["phase"]]
        lines.append("| " + " | ".join([*cells, *(f"{row['shares'][part]:.0%}" for part in parts)]) + " |")
    return "\n".join(lines)
