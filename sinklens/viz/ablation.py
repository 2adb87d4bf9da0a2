"""Figures of ablation studies: effects beside controls, a map over heads, sweeps with closed form and measurement."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sinklens.errors import InputError
from sinklens.results.ablation import AblationResult, SweepResult
from sinklens.viz.layout import LEGEND_ABOVE, band
from sinklens.viz.theme import COLORWAY, NEUTRAL, Theme, palette, template

LABELS: dict[str, str] = {
    "delta_loss": "Δ loss (nats per token)",
    "delta_perplexity": "Δ perplexity",
    "divergence": "KL from the clean model (nats per token)",
}
PLACES = {
    "sink": "at the sink",
    "position": "control: random other position",
    "direction": "control: random direction, same norm",
}
_SYMBOLS = {"sink": "circle", "position": "diamond-open", "direction": "square-open"}
_DASHES = {"sink": "solid", "position": "dot", "direction": "dash"}
_VALUE_LABELS = {"mass": "Mass on the sink α", "scale": "Scale of the sink's value f"}


def ablation_effects(
    result: AblationResult,
    effect: str = "delta_loss",
    *,
    n: int | None = None,
    horizontal: bool = False,
    theme: Theme = "light",
) -> go.Figure:
    """The effect of every edit in every group beside its controls, with 95 % intervals over documents.

    Args:
        result: from :func:`sinklens.ablate_sinks`.
        effect: ``"delta_loss"``, ``"delta_perplexity"`` or ``"divergence"``.
        n: only the ``n`` groups with the largest effect at the sink, largest first; None for all in their order.
        horizontal: a row per group and edit, named at its left; better where there are few.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with one trace per edit and place, a point per group; where rows are horizontal, one trace per place.

    Raises:
        InputError: there is no such effect or theme, or ``n`` is below 1.
    """
    edits = list(dict.fromkeys(cell.edit_name for cell in result.cells))
    groups = _largest(result, effect, n)
    if horizontal:
        return _rows_of_effects(result, effect, groups, theme)
    figure = go.Figure()
    for edit, colour in zip(edits, cycle(COLORWAY), strict=False):
        for place in PLACES:
            found = {c.group: r for r, c in enumerate(result.cells) if c.edit_name == edit and c.where == place}
            rows = [found[group] for group in groups if group in found]
            if rows:
                points = _points(result, rows, effect, [result.cells[row].group for row in rows], place, colour)
                figure.add_trace(points.update(name=f"{edit}, {PLACES[place]}"))
    figure.update_layout(
        template=template(theme),
        title="What the model loses without its sinks",
        height=420,
        xaxis=_group_axis(groups),
        yaxis={"title": _label(effect), "zeroline": True},
        scattermode="group",
        scattergap=0.35,
        **LEGEND_ABOVE,
    )
    return figure


def _rows_of_effects(result: AblationResult, effect: str, groups: list[str], theme: Theme) -> go.Figure:
    figure = go.Figure()
    order = [row for group in groups for row, cell in enumerate(result.cells) if cell.group == group]
    names = {row: _row_name(result, row, len(groups)) for row in order}
    for place, label in PLACES.items():
        rows = [row for row in order if result.cells[row].where == place]
        if rows:
            beside = [names[row] for row in rows]
            points = _points(result, rows, effect, beside, place, COLORWAY[0], across=True)
            figure.add_trace(points.update(name=label))
    n_rows = len(dict.fromkeys(names.values()))
    figure.update_layout(
        template=template(theme),
        title="What the model loses without its sinks",
        height=int(np.clip(150 + 56 * n_rows, 220, 640)),
        xaxis={"title": _label(effect), "zeroline": True},
        yaxis={
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
            # Room between the names and markers at 0.
            "ticks": "outside",
            "ticklen": 8,
            "tickcolor": "rgba(0,0,0,0)",
        },
        scattermode="group",
        scattergap=0.4,
        **LEGEND_ABOVE,
    )
    return figure


def _row_name(result: AblationResult, row: int, n_groups: int) -> str:
    cell = result.cells[row]
    n_edits = len({each.key[1:] for each in result.cells})
    parts = [cell.group] if n_groups > 1 or n_edits == 1 else []
    return " · ".join([*parts, cell.edit_name] if n_edits > 1 else parts)


def _largest(result: AblationResult, effect: str, n: int | None) -> list[str]:
    """The groups in their order; or the ``n`` with the largest effect at the sink, largest first."""
    _require_some(n)
    size: dict[str, float] = {}
    for cell, value in zip(result.cells, result.effect(effect).abs().tolist(), strict=True):
        if cell.where == "sink":
            size[cell.group] = max(size.get(cell.group, 0.0), value)
    return list(size) if n is None or n >= len(size) else sorted(size, key=lambda group: -size[group])[:n]


def _require_some(n: int | None) -> None:
    if n is not None and n < 1:
        raise InputError(f"n is {n}; expected 1 or more, or None for all")


def _group_axis(groups: Sequence[str]) -> dict[str, Any]:
    """Names of groups along the horizontal axis; what all have in common is said once, in the title."""
    axis: dict[str, Any] = {"type": "category", "showgrid": False, "zeroline": False}
    for word, title in (("layer ", "Layer"), ("head ", "Head (layer.head)")):
        if len(groups) > 1 and all(group.startswith(word) for group in groups):
            short = [group.removeprefix(word) for group in groups]
            return axis | {"title": title, "tickvals": list(groups), "ticktext": short}
    return axis | {"title": "Group of heads" if len(groups) > 1 else None}


def _label(effect: str) -> str:
    if effect not in LABELS:
        raise InputError(f"no effect {effect!r}; there are {', '.join(LABELS)}")
    return LABELS[effect]


def _points(
    result: AblationResult,
    rows: list[int],
    effect: str,
    names: list[str],
    place: str,
    colour: str,
    across: bool = False,
) -> go.Scatter:
    """Effects with whiskers over their names, or across, beside their names."""
    values, intervals = result.effect(effect)[rows].numpy(), result.interval(effect)[rows].numpy()
    whiskers = {
        "type": "data",
        "symmetric": False,
        "array": intervals[:, 1] - values,
        "arrayminus": values - intervals[:, 0],
        "thickness": 1.5,
        "width": 3,
    }
    name, value = ("y", "x") if across else ("x", "y")
    at: dict[str, Any] = {name: names, value: values, f"error_{value}": whiskers, "orientation": "h" if across else "v"}
    return go.Scatter(
        **at,
        mode="markers",
        cliponaxis=False,
        marker={"symbol": _SYMBOLS[place], "size": 9, "color": colour if place == "sink" else NEUTRAL},
        customdata=intervals,
        hovertemplate=f"%{{{name}}}<br><b>%{{{value}:.4g}}</b> [%{{customdata[0]:.4g}}, %{{customdata[1]:.4g}}]",
    )


def ablation_map(
    result: AblationResult,
    effect: str = "delta_loss",
    *,
    place: str = "sink",
    limit: float | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """A layer x head map of the effect of one edit on single heads, with its middle at 0; red is more, blue is less.

    Args:
        result: from :func:`sinklens.ablate_sinks` with groups of single heads (``groups="heads"``); of several edits the
            first is shown.
        effect: ``"delta_loss"``, ``"delta_perplexity"`` or ``"divergence"``.
        place: ``"sink"``, or a control that was measured.
        limit: colours reach from ``-limit`` to ``limit``; None for the largest effect in the map.
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
    layers, values = _by_head(result, rows, effect)
    end = max(float(np.nanmax(np.abs(values))) if limit is None else abs(limit), 1e-12)
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
        title=f"{_label(effect)}: {result.cells[rows[0]].edit_name}, {PLACES[place]}",
        height=int(np.clip(140 + 15 * len(layers), 260, 640)),
        width=int(np.clip(220 + 26 * values.shape[1], 420, 900)),
        meta={"scales": {"coloraxis": "diverging"}},
        # The scale runs from red to blue; a loss that grows is bad, and red.
        coloraxis={
            "cmin": -end,
            "cmax": end,
            "colorscale": palette(theme).scale("diverging"),
            "reversescale": True,
        },
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


def _by_head(result: AblationResult, rows: Sequence[int], effect: str) -> tuple[list[int], np.ndarray]:
    """The layers of cells of single heads, and their effects ``[layer, head]``; NaN where a head was not measured."""
    layers = sorted({result.cells[row].heads[0][0] for row in rows})
    values = np.full((len(layers), 1 + max(result.cells[row].heads[0][1] for row in rows)), np.nan)
    effects = result.effect(effect)
    for row in rows:
        [(layer, head)] = result.cells[row].heads
        values[layers.index(layer), head] = effects[row].item()
    return layers, values


def sweep_effects(
    result: SweepResult, effect: str = "delta_loss", *, n: int | None = None, theme: Theme = "light"
) -> go.Figure:
    """The effect of a sweep against its mass or scale, with 95 % bands over documents, beside the controls.

    Args:
        result: from :func:`sinklens.sweep_sinks`.
        effect: ``"delta_loss"``, ``"delta_perplexity"`` or ``"divergence"``.
        n: only the ``n`` groups with the largest effect; None for all.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a line per group and place, and a band; controls of several groups have none.

    Raises:
        InputError: there is no such effect or theme, or ``n`` is below 1.
    """
    figure, groups = go.Figure(), _largest(result, effect, n)
    for group, colour in zip(groups, cycle(COLORWAY), strict=False):
        for place in PLACES:
            rows = [r for r, c in enumerate(result.cells) if c.group == group and c.where == place]
            # A control is grey beside its one group; beside several, a broken line in the group's own colour.
            shown = colour if place == "sink" or len(groups) > 1 else NEUTRAL
            if rows:
                figure.add_traces(_band_and_line(result, rows, effect, shown, place == "sink" or len(groups) == 1))
    figure.update_layout(
        template=template(theme),
        title="What the sink's strength does to the model",
        height=420,
        hovermode="x unified",
        xaxis={"title": _VALUE_LABELS[result.cells[0].edit], "zeroline": False},
        yaxis={"title": _label(effect), "zeroline": True},
        **LEGEND_ABOVE,
    )
    return figure


def _band_and_line(result: SweepResult, rows: list[int], effect: str, colour: str, with_band: bool) -> list[go.Scatter]:
    rows = sorted(rows, key=lambda row: result.cells[row].value)
    first = result.cells[rows[0]]
    x = np.array([result.cells[row].value for row in rows])
    y, (low, high) = result.effect(effect)[rows].numpy(), result.interval(effect)[rows].numpy().T
    name = f"{first.group}, {PLACES[first.where]}"
    interval = band(x, low, high, colour, name, name="95 % interval")
    line = go.Scatter(
        x=x,
        y=y,
        customdata=np.stack([low, high], -1),
        mode="lines+markers",
        name=name,
        legendgroup=name,
        line={"color": colour, "width": 2, "dash": _DASHES[first.where]},
        marker={"size": 6, "symbol": _SYMBOLS[first.where]},
        hovertemplate="%{y:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]",
    )
    return [interval, line] if with_band else [line]


def sweep_norms(
    result: SweepResult, heads: Sequence[tuple[int, int]] | None = None, n: int = 6, *, theme: Theme = "light"
) -> go.Figure:
    """The norm of head outputs along a sweep: the closed form as a line, what was measured as crosses.

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
        InputError: a head was not swept, there is no such theme, or ``n`` is below 1.
    """
    _require_some(n)
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
                go.Scatter(x=rows["value"], y=rows["closed_form"], mode="lines", name=name,
                           line={"color": colour, "width": 2}, **shared),
                go.Scatter(x=rows["value"], y=rows["measured"], mode="markers", name=f"{name}, measured", showlegend=False,
                           marker={"color": colour, "size": 8, "symbol": "x"}, **shared),
                go.Scatter(x=[at], y=[rows["clean"].iloc[0]], mode="markers", name=f"{name}, clean", showlegend=False,
                           marker={"color": colour, "size": 11, "symbol": "circle-open", "line": {"width": 2.5}}, **shared),
            ]
        )  # fmt: skip
    figure.update_layout(
        template=template(theme),
        title="Norm of head outputs: closed form (lines), measured (crosses), without an edit (rings)",
        height=440,
        xaxis={"title": _VALUE_LABELS[result.cells[0].edit], "zeroline": False},
        yaxis={"title": "Root mean square output norm", "rangemode": "tozero"},
    )
    return figure
