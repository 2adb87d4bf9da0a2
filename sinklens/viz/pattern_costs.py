"""What patterns cost at least by number of tokens: the theory alone."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from sinklens.errors import InputError
from sinklens.theory import ScalingFit
from sinklens.viz.layout import LEGEND_ABOVE
from sinklens.viz.theme import COLORWAY, KIND_COLOURS, KIND_SYMBOLS, Theme, template

_PATTERN_LABELS = {
    "sink": "sink",
    "diagonal": "diagonal",
    "previous": "previous token",
    "backcopy": "back-copy",
}
_PATTERN_COLOURS = {
    "sink": KIND_COLOURS["sink"],
    "diagonal": KIND_COLOURS["diagonal"],
    "previous": KIND_COLOURS["previous"],
    "backcopy": COLORWAY[3],
}
# A previous-token pattern costs nearly what a diagonal does: its points lie on top and must not hide the others.
_SIZES = {"diagonal": 12, "previous": 7}


def pattern_costs(fits: Mapping[str, ScalingFit], what: str = "", *, theme: Theme = "light") -> go.Figure:
    """What patterns cost over the number of tokens, on logarithmic axes, each with its fitted power law.

    Args:
        fits: by pattern, from :func:`sinklens.theory.cost_scaling`.
        what: of the setting, for the axis: for example ``"nuclear, scaled, full"``.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with points and a line per pattern; the legend gives exponents.

    Raises:
        InputError: there is no fit, or no such theme.

    Example:
        >>> from sinklens.theory import cost_scaling
        >>> figure = pattern_costs({"sink": cost_scaling([256, 1024, 4096], "sink")})
        >>> figure.data[0].name
        'sink: T<sup>1.00</sup>'
    """
    if not fits:
        raise InputError("no fits to show; pass at least one from sinklens.theory.cost_scaling")
    figure = go.Figure()
    for number, (name, fit) in enumerate(fits.items()):
        colour = _PATTERN_COLOURS.get(name, COLORWAY[number % len(COLORWAY)])
        label = f"{_PATTERN_LABELS.get(name, name)}: T<sup>{fit.exponent:.2f}</sup>"
        ends = np.array([min(fit.lengths), max(fit.lengths)], dtype=float)
        figure.add_trace(
            go.Scatter(
                x=fit.lengths,
                y=fit.costs,
                name=label,
                mode="markers",
                legendgroup=name,
                marker={"color": colour, "symbol": KIND_SYMBOLS.get(name, "diamond"), "size": _SIZES.get(name, 9)},
                hovertemplate="T = %{x}: %{y:.4g}",
            )
        )
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=fit.prefactor * ends**fit.exponent,
                mode="lines",
                showlegend=False,
                legendgroup=name,
                line={"color": colour, "width": 1.5},
                hoverinfo="skip",
            )
        )
    lengths = _tick_lengths(fits)
    figure.update_layout(
        template=template(theme),
        title="Least cost of a pattern by number of tokens",
        height=420,
        xaxis={"title": "Tokens T", "type": "log", "tickvals": lengths, "ticktext": [str(n) for n in lengths]},
        yaxis={"title": f"Least cost{f' ({what})' if what else ''}", "type": "log", "dtick": 1, "tickformat": "~s"},
        **LEGEND_ABOVE,
    )
    return figure


def _tick_lengths(fits: Mapping[str, ScalingFit]) -> list[int]:
    """Lengths that are named on the axis: all, or as many as have room."""
    lengths = sorted({length for fit in fits.values() for length in fit.lengths})
    step = -(-len(lengths) // 9)
    return lengths[::step]
