"""Attention as a switch: which heads are off, what switches them off, and how much of a layer's output is communication."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sinklens.errors import InputError
from sinklens.metrics.switch import CARRIERS
from sinklens.results.switch import AttentionSwitch
from sinklens.viz.layout import (
    COLOUR_BAR_WIDTH,
    LEGEND_ABOVE,
    band,
    cell_gap,
    head_axis,
    layer_axis,
    layers_below,
    map_height,
    numbered,
    row_of_maps,
)
from sinklens.viz.ranges import positive_range
from sinklens.viz.theme import COLORWAY, KIND_COLOURS, KIND_SYMBOLS, Theme, palette, template

DEFAULT_MAPS = ("hard_values", "soft_attention", "communication")
SWITCH_LABELS = {
    "hard_values": "Hard-switched queries",
    "hard_median": "Hard-switched, by the head's median",
    "hard_without_sink": "Hard-switched if the sink were gone",
    "soft_attention": "Soft-switched queries, by attention",
    "soft_contribution": "Soft-switched queries, by contribution",
    "on_sink": "Queries whose mass is on the sink",
    "sink_mass": "Attention on the sink",
    "communication": "Communication share",
    "hull_distance": "Distance of 0 from the values' hull",
    "zero_excluded": "Zero excluded without a sink",
    "hard_excluded": "Hard switch excluded without a sink",
    "layer_others": "other tokens",
    "layer_sink": "sink",
    "layer_self": "own token",
}
CARRIER_LABELS = {name: name.replace("_", " ") for name in CARRIERS}
_CARRIER_COLOURS = {
    "gate": COLORWAY[2],
    "learned_sink": KIND_COLOURS["learned sink"],
    "sink": KIND_COLOURS["sink"],
    "self": KIND_COLOURS["diagonal"],
    "cancellation": KIND_COLOURS["dense"],
    "short_values": COLORWAY[6],
    "mixed": KIND_COLOURS["mixed"],
}
_CARRIER_SYMBOLS = {
    "gate": "cross",
    "learned_sink": KIND_SYMBOLS["learned sink"],
    "sink": KIND_SYMBOLS["sink"],
    "self": KIND_SYMBOLS["diagonal"],
    "cancellation": KIND_SYMBOLS["dense"],
    "short_values": "triangle-down",
    "mixed": KIND_SYMBOLS["mixed"],
}
_STACKED = ("sink", "learned_sink", "gate", "self", "short_values", "cancellation", "mixed")  # from the bottom
_SCALES = {
    "values": "output near zero against the head's values",
    "median": "output near zero against the head's median",
}
_PARTS = {"layer_others": COLORWAY[2], "layer_sink": KIND_COLOURS["sink"], "layer_self": KIND_COLOURS["diagonal"]}
_MAP_WIDTH, _MARGINS = 208.0, 90


def switch_maps(
    result: AttentionSwitch, quantities: Sequence[str] = DEFAULT_MAPS, *, theme: Theme = "light"
) -> go.Figure:
    """Layer x head maps of shares, side by side; under the pointer the mean over documents with its 95 % interval.

    Args:
        result: from :func:`sinklens.attention_switch`.
        quantities: its quantities that are not negative, such as ``hard_values`` or ``hull_distance``.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with one heatmap per quantity; heads without a figure are blank.

    Raises:
        InputError: no quantity is given, or there is no such quantity or theme.

    Example:
        >>> import torch
        >>> from sinklens.results.provenance import Provenance
        >>> share = torch.tensor([[[0.5], [0.25]]], dtype=torch.float64)
        >>> result = AttentionSwitch({"sink_mass": share}, (0,), Provenance("tiny"))
        >>> switch_maps(result, ["sink_mass"]).data[0].z.tolist()
        [[0.5, 0.25]]
    """
    if not quantities:
        raise InputError("no quantities to show; name at least one, such as hard_values")
    figure, ends = row_of_maps([SWITCH_LABELS.get(name, name) for name in quantities], _MAP_WIDTH)
    colours = palette(theme)
    for column, (name, end) in enumerate(zip(quantities, ends, strict=True)):
        axis = numbered("coloraxis", column)
        figure.add_trace(_map(result, name, axis), row=1, col=column + 1)
        low, high = positive_range(result.mean(name).numpy(), robust=False)
        bar = {"tickformat": ".3~g", "x": end, "xanchor": "left", "xpad": 4, "thickness": 8}
        scale = colours.scale("sequential")
        figure.layout[axis] = {"cmin": low, "cmax": high, "colorscale": scale, "colorbar": bar}
    figure.update_xaxes(head_axis(result.n_heads))
    figure.update_yaxes(layer_axis(result.layers) | {"title": None})
    figure.update_yaxes(title="Layer", col=1)
    figure.update_layout(
        template=template(theme),
        height=map_height(len(result.layers)) + 30,
        margin={"t": 78},  # the buttons stand above the maps' titles
        width=(int(_MAP_WIDTH) + COLOUR_BAR_WIDTH) * len(quantities) + _MARGINS,
        meta={"scales": {numbered("coloraxis", column): "sequential" for column in range(len(quantities))}},
    )
    return figure


def _map(result: AttentionSwitch, name: str, coloraxis: str) -> go.Heatmap:
    values, ends = result.mean(name).numpy(), result.interval(name).numpy()
    layers = np.broadcast_to(np.array(result.layers)[:, None, None], (*values.shape, 1))
    gap = cell_gap(values.shape)
    return go.Heatmap(
        z=values.astype(np.float32),
        x=np.arange(values.shape[1]),
        y=np.arange(values.shape[0]),
        customdata=np.concatenate([layers, ends], -1).astype(np.float32),
        coloraxis=coloraxis,
        hoverongaps=False,
        xgap=gap,
        ygap=gap,
        hovertemplate=(
            f"Layer %{{customdata[0]}} · head %{{x}}<br>{SWITCH_LABELS.get(name, name)} <b>%{{z:.4g}}</b> "
            "[%{customdata[1]:.4g}, %{customdata[2]:.4g}]<extra></extra>"
        ),
    )


def switch_carriers(result: AttentionSwitch, scale: str = "values", *, theme: Theme = "light") -> go.Figure:
    """Hard-switched queries layer by layer, stacked by what carries them.

    Args:
        result: from :func:`sinklens.attention_switch`.
        scale: ``"values"`` or ``"median"``: what an output near zero is measured against.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a bar trace per carrier that occurs; a stack is as high as the layer's share of hard-switched queries.

    Raises:
        InputError: there is no such scale or theme.

    Example:
        >>> import torch
        >>> from sinklens.results.provenance import Provenance
        >>> share = torch.tensor([[[0.5], [0.25]]], dtype=torch.float64)
        >>> values = {f"hard_values_{name}": share * (name == "sink") for name in CARRIERS}
        >>> result = AttentionSwitch(values | {"sink_mass": share}, (0,), Provenance("tiny"))
        >>> [(trace.name, trace.y.tolist()) for trace in switch_carriers(result).data]
        [('sink', [0.375])]
    """
    table: Any = result.carriers(scale, by="layer")  # pandas' stubs know no column types
    figure = go.Figure()
    for carrier in sorted(CARRIERS, key=_STACKED.index):
        share = result.layer_documents(f"hard_{scale}_{carrier}").nanmean(-1).numpy()
        if not (np.nan_to_num(share) > 0).any():
            continue
        rows = table[table["carrier"] == carrier][["share", "low", "high"]].to_numpy()
        figure.add_trace(
            go.Bar(
                x=list(result.layers),
                y=share.astype(np.float32),
                width=0.8,  # of a layer, also where only some layers were measured
                name=CARRIER_LABELS[carrier],
                marker={"color": _CARRIER_COLOURS[carrier], "line": {"width": 0}},
                customdata=rows.astype(np.float32),
                hovertemplate=(
                    "%{y:.2%}, <b>%{customdata[0]:.0%}</b> of the layer's hard switches "
                    "[%{customdata[1]:.0%}, %{customdata[2]:.0%}]"
                ),
            )
        )
    figure.update_layout(
        template=template(theme),
        title=f"What switches heads off: {_SCALES[scale]}",
        height=380,
        barmode="stack",
        bargap=0.2,
        hovermode="x unified",
        showlegend=True,
        xaxis=layers_below(result.layers),
        yaxis={"title": "Share of queries, mean over heads", "tickformat": ".3~p", "rangemode": "tozero"},
        **LEGEND_ABOVE,
    )
    figure.update_layout(legend={"traceorder": "normal"})
    return figure if figure.data else _said(figure, "No query is hard-switched", theme)


def _said(figure: go.Figure, text: str, theme: Theme) -> go.Figure:
    """An empty chart that says why."""
    words = {"text": text, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
    return figure.add_annotation(words | {"font": {"size": 14, "color": palette(theme).muted}})


def communication_lines(result: AttentionSwitch, *, theme: Theme = "light") -> go.Figure:
    """What each layer's output comes from: other tokens (communication), the sink, the token itself; they sum to 1.

    Args:
        result: from :func:`sinklens.attention_switch`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a line per part, and a band with its 95 % interval over documents.

    Raises:
        InputError: there is no such theme.

    Example:
        >>> import torch
        >>> from sinklens.results.provenance import Provenance
        >>> share = torch.tensor([[[0.5], [0.25]]], dtype=torch.float64)
        >>> values = {"layer_others": share, "layer_sink": share / 3, "layer_self": 0 * share}
        >>> figure = communication_lines(AttentionSwitch(values, (0,), Provenance("tiny")))
        >>> [(trace.name, trace.y.tolist()) for trace in figure.data[1::2]]
        [('other tokens', [0.75]), ('sink', [0.25]), ('own token', [0.0])]
    """
    table: Any = result.by_layer()
    figure = go.Figure()
    for name, colour in _PARTS.items():
        value, low, high = (table[f"{name}{end}"].to_numpy() for end in ("", "_low", "_high"))
        label, known = SWITCH_LABELS[name], np.isfinite(low)
        around = band(np.array(result.layers)[known], low[known], high[known], colour, label, name="95 % interval")
        line = go.Scatter(
            x=list(result.layers),
            y=value.astype(np.float32),
            name=label,
            mode="lines+markers",
            legendgroup=label,
            line={"color": colour, "width": 2},
            marker={"size": 5},
            customdata=np.stack([low, high], -1).astype(np.float32),
            hovertemplate="%{y:.1%} [%{customdata[0]:.1%}, %{customdata[1]:.1%}]",
        )
        figure.add_traces([around, line])
    figure.update_layout(
        template=template(theme),
        title="Where each layer's output comes from: other tokens, the sink, the token itself",
        height=380,
        hovermode="x unified",
        xaxis=layers_below(result.layers),
        yaxis={"title": "Share of the layer's output", "tickformat": ".0%", "range": [0, 1.02]},
        **LEGEND_ABOVE,
    )
    return figure


def switch_scatter(result: AttentionSwitch, *, theme: Theme = "light") -> go.Figure:
    """Every head by its attention on the sink and its share of hard-switched queries, coloured by what carries most of them.

    Args:
        result: from :func:`sinklens.attention_switch`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a trace per carrier that leads in some head, and one of heads that never switch off.

    Raises:
        InputError: there is no such theme.

    Example:
        >>> import torch
        >>> from sinklens.results.provenance import Provenance
        >>> share = torch.tensor([[[0.5], [0.25]]], dtype=torch.float64)
        >>> values = {f"hard_values_{name}": share * (name == "sink") for name in CARRIERS}
        >>> result = AttentionSwitch(values | {"sink_mass": share, "hard_values": share}, (0,), Provenance("tiny"))
        >>> [(trace.name, trace.x.tolist()) for trace in switch_scatter(result).data]
        [('sink', [0.5, 0.25])]
    """
    hard, mass = (result.mean(name).numpy().ravel() for name in ("hard_values", "sink_mass"))
    carried = np.stack([result.mean(f"hard_values_{name}").numpy().ravel() for name in CARRIERS])
    leader = np.where(np.nan_to_num(hard) > 0, np.nan_to_num(carried).argmax(0), -1)
    heads = np.stack([np.repeat(result.layers, result.n_heads), np.tile(range(result.n_heads), len(result.layers))], -1)
    figure = go.Figure()
    for place, carrier in [(-1, "never"), *enumerate(CARRIERS)]:
        rows = leader == place
        if not rows.any():
            continue
        looks = {"color": _CARRIER_COLOURS.get(carrier, palette(theme).axis), "size": 8 if place >= 0 else 5}
        figure.add_trace(
            go.Scatter(
                x=mass[rows].astype(np.float32),
                y=hard[rows].astype(np.float32),
                mode="markers",
                name=CARRIER_LABELS.get(carrier, "never hard-switched"),
                marker=looks | {"symbol": _CARRIER_SYMBOLS.get(carrier, "circle")},
                cliponaxis=False,
                customdata=heads[rows],
                hovertemplate=(
                    "<b>Layer %{customdata[0]} · head %{customdata[1]}</b><br>attention on the sink %{x:.3f}<br>"
                    "hard-switched %{y:.1%}<extra></extra>"
                ),
            )
        )
    figure.update_layout(
        template=template(theme),
        title="Hard switches against attention on the sink, head by head",
        height=480,
        showlegend=True,
        xaxis={"title": "Attention on the sink", "range": [-0.02, 1.02], "zeroline": False},
        yaxis={"title": "Share of hard-switched queries", "tickformat": ".3~p", "rangemode": "tozero"},
        **LEGEND_ABOVE,
    )
    return figure
