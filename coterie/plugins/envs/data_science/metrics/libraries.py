"""The libraries of extra `data-science`, imported when a submission is first scored."""

from __future__ import annotations

from typing import Any

from coterie.core.errors import MissingExtra

_EXTRA = "data-science"
_BY = "the metrics of environment data_science"


def pandas() -> Any:
    """The module `pandas`.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("pandas", _EXTRA, needed_by=_BY) from error
    return pandas


def sklearn_metrics() -> Any:
    """The module `sklearn.metrics`.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    try:
        import sklearn.metrics
    except ImportError as error:
        raise MissingExtra("scikit-learn", _EXTRA, needed_by=_BY) from error
    return sklearn.metrics


def scipy_stats() -> Any:
    """The module `scipy.stats`.

    Raises:
        MissingExtra: scipy is not installed.
    """
    try:
        import scipy.stats
    except ImportError as error:
        raise MissingExtra("scipy", _EXTRA, needed_by=_BY) from error
    return scipy.stats
