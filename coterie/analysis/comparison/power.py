"""What a number of tasks can show: the power of two paired tests, and Holm's correction of several tests.

Where seeds decide, the t test does: a difference over its standard error follows Student's t, noncentral
where there is a true difference. So its power is exact for normal differences, and an approximation for
others, as the interval is. Where one run a side is compared, the sign-flip test does. Of few tasks that
differ it is stricter, so its power is computed on the sizes of the observed differences (`SignFlips`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from coterie.stats import EXACT_UP_TO, Floats

POWER = 0.8
"""Probability that a test finds the difference it is designed for (Cohen 1988)."""
LEVEL = 0.05
"""Of a two-sided test."""
MOST_TASKS = 10**9
"""More tasks than that are no number anybody could evaluate."""

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(200)
_ERF = np.vectorize(math.erf, otypes=[np.float64])


def beyond(bound: float, df: float, shift: float = 0.0) -> float:
    """P(|T| > bound) of Student's t with `df` degrees of freedom, noncentral by `shift`.

    T is (Z + shift) / U with Z normal and U² a chi-square over its degrees of freedom: the probability of Z
    is integrated over U by Gauss and Legendre. `df` needn't be whole.
    """
    spread = 1 / math.sqrt(2 * df)
    low, high = max(0.0, 1 - 9 * spread), 1 + 12 * spread
    u = low + (high - low) * (_POINTS + 1) / 2
    with np.errstate(divide="ignore"):
        log_density = (df - 1) * np.log(u) - df * u * u / 2
    log_density += math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)
    outside = 1 - (_ERF((bound * u - shift) / math.sqrt(2)) + _ERF((bound * u + shift) / math.sqrt(2))) / 2
    return min(1.0, max(0.0, float((_WEIGHTS * np.exp(log_density) * outside).sum() * (high - low) / 2)))


@lru_cache(maxsize=4096)
def critical(df: float, level: float = LEVEL) -> float:
    """The bound that |t| exceeds with probability `level`."""
    angle = _root(lambda angle: beyond(math.tan(angle), df) - level, 0.0, math.pi / 2 - 1e-9)
    return math.tan(angle)


@lru_cache(maxsize=4096)
def needed_shift(df: float, power: float = POWER, level: float = LEVEL) -> float:
    """The difference, in standard errors, that a two-sided test finds with probability `power`."""
    bound = critical(df, level)
    # Where degrees of freedom are few, the bound times a large U is needed.
    return _root(lambda shift: power - beyond(bound, df, shift), 0.0, 6 * bound + 6)


def detectable(error: float, df: float, power: float = POWER, level: float = LEVEL) -> float:
    """The smallest true difference that such data show with probability `power`.

    Args:
        error: standard error of the difference; df: its degrees of freedom. NaN: 0 or below.
    """
    return error * needed_shift(df, power, level) if df >= 1 and error > 0 else math.nan


def tasks_for(
    difference: float,
    error_of: Callable[[int], tuple[float, float]],
    power: float = POWER,
    level: float = LEVEL,
) -> int | None:
    """The fewest tasks with which a true difference is shown with probability `power`.

    Args:
        error_of: number of tasks -> standard error of the difference, and its degrees of freedom.

    Returns:
        None where 1,000,000,000 tasks wouldn't do, e.g. where seeds spread more than tasks can make up for.
    """

    def enough(tasks: int) -> bool:
        error, df = error_of(tasks)
        return error <= 0 or beyond(critical(df, level), df, abs(difference) / error) >= power

    if difference == 0 or not enough(MOST_TASKS):
        return None
    low, high = 1, MOST_TASKS  # one task has no spread: never enough
    while high - low > 1:
        middle = (low + high) // 2 if high < 4 * low else math.isqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


class SignFlips:
    """The power of the sign-flip test, given the sizes of the tasks' differences.

    A true difference makes each size positive with a probability above 1/2, the same for all: the difference
    is then (2 q - 1) times the mean size. Sizes of 0 show nothing.

    Args:
        differences: of the tasks, shape (tasks,).
    """

    DRAWS = 4000
    """Of signs, for the null distribution and for the power alike, always the same."""
    MANY = 400
    """From so many tasks that differ on, the power is that of the t test."""

    def __init__(self, differences: Floats) -> None:
        self._tasks = len(differences)
        self._sizes = np.sort(np.abs(differences[differences != 0]))

    def detectable(self) -> float:
        """The smallest true difference that is shown with probability `POWER`; infinite: none is; NaN: the
        tasks don't differ; 0: so many differ that the t test says it."""
        if not 0 < len(self._sizes) <= self.MANY:
            return math.nan if not len(self._sizes) else 0.0
        power = self._power_of(self._sizes)
        if power(1.0) < POWER:
            return math.inf
        share = _root(lambda q: POWER - power(q), 0.5, 1.0)
        return float((2 * share - 1) * self._sizes.sum() / self._tasks)

    def tasks_for(self, difference: float, least: int) -> int:
        """The fewest tasks from `least` on with which a true difference is shown with probability `POWER`.

        Tasks that are added differ as often, and by as much, as the observed ones.

        Args:
            least: what the t test needs.
        """
        often = len(self._sizes) / self._tasks
        share = min(1.0, (1 + abs(difference) * self._tasks / self._sizes.sum()) / 2)
        tasks = least
        while (differ := math.floor(tasks * often)) < self.MANY:
            sizes = np.quantile(self._sizes, (np.arange(differ) + 0.5) / max(differ, 1))
            if differ and self._power_of(sizes)(share) >= POWER:
                break
            tasks = max(tasks + 1, math.ceil(1.03 * tasks))
        return tasks

    def _power_of(self, sizes: Floats) -> Callable[[float], float]:
        """Probability of a positive sign -> power."""
        uniforms = np.random.Generator(np.random.PCG64(0)).random((self.DRAWS, len(sizes)))
        if len(sizes) <= EXACT_UP_TO:
            flips = (np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes))) & 1
        else:
            flips = uniforms[::-1] < 0.5
        slack = 1e-9 * float(sizes.sum())
        null = np.sort(np.abs((1 - 2.0 * flips) @ sizes))
        # The sums beyond which at most `LEVEL` of the null distribution lies, themselves included.
        beyond_bound = len(null) - np.searchsorted(null, null - slack)
        inside = np.flatnonzero(beyond_bound <= LEVEL * len(null))
        bound = float(null[inside[0]]) - slack if len(inside) else math.inf

        def power(share: float) -> float:
            signs = np.where(uniforms < share, 1.0, -1.0)
            return float((np.abs(signs @ sizes) >= bound).mean())

        return power


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values that bound the probability of any false one among several tests (Holm 1979).

    The smallest of m is multiplied by m, the next by m - 1, and so on; none is smaller than one before it.
    NaN stays NaN and counts as no test.
    """
    order = sorted((p, at) for at, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, at) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[at] = largest
    return adjusted


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls through 0 between two bounds is 0, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2
