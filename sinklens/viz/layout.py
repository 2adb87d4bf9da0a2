"""Maps side by side, each with room for its own colour bar."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

COLOUR_BAR_WIDTH = 64  # pixels, with its labels


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
