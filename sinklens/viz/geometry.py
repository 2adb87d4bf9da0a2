"""Sink geometry over depth: cosines, margins and massive activations, before and behind the norm."""

from collections.abc import Sequence

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from sinklens.errors import InputError
from sinklens.results.geometry import ATTENTION_INPUT, RESIDUAL, SPACES, SinkGeometry, space_index
from sinklens.viz.layout import LEGEND_ABOVE, band, layers_below
from sinklens.viz.theme import COLORWAY, NEUTRAL, Theme, palette, template

SPACE_LABELS = {RESIDUAL: "Residual stream", ATTENTION_INPUT: "What attention reads"}
# Quantity, label, colour, dash.
_COSINES = (
    ("cosine_mean", "mean, all dimensions", COLORWAY[0], "solid"),
    ("cosine_mean_without", "mean, without massive dimensions", COLORWAY[1], "dash"),
    ("cosine_max", "largest, all dimensions", NEUTRAL, "dot"),
)
_MARGINS = (
    ("query_margin", "queries' half-space", COLORWAY[0], "solid"),
    ("key_margin", "sink's key apart", COLORWAY[2], "solid"),
    ("witness_margin", "a bᵀ plugged in", COLORWAY[4], "dash"),
    ("anti_alignment_margin", "−x xᵀ of the sink plugged in", COLORWAY[1], "dot"),
)


def geometry_cosines(result: SinkGeometry, *, space: str | None = None, theme: Theme = "light") -> go.Figure:
    """Cosine of the sink with the other tokens over depth, with and without massive dimensions: one panel per space.

    Args:
        result: from :func:`sinklens.sink_geometry`.
        space: ``"residual"`` or ``"attention_input"`` alone; None for both.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a line, the mean over documents, and a band, its 95 % interval, per quantity and space; no line
        without massive dimensions where there is none.

    Raises:
        InputError: there is no such space or theme.

    Example:
        >>> import torch
        >>> from sinklens.results.provenance import Provenance
        >>> names = ("cosine_mean", "cosine_mean_without", "cosine_max")
        >>> values = {name: torch.zeros(2, 2, 3, dtype=torch.float64) for name in names}
        >>> len(geometry_cosines(SinkGeometry(values, (0, 1), Provenance("tiny"))).data)
        8
    """
    title = f"Is the sink opposed to the other tokens? Its cosine with them in {result.provenance.model_name}"
    # Where nothing is massive, nothing was left out.
    same = torch.equal(*(result.mean(name).nan_to_num() for name in ("cosine_mean", "cosine_mean_without")))
    figure = _panels(result, space, _COSINES[::2] if same else _COSINES, title, theme)
    return figure.update_yaxes(range=[-1.05, 1.05], dtick=0.5).update_yaxes(title="Cosine with the sink", col=1)


def geometry_margins(result: SinkGeometry, *, space: str | None = None, theme: Theme = "light") -> go.Figure:
    """How comfortably a sink is representable over depth: one panel per space; above 0 it is.

    Args:
        result: from :func:`sinklens.sink_geometry`.
        space: ``"residual"`` or ``"attention_input"`` alone; None for both.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a line and a band per margin and space.

    Raises:
        InputError: there is no such space or theme.

    Example:
        >>> import torch
        >>> from sinklens.results.provenance import Provenance
        >>> names = ("query_margin", "key_margin", "witness_margin", "anti_alignment_margin")
        >>> values = {name: torch.zeros(2, 2, 3, dtype=torch.float64) for name in names}
        >>> len(geometry_margins(SinkGeometry(values, (0, 1), Provenance("tiny")), space="residual").data)
        8
    """
    title = f"Is a sink representable? Margins in {result.provenance.model_name}, above 0 where it is"
    figure = _panels(result, space, _MARGINS, title, theme).update_yaxes(title="Margin, no unit", col=1)
    # Of both spaces, so that panels can be compared when they stand alone.
    figures = torch.cat([torch.cat([result.mean(name)[..., None], result.interval(name)], -1) for name, *_ in _MARGINS])
    known = torch.cat([torch.zeros(1, dtype=figures.dtype), figures[figures.isfinite()]])
    low, high = known.min().item(), known.max().item()
    pad = 0.06 * (high - low) or 0.1
    return figure.update_yaxes(range=[low - pad, high + pad])


def massive_lines(result: SinkGeometry, *, theme: Theme = "light") -> go.Figure:
    """The largest activation over the median one, over depth, in both spaces; the dotted line is the criterion's multiple.

    Args:
        result: from :func:`sinklens.sink_geometry`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a line and a band per space.

    Raises:
        InputError: there is no such theme.

    Example:
        >>> import torch
        >>> from sinklens.results.provenance import Provenance
        >>> values = {"largest_ratio": torch.ones(2, 2, 3, dtype=torch.float64)}
        >>> len(massive_lines(SinkGeometry(values, (0, 1), Provenance("tiny"))).data)
        4
    """
    figure = go.Figure()
    for space, colour in zip(SPACES, COLORWAY, strict=False):
        figure.add_traces(_line(result, space, ("largest_ratio", SPACE_LABELS[space].lower(), colour, "solid"), ".3~s"))
    _style(figure, result, f"How massive the largest activation is in {result.provenance.model_name}", theme)
    ratio = result.provenance.conventions.get("massive_ratio")
    if ratio:
        label = {"text": f"{ratio:g} × the median", "font": {"color": palette(theme).muted, "size": 11}}
        figure.add_hline(
            y=ratio,
            line={"color": NEUTRAL, "width": 1, "dash": "dot"},
            label=label | {"textposition": "end", "yanchor": "top"},
        )
    return figure.update_yaxes(title="Largest / median magnitude", type="log", dtick=1)


def _panels(
    result: SinkGeometry, space: str | None, lines: Sequence[tuple[str, str, str, str]], title: str, theme: Theme
) -> go.Figure:
    if space is not None:
        space_index(space)
    spaces = SPACES if space is None else (space,)
    headings = [f"<b>{SPACE_LABELS[each]}</b>" for each in spaces]
    figure = make_subplots(1, len(spaces), shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=headings)
    figure.update_annotations(font={"size": 12.5})
    for column, each in enumerate(spaces, start=1):
        for line in lines:
            traces = _line(result, each, line, "+.3f")
            traces[1].showlegend = column == 1
            figure.add_traces(traces, rows=1, cols=column)
    figure.add_hline(y=0, line={"color": palette(theme).axis, "width": 1})
    _style(figure, result, title, theme)
    return figure.update_layout(legend={"orientation": "h", "y": -0.2, "yanchor": "top"}, margin={"t": 84})


def _line(result: SinkGeometry, space: str, line: tuple[str, str, str, str], number: str) -> list[go.Scatter]:
    """The mean over documents, and its interval as a band."""
    name, label, colour, dash = line
    curve = result.curve(name, space)
    known = curve.dropna()
    around = band(known["layer"], known["low"].to_numpy(), known["high"].to_numpy(), colour, label)
    drawn = go.Scatter(
        x=curve["layer"], y=curve["mean"], customdata=curve[["low", "high"]].to_numpy(), name=label, legendgroup=label,
        mode="lines+markers", line={"color": colour, "width": 2, "dash": dash}, marker={"size": 4},
        hovertemplate=f"{label}<br>layer %{{x}}: %{{y:{number}}} [%{{customdata[0]:{number}}}, "
        f"%{{customdata[1]:{number}}}]<extra></extra>",
    )  # fmt: skip
    return [around, drawn]


def _style(figure: go.Figure, result: SinkGeometry, title: str, theme: Theme) -> None:
    if not result.layers:
        raise InputError("the result holds no layer")
    figure.update_layout(template=template(theme), title=title, height=440, **LEGEND_ABOVE)
    figure.update_xaxes(**layers_below(result.layers, 0.4))
