"""The page of a sink geometry: anti-alignment, representability, massive activations, before and behind the norm."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from sinklens.reports.charts import Chart, as_chart
from sinklens.reports.facts import Facts, Headline, number, percent
from sinklens.reports.study import Section, Study, render_study
from sinklens.reports.tables import Table, intervals
from sinklens.results.geometry import ATTENTION_INPUT, RESIDUAL, SPACES, SinkGeometry, space_index
from sinklens.results.per_document import interval_of_mean
from sinklens.viz.geometry import SPACE_LABELS, geometry_cosines, geometry_margins, massive_lines

_COLUMNS = (
    ("cosine_mean", "mean cosine"),
    ("cosine_mean_without", "without massive dims"),
    ("cosine_max", "largest cosine"),
    ("opposed_share", "share ≤ 0"),
    ("query_margin", "queries' margin"),
    ("key_margin", "key's margin"),
    ("witness_margin", "a bᵀ"),
    ("anti_alignment_margin", "−x xᵀ"),
    ("rank_share", "rank / tokens"),
)


def render_geometry(result: SinkGeometry, *, title: str | None = None, text_name: str = "") -> str:
    """A sink geometry as one HTML page that needs no network.

    Args:
        result: from :func:`sinklens.sink_geometry`.
        title: heading of the page; by default a question with the model's name.
        text_name: what the text is called.

    Returns:
        HTML.
    """
    unknown = result.provenance.conventions.get("unknown_inputs") or {}
    return render_study(
        Study(
            kind="sink geometry",
            title=title or f"Is a sink representable in {result.provenance.model_name}?",
            source=result.provenance,
            text_name=text_name,
            headlines=geometry_headlines(result),
            settings=_settings(result),
            sections=geometry_sections(result),
            definitions=geometry_definitions(result),
            warnings=[f"Layer {layer}: {reason}." for layer, reason in unknown.items()],
        )
    )


def geometry_headlines(result: SinkGeometry) -> list[Headline]:
    """What was measured, in a yes or no where there is one."""
    return [_representable(result), *(_opposed(result, space) for space in SPACES), _massive(result)]


def _over(result: SinkGeometry, name: str, space: str) -> tuple[float, float, float]:
    """A quantity's mean over layers, with its interval over documents."""
    figures = result.over_layers(name, space)
    low, high = interval_of_mean(figures[None], result.weights)[0].tolist()
    return figures.nanmean().item(), low, high


def _representable(result: SinkGeometry) -> Headline:
    yes = {space: result.representable(space)["answer"].to_list().count("yes") for space in SPACES}
    n_layers = len(result.layers)
    rank = result.mean("rank_share")[:, space_index(ATTENTION_INPUT)]
    independent = int((rank == 1).sum())
    note = (
        f" In {independent} of them the tokens are linearly independent, where every pattern is: there the margins say "
        "what the answer cannot."
        if independent
        else ""
    )
    return Headline(
        f"{yes[ATTENTION_INPUT]} of {n_layers}",
        "layers can represent a sink in every document",
        f"On what attention reads; on the residual stream {yes[RESIDUAL]}. Each yes comes with its rank-one form, plugged "
        f"in.{note}",
    )


def _opposed(result: SinkGeometry, space: str) -> Headline:
    mean, low, high = _over(result, "cosine_mean", space)
    without = _over(result, "cosine_mean_without", space)[0]
    answer = "yes" if high < 0 else "no" if low > 0 else "not decided"
    layers = int((result.mean("cosine_mean")[:, space_index(space)] < 0).sum())
    return Headline(
        _signed(mean),
        f"cosine of the sink with the others: {SPACE_LABELS[space].lower()}",
        f"Is the sink opposed to them, on average over layers? {answer.capitalize()}: 95 % interval "
        f"{intervals([(low, high)])[0]}; below 0 in {layers} of {len(result.layers)} layers. Without massive dimensions "
        f"{_signed(without)}; {percent(_over(result, 'opposed_share', space)[0])} of the cosines are at most 0.",
    )


def _signed(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")


def _massive(result: SinkGeometry) -> Headline:
    table: Any = result.massive_dimensions()
    layers = table["layer"].nunique()
    if not layers:
        return Headline("none", "massive activations", _criterion(result))
    dimensions = table.groupby("dimension")["layer"].nunique().sort_values(ascending=False).index[:4]
    on_sink = result.documents("massive_on_sink")[:, space_index(RESIDUAL)].nanmean().item()
    return Headline(
        f"{layers} of {len(result.layers)}",
        "layers have massive activations in the residual stream",
        f"Dimensions {', '.join(str(each) for each in dimensions)}; {percent(on_sink)} of them at the sink. {_criterion(result)}",
    )


def _criterion(result: SinkGeometry) -> str:
    said = result.provenance.conventions
    magnitude, ratio = said.get("massive_magnitude"), said.get("massive_ratio")
    if magnitude is None or ratio is None:
        return "The criterion is not recorded."
    return f"Criterion: larger than {magnitude:g} and than {ratio:g} times the layer's median magnitude."


def _settings(result: SinkGeometry) -> Facts:
    said = result.provenance.conventions
    return [
        ("Layers", str(len(result.layers))),
        ("Massive: magnitude above", _given(said, "massive_magnitude")),
        ("Massive: and above the median times", _given(said, "massive_ratio")),
    ]


def _given(said: Mapping[str, Any], name: str) -> str:
    return f"{said[name]:g}" if name in said else "not recorded"


def geometry_sections(result: SinkGeometry) -> list[Section]:
    """The charts and tables, for a page of their own or a report's."""
    return [
        Section(
            "geometry-cosines",
            "Anti-alignment of the sink",
            "The cosine of the sink's vector with every other token's, before each layer, and on what its weights multiply.",
            [_chart("geometry-cosines", _COSINES, geometry_cosines(result, space=space), space) for space in SPACES],
            side_by_side=True,
        ),
        Section(
            "geometry-margins",
            "Representability of a sink",
            "Whether one bilinear form can send every query to the sink, and how comfortably.",
            [_chart("geometry-margins", _MARGINS, geometry_margins(result, space=space), space) for space in SPACES],
            [geometry_table(result, space) for space in SPACES],
            side_by_side=True,
        ),
        Section(
            "geometry-massive",
            "Massive activations",
            _criterion(result),
            [as_chart("geometry-massive", "Largest against median magnitude", _LARGEST, massive_lines(result))],
            [table] if (table := massive_table(result)).rows else [],
        ),
    ]


def _chart(name: str, reading: str, figure: go.Figure, space: str) -> Chart:
    """One space; the card has a heading of its own."""
    figure.layout.annotations = ()
    return as_chart(f"{name}-{space}", SPACE_LABELS[space], reading, figure)


_COSINES = (
    "Bands are 95 % intervals over documents. Below 0 the sink is opposed to the others; where even the largest cosine is below "
    "0, it is to all of them."
)
_MARGINS = (
    "A sink is representable where a bᵀ is above 0. The form −x xᵀ of the sink's own vector needs anti-alignment: it works only "
    "where its line is above 0."
)
_LARGEST = "Logarithmic. Above the dotted line, and above the least magnitude, an activation counts as massive."


def geometry_table(result: SinkGeometry, space: str = ATTENTION_INPUT) -> Table:
    """A row per layer: the answer, and every figure that leads to it."""
    answers = result.representable(space)
    column = space_index(space)
    figures = [[_text(name, value) for value in result.mean(name)[:, column].tolist()] for name, _ in _COLUMNS]
    rows = zip(
        (str(layer) for layer in result.layers),
        (_answer(answer, share) for answer, share in zip(answers["answer"], answers["share"], strict=True)),
        *figures,
        strict=True,
    )
    header = ("layer", "representable", *(label for _, label in _COLUMNS))
    return Table(f"{SPACE_LABELS[space]}: means over documents", header, tuple(rows), n_names=2)


def _answer(answer: str, share: float) -> str:
    return f"in {percent(share)}" if answer == "in some" else answer


def _text(name: str, value: float) -> str:
    return number(value) if name in ("opposed_share", "rank_share") or math.isnan(value) else f"{value:+.3f}"


def massive_table(result: SinkGeometry) -> Table:
    """The massive dimensions of every layer's residual stream, with the share of documents in which they are."""
    table: Any = result.massive_dimensions()
    rows: list[Sequence[str]] = []
    for layer, group in table.groupby("layer"):
        shown = [f"{int(row.dimension)} ({percent(row.share)})" for row in group.itertuples()][:8]
        rows.append((str(layer), ", ".join(shown), str(len(group))))
    header = ("layer", "dimensions (share of documents)", "how many")
    return Table("Massive dimensions of the residual stream", header, tuple(map(tuple, rows)), n_names=2)


def geometry_definitions(result: SinkGeometry) -> Facts:
    """The terms of these sections."""
    return [
        ("Residual stream", "The vectors before the layer. What attention reads: those that W_Q, W_K and W_V multiply, behind "
         "the norm where one comes before attention; checked on every layer, n W_V + b_V must be its values."),
        ("Representable", "Some W has x_iᵀ W (x_s − x_j) > 0 for every query i after the sink s that sees it and every other key "
         "j that i sees (arXiv 2605.08453). Decided exactly: by a form that does it, or by a combination that excludes all."),
        ("Queries' margin", "The largest least cosine of the queries with one direction a: how far inside a half-space."),
        ("Key's margin", "The largest least ⟨b, x_s − x_j⟩ over unit b, over the mean of ‖x_s − x_j‖: how far the sink's key can "
         "be told from the others."),
        ("a bᵀ and −x xᵀ plugged in", "The least score difference of these forms, of unit Frobenius norm, over all constraints; "
         "queries normalised, keys in units of the mean ‖x_s − x_j‖."),
        ("Massive activation", _criterion(result) + " (Sun et al. 2024; the median is the sequence's in that layer.)"),
        ("Without massive dimensions", "Cosines without those that are massive in the layer's residual stream in that document."),
        ("Rank over tokens", "At 1 the tokens are linearly independent, and any pattern is representable."),
    ]  # fmt: skip
