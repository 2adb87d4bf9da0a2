"""What figures share: maps side by side with room for their colour bars, bands around lines, the legend above."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

COLOUR_BAR_WIDTH = 64  # pixels, with its labels
_MOST_TICKS_BELOW = 16
_MOST_LAYER_TICKS = 40
_MOST_PARTED_CELLS = 48  # in a row or a column; beyond, gaps would be as wide as cells
LEGEND_ABOVE: dict[str, Any] = {
    "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
    "margin": {"t": 84},
}


def row_of_maps(titles: Sequence[str], map_width: float) -> tuple[go.Figure, list[float]]:
    """An empty figure with a row of plots that share their axes.

    Args:
        titles: one per map.
        map_width: pixels of one map without its colour bar.

    Returns:
        The figure, and where each map ends, as a share of the plotting width.

    Example:
        >>> figure, ends = row_of_maps(["a", "b"], 100.0)
        >>> len(ends), ends[-1]
        (2, 1.0)
    """
    count = len(titles)
    width = count * (map_width + COLOUR_BAR_WIDTH) - COLOUR_BAR_WIDTH
    figure = make_subplots(
        1,
        count,
        shared_yaxes=True,
        horizontal_spacing=COLOUR_BAR_WIDTH / width,
        subplot_titles=[f"<b>{title}</b>" for title in titles],
    )
    figure.update_annotations(font={"size": 12.5})
    figure.update_xaxes(matches="x")
    ends = [(index * (map_width + COLOUR_BAR_WIDTH) + map_width) / width for index in range(count)]
    return figure, ends


def numbered(name: str, column: int) -> str:
    """Plotly's name of the axis of a column, counted from 0: ``xaxis``, ``xaxis2`` and so on.

    Example:
        >>> numbered("coloraxis", 0), numbered("coloraxis", 1)
        ('coloraxis', 'coloraxis2')
    """
    return name if column == 0 else f"{name}{column + 1}"


def band(x: Any, low: np.ndarray, high: np.ndarray, colour: str, group: str, **more: Any) -> go.Scatter:
    """The area between two curves, pale, without a place in the legend of its own.

    Args:
        x: ascending.
        low: the lower curve.
        high: the upper curve.
        colour: of the line that it surrounds.
        group: of that line in the legend, with which it comes and goes.
        more: further attributes of the trace.

    Example:
        >>> band([0, 1], np.array([1.0, 2.0]), np.array([3.0, 4.0]), "red", "a").y.tolist()
        [1.0, 2.0, 4.0, 3.0]
    """
    ahead = np.asarray(x)
    return go.Scatter(
        x=np.concatenate([ahead, ahead[::-1]]),
        y=np.concatenate([low, high[::-1]]),
        fill="toself",
        fillcolor=colour,
        opacity=0.18,
        mode="lines",
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=group,
        **more,
    )


def head_axis(n_heads: int) -> dict[str, Any]:
    """The horizontal axis of a map of heads.

    Example:
        >>> head_axis(30)["dtick"]
        3
    """
    step = -(-n_heads // 12)
    return {"title": "Head", "showgrid": False, "zeroline": False, "tick0": 0, "dtick": step, "ticks": ""}


def layers_below(layers: Sequence[int], room: float = 0.6) -> dict[str, Any]:
    """The horizontal axis of a chart by layer, ticks at the model's own numbers of layers that were measured.

    Args:
        layers: what was measured.
        room: beside the first and the last.

    Example:
        >>> layers_below([0, 12, 24])["tickvals"], layers_below(range(30))["tickvals"][-1]
        ([0, 12, 24], 28)
    """
    # Plotly would put ticks at fractions where there is room for them, and leave room for a layer that is not there.
    step = -(-len(layers) // _MOST_TICKS_BELOW)
    ends = [min(layers) - room, max(layers) + room]
    ticks = {"tickmode": "array", "tickvals": list(layers)[::step]}
    return {"title": "Layer", "showgrid": False, "zeroline": False, "range": ends, **ticks}


def layer_axis(layers: Sequence[int]) -> dict[str, Any]:
    """The vertical axis of a map of heads, the first layer on top; cells lie at row numbers, labels are the model's own.

    Example:
        >>> layer_axis([4, 8])["tickvals"], layer_axis([4, 8])["ticktext"]
        ([0, 1], ['4', '8'])
    """
    rows = list(range(len(layers)))
    # Without a label, the pointer shows the row; only where that is the layer's own number can labels be thinned.
    step = -(-len(rows) // _MOST_LAYER_TICKS) if list(layers) == rows else 1
    return {
        "title": "Layer",
        "autorange": "reversed",
        "showgrid": False,
        "zeroline": False,
        "tickmode": "array",
        "ticks": "",
        "tickvals": rows[::step],
        "ticktext": [str(layer) for layer in layers[::step]],
    }


def cell_gap(shape: tuple[int, ...]) -> int:
    """Pixels between the cells of a map.

    Example:
        >>> cell_gap((30, 9)), cell_gap((80, 64))
        (1, 0)
    """
    return 1 if max(shape) <= _MOST_PARTED_CELLS else 0


def map_height(n_layers: int) -> int:
    """Pixels of a map of heads.

    Example:
        >>> map_height(30)
        560
    """
    return int(np.clip(110 + 15 * n_layers, 240, 620))


def map_width(n_heads: int) -> int:
    """Pixels of a map of heads with its colour bar.

    Example:
        >>> map_width(9)
        404
    """
    return int(np.clip(170 + 26 * n_heads, 340, 900))
