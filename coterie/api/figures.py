"""How figures look: one style for curves, plots and tables, without a window system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.errors import MissingExtra, UserError
from coterie.core.storage.atomic import written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY, LINES = "#2563a8", "#d9822b", "#5c6670", "#e3e6ea"
COLOURS = (BLUE, ORANGE, "#009e73", "#b0558f", "#56b4e9", "#7a5230", "#111827")
"""Of curves that are compared: told apart with every kind of colour blindness, the first ones in grey too."""
FORMATS = (".png", ".svg")


def require_matplotlib(needed_by: str) -> None:
    """Fail early where matplotlib is missing, before minutes are spent.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra("matplotlib", "torch", needed_by=needed_by) from error


def check_format(path: Path) -> None:
    """Refuse a file whose name ends in no format of a picture.

    Raises:
        UserError: it doesn't end in .png or .svg.
    """
    if path.suffix.lower() not in FORMATS:
        why = "the end of the name decides the format"
        raise UserError(f"{path} is no picture", why=why, fix=f"end it in {' or '.join(FORMATS)}")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches. pyplot would choose a window system and keep the figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Any, *, right: bool = False) -> None:
    """The frame of a panel: light lines at the values, none above, and on the right only if asked."""
    axes.spines["top"].set_visible(False)
    axes.spines["right"].set_visible(right)
    axes.grid(axis="y", color=LINES, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure; a file of that name is replaced. Equal figures make equal files.

    Raises:
        WriteError: the file can't be written.
    """
    import matplotlib

    with written(path), matplotlib.rc_context({"svg.hashsalt": "coterie"}):
        path.parent.mkdir(parents=True, exist_ok=True)
        undated = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=150, metadata=undated)
    return path
