"""An image beside the maps of one head over its patches."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, UInt8

from sinklens.errors import InputError
from sinklens.results import METRICS, AttentionMaps
from sinklens.results.labels import check_head, whole_number
from sinklens.viz.layout import COLOUR_BAR_WIDTH, numbered, row_of_maps
from sinklens.viz.maps import METRIC_LABELS, colour_axis
from sinklens.viz.size import DEFAULT_LIMIT, check_size
from sinklens.viz.theme import KIND_COLOURS, Theme, template

PerKey = Float[np.ndarray, " key"]
_PATCH = re.compile(r"(\d+),(\d+)")
_SPECIAL_AT = -2.0  # [CLS] and its like lie above the image, half a patch away: they are no part of it
_SIDE = 250.0  # of one panel, in pixels
_LEFT, _TOP, _BOTTOM = 92, 92, 44
_MOST_TICKS = 8
_QUERY_COLOUR = "#00a37a"


def image_maps(
    maps: AttentionMaps,
    image: Any,
    layer: int,
    head: int,
    query: Any = None,
    metrics: Sequence[str] = ("attention", "intra"),
    *,
    exclude_sink_from_range: bool = True,
    max_megabytes: float = DEFAULT_LIMIT,
    theme: Theme = "light",
) -> go.Figure:
    """An image and, beside it on the same patches, what one head reads from each: of one query, or the mean over all.

    Patches are named by their row and column as in ``maps.tokens``. ``[CLS]`` and other positions that are no patch stand
    above the image. The query is framed, sinks are crossed. Zooming one panel zooms all.

    Args:
        maps: from :func:`sinklens.attention_maps` of a model of images.
        image: what was measured, or the picture that it was made from: ``[channel, row, column]`` or
            ``[1, channel, row, column]``, one or three channels, a tensor or array of bytes or of floats. Floats from 0 to 1
            are shown as they are, others from their smallest to their largest.
        layer: the model's own number.
        head: query head.
        query: a patch ``(row, column)``; a position, 0 being ``[CLS]`` where there is one; or None for the mean over all
            queries, without degenerate rows.
        metrics: names in :data:`sinklens.results.METRICS`.
        exclude_sink_from_range: leave sinks out when the colour range is chosen; they saturate.
        max_megabytes: the limit on the figure's size.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure: the image, then one heatmap over the patches per metric, ``z`` being ``[row, column]``.

    Raises:
        InputError: the maps are not of an image, the image cannot be shown, there is no such layer, head, query, metric or
            theme, or the figure would be too large.

    Example:
        >>> from tests.synthetic import make_maps
        >>> maps = make_maps(1, 2, ("[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"))
        >>> figure = image_maps(maps, np.zeros((3, 8, 12), dtype=np.uint8), 0, 1, query=(1, 2))
        >>> [trace.z.shape for trace in figure.data if trace.type == "heatmap"][:1]
        [(2, 3)]
    """
    if not metrics:
        raise InputError(f"no metrics to show; name at least one of {', '.join(METRICS)}")
    rows, columns, n_special = _grid(maps.tokens)
    one = maps.layer(layer)
    check_head(maps.n_heads, head)
    position = None if query is None else _position(query, rows, columns, n_special)
    figure, ends = row_of_maps(["Image", *(METRIC_LABELS.get(metric, metric) for metric in metrics)], _SIDE)
    figure.add_trace(_image_trace(_picture(image), rows, columns), row=1, col=1)
    for column, (metric, end) in enumerate(zip(metrics, ends[1:], strict=True)):
        values, name = _per_key(one, head, metric, position), numbered("coloraxis", column)
        for trace in _traces(values, maps.tokens, metric, (rows, columns, n_special), name):
            figure.add_trace(trace, row=1, col=column + 2)
        ranged = np.delete(values, list(one.sink_positions)) if exclude_sink_from_range else values
        figure.layout[name] = colour_axis(ranged, metric, end, theme)
    for column in range(len(metrics) + 1):
        for mark in _marks(maps.sink_positions, position, (rows, columns, n_special), column):
            figure.add_trace(mark, row=1, col=column + 1)
    _axes(figure, maps.tokens[:n_special], rows, columns)
    where = "mean over queries" if position is None else f"query {maps.tokens[position]}"
    _lay_out(figure, f"Layer {layer} · head {head} · {where}", (rows, columns, n_special), len(metrics) + 1, theme)
    return check_size(figure, max_megabytes)


Grid = tuple[int, int, int]
"""Rows and columns of patches, and how many positions there are before them."""


def _grid(tokens: Sequence[str]) -> Grid:
    """The grid that the labels tell."""
    found = [_PATCH.fullmatch(token) for token in tokens]
    n_special = next((position for position, match in enumerate(found) if match), len(tokens))
    patches = [(int(match[1]), int(match[2])) if match else None for match in found[n_special:]]
    last = patches[-1] if patches else None
    rows, columns = (last[0] + 1, last[1] + 1) if last else (0, 0)
    if not patches or patches != [(row, column) for row in range(rows) for column in range(columns)]:
        raise InputError(
            "the maps are not of an image: their tokens name no patches 'row,column'; expected sinklens.attention_maps "
            "of a model of images and an image of its own size"
        )
    return rows, columns, n_special


def _position(query: Any, rows: int, columns: int, n_special: int) -> int:
    if isinstance(query, tuple | list) and len(query) == 2:
        row, column = whole_number(query[0]), whole_number(query[1])
        if row is not None and column is not None and 0 <= row < rows and 0 <= column < columns:
            return n_special + row * columns + column
    number, length = whole_number(query), n_special + rows * columns
    if number is None or not -length <= number < length:
        raise InputError(
            f"no query {query!r}; the patches are (0, 0) to ({rows - 1}, {columns - 1}), the positions 0 to {length - 1}"
        )
    return number % length


def _per_key(one: AttentionMaps, head: int, metric: str, position: int | None) -> PerKey:
    values = one.metric(metric)[0, head].float()
    return (values.nanmean(0) if position is None else values[position]).numpy()


def _picture(image: Any) -> UInt8[np.ndarray, "row column channel"]:
    """Three channels of bytes."""
    array = np.asarray(
        image.detach().cpu().float() if hasattr(image, "detach") and image.is_floating_point() else image
    )
    array = array[0] if array.ndim == 4 and len(array) == 1 else array
    if array.ndim != 3 or array.shape[0] not in (1, 3) or array.dtype.kind not in "fu" or not np.isfinite(array).all():
        raise InputError(
            f"the image is {array.dtype} of shape {array.shape}; expected finite floats or bytes [channel, row, column] "
            "with one or three channels"
        )
    if array.dtype != np.uint8:
        low, high = float(array.min()), float(array.max())
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        array = np.round(255 * (array - low) / ((high - low) or 1.0)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(array, (3, *array.shape[1:])).transpose(1, 2, 0))


def _image_trace(picture: UInt8[np.ndarray, "row column channel"], rows: int, columns: int) -> go.Image:
    """The picture over the grid of patches: whole numbers are the patches' middles."""
    height, width = picture.shape[:2]
    dx, dy = columns / width, rows / height
    place = {"x0": -0.5 + dx / 2, "dx": dx, "y0": -0.5 + dy / 2, "dy": dy}
    return go.Image(z=picture, **place, hoverinfo="skip", name="Image")


def _traces(values: PerKey, tokens: Sequence[str], metric: str, grid: Grid, axis: str) -> list[go.Heatmap]:
    rows, columns, n_special = grid
    label = METRIC_LABELS[metric]
    hover = f"%{{text}}<br>{label} <b>%{{z:.4g}}</b><extra></extra>"
    shared: dict[str, Any] = {"coloraxis": axis, "hovertemplate": hover, "xgap": 1, "ygap": 1}
    names = [[f"patch ({row}, {column})" for column in range(columns)] for row in range(rows)]
    patches = values[n_special:].reshape(rows, columns)
    places = {"x": list(range(columns)), "y": list(range(rows))}
    found = [go.Heatmap(z=patches, text=names, name=label, **places, **shared)]
    if n_special:
        special = {"x": list(range(n_special)), "y": [_SPECIAL_AT], "dx": 1, "dy": 1}
        text = [list(tokens[:n_special])]
        found.append(go.Heatmap(z=values[None, :n_special], text=text, name=f"{label}, special", **special, **shared))
    return found


def _marks(sinks: Sequence[int], position: int | None, grid: Grid, column: int) -> list[go.Scatter]:
    """Crosses on sinks and a frame around the query; the image shows those only that are patches."""
    n_special = grid[2]
    shown = [sink for sink in sinks if column or sink >= n_special]
    places = [_place(sink, grid) for sink in shown]
    cross = {"symbol": "x-thin", "size": 9, "line": {"width": 2.5, "color": KIND_COLOURS["sink"]}}
    common: dict[str, Any] = {"hoverinfo": "skip", "showlegend": column == 1}
    marks = [
        go.Scatter(
            x=[x for x, _ in places], y=[y for _, y in places], mode="markers", marker=cross, name="sink",
            legendgroup="sink", **common,
        )
    ]  # fmt: skip
    if position is not None and (column or position >= n_special):
        x, y = _place(position, grid)
        frame = {"x": [x - 0.5, x + 0.5, x + 0.5, x - 0.5, x - 0.5], "y": [y - 0.5, y - 0.5, y + 0.5, y + 0.5, y - 0.5]}
        line = {"width": 3, "color": _QUERY_COLOUR}
        marks.append(go.Scatter(**frame, mode="lines", line=line, name="query", legendgroup="query", **common))
    return marks


def _place(position: int, grid: Grid) -> tuple[float, float]:
    _, columns, n_special = grid
    if position < n_special:
        return float(position), _SPECIAL_AT
    row, column = divmod(position - n_special, columns)
    return float(column), float(row)


def _axes(figure: go.Figure, special: Sequence[str], rows: int, columns: int) -> None:
    bare = {"showgrid": False, "zeroline": False, "ticks": "", "tickmode": "array"}
    across, down = (list(range(0, count, -(-count // _MOST_TICKS))) for count in (columns, rows))
    top = _SPECIAL_AT - 0.5 if special else -0.5
    figure.update_xaxes(**bare, tickvals=across, range=[-0.5, max(columns, len(special)) - 0.5], title="Column")
    above, names = ([_SPECIAL_AT], [" ".join(special)]) if special else ([], [])
    figure.update_yaxes(
        **bare, tickvals=[*above, *down], ticktext=[*names, *map(str, down)], range=[rows - 0.5, top]
    )  # fmt: skip
    figure.update_yaxes(title="Row", col=1)


def _lay_out(figure: go.Figure, title: str, grid: Grid, panels: int, theme: Theme) -> None:
    rows, columns, n_special = grid
    down = rows + (-_SPECIAL_AT if n_special else 0)
    height = int(_SIDE * down / max(columns, n_special) + _TOP + _BOTTOM)
    below_the_buttons = 1 - 36 / height
    figure.update_layout(
        template=template(theme),
        title=title,
        width=int(panels * (_SIDE + COLOUR_BAR_WIDTH) + _LEFT),
        height=height,
        margin={"l": _LEFT, "r": COLOUR_BAR_WIDTH, "t": _TOP, "b": _BOTTOM},
        legend={
            "orientation": "h", "x": 1, "xanchor": "right", "y": below_the_buttons, "yref": "container", "yanchor": "top",
        },
    )  # fmt: skip
