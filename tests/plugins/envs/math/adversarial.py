"""Answers that are made to break a verifier: drawn by a seed from a dozen sorts, and mixed."""

from __future__ import annotations

import random
from collections.abc import Callable

Draw = Callable[[random.Random], str]

_COMMANDS = (
    *(
        r"\frac",
        r"\sqrt",
        r"\sum",
        r"\int",
        r"\prod",
        r"\lim",
        r"\binom",
        r"\log",
        r"\sin",
        r"\left(",
        r"\right)",
    ),
    *(
        r"\begin{pmatrix}",
        r"\end{pmatrix}",
        r"\text",
        r"\boxed",
        r"\pm",
        r"\infty",
        r"\cdot",
        r"\%",
        r"\$",
        "&",
    ),
    *(
        "^",
        "_",
        "{",
        "}",
        "!",
        "=",
        "<",
        ",",
        ";",
        "(",
        ")",
        "[",
        "]",
        "|",
        "x",
        "y",
        "n",
        "i",
        "e",
        "0",
        "7",
        "42",
    ),
)


def _tower(rng: random.Random) -> str:
    height = rng.randint(2, 40)
    return "^{".join(str(rng.randint(2, 99)) for _ in range(height)) + "}" * (height - 1)


def _nested(rng: random.Random) -> str:
    opening, closing = rng.choice(
        [
            ("{", "}"),
            ("(", ")"),
            (r"\sqrt{", "}"),
            (r"\frac{1}{", "}"),
            (r"\left(", r"\right)"),
            ("[", "]"),
            ("|", "|"),
        ]
    )
    depth = rng.randint(5, 120)
    return opening * depth + "1" + closing * (depth if rng.random() < 0.8 else rng.randint(0, depth))


def _large(rng: random.Random) -> str:
    return rng.choice(
        [
            f"{rng.randint(10, 10**8)}!",
            rf"\binom{{{rng.randint(10, 10**7)}}}{{{rng.randint(5, 10**6)}}}",
            rf"\sum_{{k=1}}^{{{10 ** rng.randint(1, 12)}}} k^{{{rng.randint(1, 60)}}}",
            rf"\prod_{{k=1}}^{{{10 ** rng.randint(1, 12)}}} \frac{{k}}{{k+1}}",
            rf"(x+y+z)^{{{10 ** rng.randint(1, 6)}}}",
            rf"(1+\sqrt{{2}})^{{{10 ** rng.randint(1, 9)}}}",
            rf"2^{{2^{{{rng.randint(3, 60)}}}}}",
            "9" * rng.randint(10, 900),
            f"0.{'3' * rng.randint(10, 900)}",
            rf"\sin(\cos(\tan({10 ** rng.randint(1, 40)})))",
        ]
    )


def _unicode(rng: random.Random) -> str:
    odd = "\x00\u202e\u200b\ufeff√π∞½²٣๔🙂é\ud7ff\U0010ffff\t\r"
    return "".join(rng.choice(odd + "042x^{}") for _ in range(rng.randint(1, 80)))


def _soup(rng: random.Random) -> str:
    return "".join(rng.choice(_COMMANDS) for _ in range(rng.randint(1, 60)))


def _python(rng: random.Random) -> str:
    return rng.choice(
        [
            "__import__('os').kill(__import__('os').getppid(), 9)",
            "exec('while True: pass')",
            "().__class__.__bases__[0].__subclasses__()",
            r"\text{__import__('os')._exit(3)}",
            "lambda: 42",
            "42; import os",
            "[0] * 10**12",
        ]
    )


def _long(rng: random.Random) -> str:
    return rng.choice(["1+", "x", r"\frac{1}{2}+", "(", "{", "\\", "1,"]) * rng.randint(200, 20_000) + "1"


def _set(rng: random.Random) -> str:
    items = ", ".join(str(rng.randint(0, 99)) for _ in range(rng.randint(2, 60)))
    return rng.choice([rf"\{{{items}\}}", f"({items})", f"[{items})", rf"x \in \{{{items}\}}", items])


def _matrix(rng: random.Random) -> str:
    size = rng.randint(1, 12)
    rows = r" \\ ".join(" & ".join(str(rng.randint(0, 9)) for _ in range(size)) for _ in range(size))
    return rf"\begin{{pmatrix}} {rows} \end{{pmatrix}}^{{{rng.randint(-3, 10**6)}}}"


_SORTS: tuple[Draw, ...] = (_tower, _nested, _large, _unicode, _soup, _python, _long, _set, _matrix)


def strings(count: int, seed: int = 0) -> list[str]:
    """The strings; the same for a seed. Some are two sorts in one."""
    rng = random.Random(seed)
    drawn = []
    for _ in range(count):
        text = rng.choice(_SORTS)(rng)
        if rng.random() < 0.3:
            text += rng.choice(["+", "=", " ", ",", "^", r"\cdot "]) + rng.choice(_SORTS)(rng)
        drawn.append(text)
    return drawn
