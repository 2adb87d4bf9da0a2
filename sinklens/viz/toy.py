"""Toys while they learn: losses beside the least possible ones, where attention goes, value drain and norms, and comparisons."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sinklens.errors import InputError
from sinklens.results.toy_history import GOALS, ToyHistory
from sinklens.viz.theme import COLORWAY, KIND_COLOURS, NEUTRAL, Theme, template

_MASSES = (
    ("sink_mass", "first position", KIND_COLOURS["sink"]),
    ("learned_sink_mass", "learned null key", KIND_COLOURS["learned sink"]),
    ("self_mass", "itself", KIND_COLOURS["diagonal"]),
    ("target_mass", "token to copy", KIND_COLOURS["previous"]),
)
_SIDES = (("dormant", "<b>Dormant queries</b>"), ("active", "<b>Active queries</b>"))
_COSTS = (
    ("value_drain", "<b>Value drain</b>: ‖ṽ<sub>s</sub>‖ ÷ mean ‖ṽ<sub>j</sub>‖"),
    ("output_ratio", "<b>Head output</b>: ‖o‖ dormant ÷ active"),
    ("qk_nuclear", "<b>W<sub>QK</sub></b>, nuclear norm"),
    ("vo_nuclear", "<b>W<sub>VO</sub></b>, nuclear norm"),
)
_FINALS = {
    "sink_mass_dormant": "sink mass,<br>dormant",
    "learned_sink_mass_dormant": "learned sink,<br>dormant",
    "self_mass_dormant": "self mass,<br>dormant",
    "target_mass_active": "target mass,<br>active",
    "value_drain": "value drain",
    "output_ratio": "‖o‖ dormant<br>÷ active",
    "excess_active": "loss over the<br>least, active",
    "excess_dormant": "loss over the<br>least, dormant",
}
_LEGEND: dict[str, Any] = {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0, "groupclick": "togglegroup"}
_STEPS = {"title": "Step of training", "zeroline": False, "showgrid": False}


def toy_losses(history: ToyHistory, *, theme: Theme = "light") -> go.Figure:
    """Loss on active and on dormant tokens over training, beside the least that is possible (dotted).

    Args:
        history: from :func:`sinklens.toy.train_toy`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a line for every run and panel, coloured by group.

    Raises:
        InputError: there is no such theme.

    Example:
        >>> from sinklens.toy import load_toy
        >>> [trace.name for trace in toy_losses(load_toy().history).data if trace.showlegend]
        ['least possible', 'bos']
    """
    figure = make_subplots(
        1, 2, subplot_titles=["<b>Active</b>: the next token is a copy", "<b>Dormant</b>: the next token is drawn"]
    )
    ends = [history.steps[0], history.steps[-1]]
    for column, (side, bounds) in enumerate(
        (("active", [0.0]), ("dormant", history.final("optimal_dormant").tolist())), 1
    ):
        for bound in dict.fromkeys(round(bound, 3) for bound in bounds):  # runs of one seed have the same
            dotted = _line(ends, [bound, bound], NEUTRAL, "least possible", width=1.5, dash="dot", hover=f"{bound:.3f}")
            figure.add_trace(dotted.update(legendrank=2000, showlegend=column == 1), 1, column)
        for group, rows, colour in _groups(history):
            for row in rows:
                line = _line(history.steps, history.of(f"loss_{side}")[row], colour, group, run=history.labels[row])
                figure.add_trace(line.update(showlegend=column == 1 and row == rows[0]), 1, column)
    figure.update_xaxes(_STEPS)
    figure.update_yaxes(rangemode="tozero", zeroline=False)
    figure.update_yaxes(title="Cross-entropy (nats per token)", col=1)
    return _finished(figure, f"What the toy has learned: {_task(history)}", theme)


def toy_masses(history: ToyHistory, run: int = 0, *, theme: Theme = "light") -> go.Figure:
    """Where the head's attention goes over training, for dormant and for active queries.

    Args:
        history: from :func:`sinklens.toy.train_toy`.
        run: which of its runs.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a panel for each kind of query; a null key has a line where the model has one.

    Raises:
        InputError: there is no such run or theme.

    Example:
        >>> from sinklens.toy import load_toy
        >>> [trace.name for trace in toy_masses(load_toy().history).data if trace.showlegend]
        ['first position', 'itself', 'token to copy']
    """
    if not 0 <= run < len(history.settings):
        raise InputError(f"no run {run}; the history has runs 0 to {len(history.settings) - 1}")
    figure = make_subplots(
        1, 2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=[title for _, title in _SIDES]
    )
    for column, (side, _) in enumerate(_SIDES, 1):
        for name, label, colour in _MASSES:
            values = history.of(f"{name}_{side}")[run]
            if name == "learned_sink_mass" and not bool((values > 1e-3).any()):
                continue
            line = _line(history.steps, values, colour, label, width=2.5)
            line.showlegend = column == 1
            figure.add_trace(line, 1, column)
    figure.update_xaxes(_STEPS)
    figure.update_yaxes(range=[-0.02, 1.02], zeroline=False)
    figure.update_yaxes(title="Mean attention", col=1)
    return _finished(figure, f"Where attention goes: {_task(history)}, {history.labels[run]}", theme)


def toy_costs(history: ToyHistory, *, theme: Theme = "light") -> go.Figure:
    """Value drain, how much shorter the head's output is at dormant queries, and the norms of its two maps, over training.

    Args:
        history: from :func:`sinklens.toy.train_toy`.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with four panels and a line for every run, coloured by group.

    Raises:
        InputError: there is no such theme.

    Example:
        >>> from sinklens.toy import load_toy
        >>> len(toy_costs(load_toy().history).data)
        4
    """
    figure = make_subplots(2, 2, subplot_titles=[title for _, title in _COSTS], vertical_spacing=0.16)
    for group, rows, colour in _groups(history):
        for place, (name, _) in enumerate(_COSTS):
            for row in rows:
                line = _line(history.steps, _quantity(history, name)[row], colour, group, run=history.labels[row])
                line.showlegend = place == 0 and row == rows[0] and len(history.settings) > 1
                figure.add_trace(line, place // 2 + 1, place % 2 + 1)
    goal = next(bound for name, _, bound in GOALS if name == "value_drain")
    figure.add_hline(goal, row=1, col=1, line={"color": NEUTRAL, "dash": "dot", "width": 1.5})  # type: ignore[arg-type]
    figure.update_xaxes({**_STEPS, "title": None})
    figure.update_xaxes(title="Step of training", row=2)
    figure.update_yaxes(rangemode="tozero", zeroline=False)
    figure = _finished(figure, f"Value drain, output and norms: {_task(history)}", theme)
    return figure.update_layout(height=560, legend={**_LEGEND, "y": -0.12})


def toy_comparison(
    history: ToyHistory, quantities: Sequence[str] | None = None, *, theme: Theme = "light"
) -> go.Figure:
    """Groups of runs side by side at the end of training: a dot for each run, a line at the mean of its group.

    Args:
        history: of several runs, put together with ``merge``.
        quantities: of the history, or ``output_ratio``, ``excess_active``, ``excess_dormant``; by default a choice.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A figure with a panel for each quantity and a row for each group.

    Raises:
        InputError: there is no such quantity or theme.

    Example:
        >>> from sinklens.toy import load_toy
        >>> toy_comparison(load_toy().history, ["value_drain"]).data[0].y
        ('bos',)
    """
    shown = list(_FINALS if quantities is None else quantities)
    if not shown:
        raise InputError("no quantities to show; name at least one, such as sink_mass_dormant")
    titles = [f"<b>{_FINALS.get(name, name.replace('_', ' '))}</b>" for name in shown]
    figure = make_subplots(1, len(shown), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.018)
    groups = list(_groups(history))
    for column, name in enumerate(shown, 1):
        finals = _quantity(history, name)[:, -1]
        for group, rows, colour in groups:
            figure.add_traces(_dots(group, finals[rows], colour), rows=1, cols=column)
    figure.update_xaxes(rangemode="tozero", zeroline=True, nticks=4, tickangle=0)
    figure.update_yaxes(autorange="reversed", showgrid=True, zeroline=False)
    figure.update_annotations(font={"size": 11})
    figure = _finished(figure, f"At the end of training: {_task(history)}", theme)
    return figure.update_layout(height=190 + 34 * len(groups), showlegend=False, margin={"t": 96})


def _dots(group: str, values: np.ndarray, colour: str) -> list[go.Scatter]:
    """The runs of a group, and their mean."""
    dots = go.Scatter(
        x=values,
        y=[group] * len(values),
        mode="markers",
        marker={"color": colour, "size": 9, "opacity": 0.75},
        hovertemplate=f"{group}<br>%{{x:.3g}}<extra></extra>",
    )
    known = values[~np.isnan(values)]
    mean = go.Scatter(
        x=[known.mean()] if len(known) else [None],
        y=[group],
        mode="markers",
        marker={"color": colour, "symbol": "line-ns", "size": 16, "line": {"width": 2.5, "color": colour}},
        hovertemplate=f"{group}, mean of {len(known)}<br>%{{x:.3g}}<extra></extra>",
    )
    return [dots, mean]


def _groups(history: ToyHistory) -> Iterator[tuple[str, list[int], str]]:
    for index, (group, rows) in enumerate(history.groups.items()):
        yield group, rows, COLORWAY[index % len(COLORWAY)]


def _quantity(history: ToyHistory, name: str) -> np.ndarray:
    """A quantity of the history, or one that follows from two of them, ``[run, step]``."""
    if name == "output_ratio":
        return (history.of("output_norm_dormant") / history.of("output_norm_active")).numpy()
    if name == "excess_active":
        return history.of("loss_active").numpy()
    if name == "excess_dormant":
        return (history.of("loss_dormant") - history.of("optimal_dormant")).numpy()
    return history.of(name).numpy()


def _line(
    x: Any, y: Any, colour: str, name: str, *, run: str = "", width: float = 2, dash: str = "solid", hover: str = ""
) -> go.Scatter:
    label = run or name
    return go.Scatter(
        x=list(x),
        y=[float(value) for value in y],
        mode="lines",
        name=name,
        legendgroup=name,
        line={"color": colour, "width": width, "dash": dash},
        hovertemplate=f"{label}<br>step %{{x}}: {hover or '%{y:.3f}'}<extra></extra>",
    )


def _task(history: ToyHistory) -> str:
    return " and ".join(history.varied("task"))


def _finished(figure: go.Figure, title: str, theme: Theme) -> go.Figure:
    figure.update_annotations(font={"size": 12.5})
    return figure.update_layout(
        template=template(theme), title=title, height=420, legend=_LEGEND, margin={"t": 84, "b": 84}
    )
