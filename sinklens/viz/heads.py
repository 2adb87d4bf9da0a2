"""Layer x head maps of any per-head quantity, and how quantities change from layer to layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sinklens.errors import InputError
from sinklens.metrics.patterns import KINDS
from sinklens.results import HeadProfile
from sinklens.viz.layout import (
    COLOUR_BAR_WIDTH,
    cell_gap,
    head_axis,
    layer_axis,
    map_height,
    map_width,
    numbered,
    row_of_maps,
)
from sinklens.viz.quantities import KIND_LABEL, describe, head_values
from sinklens.viz.ranges import colour_range, ratio_ticks, scale_name, shown_values
from sinklens.viz.theme import KIND_COLOURS, Theme, palette, template

DEFAULT_QUANTITIES = ("sink_mass", "sink_value_ratio", "sink_alignment", "sink_intra")
_MAP_WIDTH, _MARGINS = 196.0, 90


def head_map(
    profile: HeadProfile, quantity: str = "sink_mass", *, robust: bool = True, theme: Theme = "light"
) -> go.Figure:
    """A heatmap of one quantity over layers (rows, the first on top) and heads (columns).

    Signed quantities have a diverging scale with its middle at 0, ratios one with its middle at 1
    (logarithmic), all others a sequential scale from 0. Heads without a value are blank.

    Args:
        profile: from :func:`sinklens.head_profile`.
        quantity: one of :data:`sinklens.results.QUANTITIES`, or ``"kind"``.
        robust: let the colours of the most extreme 2 % saturate, so that they do not make all others look
            alike; the value under the pointer is always the true one.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with one heatmap, ``customdata`` holding the true values ``[layer, head]``.

    Raises:
        InputError: there is no such quantity or theme.

    Example:
        >>> from sinklens.results import HeadProfile, Provenance
        >>> profile = HeadProfile(*HeadProfile.empty(3, 5), (0, 1, 2), Provenance("tiny"))
        >>> head_map(profile, "sink_alignment").data[0].zmid is None, head_map(profile).layout.title.text
        (True, 'Attention on the sink')
    """
    trace, coloraxis = _map_parts(profile, quantity, robust, theme)
    figure = go.Figure(trace)
    figure.update_layout(
        template=template(theme),
        coloraxis=coloraxis,
        title=_title(quantity),
        xaxis=head_axis(profile.n_heads),
        yaxis=layer_axis(profile.layers),
        height=map_height(len(profile.layers)),
        width=map_width(profile.n_heads),
        meta=_meta(profile, {"coloraxis": quantity}),
    )
    return figure


def head_maps(
    profile: HeadProfile,
    quantities: Sequence[str] = DEFAULT_QUANTITIES,
    *,
    robust: bool = True,
    theme: Theme = "light",
) -> go.Figure:
    """Heatmaps of several quantities side by side, each with its own colour scale; zooming one zooms all.

    Args:
        profile: from :func:`sinklens.head_profile`.
        quantities: names as for :func:`head_map`.
        robust: as for :func:`head_map`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with one heatmap per quantity.

    Raises:
        InputError: no quantity is given, or there is no such quantity or theme.

    Example:
        >>> from sinklens.results import HeadProfile, Provenance
        >>> profile = HeadProfile(*HeadProfile.empty(3, 5), (0, 1, 2), Provenance("tiny"))
        >>> len(head_maps(profile, ("sink_mass", "kind")).data)
        2
    """
    if not quantities:
        raise InputError("no quantities to show; name at least one, such as sink_mass")
    figure, ends = row_of_maps([_title(quantity) for quantity in quantities], _MAP_WIDTH)
    axes: dict[str, str] = {}
    for column, (quantity, end) in enumerate(zip(quantities, ends, strict=True)):
        trace, coloraxis = _map_parts(profile, quantity, robust, theme)
        name = numbered("coloraxis", column)
        trace.coloraxis = name
        coloraxis["colorbar"] |= {"x": end, "xanchor": "left", "xpad": 4, "thickness": 8}
        figure.add_trace(trace, row=1, col=column + 1)
        figure.layout[name] = coloraxis
        axes[name] = quantity
    figure.update_xaxes(head_axis(profile.n_heads))
    figure.update_yaxes(layer_axis(profile.layers) | {"title": None})
    figure.update_yaxes(title="Layer", col=1)
    width = (int(_MAP_WIDTH) + COLOUR_BAR_WIDTH) * len(quantities) + _MARGINS
    figure.update_layout(
        template=template(theme), height=map_height(len(profile.layers)), width=width, meta=_meta(profile, axes)
    )
    return figure


def _title(quantity: str) -> str:
    return KIND_LABEL if quantity == "kind" else describe(quantity).label


def _map_parts(profile: HeadProfile, quantity: str, robust: bool, theme: Theme) -> tuple[go.Heatmap, dict[str, Any]]:
    colours = palette(theme)
    if quantity == "kind":
        return _kind_parts(profile)
    description = describe(quantity)
    values = head_values(profile, quantity)
    shown = shown_values(description, values)
    low, high = colour_range(description, shown, robust)
    bar: dict[str, Any] = {"tickformat": ".3~g"}
    if description.scale == "ratio":
        positions, labels = ratio_ticks(low, high)
        bar = {"tickmode": "array", "tickvals": positions, "ticktext": labels}
    hover = f"Layer %{{y}} · head %{{x}}<br>{description.label} <b>%{{customdata:.4g}}</b><extra></extra>"
    trace = _heatmap(shown, customdata=values, hovertemplate=hover)
    return trace, {
        "cmin": low,
        "cmax": high,
        "colorscale": colours.scale(scale_name(description)),
        "colorbar": bar,
    }


def _kind_parts(profile: HeadProfile) -> tuple[go.Heatmap, dict[str, Any]]:
    kinds = profile.kind
    indices = np.array([[KINDS.index(kind) for kind in row] for row in kinds], dtype=np.uint8)
    steps = [(edge / len(KINDS), KIND_COLOURS[kind]) for i, kind in enumerate(KINDS) for edge in (i, i + 1)]
    trace = _heatmap(indices, text=kinds, hovertemplate="Layer %{y} · head %{x}<br><b>%{text}</b><extra></extra>")
    bar = {"tickmode": "array", "tickvals": list(range(len(KINDS))), "ticktext": list(KINDS), "ticklen": 0}
    return trace, {"cmin": -0.5, "cmax": len(KINDS) - 0.5, "colorscale": steps, "colorbar": bar}


def _heatmap(shown: np.ndarray, **more: Any) -> go.Heatmap:
    # Cells lie at row numbers, not at layer numbers: a profile may hold layers 4, 8 and 20 only.
    rows, heads = np.arange(shown.shape[0]), np.arange(shown.shape[1])
    gap = cell_gap(shown.shape)
    place = {"x": heads, "y": rows, "xgap": gap, "ygap": gap}
    return go.Heatmap(z=shown, coloraxis="coloraxis", hoverongaps=False, **place, **more)


def _meta(profile: HeadProfile, quantity_of_axis: dict[str, str]) -> dict[str, Any]:
    """What a page needs to recolour the figure and to know which head was clicked."""
    scales = {
        axis: "kind" if quantity == "kind" else scale_name(describe(quantity))
        for axis, quantity in quantity_of_axis.items()
    }
    return {"scales": scales, "layers": list(profile.layers), "selects": "map"}
