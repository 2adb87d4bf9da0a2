"""Figures of ablation studies: effects beside controls, a map over heads, sweeps with closed form and measurement."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sinklens.errors import InputError
from sinklens.results.ablation import AblationCell, AblationResult, SweepResult
from sinklens.viz.theme import COLORWAY, NEUTRAL, Theme, palette, template

LABELS: dict[str, str] = {
    "delta_loss": "Δ loss (nats per token)",
    "delta_perplexity": "Δ perplexity",
    "divergence": "KL divergence from the clean model (nats per token)",
}
PLACES = {
    "sink": "at the sink",
    "position": "control: random other position",
    "direction": "control: random direction, same norm",
}
_SYMBOLS = {"sink": "circle", "position": "diamond-open", "direction": "square-open"}
_DASHES = {"sink": "solid", "position": "dot", "direction": "dash"}
_VALUE_LABELS = {"mass": "Mass on the sink α", "scale": "Scale of the sink's value f"}


def ablation_effects(result: AblationResult, effect: str = "delta_loss", *, theme: Theme = "light") -> go.Figure:
    """The effect of every edit in every group beside its controls, with 95 % intervals over documents.

    Args:
        result: from :func:`sinklens.ablate_sinks`.
        effect: ``"delta_loss"``, ``"delta_perplexity"`` or ``"divergence"``.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with one trace per edit and place, a point per group.

    Raises:
        InputError: there is no such effect or theme.
    """
    edits = list(dict.fromkeys(_edit_name(cell) for cell in result.cells))
    figure = go.Figure()
    for edit in edits:
        colour = COLORWAY[edits.index(edit) % len(COLORWAY)]
        for place in PLACES:
            rows = [r for r, c in enumerate(result.cells) if _edit_name(c) == edit and c.where == place]
            if rows:
                figure.add_trace(_points(result, rows, effect, edit, place, colour))
    figure.update_layout(
        template=template(theme),
        title="What the model loses without its sinks",
        height=420,
        xaxis={"title": "Group of heads", "type": "category", "showgrid": False},
        yaxis={"title": _label(effect), "zeroline": True},
        scattermode="group",
    )
    return figure


def _label(effect: str) -> str:
    if effect not in LABELS:
        raise InputError(f"no effect {effect!r}; there are {', '.join(LABELS)}")
    return LABELS[effect]


def _edit_name(cell: AblationCell) -> str:
    return cell.edit if math.isnan(cell.value) else f"{cell.edit} {cell.value:g}"


def _points(result: AblationResult, rows: list[int], effect: str, edit: str, place: str, colour: str) -> go.Scatter:
    values, intervals = result.effect(effect)[rows].numpy(), result.interval(effect)[rows].numpy()
    return go.Scatter(
        x=[result.cells[row].group for row in rows],
        y=values,
        mode="markers",
        name=f"{edit}, {PLACES[place]}",
        marker={"symbol": _SYMBOLS[place], "size": 9, "color": colour if place == "sink" else NEUTRAL},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": intervals[:, 1] - values,
            "arrayminus": values - intervals[:, 0],
            "thickness": 1.5,
            "width": 3,
        },
        customdata=intervals,
        hovertemplate="%{x}<br><b>%{y:.4g}</b> [%{customdata[0]:.4g}, %{customdata[1]:.4g}]",
    )


def ablation_map(
    result: AblationResult, effect: str = "delta_loss", *, place: str = "sink", theme: Theme = "light"
) -> go.Figure:
    """A layer x head map of the effect of one edit on single heads, with its middle at 0.

    Args:
        result: from :func:`sinklens.ablate_sinks` with groups of single heads (``groups="heads"``); of several edits the
            first is shown.
        effect: ``"delta_loss"``, ``"delta_perplexity"`` or ``"divergence"``.
        place: ``"sink"``, or a control that was measured.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with one heatmap; heads that were not measured are blank.

    Raises:
        InputError: no group is a single head, nothing was measured at that place, or there is no such effect or theme.
    """
    single = [r for r, c in enumerate(result.cells) if len(c.heads) == 1 and c.where == place]
    rows = [r for r in single if result.cells[r].key[1:] == result.cells[single[0]].key[1:]]
    if not rows:
        raise InputError(f"no single head was ablated at place {place!r}; run ablate_sinks with groups='heads'")
    layers = sorted({result.cells[row].heads[0][0] for row in rows})
    values = np.full((len(layers), 1 + max(result.cells[row].heads[0][1] for row in rows)), np.nan)
    effects = result.effect(effect)
    for row in rows:
        [(layer, head)] = result.cells[row].heads
        values[layers.index(layer), head] = effects[row].item()
    limit = max(float(np.nanmax(np.abs(values))), 1e-12)
    trace = go.Heatmap(
        z=values,
        x=np.arange(values.shape[1]),
        y=np.arange(len(layers)),
        customdata=[[layer] * values.shape[1] for layer in layers],
        coloraxis="coloraxis",
        hoverongaps=False,
        xgap=1,
        ygap=1,
        hovertemplate=f"Layer %{{customdata}} · head %{{x}}<br>{_label(effect)} <b>%{{z:.4g}}</b><extra></extra>",
    )
    figure = go.Figure(trace)
    figure.update_layout(
        template=template(theme),
        title=f"{_label(effect)}: {_edit_name(result.cells[rows[0]])}, {PLACES[place]}",
        height=int(np.clip(140 + 15 * len(layers), 260, 640)),
        width=int(np.clip(220 + 26 * values.shape[1], 420, 900)),
        coloraxis={"cmin": -limit, "cmax": limit, "colorscale": palette(theme).scale("diverging")},
        xaxis={"title": "Head", "showgrid": False, "zeroline": False, "dtick": -(-values.shape[1] // 12)},
        yaxis={
            "title": "Layer",
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
            "tickmode": "array",
            "tickvals": list(range(len(layers))),
            "ticktext": [str(layer) for layer in layers],
        },
    )
    return figure


def sweep_effects(result: SweepResult, effect: str = "delta_loss", *, theme: Theme = "light") -> go.Figure:
    """The effect of a sweep against its mass or scale, with 95 % bands over documents, beside the controls.

    Args:
        result: from :func:`sinklens.sweep_sinks`.
        effect: ``"delta_loss"``, ``"delta_perplexity"`` or ``"divergence"``.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a line and a band per group and place.

    Raises:
        InputError: there is no such effect or theme.
    """
    figure, groups = go.Figure(), list(dict.fromkeys(cell.group for cell in result.cells))
    for index, group in enumerate(groups):
        for place in PLACES:
            rows = [r for r, c in enumerate(result.cells) if c.group == group and c.where == place]
            if rows:
                figure.add_traces(_band_and_line(result, rows, effect, COLORWAY[index % len(COLORWAY)]))
    figure.update_layout(
        template=template(theme),
        title="What the sink's strength does to the model",
        height=420,
        hovermode="x unified",
        xaxis={"title": _VALUE_LABELS[result.cells[0].edit], "zeroline": False},
        yaxis={"title": _label(effect), "zeroline": True},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        margin={"t": 84},
    )
    return figure


def _band_and_line(result: SweepResult, rows: list[int], effect: str, colour: str) -> list[go.Scatter]:
    rows = sorted(rows, key=lambda row: result.cells[row].value)
    first = result.cells[rows[0]]
    x = np.array([result.cells[row].value for row in rows])
    y, (low, high) = result.effect(effect)[rows].numpy(), result.interval(effect)[rows].numpy().T
    name = f"{first.group}, {PLACES[first.where]}"
    band = go.Scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        fill="toself",
        fillcolor=colour if first.where == "sink" else NEUTRAL,
        opacity=0.18,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        name="95 % interval",
        legendgroup=name,
    )
    line = go.Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        name=name,
        legendgroup=name,
        line={"color": colour if first.where == "sink" else NEUTRAL, "width": 2, "dash": _DASHES[first.where]},
        marker={"size": 6, "symbol": _SYMBOLS[first.where]},
        hovertemplate="%{y:.4g}",
    )
    return [band, line]


def sweep_norms(
    result: SweepResult, heads: Sequence[tuple[int, int]] | None = None, n: int = 6, *, theme: Theme = "light"
) -> go.Figure:
    """The norm of head outputs along a sweep: the closed form as a line, what was measured as points.

    A ring marks the clean model: its norm at its present mean mass, or at scale 1. Points beside the line tell of an
    indirect effect: earlier layers were edited too.

    Args:
        result: from :func:`sinklens.sweep_sinks`.
        heads: ``(layer, head)`` pairs; by default the ``n`` swept heads with the most attention on the sink.
        n: how many heads by default.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with three traces per head: closed form, measured, clean.

    Raises:
        InputError: a head was not swept, or there is no such theme.
    """
    table: Any = result.norms()  # pandas' stubs know no column types
    known = table.groupby(["layer", "head"], sort=False)["mass"].first()
    chosen = list(known.sort_values(ascending=False).index[:n]) if heads is None else list(heads)
    figure = go.Figure()
    for index, (layer, head) in enumerate(chosen):
        if (layer, head) not in known.index:
            raise InputError(f"head {layer}.{head} was not swept; the sweep has {len(known)} heads, see result.norms()")
        rows = table[(table["layer"] == layer) & (table["head"] == head)].sort_values("value")
        rows = rows[rows["group"] == rows["group"].iloc[0]]
        at = rows["mass"].iloc[0] if rows["edit"].iloc[0] == "mass" else 1.0
        name, colour = f"layer {layer} · head {head}", COLORWAY[index % len(COLORWAY)]
        shared = {"legendgroup": name, "hovertemplate": "%{x:.2f}: <b>%{y:.4g}</b>"}
        figure.add_traces(
            [
                go.Scatter(x=rows["value"], y=rows["closed_form"], mode="lines", name=f"{name}, closed form",
                           line={"color": colour, "width": 2}, **shared),
                go.Scatter(x=rows["value"], y=rows["measured"], mode="markers", name=f"{name}, measured",
                           marker={"color": colour, "size": 8, "symbol": "x"}, **shared),
                go.Scatter(x=[at], y=[rows["clean"].iloc[0]], mode="markers", name=f"{name}, clean", showlegend=False,
                           marker={"color": colour, "size": 11, "symbol": "circle-open", "line": {"width": 2.5}}, **shared),
            ]
        )  # fmt: skip
    figure.update_layout(
        template=template(theme),
        title="Norm of head outputs along the sweep: closed form and measurement",
        height=440,
        xaxis={"title": _VALUE_LABELS[result.cells[0].edit], "zeroline": False},
        yaxis={"title": "Root mean square output norm", "rangemode": "tozero"},
    )
    return figure
