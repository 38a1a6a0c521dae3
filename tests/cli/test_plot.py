"""`coterie plot`: what is drawn of which runs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.viewing import plot
from tests.cli.support import coterie
from tests.viewing.runs import made, rows_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs of two configurations; one of two seeds is a step longer."""
    folder = tmp_path_factory.mktemp("runs")
    made(folder / "a" / "seed-0", "seed=0")
    made(folder / "a" / "seed-1", "seed=1", "schedule.steps=3")
    made(folder / "b", "trainer.learning_rate=0.5", "schedule.steps=3")
    return folder


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    kept = []
    save = plot.save
    monkeypatch.setattr(plot, "save", lambda figure, path: (kept.append(figure), save(figure, path))[1])
    return kept


def test_seeds_are_one_line_with_an_interval_and_a_legend_says_what_differs(runs, figures, tmp_path):
    out = tmp_path / "new" / "lengths.png"
    done = coterie("plot", runs / "a", runs / "b", "length/*", "eval/success", "-o", out)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{out}: 3 metrics of 3 runs in 2 configurations\n"
    assert f"learning_rate=1: drawn up to step 2, where {runs / 'a' / 'seed-0'} is" in done.stderr
    assert out.read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["learning_rate=1 (2 seeds)", "learning_rate=0.5 (seed 0)"]
    assert figure.get_supxlabel().startswith("mean and 95 % interval over seeds; of a single run")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title("left") for axes in shown] == ["length/planner", "length/executor", "eval/success"]
    mean, single = shown[1].get_lines()
    both = [rows_of(runs / "a" / f"seed-{seed}") for seed in (0, 1)]
    expected = np.mean([[row["length/executor"] for row in rows[:2]] for rows in both], axis=0)
    assert mean.get_ydata().tolist() == expected.tolist()
    assert single.get_ydata().tolist() == [row["length/executor"] for row in rows_of(runs / "b")]


def test_against_tokens_smoothed_and_the_curated_metrics_by_default(runs, figures, tmp_path):
    assert (
        coterie(
            "plot", runs / "b", "tokens/generated", "--by", "tokens", "--smooth", 3, "-o", tmp_path / "t.svg"
        ).exit_code
        == 0
    )
    (line,) = figures[0].axes[0].get_lines()
    rows = rows_of(runs / "b")
    generated = [row["tokens/generated"] for row in rows]
    assert line.get_xdata().tolist() == [row["tokens/total"] for row in rows]
    assert line.get_ydata()[1] == pytest.approx(sum(generated) / 3)
    assert figures[0].get_supxlabel() == "moving average of 3 steps"
    done = coterie("plot", runs / "b", "-o", tmp_path / "first.png")
    assert done.exit_code == 0 and "success_committed" in [axes.get_title("left") for axes in figures[1].axes]


def test_equal_figures_are_equal_files(runs, tmp_path):
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        assert coterie("plot", runs / "b", "success_committed", "-o", tmp_path / name).exit_code == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rewrad/planner", "-o", "x.png"), "did you mean reward/planner"),
        (("no/*", "-o", "x.png"), "there is no metric 'no/*'"),
        (("*", "-o", "x.png"), "at most 24 panels"),
        (("success_committed", "-o", "x.gif"), "end it in .png or .svg"),
        (("./nowhere", "-o", "x.png"), "there is no such folder"),
    ],
)
def test_what_cannot_be_drawn_is_told(runs, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    done = coterie("plot", runs / "b", *arguments)
    assert done.exit_code == 2 and says in done.stderr and not list(tmp_path.iterdir()), done.output


def test_a_metric_alone_and_a_folder_without_runs_are_told(tmp_path):
    done = coterie("plot", "eval/success", "-o", tmp_path / "x.png")
    assert done.exit_code == 2 and "eval/success is no run folder" in done.stderr
    done = coterie("plot", tmp_path, "eval/success", "-o", tmp_path / "x.png")
    assert done.exit_code == 2 and "no config.yaml in it" in done.stderr


def test_an_interval_between_two_gaps_is_a_bar():
    from coterie.api.figures import new_figure
    from coterie.viewing.series import Curve

    axes = new_figure(4, 3).subplots()
    x, values = np.arange(5.0), np.full(5, 0.5)
    low = np.array([0.4, 0.4, np.nan, 0.3, np.nan])
    counts = np.full(len(x), 2)
    found = Curve("reward/a", x, values, low, 1 - low, counts, 2, "over 2 seeds")
    plot.draw_panel(axes, "reward/a", [found], "step")
    few, band, bars = axes.collections
    assert len(few.get_offsets()) == 0, "all points are of both seeds"
    assert max(path.vertices[:, 0].max() for path in band.get_paths() if len(path.vertices) > 5) <= 1
    assert [segment.tolist() for segment in bars.get_segments()] == [[[3.0, 0.3], [3.0, 0.7]]]
