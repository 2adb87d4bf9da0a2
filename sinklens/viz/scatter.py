"""All heads of a model as points, placed and coloured by any per-head quantity."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sinklens.metrics.patterns import KINDS
from sinklens.results import QUANTITIES, HeadProfile
from sinklens.viz.quantities import KIND_LABEL, describe, head_values
from sinklens.viz.ranges import colour_range, ratio_ticks, scale_name, shown_values
from sinklens.viz.theme import KIND_COLOURS, KIND_SYMBOLS, NEUTRAL, Theme, palette, template

_HOVER_QUANTITIES = (
    "sink_mass",
    "sink_intra",
    "sink_inter",
    "sink_value_ratio",
    "sink_alignment",
    "suppression",
)
_POINTS = 0  # the trace of the heads comes first; the rest are the legend and the line


def head_scatter(
    profile: HeadProfile,
    x: str = "sink_mass",
    y: str = "sink_intra",
    color: str = "kind",
    *,
    selectors: bool = False,
    theme: Theme = "light",
) -> go.Figure:
    """Every head as a point; under the pointer its layer, head and key figures.

    Where x and y are both shares, a dashed line marks ``y = x``: with the default, heads below it hear less
    from their sink than they attend to it, and heads below 0 have a sink that works against their output.

    Args:
        profile: from :func:`sinklens.head_profile`.
        x: one of :data:`sinklens.results.QUANTITIES`.
        y: the same.
        color: the same, or ``"kind"``.
        selectors: add menus that choose x, y and colour; this needs no running kernel.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure whose first trace holds the heads in the order of the layers, ``customdata`` their layer,
        head and figures.

    Raises:
        InputError: there is no such quantity or theme.

    Example:
        >>> from sinklens.results import HeadProfile, Provenance
        >>> profile = HeadProfile(*HeadProfile.empty(3, 5), (0, 1, 2), Provenance("tiny"))
        >>> len(head_scatter(profile).data[0].x)
        15
    """
    points = go.Scatter(
        x=head_values(profile, x).ravel(),
        y=head_values(profile, y).ravel(),
        mode="markers",
        showlegend=False,
        customdata=_hover_values(profile),
        hovertemplate=_hover_template(),
        marker={"size": 8, "opacity": 0.85},
    )
    points.update(_colouring(profile, color, theme)["trace"])
    figure = go.Figure([points, *_kind_legend(), *_identity(describe(x).share and describe(y).share)])
    figure.update_layout(
        template=template(theme),
        title="All heads",
        height=520,
        coloraxis=_colouring(profile, color, theme)["coloraxis"],
        showlegend=color == "kind",
        xaxis={"title": describe(x).label},
        yaxis={"title": describe(y).label},
        legend={"itemclick": False, "itemdoubleclick": False},
        meta={"selects": "scatter", "layers": list(profile.layers)},
    )
    if selectors:
        figure.update_layout(_selector_layout(profile, (x, y, color), theme))
    return figure


def _hover_values(profile: HeadProfile) -> np.ndarray:
    layers = np.repeat(profile.layers, profile.n_heads)
    heads = np.tile(np.arange(profile.n_heads), len(profile.layers))
    return np.stack([layers, heads, *(head_values(profile, name).ravel() for name in _HOVER_QUANTITIES)], 1).astype(
        np.float32
    )


def _hover_template() -> str:
    lines = [
        f"{describe(name).label} %{{customdata[{index}]:.4g}}" for index, name in enumerate(_HOVER_QUANTITIES, start=2)
    ]
    return "<b>Layer %{customdata[0]} · head %{customdata[1]}</b><br>" + "<br>".join(lines) + "<extra></extra>"


def _colouring(profile: HeadProfile, color: str, theme: Theme) -> dict[str, Any]:
    """The points' colours, and the colour axis that explains them."""
    if color == "kind":
        kinds = [kind for row in profile.kind for kind in row]
        symbols = [KIND_SYMBOLS[kind] for kind in kinds]
        line = {"width": [1.5 if "open" in symbol else 0 for symbol in symbols]}
        marker = {
            "color": [KIND_COLOURS[kind] for kind in kinds],
            "symbol": symbols,
            "line": line,
            "coloraxis": None,
        }
        return {"trace": {"marker": marker}, "coloraxis": {"showscale": False}}
    quantity = describe(color)
    shown = shown_values(quantity, head_values(profile, color))
    low, high = colour_range(quantity, shown)
    bar: dict[str, Any] = {
        "title": {"text": quantity.label, "side": "right"},
        "tickmode": "auto",
        "tickvals": None,
        "ticktext": None,
    }
    if quantity.scale == "ratio":
        positions, labels = ratio_ticks(low, high)
        bar |= {"tickmode": "array", "tickvals": positions, "ticktext": labels}
    axis = {
        "cmin": low,
        "cmax": high,
        "colorscale": palette(theme).scale(scale_name(quantity)),
        "colorbar": bar,
        "showscale": True,
    }
    marker = {"color": shown.ravel(), "symbol": "circle", "line": {"width": 0}, "coloraxis": "coloraxis"}
    return {"trace": {"marker": marker}, "coloraxis": axis}


def _kind_legend() -> list[go.Scatter]:
    return [
        go.Scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=kind,
            hoverinfo="skip",
            marker={"color": KIND_COLOURS[kind], "symbol": KIND_SYMBOLS[kind], "size": 9},
        )
        for kind in KINDS
    ]


def _identity(comparable: bool) -> list[go.Scatter]:
    if not comparable:
        return []
    line = go.Scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines+text",
        text=["", "y = x"],
        textposition="top left",
        showlegend=False,
        line={"color": NEUTRAL, "width": 1, "dash": "dash"},
        textfont={"color": NEUTRAL},
        hoverinfo="skip",
    )
    return [line]


def _selector_layout(profile: HeadProfile, chosen: tuple[str, str, str], theme: Theme) -> dict[str, Any]:
    menus = [
        _axis_menu(profile, "x", chosen[0]),
        _axis_menu(profile, "y", chosen[1]),
        _colour_menu(profile, chosen[2], theme),
    ]
    looks = palette(theme)
    for index, menu in enumerate(menus):
        menu.update(
            x=index / 3,
            xanchor="left",
            y=1.02,
            yanchor="bottom",
            bgcolor=looks.background,
            bordercolor=looks.axis,
            font={"size": 11, "color": looks.text},
            pad={"t": 0, "r": 0},
            showactive=True,
        )
    labels = [
        {
            "text": text,
            "x": index / 3,
            "y": 1.02,
            "yshift": 34,
            "xref": "paper",
            "yref": "paper",
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "bottom",
            "font": {"size": 11, "color": looks.muted},
        }
        for index, text in enumerate(("Horizontal", "Vertical", "Colour"))
    ]
    return {"updatemenus": menus, "annotations": labels, "margin": {"t": 120}, "height": 600}


def _axis_menu(profile: HeadProfile, axis: str, chosen: str) -> dict[str, Any]:
    names = _names_first(chosen)
    buttons = [
        {
            "label": describe(name).label,
            "method": "update",
            "args": [
                {axis: [head_values(profile, name).ravel()]},
                {f"{axis}axis.title.text": describe(name).label},
                [_POINTS],
            ],
        }
        for name in names
    ]
    return {"buttons": buttons, "active": 0}


def _colour_menu(profile: HeadProfile, chosen: str, theme: Theme) -> dict[str, Any]:
    buttons = []
    for name in _names_first(chosen, ("kind", *QUANTITIES)):
        colouring = _colouring(profile, name, theme)
        marker = colouring["trace"]["marker"]
        points = {f"marker.{key}": [marker[key]] for key in ("color", "symbol", "coloraxis")}
        points["marker.line.width"] = [marker["line"]["width"]]
        layout = {"coloraxis": colouring["coloraxis"], "showlegend": name == "kind"}
        label = KIND_LABEL if name == "kind" else describe(name).label
        buttons.append({"label": label, "method": "update", "args": [points, layout, [_POINTS]]})
    return {"buttons": buttons, "active": 0}


def _names_first(chosen: str, names: Sequence[str] = QUANTITIES) -> list[str]:
    """All names, the chosen one first, where a menu shows it as active."""
    return [chosen, *(name for name in names if name != chosen)]
