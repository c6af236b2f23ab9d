import sys

import matplotlib
import numpy as np
import pytest

from tests.strict_warnings import warnings_are_errors
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import BinnedColumn, CountColumn, IntegerColumn, RealColumn
from vertinumpyro.evaluation import (
    pairwise_tvd,
    plot_adversaries,
    plot_curves,
    plot_marginals,
    plot_nll_boxes,
    plot_objective,
    plot_pairwise_tvd,
    plot_tvd_comparison,
)
from vertinumpyro.evaluation.plot_style import NOT_DP_NOTE
from vertinumpyro.evaluation.table_plots import CROSS_PARTY_GID, cell_labels


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings_are_errors():
        yield


def outlines(axes):
    return [patch for patch in axes.patches if patch.get_gid() == CROSS_PARTY_GID]


def note_of(figure) -> str:
    return figure.get_supxlabel()


def test_marginals_have_a_panel_for_each_column(real, synthetic, schema):
    figure = plot_marginals(real, synthetic, schema, num_across=3)
    shown = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title(loc="left") for axes in shown] == list(schema.columns)
    titles = {name: axes._left_title.get_color() for name, axes in zip(schema.columns, shown, strict=True)}
    assert titles["age"] == titles["ward"] != titles["visits"] == titles["claim"]
    heights = [bar.get_height() for bar in shown[1].patches if hasattr(bar, "get_height")]
    assert sum(heights) == pytest.approx(1.0)
    assert note_of(figure) == NOT_DP_NOTE
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("column", "max_bins", "expected"),
    [
        (BinnedColumn(edges=(0, 0, 10, 60)), 16, ["0", ">0", "10"]),
        (IntegerColumn(bounds=(0, 9)), 5, ["0", "2", "4", "6", "8"]),
        (CountColumn(upper=3, missing="mask"), 16, ["0", "1", "2", "3", "missing"]),
        (RealColumn(bounds=(0, 8)), 4, ["0", "2", "4", "6"]),
    ],
)
def test_cell_labels_are_the_lower_ends_of_the_cells(column, max_bins, expected):
    import pandas as pd

    table = pd.Series([0.0, 2.0], name="x")
    num_cells = column.discretise(table, max_bins).num_cells
    assert cell_labels(column, num_cells, max_bins) == expected


def test_heat_map_outlines_the_cross_party_block(real, synthetic, schema):
    matrix = pairwise_tvd(real, synthetic, schema)
    figure = plot_pairwise_tvd(matrix, schema, title="Twin")
    axes = figure.axes[0]
    (outline,) = outlines(axes)
    assert (outline.get_width(), outline.get_height()) == (2, 3)
    assert axes.get_title(loc="left").startswith("Twin\n")
    assert [label.get_text() for label in axes.get_yticklabels()] == list(schema.columns)
    (cells,) = axes.collections
    assert len(cells.get_array()) == 15  # lower triangle with the diagonal
    assert cells.get_clim() == (0, matrix.to_numpy().max())
    assert sum(text.get_text().startswith(".") for text in axes.texts) == 15
    figure.canvas.draw()


def test_heat_map_of_one_party_has_no_outline(real, synthetic, schema):
    alone = schema.restrict("insurer")
    figure = plot_pairwise_tvd(pairwise_tvd(real, synthetic, alone), alone, note=None)
    assert not outlines(figure.axes[0])
    assert "no cross-party pair" in figure.axes[0].get_title(loc="left")
    assert note_of(figure) == ""


def test_comparison_shares_one_scale(real, synthetic, schema):
    joint = pairwise_tvd(real, synthetic, schema)
    figure = plot_tvd_comparison({"one": joint, "two": joint * 2, "three": joint}, schema)
    left, right, third = figure.axes[:3]
    assert left.collections[0].get_clim() == right.collections[0].get_clim()
    assert left.collections[0].get_clim()[1] == pytest.approx(2 * joint.to_numpy().max())
    assert len(outlines(left)) == len(outlines(right)) == len(outlines(third)) == 1
    assert "two" in right.get_title(loc="left")
    assert "cross-party mean" in right.get_title(loc="left")


@pytest.mark.parametrize("num_steps", [1, 20, 500])
def test_objective_draws_traces_with_gaps(num_steps):
    trace = np.linspace(5, 1, num_steps)
    trace[num_steps // 2 :][:1] = np.nan
    figure = plot_objective(trace, label="negative ELBO")
    assert figure.axes[0].get_ylabel() == "negative ELBO"
    assert len(figure.axes[0].lines) == (2 if num_steps > 50 else 1)
    figure.canvas.draw()


def test_boxes_curves_and_adversaries_draw_what_they_are_given():
    boxes = plot_nll_boxes({"a": [1, 2, 3], "b": [2.0]}, {"floor": 0.5})
    assert [label.get_text() for label in boxes.axes[0].get_xticklabels()] == ["a", "b"]
    curves = plot_curves({"one": ([0, 1], [2, 1]), "two": ([1, 2, 3], np.ones((4, 3)))})
    assert [line.get_label() for line in curves.axes[0].lines] == ["one", "two"]
    rows = [
        {"adversary": "outside", "epsilon": "0.9", "relation": "add/remove"},
        {"adversary": "outside", "epsilon": 1.8, "relation": "replace"},
        {"adversary": "clinic", "epsilon": "inf", "relation": "replace"},
    ]
    dots = plot_adversaries(rows)
    axes = dots.axes[0]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["outside", "clinic"]
    assert any("no bound" in text.get_text() for text in axes.texts)
    for figure in (boxes, curves, dots):
        figure.canvas.draw()


def test_an_epsilon_is_written_as_its_row_has_it():
    """A figure that rounds again could show less than the table, and a plan may cost nothing that can be measured."""
    texts = ["3.454", "1.3e-07", "0.000"]
    figure = plot_adversaries([{"adversary": str(i), "epsilon": text} for i, text in enumerate(texts)])
    assert [text.get_text() for text in figure.axes[0].texts] == texts
    figure.canvas.draw()


def test_figures_leave_global_state_alone():
    before = dict(matplotlib.rcParams)
    plot_objective([1.0, 2.0])
    assert dict(matplotlib.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


def test_errors_name_the_argument(real, synthetic, schema):
    matrix = pairwise_tvd(real, synthetic, schema)
    cases = [
        ("synthetic lacks", lambda: plot_marginals(real, synthetic.drop(columns="age"), schema)),
        ("num_across", lambda: plot_marginals(real, synthetic, schema, num_across=0)),
        ("matrix lacks", lambda: plot_pairwise_tvd(matrix.drop(columns="age"), schema)),
        ("largest", lambda: plot_pairwise_tvd(matrix, schema, largest=0)),
        ("trace", lambda: plot_objective([])),
        ("steps", lambda: plot_objective([1, 2], steps=[1])),
        ("groups", lambda: plot_nll_boxes({})),
        (r"groups\['a'\]", lambda: plot_nll_boxes({"a": []})),
        ("curves", lambda: plot_curves({})),
        (r"curves\['a'\]", lambda: plot_curves({"a": ([1, 2], [1])})),
        ("rows", lambda: plot_adversaries([])),
        (r"rows\[0\] lacks", lambda: plot_adversaries([{"adversary": "a"}])),
        (r"rows\[0\]\['epsilon'\]", lambda: plot_adversaries([{"adversary": "a", "epsilon": -1}])),
    ]
    for pattern, call in cases:
        with pytest.raises(ArgumentError, match=pattern):
            call()


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ArgumentError, match=r"vertinumpyro\[report\]"):
        plot_objective([1.0])
