"""Suppression curves: how long a head's output would be for any mass on its sink (arXiv 2606.07604)."""

from collections.abc import Sequence

import plotly.graph_objects as go
import torch

from sinklens.errors import InputError
from sinklens.results import HeadProfile
from sinklens.results.labels import check_head, layer_index
from sinklens.viz.theme import COLORWAY, NEUTRAL, Theme, template

_GRID = torch.linspace(0, 1, 101)


def strongest_sink_heads(profile: HeadProfile, n: int = 6) -> list[tuple[int, int]]:
    """The heads with the most attention on the sink among those that have a suppression curve.

    Args:
        profile: from :func:`sinklens.head_profile`.
        n: at most so many.

    Returns:
        ``(layer, head)`` pairs, strongest first.

    Raises:
        InputError: ``n`` is less than 1.

    Example:
        >>> from sinklens.results import HeadProfile, Provenance
        >>> strongest_sink_heads(HeadProfile(*HeadProfile.empty(3, 5), (0, 1, 2), Provenance("tiny")))
        []
    """
    if n < 1:
        raise InputError(f"cannot show {n} heads; n must be at least 1")
    has_curve = profile.mean("other_squared").isfinite() & profile.sink_mass.isfinite()
    mass = profile.sink_mass.masked_fill(~has_curve, -1.0).flatten()
    order = mass.argsort(descending=True, stable=True)[:n].tolist()
    return [(profile.layers[i // profile.n_heads], i % profile.n_heads) for i in order if mass[i] >= 0]


def suppression_curves(
    profile: HeadProfile,
    heads: Sequence[tuple[int, int]] | None = None,
    n: int = 6,
    *,
    normalize: bool = True,
    theme: Theme = "light",
) -> go.Figure:
    """``N(α)``, the length of a head's output as a function of the mass on its sink, for some heads.

    A diamond marks the least length, at ``α*``; a ring marks the mean sink mass that the head really has.
    The curve is the root mean square over queries (:meth:`~sinklens.results.HeadProfile.norm_curve`), and so
    is its minimum.

    Args:
        profile: from :func:`sinklens.head_profile`.
        heads: ``(layer, head)`` pairs; by default the ``n`` heads with the most attention on the sink.
        n: how many heads by default.
        normalize: divide each curve by its value without a sink, ``N(0)``.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with three traces per head: curve, minimum, actual mass.

    Raises:
        InputError: there is no such layer, head or theme, or ``n`` is less than 1.

    Example:
        >>> from sinklens.results import HeadProfile, Provenance
        >>> profile = HeadProfile(*HeadProfile.empty(3, 5), (0, 1, 2), Provenance("tiny"))
        >>> len(suppression_curves(profile, [(2, 4)]).data)
        5
    """
    chosen = strongest_sink_heads(profile, n) if heads is None else list(heads)
    figure = go.Figure()
    for index, (layer, head) in enumerate(chosen):
        figure.add_traces(_curve(profile, layer, head, normalize, COLORWAY[index % len(COLORWAY)]))
    if chosen:
        figure.add_traces(_marker_legend())
    else:
        figure.add_annotation(text="No head has a sink with attention and other tokens beside it", showarrow=False)
    unit = "Output norm ÷ norm without a sink" if normalize else "Output norm (units of the residual stream)"
    figure.update_layout(
        template=template(theme),
        title="Output norm against the mass on the sink",
        height=440,
        xaxis={"title": "Mass on the sink α", "range": [-0.01, 1.01], "zeroline": False},
        # Curves of strong sinks differ near their minimum only, where a linear axis lays them on top of each other.
        yaxis={"title": f"{unit}, log scale", "type": "log"},
        legend={"itemclick": "toggle", "groupclick": "togglegroup"},
    )
    return figure


def _curve(profile: HeadProfile, layer: int, head: int, normalize: bool, colour: str) -> list[go.Scatter]:
    row, column = layer_index(profile.layers, layer), check_head(profile.n_heads, head)
    star, actual = profile.pooled_alpha_star[row, column].item(), profile.sink_mass[row, column].item()
    # Outside of 0 to 1 the least norm lies at an end; NaN stays NaN and is not drawn.
    marks = torch.tensor([min(max(star, 0.0), 1.0) if star == star else star, actual])
    norms = profile.norm_curve(layer, head, torch.cat([_GRID, marks])).numpy()
    norms = norms / norms[0] if normalize else norms
    group, name = f"{layer}.{head}", f"layer {layer} · head {head}"
    where = "interior" if 0 < star < 1 else "at an end" if star == star else "not defined"
    line = go.Scatter(
        x=_GRID.numpy(),
        y=norms[:-2],
        mode="lines",
        name=f"{name}<br>α* {star:.2f} ({where})",
        legendgroup=group,
        line={"color": colour, "width": 2},
        hovertemplate=f"{name}<br>α %{{x:.2f}}<br>norm %{{y:.3f}}<extra></extra>",
    )
    spots = (("diamond", f"least norm at α* {star:.3f}"), ("circle-open", f"actual mean mass {actual:.3f}"))
    return [line] + [
        go.Scatter(
            x=marks[i : i + 1].numpy(),
            y=norms[len(_GRID) + i :][:1],
            mode="markers",
            legendgroup=group,
            showlegend=False,
            marker={"symbol": symbol, "size": 10, "color": colour, "line": {"width": 2.5, "color": colour}},
            hovertemplate=f"{name}<br>{text}<br>norm %{{y:.3f}}<extra></extra>",
        )
        for i, (symbol, text) in enumerate(spots)
    ]


def _marker_legend() -> list[go.Scatter]:
    entries = (("diamond", "least norm, at α*"), ("circle-open", "actual mean mass"))
    return [
        go.Scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=name,
            hoverinfo="skip",
            legendgroup="marks",
            marker={"symbol": symbol, "size": 9, "color": NEUTRAL, "line": {"width": 2, "color": NEUTRAL}},
        )
        for symbol, name in entries
    ]
