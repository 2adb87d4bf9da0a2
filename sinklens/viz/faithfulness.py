"""Faithfulness: curves over the removed fraction with bands, and paired differences between metrics."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sinklens.errors import InputError
from sinklens.results.faithfulness import FaithfulnessEffect, FaithfulnessResult
from sinklens.viz.layout import band
from sinklens.viz.theme import COLORWAY, NEUTRAL, Theme, palette, template

METRIC_LABELS = {
    "attention": "attention A",
    "value_weighted": "value-weighted A·‖ṽ‖",
    "output_normalized": "output-normalised A·‖ṽ‖/‖o‖",
    "intra": "contribution within the head",
    "inter": "contribution within the layer",
    "random": "random",
}
# On a horizontal axis, where a long name would be turned.
_TICKS = {
    "attention": "attention",
    "value_weighted": "value-<br>weighted",
    "output_normalized": "output-<br>normalised",
    "intra": "within<br>the head",
    "inter": "within<br>the layer",
    "random": "random",
}
_COLOURS = dict(zip(METRIC_LABELS, (*COLORWAY[:5], NEUTRAL), strict=True))
_DASHES = {"random": "dot", "output_normalized": "dash", "intra": "dashdot"}
_TITLES = {
    "comprehensiveness": "<b>Comprehensiveness</b>: the top removed, higher is better",
    "sufficiency": "<b>Sufficiency</b>: the bottom removed, lower is better",
}
_UNITS = {"delta_loss": "Δ loss (nats per token)", "delta_perplexity": "Δ perplexity"}


def faithfulness_curves(
    result: FaithfulnessResult,
    effect: FaithfulnessEffect = "delta_loss",
    *,
    mode: str | None = None,
    log_fraction: bool = True,
    theme: Theme = "light",
) -> go.Figure:
    """An effect against the fraction removed: one panel per mode, one line per metric, its 95 % interval as a band.

    Args:
        result: from :func:`sinklens.faithfulness`.
        effect: ``delta_loss`` or ``delta_perplexity``.
        mode: of one mode only.
        log_fraction: whether fractions are on a logarithmic axis; a fraction of 0 cannot be shown on it.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a line and a band per metric and mode.

    Raises:
        InputError: there is no such effect, mode or theme.

    Example:
        >>> import torch
        >>> from sinklens.results.provenance import Provenance
        >>> loss, one = torch.ones(1, 1, 2, 3).double(), torch.ones(3).double()
        >>> result = FaithfulnessResult(("inter",), ("sufficiency",), (0.1, 0.5), loss, loss, loss, one, one, Provenance("tiny"))
        >>> len(faithfulness_curves(result).data)
        2
    """
    values, bounds = result.effect(effect).numpy(), result.interval(effect).numpy()
    modes = _modes(result, mode)
    figure = _panels(modes)
    for column, name in enumerate(modes):
        for row, metric in enumerate(result.metrics):
            at = row, result.modes.index(name)
            low, high = bounds[at].T
            traces = [
                band(result.fractions, low, high, _COLOURS[metric], metric),
                _line(metric, result.fractions, values[at], low, high),
            ]
            traces[1].showlegend = column == 0
            figure.add_traces(traces, rows=1, cols=column + 1)
    figure.update_xaxes(_fraction_axis(result.fractions, log_fraction))
    figure.update_yaxes(title=_UNITS[effect], col=1)
    figure.update_layout(
        template=template(theme),
        title=f"What removing terms by each metric costs: {result.provenance.model_name}",
        height=440,
        legend={"orientation": "h", "y": -0.22, "groupclick": "togglegroup"},
    )
    return figure


def _modes(result: FaithfulnessResult, mode: str | None) -> tuple[str, ...]:
    if mode is not None and mode not in result.modes:
        raise InputError(f"mode {mode!r} was not measured; there are {', '.join(result.modes)}")
    return result.modes if mode is None else (mode,)


def _panels(modes: Sequence[str]) -> go.Figure:
    figure = make_subplots(1, len(modes), subplot_titles=[_TITLES[mode] for mode in modes])
    return figure.update_annotations(font={"size": 12.5})


def _line(metric: str, fractions: Sequence[float], values: np.ndarray, low: np.ndarray, high: np.ndarray) -> go.Scatter:
    return go.Scatter(
        x=list(fractions),
        y=values,
        customdata=np.stack([low, high], -1),
        name=METRIC_LABELS[metric],
        legendgroup=metric,
        mode="lines+markers",
        line={"color": _COLOURS[metric], "width": 2, "dash": _DASHES.get(metric, "solid")},
        hovertemplate=f"{METRIC_LABELS[metric]}<br>%{{x:.3~p}} removed<br>%{{y:.3f}} "
        "[%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
    )


def _fraction_axis(fractions: Sequence[float], log_fraction: bool) -> dict[str, object]:
    ticks = {"tickvals": list(fractions), "ticktext": [f"{100 * fraction:g} %" for fraction in fractions]}
    return {"title": "Share of terms removed", "type": "log" if log_fraction else "linear", **ticks}


def faithfulness_differences(
    result: FaithfulnessResult,
    reference: str = "attention",
    effect: FaithfulnessEffect = "delta_loss",
    *,
    fraction: float | None = None,
    mode: str | None = None,
    metrics: Sequence[str] | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Each metric minus a reference, paired by document, with its 95 % interval: one panel per mode, one bar per metric.

    Args:
        result: from :func:`sinklens.faithfulness`.
        reference: the metric that is subtracted.
        effect: ``delta_loss`` or ``delta_perplexity``.
        fraction: of which fraction; None for AOPC, the mean over all.
        mode: of one mode only.
        metrics: only these; None for all.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a bar trace per mode.

    Raises:
        InputError: there is no such metric, effect, fraction, mode or theme, or no metric beside the reference.

    Example:
        >>> import torch
        >>> from sinklens.results.provenance import Provenance
        >>> loss, one = torch.ones(2, 1, 1, 3).double(), torch.ones(3).double()
        >>> result = FaithfulnessResult(
        ...     ("attention", "inter"), ("sufficiency",), (0.5,), loss, loss, loss, one, one, Provenance("tiny"))
        >>> faithfulness_differences(result).data[0].y.tolist()
        [0.0]
    """
    if fraction is not None and fraction not in result.fractions:
        raise InputError(
            f"fraction {fraction!r} was not measured; there are {', '.join(f'{f:g}' for f in result.fractions)}"
        )
    table = _compared(result, reference, effect, fraction, metrics)
    modes = _modes(result, mode)
    figure = _panels(modes)
    for column, name in enumerate(modes, start=1):
        rows = table.loc[table["mode"] == name]
        figure.add_trace(_bar(rows, theme), row=1, col=column)
    what = "mean over fractions (AOPC)" if fraction is None else f"{100 * fraction:g} % removed"
    shown = list(dict.fromkeys(table["metric"]))
    figure.update_xaxes(
        tickvals=[METRIC_LABELS[metric] for metric in shown], ticktext=[_TICKS[metric] for metric in shown]
    )
    figure.update_xaxes(tickangle=0, showgrid=False)
    figure.update_yaxes(title=_UNITS[effect], col=1)
    figure.update_layout(
        template=template(theme),
        height=440,
        bargap=0.35,
        title=f"Difference from {METRIC_LABELS[reference]}, paired by document: {what}",
    )
    return figure


def _compared(
    result: FaithfulnessResult,
    reference: str,
    effect: FaithfulnessEffect,
    fraction: float | None,
    metrics: Sequence[str] | None,
) -> pd.DataFrame:
    """The differences that are shown."""
    table = result.differences(reference, effect, aopc=fraction is None)
    table = table if fraction is None else table.loc[table["fraction"] == fraction]
    table = table if metrics is None else table.loc[table["metric"].isin(list(metrics))]
    if table.empty:
        raise InputError(f"the result holds no metric beside {reference!r}; measure at least two")
    return pd.DataFrame(table)


def _bar(rows: pd.DataFrame, theme: Theme) -> go.Bar:
    """One mode's bars with their intervals."""
    names = [METRIC_LABELS[metric] for metric in rows["metric"]]
    difference, low, high = rows[["difference", "low", "high"]].to_numpy().T
    return go.Bar(
        x=names,
        y=difference,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": high - difference,
            "arrayminus": difference - low,
            "color": palette(theme).text,
            "thickness": 1.5,
        },
        marker={"color": [_COLOURS[metric] for metric in rows["metric"]]},
        customdata=np.stack([low, high], -1),
        hovertemplate="%{x}<br>%{y:+.3f} [%{customdata[0]:+.3f}, %{customdata[1]:+.3f}]<extra></extra>",
        showlegend=False,
    )
