"""Attention and contributions of one head, query by key, and of one query, key by key."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from sinklens.errors import InputError
from sinklens.results import METRICS, AttentionMaps
from sinklens.results.labels import check_head
from sinklens.viz.layout import COLOUR_BAR_WIDTH, numbered, row_of_maps
from sinklens.viz.ranges import positive_range, symmetric_range
from sinklens.viz.size import DEFAULT_LIMIT, check_size
from sinklens.viz.text import escape, token_ticks
from sinklens.viz.theme import TOKEN_FONT, ScaleName, Theme, palette, template

Map = Float[np.ndarray, "query key"]
METRIC_LABELS = {
    "attention": "Attention",
    "value_weighted": "Attention × value norm",
    "output_normalized": "… ÷ output norm",
    "intra": "Intra contribution",
    "inter": "Inter contribution",
    "cosine": "Cosine with the output",
}
SHARES = ("attention", "intra", "inter")
# Shares below a thousandth move nothing, and shall not look as if they did where all others are as small.
SMALLEST_RANGE = 0.001
SIGNED_METRICS = ("intra", "inter", "cosine")
LEARNED_SINK = "learned sink"
_LEARNED_SINK_AT = -1.5  # half a cell before the first token: it is no token
_METRIC_COLOURS = {"attention": "#8c6bb1", "intra": "#3a8fd6", "inter": "#d55e00"}
_CONTRIBUTION_SHARE = 0.995  # contributions have no bound: a few short outputs may saturate
_MOST_LABELLED_CELLS = 40_000  # beyond, the pointer shows positions only: labels would be most of the figure


def attention_heatmaps(
    maps: AttentionMaps,
    layer: int,
    head: int,
    metrics: Sequence[str] = ("attention", "intra", "inter"),
    *,
    exclude_sink_from_range: bool = True,
    max_megabytes: float = DEFAULT_LIMIT,
    theme: Theme = "light",
) -> go.Figure:
    """Heatmaps of one head side by side, queries (rows) by keys (columns), tokens on both axes.

    Signed metrics have a diverging scale with its middle at 0, the others a sequential one from 0. Keys that
    a query cannot see are blank; so are rows without a value, whose hover text says so. A learned sink
    (gpt-oss), a null key that takes attention and has no value, is a column of its own before the first
    token, so that the drawn rows of attention sum to 1. Zooming one map zooms all.

    Args:
        maps: from :func:`sinklens.attention_maps`.
        layer: the model's own number.
        head: query head.
        metrics: names in :data:`sinklens.results.METRICS`.
        exclude_sink_from_range: leave keys that are sinks out when the colour range is chosen, so that the
            sink does not make all other keys look alike; its cells saturate.
        max_megabytes: the limit on the figure's size.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with one heatmap per metric, positions on its axes and labels as tick text.

    Raises:
        InputError: there is no such layer, head, metric or theme, no metric is given, or the figure would be
            too large.

    Example:
        >>> from tests.synthetic import make_maps
        >>> figure = attention_heatmaps(make_maps(3, 5, ("the", "cat", "the", "cat")), layer=2, head=4)
        >>> list(figure.data[0].x), list(figure.layout.xaxis.ticktext)
        ([0, 1, 2, 3], ['the', 'cat', 'the', 'cat'])
    """
    if not metrics:
        raise InputError(f"no metrics to show; name at least one of {', '.join(METRICS)}")
    one = maps.layer(layer)
    check_head(maps.n_heads, head)
    side = float(np.clip(17 * len(maps.tokens), 220, 380))
    figure, ends = row_of_maps([METRIC_LABELS.get(metric, metric) for metric in metrics], side)
    texts = _cell_texts(one, head)
    for column, (metric, end) in enumerate(zip(metrics, ends, strict=True)):
        name = numbered("coloraxis", column)
        figure.add_trace(_map_trace(one, head, metric, texts, name), row=1, col=column + 1)
        figure.layout[name] = _colour_axis(one, head, metric, exclude_sink_from_range, end, theme)
    for column, metric in enumerate(metrics if maps.learned_sink else ()):
        if metric != "cosine":  # what has no value has no direction
            name = numbered("coloraxis", column)
            figure.add_trace(_learned_sink_trace(one, head, metric, name), row=1, col=column + 1)
    _token_axes(figure, maps.tokens, maps.learned_sink)
    figure.update_layout(
        template=template(theme),
        title=f"Layer {layer} · head {head}",
        height=int(side + 170),
        margin={"t": 76},
        width=int((side + COLOUR_BAR_WIDTH) * len(metrics) + 110),
    )
    return check_size(figure, max_megabytes)


def token_contributions(
    maps: AttentionMaps,
    layer: int,
    head: int,
    query: int | None = None,
    metrics: Sequence[str] = ("attention", "intra", "inter"),
    *,
    theme: Theme = "light",
) -> go.Figure:
    """What one query attends to against what really moves the output: bars over the keys that it sees.

    A learned sink (gpt-oss) has bars of its own before the first token.

    Args:
        maps: from :func:`sinklens.attention_maps`.
        layer: the model's own number.
        head: query head.
        query: position of the query; negative counts from the end, None is the last.
        metrics: names in :data:`sinklens.results.METRICS`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with one bar trace per metric.

    Raises:
        InputError: there is no such layer, head, query, metric or theme.

    Example:
        >>> from tests.synthetic import make_maps
        >>> figure = token_contributions(make_maps(3, 5, ("the", "cat", "the", "cat")), 2, 4, query=2)
        >>> [len(trace.x) for trace in figure.data]
        [3, 3, 3]
    """
    one, length = maps.layer(layer), len(maps.tokens)
    check_head(maps.n_heads, head)
    query = length - 1 if query is None else query
    if not -length <= query < length:
        raise InputError(f"no query {query}; the queries are 0 to {length - 1}")
    query %= length
    keys = np.flatnonzero(one.visible[0, query].numpy())
    positions, labels = token_ticks(maps.tokens)
    before = [_LEARNED_SINK_AT] if maps.learned_sink else []
    figure = go.Figure([_bars(one, head, query, keys, metric) for metric in metrics])
    figure.update_layout(
        template=template(theme),
        barmode="group",
        bargap=0.25,
        height=380,
        hovermode="x unified",
        title=f"Layer {layer} · head {head} · query “{escape(maps.tokens[query])}” ({query}), key by key",
        xaxis={
            "title": "Key",
            "tickmode": "array",
            "tickvals": [*before, *positions],
            "ticktext": [LEARNED_SINK for _ in before] + labels,
            "tickangle": -60,
            "tickfont": {"family": TOKEN_FONT},
            "showgrid": False,
            "range": [min([0, *before]) - 0.6, max(keys.max(initial=0), 1) + 0.6],
        },
        yaxis={"title": "Share"},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    )
    return figure


def _bars(one: AttentionMaps, head: int, query: int, keys: np.ndarray, metric: str) -> go.Bar:
    values = one.metric(metric)[0, head, query].float().numpy()[keys]
    places: np.ndarray = keys
    if one.learned_sink and metric != "cosine":
        places = np.concatenate([[_LEARNED_SINK_AT], keys])
        values = np.concatenate([_learned_sink_shares(one, head, metric)[query : query + 1], values])
    return go.Bar(
        x=places,
        y=values,
        name=METRIC_LABELS[metric],
        marker={"color": _METRIC_COLOURS.get(metric), "line": {"width": 0}},
        hovertemplate="%{y:.4g}",
    )


def _scale(metric: str) -> ScaleName:
    return "diverging" if metric in SIGNED_METRICS else "sequential"


def _cells(one: AttentionMaps, head: int, metric: str) -> Map:
    """A head's map with the keys that a query cannot see as NaN, which plotly leaves blank."""
    hidden = ~one.visible[0]
    return one.metric(metric)[0, head].float().masked_fill(hidden, float("nan")).numpy()


def _map_trace(one: AttentionMaps, head: int, metric: str, texts: list[list[str]] | None, axis: str) -> go.Heatmap:
    cells, label = _cells(one, head, metric), METRIC_LABELS[metric]
    where = "%{text}" if texts else "query %{y}<br>key %{x}"
    return go.Heatmap(
        z=cells,
        x=list(range(len(one.tokens))),
        y=list(range(len(one.tokens))),
        coloraxis=axis,
        text=texts,
        hoverongaps=texts is not None,
        hovertemplate=f"{where}<br>{label} <b>%{{z:.4g}}</b><extra></extra>",
        name=label,
    )


def _learned_sink_shares(one: AttentionMaps, head: int, metric: str) -> Float[np.ndarray, " query"]:
    """The null key's attention; of what values bring it brings nothing."""
    mass = one.learned_sink_mass[0, head].float().clamp(min=0)
    return (mass if metric == "attention" else mass * 0).numpy()


def _learned_sink_trace(one: AttentionMaps, head: int, metric: str, axis: str) -> go.Heatmap:
    labels = [f"{escape(token)} ({position})" for position, token in enumerate(one.tokens)]
    return go.Heatmap(
        z=_learned_sink_shares(one, head, metric)[:, None],
        x=[_LEARNED_SINK_AT],
        dx=1,
        y=list(range(len(one.tokens))),
        coloraxis=axis,
        text=[[f"query {label}<br>learned sink, a null key without a value"] for label in labels],
        hovertemplate=f"%{{text}}<br>{METRIC_LABELS[metric]} <b>%{{z:.4g}}</b><extra></extra>",
        name=f"{METRIC_LABELS[metric]}, {LEARNED_SINK}",
    )


def _cell_texts(one: AttentionMaps, head: int) -> list[list[str]] | None:
    length = len(one.tokens)
    if length * length > _MOST_LABELLED_CELLS:
        return None
    visible = one.visible[0].tolist()
    degenerate = one.metric("intra")[0, head].isnan().all(-1).tolist()
    labels = [f"{escape(token)} ({position})" for position, token in enumerate(one.tokens)]
    return [
        [_cell_text(labels[q], labels[k], visible[q][k], degenerate[q]) for k in range(length)] for q in range(length)
    ]


def _cell_text(query: str, key: str, visible: bool, degenerate: bool) -> str:
    if not visible:
        return f"{query} cannot see {key}"
    note = "<br>degenerate row: the output is too short to divide by" if degenerate else ""
    return f"query {query}<br>key {key}{note}"


def _colour_axis(
    one: AttentionMaps, head: int, metric: str, exclude_sink: bool, end: float, theme: Theme
) -> dict[str, Any]:
    values = _cells(one, head, metric)
    if exclude_sink:
        values = np.delete(values, list(one.sink_positions), axis=1)
    return colour_axis(values, metric, end, theme)


def colour_axis(values: Float[np.ndarray, "..."], metric: str, end: float, theme: Theme) -> dict[str, Any]:
    """The colour axis of one map of a metric, with its bar at the map's end.

    Args:
        values: what the range is chosen for; NaN is left out.
        metric: its name.
        end: where the map ends, as a share of the plotting width.
        theme: ``"light"`` or ``"dark"``.

    Example:
        >>> axis = colour_axis(np.array([0.1, 0.4]), "attention", 1.0, "light")
        >>> axis["cmin"], axis["cmax"]
        (0.0, 0.4)
    """
    if metric in SIGNED_METRICS:
        low, high = symmetric_range(values, robust=True, share=_CONTRIBUTION_SHARE)
    else:
        low, high = positive_range(values, robust=False)
    if metric in SHARES and high < SMALLEST_RANGE:
        low, high = (-SMALLEST_RANGE if low else 0.0), SMALLEST_RANGE
    bar = {"x": end, "xanchor": "left", "xpad": 4, "thickness": 8, "tickformat": ".2~g"}
    return {"cmin": low, "cmax": high, "colorscale": palette(theme).scale(_scale(metric)), "colorbar": bar}


def _token_axes(figure: go.Figure, tokens: Sequence[str], learned_sink: bool) -> None:
    positions, labels = token_ticks(tokens)
    ticks = {
        "tickmode": "array",
        "tickvals": positions,
        "ticktext": labels,
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
    }
    # The tick of a token lies in the middle of its cells; on a bare axis plotly would start at the first
    # tick.
    font = {"family": TOKEN_FONT, "size": 10 if len(tokens) <= 40 else 9}
    span = [-0.5, len(tokens) - 0.5]
    figure.update_yaxes(**ticks, tickfont=font, range=span[::-1])
    if learned_sink:
        span = [_LEARNED_SINK_AT - 0.5, span[1]]
        ticks |= {"tickvals": [_LEARNED_SINK_AT, *positions], "ticktext": [LEARNED_SINK, *labels]}
    figure.update_xaxes(**ticks, tickangle=-90, tickfont=font, range=span, title="Key")
    figure.update_yaxes(title="Query", col=1)
