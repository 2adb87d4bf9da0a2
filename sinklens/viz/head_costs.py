"""Figures of head costs: a map, costs against scores, rank correlations, least beside actual costs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sinklens.errors import InputError
from sinklens.metrics.patterns import KINDS
from sinklens.results.head_costs import MAIN_COSTS, MAIN_SCORES, HeadCosts
from sinklens.viz.layout import (
    LEGEND_ABOVE,
    cell_gap,
    head_axis,
    layer_axis,
    map_height,
    map_width,
)
from sinklens.viz.quantities import DESCRIPTIONS
from sinklens.viz.ranges import positive_range
from sinklens.viz.theme import COLORWAY, KIND_COLOURS, KIND_SYMBOLS, Theme, palette, template

_MAPS = {"qk": "W<sub>QK</sub>", "vo": "W<sub>VO</sub>"}
_NORMS = {
    "frobenius": "Frobenius norm of {}",
    "nuclear": "Nuclear norm of {}",
    "spectral": "Largest singular value of {}",
    "participation": "Participation ratio of {}",
}
_SPENT_COLOUR = COLORWAY[6]
_MIDDLE = (0.1, 0.9)
_MUCH = 4.0  # times the cheapest head
_APART = 0.14  # of a row, between its two marks and the middle


def cost_label(name: str) -> str:
    """A cost's name for people.

    Raises:
        InputError: there is no such cost.

    Example:
        >>> cost_label("qk_nuclear"), cost_label("effective_vo_frobenius")
        ('Nuclear norm of W<sub>QK</sub>', 'Frobenius norm of W<sub>VO</sub>, gain folded in')
    """
    plain = name.removeprefix("effective_")
    of, _, norm = plain.partition("_")
    if of not in _MAPS or norm not in _NORMS:
        raise InputError(
            f"no cost {name!r}; there are qk_frobenius, qk_nuclear, vo_frobenius, vo_nuclear and their like"
        )
    return _NORMS[norm].format(_MAPS[of]) + (", gain folded in" if plain != name else "")


def cost_map(result: HeadCosts, cost: str = "qk_nuclear", *, theme: Theme = "light") -> go.Figure:
    """A heatmap of a cost over layers (rows, the first on top) and heads (columns); blank where it is not established.

    Args:
        result: from :func:`sinklens.head_costs`.
        cost: one of :data:`sinklens.results.head_costs.COSTS`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with one heatmap; colours of the largest 2 % saturate.

    Raises:
        InputError: there is no such cost or theme.
    """
    values, label = result.cost(cost).numpy().astype(np.float32), cost_label(cost)
    low, high = positive_range(values)
    trace = go.Heatmap(
        z=values,
        x=np.arange(values.shape[1]),
        y=np.arange(values.shape[0]),
        coloraxis="coloraxis",
        hoverongaps=False,
        xgap=cell_gap(values.shape),
        ygap=cell_gap(values.shape),
        customdata=np.repeat(np.array(result.layers)[:, None], values.shape[1], 1),
        hovertemplate=f"Layer %{{customdata}} · head %{{x}}<br>{label} <b>%{{z:.4g}}</b><extra></extra>",
    )
    figure = go.Figure(trace)
    figure.update_layout(
        template=template(theme),
        title=label,
        xaxis=head_axis(result.n_heads),
        yaxis=layer_axis(result.layers),
        height=map_height(len(result.layers)),
        width=map_width(result.n_heads),
        coloraxis={
            "cmin": low,
            "cmax": high,
            "colorscale": palette(theme).scale("sequential"),
            "colorbar": {"tickformat": ".3~s"},
        },
        meta={"scales": {"coloraxis": "sequential"}, "layers": list(result.layers)},
    )
    return figure


def cost_scatter(
    result: HeadCosts, cost: str = "qk_nuclear", score: str = "sink_mass", *, theme: Theme = "light"
) -> go.Figure:
    """Every head as a point: what its map costs against a score, coloured by pattern kind.

    Args:
        result: from :func:`sinklens.head_costs` with texts.
        cost: one of :data:`sinklens.results.head_costs.COSTS`; on a logarithmic axis where heads differ much.
        score: one of :data:`sinklens.results.QUANTITIES`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with one trace per kind that occurs; the title gives the rank correlation with its interval over heads.

    Raises:
        InputError: there is no such cost, score or theme, or no text was given.
    """
    x, y = result.score(score).numpy(), result.cost(cost).numpy()
    layers = np.repeat(result.layers, result.n_heads).reshape(x.shape)
    heads = np.tile(np.arange(result.n_heads), (len(result.layers), 1))
    kinds = np.array(result.kind)
    figure = go.Figure()
    for kind in KINDS:
        chosen = (kinds == kind) & np.isfinite(x) & np.isfinite(y)
        if chosen.any():
            figure.add_trace(_heads(kind, x[chosen], y[chosen], layers[chosen], heads[chosen]))
    row = result.correlations([cost], [score]).iloc[0]
    said = "" if np.isnan(row.spearman) else f": rank correlation {_with_interval(row.spearman, row.low, row.high)}"
    label = DESCRIPTIONS[score].label
    figure.update_layout(
        template=template(theme),
        title=f"{cost_label(cost)} against {label[0].lower()}{label[1:]}{said}",
        height=460,
        xaxis={"title": label, "zeroline": False},
        yaxis={"title": cost_label(cost), **_cost_axis(y)},
    )
    return figure


def _heads(kind: str, x: np.ndarray, y: np.ndarray, layers: np.ndarray, heads: np.ndarray) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        name=kind,
        mode="markers",
        customdata=np.stack([layers, heads], -1),
        marker={
            "color": KIND_COLOURS[kind],
            "symbol": KIND_SYMBOLS[kind],
            "size": 8,
            "opacity": 0.85,
            "line": {"width": 1.5 if "open" in KIND_SYMBOLS[kind] else 0},
        },
        hovertemplate="<b>Layer %{customdata[0]} · head %{customdata[1]}</b><br>%{x:.3g}, cost %{y:.4g}<extra>"
        + kind
        + "</extra>",
    )


def _with_interval(value: float, low: float, high: float) -> str:
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]".replace("-", "−")


def _cost_axis(values: np.ndarray) -> dict[str, Any]:
    """Logarithmic where heads differ by much, with ticks at 1, 2 and 5; else it would have hardly a tick."""
    known = values[np.isfinite(values) & (values > 0)]
    if known.size == 0 or known.max() < _MUCH * known.min():
        return {"tickformat": ".3~s"}
    return {"type": "log", "tickformat": ".3~s", "dtick": "D2"}


def cost_correlations(
    result: HeadCosts,
    costs: Sequence[str] = MAIN_COSTS,
    scores: Sequence[str] = MAIN_SCORES,
    *,
    theme: Theme = "light",
) -> go.Figure:
    """Rank correlations of costs with scores, with 95 % intervals over heads: of all heads, and within layers.

    Args:
        result: from :func:`sinklens.head_costs` with texts.
        costs: one panel each.
        scores: one row each.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with two traces per cost.

    Raises:
        InputError: there is no such cost, score or theme, or no text was given.
    """
    figure = _panels([cost_label(cost) for cost in costs])
    ways = (
        ("of all heads", False, COLORWAY[0], "circle", -_APART),
        ("within layers", True, COLORWAY[1], "diamond", _APART),
    )
    labels = [DESCRIPTIONS[score].label for score in scores]
    for label, within, colour, symbol, shift in ways:
        table: Any = result.correlations(costs, scores, within_layers=within)
        for column, cost in enumerate(costs, start=1):
            rows = table[table["cost"] == cost]
            points = _intervals(
                rows["spearman"].to_numpy(), rows["low"].to_numpy(), rows["high"].to_numpy(), labels, shift
            )
            points.update(
                name=label,
                legendgroup=label,
                showlegend=column == 1,
                marker={"color": colour, "size": 9, "symbol": symbol},
            )
            figure.add_trace(points, row=1, col=column)
    figure.update_xaxes(range=[-1, 1], zeroline=True, tickvals=[-0.5, 0, 0.5], ticktext=["−½", "0", "½"])
    places = list(range(len(labels)))
    figure.update_yaxes(
        range=[len(labels) - 0.5, -0.5], tickvals=places, ticktext=labels, showgrid=False, zeroline=False, ticks=""
    )
    figure.update_layout(
        template=template(theme),
        title="Spearman rank correlation of what heads cost with what they do",
        height=150 + 46 * len(scores),
        legend={"orientation": "h", "y": 1.1, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        margin={"t": 108},
    )
    return figure


def _panels(titles: Sequence[str]) -> go.Figure:
    bold = [f"<b>{title}</b>" for title in titles]
    figure = make_subplots(1, len(titles), shared_yaxes=True, horizontal_spacing=0.03, subplot_titles=bold)
    return figure.update_annotations(font={"size": 12})


def _intervals(values: np.ndarray, low: np.ndarray, high: np.ndarray, names: Sequence[str], shift: float) -> go.Scatter:
    return go.Scatter(
        x=values,
        y=np.arange(len(names)) + shift,
        text=list(names),
        mode="markers",
        error_x=_whiskers(values, low, high),
        customdata=np.stack([low, high], -1),
        hovertemplate="%{text}: %{x:+.2f} [%{customdata[0]:+.2f}, %{customdata[1]:+.2f}]",
    )


def _whiskers(middle: np.ndarray, low: np.ndarray, high: np.ndarray, **looks: Any) -> dict[str, Any]:
    ends = {"array": high - middle, "arrayminus": middle - low}
    return {"type": "data", "symmetric": False, "thickness": 1.5, "width": 4, **ends, **looks}


def least_costs(result: HeadCosts, norm: str = "nuclear", *, theme: Theme = "light") -> go.Figure:
    """By layer: the least cost of a sink and of a diagonal on the layer's own inputs, below what its heads spend there.

    Args:
        result: from :func:`sinklens.head_costs` with texts.
        norm: ``frobenius`` or ``nuclear``.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure on a logarithmic axis: points with 95 % intervals over documents; of the heads the median and the middle
        80 %. A layer where no matrix realises a pattern on any document has no point.

    Raises:
        InputError: there are no least costs, or no such norm or theme.
    """
    table: Any = result.embedding_table()  # pandas' stubs know no column types
    if norm not in set(table["norm"]):
        raise InputError(f"norm is {norm!r}; expected frobenius or nuclear")
    table = table[table["norm"] == norm]
    layers = [str(layer) for layer in dict.fromkeys(table["layer"])]
    figure = go.Figure(_spent(result, norm, layers))
    for pattern in ("diagonal", "sink"):
        rows = table[table["pattern"] == pattern]
        least, low, high = rows[["least", "low", "high"]].to_numpy().T
        figure.add_trace(
            go.Scatter(
                x=layers,
                y=least,
                name=f"least for a {pattern}",
                mode="lines+markers",
                line={"color": KIND_COLOURS[pattern], "width": 2},
                marker={"symbol": KIND_SYMBOLS[pattern], "size": 9},
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": high - least,
                    "arrayminus": least - low,
                    "thickness": 1.5,
                    "width": 4,
                },
                customdata=rows["possible"],
                hovertemplate="%{y:.3g}; possible in %{customdata:.0%} of documents",
            )
        )
    margin = float(result.provenance.conventions.get("margin", 1.0))
    figure.update_layout(
        template=template(theme),
        title=f"What heads spend on their tokens, and the least for a margin of {margin:g}",
        height=420,
        hovermode="x unified",
        xaxis={"title": "Layer", "type": "category", "showgrid": False},
        yaxis={
            "title": cost_label(f"qk_{norm}") + " between the tokens",
            "type": "log",
            "dtick": 1,
            "tickformat": "~g",
        },
        **LEGEND_ABOVE,
    )
    return figure


def _spent(result: HeadCosts, norm: str, layers: Sequence[str]) -> go.Scatter:
    assert result.spans is not None  # the table was made from them
    values = result.spans.mean(norm).numpy()
    middle = np.nanmedian(values, 1)
    low, high = np.nanquantile(values, _MIDDLE, axis=1)
    return go.Scatter(
        x=list(layers),
        y=middle,
        name="heads: median, middle 80 %",
        mode="lines+markers",
        line={"color": _SPENT_COLOUR, "width": 2, "dash": "dot"},
        marker={"size": 8},
        error_y=_whiskers(middle, low, high, thickness=6, width=0, color=_SPENT_COLOUR),
        hovertemplate="%{y:.3g}",
    )
