"""Oversmoothing: cosines over the strength, dense minus diagonal by layer, what counters it, and the whole model's depth."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import find_intermediate_color, hex_to_rgb
from plotly.subplots import make_subplots

from sinklens.errors import InputError
from sinklens.results.smoothing import DEPTH, DIAGONAL, OWN, PATHS, SmoothingResult
from sinklens.viz.layout import LEGEND_ABOVE, band, layers_below
from sinklens.viz.theme import COLORWAY, NEUTRAL, Theme, palette, template

PATH_TITLES = {
    DIAGONAL: "<b>From attention to oneself</b>: (1-λ) I + λ U",
    OWN: "<b>From the model's own</b>: (1-λ) A + λ U",
}
_STRENGTH = "λ: 0 the start, 1 uniform attention"
_COSINE = "Mean pairwise cosine"
_PARTS = {"residual": "without the residual", "value-output": "without the value-output matrices"}
_ENDS = "[%{customdata[0]:.3f}, %{customdata[1]:.3f}]"
_SHOWN = 4
_ROOM_FOR_PANEL_TITLES = {"t": 76}


def layers_shown(result: SmoothingResult, n: int = _SHOWN) -> tuple[int, ...]:
    """A few layers from the first to the last, evenly spaced.

    Example:
        >>> import torch
        >>> from sinklens.results import Provenance
        >>> one = {"after_cosine": torch.zeros(30, 2, 2, 1).double()}
        >>> layers_shown(SmoothingResult(one, tuple(range(30)), Provenance("tiny"), (0.0, 1.0)))
        (0, 10, 19, 29)
    """
    rows = np.unique(np.linspace(0, len(result.layers) - 1, min(n, len(result.layers))).round().astype(int))
    return tuple(result.layers[row] for row in rows)


def smoothing_curves(
    result: SmoothingResult, layers: Sequence[int] | None = None, *, theme: Theme = "light"
) -> go.Figure:
    """Cosine after a layer's attention over how dense it is made: measured with its band, predicted as a dashed line.

    Args:
        result: from :func:`sinklens.oversmoothing`.
        layers: those that are shown; None for a few, evenly spaced.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a panel per path; a diamond at the left is the cosine before the attention.

    Raises:
        InputError: there is no such layer or theme.

    Example:
        >>> import torch
        >>> from sinklens.results import Provenance
        >>> cosine = torch.rand(1, 2, 2, 3).double()
        >>> values = {name: cosine for name in ("before_cosine", "after_cosine", "predicted_cosine")}
        >>> figure = smoothing_curves(SmoothingResult(values, (0,), Provenance("tiny"), (0.0, 1.0)))
        >>> [trace.name for trace in figure.data if trace.showlegend]
        ['layer 0', 'measured', 'predicted', 'before attention']
    """
    chosen = layers_shown(result) if layers is None else tuple(layers)
    if not chosen:
        raise InputError("no layers to show; name at least one")
    figure = _two_panels()
    for index, layer in enumerate(chosen):
        colour = COLORWAY[index % len(COLORWAY)]
        for column, path in enumerate(PATHS, start=1):
            figure.add_traces(_curve(result, layer, path, colour, legend=column == 1), rows=1, cols=column)
    figure.add_traces(_line_keys(), rows=1, cols=1)
    figure.update_xaxes(title=_STRENGTH, tickvals=list(result.strengths), range=[-0.06, 1.04], zeroline=False)
    figure.update_yaxes(title=_COSINE, col=1)
    title = f"How alike tokens are after attention, as it gets denser: {result.provenance.model_name}"
    figure.update_layout(
        template=template(theme), title=title, height=480, legend=_legend_below(-0.2), margin=_ROOM_FOR_PANEL_TITLES
    )
    return figure


def _two_panels() -> go.Figure:
    figure = make_subplots(
        1, 2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=[PATH_TITLES[path] for path in PATHS]
    )
    # At the left of its panel each: the tools of a page's charts lie at the right.
    layout: Any = figure.layout
    for column, annotation in enumerate(layout.annotations, start=1):
        annotation.update(font={"size": 12.5}, xanchor="left", x=next(figure.select_xaxes(col=column)).domain[0])
    return figure


def _legend_below(y: float) -> dict[str, Any]:
    return {"orientation": "h", "y": y, "yanchor": "top", "x": 0, "xanchor": "left", "groupclick": "togglegroup"}


def _curve(result: SmoothingResult, layer: int, path: str, colour: str, legend: bool) -> list[go.Scatter]:
    table, name = result.curve("after_cosine", layer, path), f"layer {layer}"
    low, high, mean = (table[column].to_numpy() for column in ("low", "high", "mean"))
    line = {"color": colour, "width": 2}
    measured = go.Scatter(
        x=table["strength"], y=mean, name=name, legendgroup=name, showlegend=legend, mode="lines+markers",
        line=line, marker={"size": 5}, customdata=np.stack([low, high], -1),
        hovertemplate=f"{name}, λ %{{x:g}}<br>measured %{{y:.3f}} {_ENDS}<extra></extra>",
    )  # fmt: skip
    before = go.Scatter(
        x=[-0.03], y=result.curve("before_cosine", layer, path)["mean"][:1], legendgroup=name, showlegend=False,
        mode="markers", marker={"color": colour, "symbol": "diamond-open", "size": 8, "line": {"width": 1.6}},
        hovertemplate=f"{name}<br>before attention %{{y:.3f}}<extra></extra>",
    )  # fmt: skip
    found = [band(table["strength"], low, high, colour, name), measured, before]
    if path == DIAGONAL:
        predicted = result.curve("predicted_cosine", layer, path)["mean"]
        found.append(
            go.Scatter(
                x=table["strength"], y=predicted, legendgroup=name, showlegend=False, mode="lines",
                line={**line, "dash": "dash"}, hovertemplate=f"{name}, λ %{{x:g}}<br>predicted %{{y:.3f}}<extra></extra>",
            )
        )  # fmt: skip
    return found


def _line_keys() -> list[go.Scatter]:
    """What solid, dashed and a diamond mean, without a colour of any layer."""
    marks: list[tuple[str, dict[str, Any]]] = [
        ("measured", {"mode": "lines", "line": {"color": NEUTRAL, "width": 2}}),
        ("predicted", {"mode": "lines", "line": {"color": NEUTRAL, "width": 2, "dash": "dash"}}),
        ("before attention", {"mode": "markers", "marker": {"color": NEUTRAL, "symbol": "diamond-open", "size": 8}}),
    ]
    return [go.Scatter(x=[None], y=[None], name=name, showlegend=True, hoverinfo="skip", **how) for name, how in marks]


def dense_minus_diagonal(result: SmoothingResult, *, theme: Theme = "light") -> go.Figure:
    """Cosine under uniform attention minus that under attention to oneself, by layer, above the criterion.

    Args:
        result: from :func:`sinklens.oversmoothing`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with two panels: above measured with intervals and predicted, below the criterion; both have the same sign
        where the criterion is right.

    Raises:
        InputError: there is no such theme.

    Example:
        >>> import torch
        >>> from sinklens.results import Provenance
        >>> cosine = torch.rand(2, 2, 2, 3).double()
        >>> values = {name: cosine for name in ("after_cosine", "predicted_cosine", "criterion")}
        >>> len(dense_minus_diagonal(SmoothingResult(values, (0, 1), Provenance("tiny"), (0.0, 1.0))).data)
        3
    """
    table: Any = result.dense_minus_diagonal()
    figure = make_subplots(2, 1, shared_xaxes=True, row_heights=[0.64, 0.36], vertical_spacing=0.07)
    figure.add_trace(_interval_bars(table, "difference", "low", "high", COLORWAY[0], "measured", theme), row=1, col=1)
    predicted = go.Scatter(
        x=table["layer"], y=table["predicted"], name="predicted", mode="markers",
        marker={"color": COLORWAY[1], "symbol": "diamond", "size": 7, "line": {"color": palette(theme).background, "width": 1}},
        hovertemplate="layer %{x}<br>predicted %{y:+.3f}<extra></extra>",
    )  # fmt: skip
    figure.add_trace(predicted, row=1, col=1)
    ends = ("criterion_low", "criterion_high")
    figure.add_trace(_interval_bars(table, "criterion", *ends, COLORWAY[2], "criterion", theme), row=2, col=1)
    figure.update_yaxes(title="Dense − diagonal,<br>cosine", row=1)
    figure.update_yaxes(title="Criterion,<br>of tr Cov(r, r)", row=2)
    figure.update_xaxes(**layers_below(result.layers)).update_xaxes(title=None, row=1)
    more, decided = int((table["verdict"] == "more").sum()), int((table["verdict"] != "undecided").sum())
    title = f"Dense attention smooths more than attention to oneself in {more} of {len(table)} layers"
    title += "" if decided == len(table) else f", {len(table) - decided} undecided"
    figure.update_layout(template=template(theme), title=title, height=460, bargap=0.3, **LEGEND_ABOVE)
    return figure


def _interval_bars(table: Any, name: str, low: str, high: str, colour: str, label: str, theme: Theme) -> go.Bar:
    value, below, above = (table[column].to_numpy() for column in (name, low, high))
    whiskers = {"type": "data", "symmetric": False, "array": above - value, "arrayminus": value - below}
    return go.Bar(
        x=table["layer"], y=value, name=label, marker={"color": colour},
        error_y=whiskers | {"color": palette(theme).text, "thickness": 1.2, "width": 2},
        customdata=np.stack([below, above], -1),
        hovertemplate=f"layer %{{x}}<br>{label} %{{y:+.3f}} [%{{customdata[0]:+.3f}}, %{{customdata[1]:+.3f}}]<extra></extra>",
    )  # fmt: skip


def smoothing_counters(result: SmoothingResult, *, theme: Theme = "light") -> go.Figure:
    """Dense minus diagonal as it is, and with the residual or the value-output matrices switched off, by layer.

    A bar that is longer without a part says that this part keeps dense attention from smoothing.

    Args:
        result: from :func:`sinklens.oversmoothing`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with three groups of bars.

    Raises:
        InputError: there is no such theme.

    Example:
        >>> import torch
        >>> from sinklens.results import Provenance
        >>> cosine = torch.rand(2, 2, 2, 3).double()
        >>> values = {name: cosine for name in ("after_cosine", "update_only_cosine", "own_direction_cosine")}
        >>> figure = smoothing_counters(SmoothingResult(values, (0, 1), Provenance("tiny"), (0.0, 1.0)))
        >>> [trace.name for trace in figure.data]
        ['as it is', 'without the value-output matrices', 'without the residual']
    """
    table: Any = result.counters()
    figure = go.Figure()
    whole = table[table["part"] == "residual"]
    figure.add_trace(_plain_bars(whole["layer"], whole["whole"], "as it is", COLORWAY[0]))
    for colour, part in ((COLORWAY[4], "value-output"), (COLORWAY[1], "residual")):
        rows = table[table["part"] == part]
        figure.add_trace(_plain_bars(rows["layer"], rows["without"], _PARTS[part], colour))
    figure.update_xaxes(**layers_below(result.layers))
    figure.update_yaxes(title="Dense − diagonal, cosine")
    means = {part: table[table["part"] == part]["countered"].mean() for part in _PARTS}
    title = "What counters smoothing: switched off, dense attention smooths by "
    title += f"{means['residual']:+.2f} (residual), {means['value-output']:+.2f} (value-output) more"
    figure.update_layout(
        template=template(theme), title=title, height=400, barmode="group", bargap=0.25, **LEGEND_ABOVE
    )
    return figure


def _plain_bars(layers: Any, values: Any, label: str, colour: str) -> go.Bar:
    hover = f"layer %{{x}}<br>{label}: %{{y:+.3f}}<extra></extra>"
    return go.Bar(x=layers, y=values, name=label, marker={"color": colour}, hovertemplate=hover)


def smoothing_depth(result: SmoothingResult, *, theme: Theme = "light") -> go.Figure:
    """Cosine of the residual stream from layer to layer, with the attention of all layers made denser at once.

    Args:
        result: from :func:`sinklens.oversmoothing` with ``depth=True``.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a panel per path and a line per strength; on the path from the model's own attention, λ = 0 is the model.

    Raises:
        InputError: the depth was not measured, or there is no such theme.

    Example:
        >>> import torch
        >>> from sinklens.results import Provenance
        >>> one = SmoothingResult({"depth_cosine": torch.rand(2, 2, 2, 3).double()}, (0, 1), Provenance("tiny"), (0.0, 1.0))
        >>> [trace.name for trace in smoothing_depth(one).data if trace.showlegend]
        ['λ 0', 'λ 1']
    """
    if not result.has_depth:
        raise InputError("the depth was not measured; measure with depth=True")
    figure = _two_panels()
    mean, bounds = result.mean(DEPTH).numpy(), result.interval(DEPTH).numpy()
    colours = _strength_colours(result.strengths)
    for column in range(len(PATHS)):
        for cell, (strength, colour) in enumerate(zip(result.strengths, colours, strict=True)):
            low, high = bounds[:, column, cell].T
            traces = _depth_line(result.layers, mean[:, column, cell], low, high, strength, colour, column == 0)
            figure.add_traces(traces, rows=1, cols=column + 1)
    figure.update_xaxes(**layers_below(result.layers))
    figure.update_yaxes(title=f"{_COSINE} of the residual stream", col=1)
    title = f"How alike tokens get when all layers' attention is made denser: {result.provenance.model_name}"
    figure.update_layout(
        template=template(theme), title=title, height=480, legend=_legend_below(-0.18), margin=_ROOM_FOR_PANEL_TITLES
    )
    return figure


def _strength_colours(strengths: Sequence[float]) -> list[str]:
    """From blue through green and yellow to orange: colours that read on both backgrounds."""
    stops: list[Any] = [hex_to_rgb(COLORWAY[index]) for index in (0, 2, 4, 1)]
    found: list[str] = []
    for strength in strengths:
        at = strength * (len(stops) - 1)
        left = min(int(at), len(stops) - 2)
        mixed: Any = find_intermediate_color(stops[left], stops[left + 1], at - left)
        found.append(f"rgb({', '.join(str(round(part)) for part in mixed)})")
    return found


def _depth_line(
    layers: Sequence[int], mean: np.ndarray, low: np.ndarray, high: np.ndarray, strength: float, colour: str, legend: bool
) -> list[go.Scatter]:  # fmt: skip
    name = f"λ {strength:g}"
    line = go.Scatter(
        x=list(layers), y=mean, name=name, legendgroup=name, showlegend=legend, mode="lines+markers",
        line={"color": colour, "width": 2}, marker={"size": 5}, customdata=np.stack([low, high], -1),
        hovertemplate=f"layer %{{x}}, {name}<br>%{{y:.3f}} {_ENDS}<extra></extra>",
    )  # fmt: skip
    return [band(list(layers), low, high, colour, name), line]
