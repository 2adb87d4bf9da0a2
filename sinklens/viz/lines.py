"""Quantities from layer to layer: the mean over heads as a line, and a band of the heads around it."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from sinklens.errors import InputError
from sinklens.results import DriftProfile, HeadProfile
from sinklens.results.ablation import AblatedDrift
from sinklens.viz.layout import LEGEND_ABOVE, band, layers_below
from sinklens.viz.quantities import describe, head_values
from sinklens.viz.theme import COLORWAY, Theme, template

_BAND = (0.1, 0.9)
_DRIFTS = (("cone_with", "as it is"), ("cone_without", "sink's term subtracted"))


def layer_lines(
    profile: HeadProfile, quantities: Sequence[str] = ("sink_mass", "sink_intra"), *, theme: Theme = "light"
) -> go.Figure:
    """Quantities from layer to layer: the mean over heads, and a band with the middle 80 % of the heads.

    Args:
        profile: from :func:`sinklens.head_profile`.
        quantities: names as for :func:`head_map`, without ``"kind"``.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a line and a band per quantity.

    Raises:
        InputError: no quantity is given, or there is no such quantity or theme.

    Example:
        >>> from sinklens.results import HeadProfile, Provenance
        >>> profile = HeadProfile(*HeadProfile.empty(3, 5), (0, 1, 2), Provenance("tiny"))
        >>> [trace.name for trace in layer_lines(profile, ["sink_mass"]).data]
        ['middle 80 % of heads', 'Attention on the sink']
    """
    if not quantities:
        raise InputError("no quantities to show; name at least one, such as sink_mass")
    lines = [(describe(quantity).label, head_values(profile, quantity)) for quantity in quantities]
    return _by_layer(profile.layers, lines, "Mean over heads, layer by layer", theme)


def drift_lines(drift: DriftProfile | AblatedDrift, *, theme: Theme = "light") -> go.Figure:
    """Semantic drift from layer to layer: ``cos(o_i, m)`` with the sink's term, without it, and with sinks zeroed.

    A line that rises when the sink is gone says that head outputs fall into the cone of the other tokens' values
    (arXiv 2606.07604, operational form ours).

    Args:
        drift: from :func:`sinklens.drift_without_sinks`, or a profile of :class:`sinklens.DriftAnalyzer`, which has no
            line for the intervention.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a line, the mean over heads, and a band, the middle 80 % of the heads, per condition.

    Raises:
        InputError: there is no such theme.

    Example:
        >>> from sinklens.results import Provenance
        >>> profile = DriftProfile(*DriftProfile.empty(3, 5), (0, 1, 2), Provenance("tiny"))
        >>> [trace.name for trace in drift_lines(profile).data[1::2]]
        ['as it is', "sink's term subtracted"]
    """
    clean = drift.clean if isinstance(drift, AblatedDrift) else drift
    lines = [(label, clean.mean(name).numpy()) for name, label in _DRIFTS]
    if isinstance(drift, AblatedDrift):
        lines.append(("sinks zeroed in the pass", drift.ablated.mean("cone_with").numpy()))
    figure = _by_layer(clean.layers, lines, "Cosine of head outputs with the other tokens' mean value", theme)
    return figure.update_yaxes(title="cos(o, m)")


def _by_layer(layers: Sequence[int], lines: Sequence[tuple[str, np.ndarray]], title: str, theme: Theme) -> go.Figure:
    figure = go.Figure()
    for index, (label, values) in enumerate(lines):
        figure.add_traces(_line_with_band(layers, label, values, COLORWAY[index % len(COLORWAY)]))
    figure.update_layout(
        template=template(theme),
        title=title,
        hovermode="x unified",
        height=360,
        xaxis=layers_below(layers, 0.4),
        **LEGEND_ABOVE,
    )
    return figure


def _line_with_band(layers: Sequence[int], label: str, values: np.ndarray, colour: str) -> list[go.Scatter]:
    has_value = ~np.isnan(values).all(1)
    mean, (low, high) = np.full(len(layers), np.nan), np.full((2, len(layers)), np.nan)
    if has_value.any():
        mean[has_value] = np.nanmean(values[has_value], 1)
        low[has_value], high[has_value] = np.nanquantile(values[has_value], _BAND, axis=1)
    low, high = low[has_value].astype(np.float32), high[has_value].astype(np.float32)
    around = band(np.array(layers)[has_value], low, high, colour, label, name="middle 80 % of heads")
    line = go.Scatter(
        x=np.array(layers),
        y=mean.astype(np.float32),
        name=label,
        mode="lines+markers",
        legendgroup=label,
        line={"color": colour, "width": 2},
        marker={"size": 5},
        hovertemplate="%{y:.4g}",
    )
    return [around, line]
