"""The page of a faithfulness run."""

from typing import Any

import plotly.graph_objects as go

from sinklens.reports.ablation import clean_headline
from sinklens.reports.charts import Chart, as_chart
from sinklens.reports.facts import Facts, Headline
from sinklens.reports.study import Section, Study, render_study
from sinklens.reports.tables import EFFECT_NAMES, better, difference_table, faithfulness_table, intervals, signed
from sinklens.results.faithfulness import FaithfulnessEffect, FaithfulnessResult
from sinklens.results.labels import describe_numbers
from sinklens.viz import faithfulness_curves, faithfulness_differences
from sinklens.viz.faithfulness import METRIC_LABELS

_TITLES = {
    "comprehensiveness": "Comprehensiveness: the top is removed",
    "sufficiency": "Sufficiency: the bottom is removed",
}
_READINGS = {
    "comprehensiveness": (
        "The share of terms that the metric ranks highest is removed; a higher curve means that the metric found what the "
        "model needs. "
    ),
    "sufficiency": (
        "The share of terms that the metric ranks lowest is removed; a lower curve means that the metric knows what the model "
        "does not need. "
    ),
}
_BARS = {
    "comprehensiveness": "Bars above 0: better than the reference. ",
    "sufficiency": "Bars below 0: better than the reference. ",
}
_TOWERS = 2.5  # times the spread of all others
_GRANULARITY = {
    "pair": "pair: per query, over heads and keys together",
    "edge": "edge: per head and query, over keys",
    "token": "token: per sequence, over keys, by the mean over heads and queries",
}
_DEFINITIONS: Facts = [
    ("Term", "What one key adds to a head's output, A_ij v_j. A removed term is taken out of the sum, in every chosen layer."),
    ("Share removed", "Of the n terms of a row that may be removed, the fraction times n, rounded down. Hidden keys and padding "
     "are not counted."),
    (METRIC_LABELS["attention"], "A_ij, the attention weight. In Python: attention."),
    (METRIC_LABELS["value_weighted"], "A_ij ‖ṽ_j‖, with the value projected by the output matrix. In Python: value_weighted."),
    (METRIC_LABELS["output_normalized"], "A_ij ‖ṽ_j‖ / ‖o_i‖, by the norm of the head's output. In Python: output_normalized."),
    (METRIC_LABELS["intra"], "⟨o_i, A_ij ṽ_j⟩ / ‖o_i‖² with the head's own output (arXiv 2606.07604). In Python: intra."),
    (METRIC_LABELS["inter"], "The same with the whole layer's output (arXiv 2606.07604). In Python: inter."),
    (METRIC_LABELS["random"], "Uniform numbers: what removing anything costs. In Python: random."),
    ("Δ loss", "Change of the mean next-token cross-entropy over real tokens, in nats, computed in float32 from the logits."),
    ("AOPC", "The plain mean of an effect over the fractions."),
    ("Interval", "95 % percentile bootstrap: documents are drawn with replacement; differences are taken within each draw."),
]  # fmt: skip


def render_faithfulness(
    result: FaithfulnessResult,
    effect: FaithfulnessEffect = "delta_loss",
    *,
    reference: str = "attention",
    title: str | None = None,
    text_name: str = "",
) -> str:
    """A faithfulness run as one HTML page that needs no network.

    Args:
        result: from :func:`sinklens.faithfulness`.
        effect: ``delta_loss`` or ``delta_perplexity``.
        reference: the metric that differences are taken from.
        title: heading of the page; by default a question with the model's name.
        text_name: what the text is called.

    Returns:
        HTML.

    Raises:
        InputError: there is no such effect or metric.
    """
    unfinished = [] if result.is_complete else ["Not all passes are finished: some figures are of fewer documents."]
    return render_study(
        Study(
            kind="faithfulness of metrics",
            title=title or f"Which metric finds what matters in {result.provenance.model_name}?",
            source=result.provenance,
            text_name=text_name,
            headlines=_headlines(result, effect, reference),
            settings=_settings(result),
            sections=_sections(result, effect, reference),
            definitions=_DEFINITIONS,
            warnings=unfinished,
        )
    )


def _headlines(result: FaithfulnessResult, effect: FaithfulnessEffect, reference: str) -> list[Headline]:
    found = [headline for mode in result.modes for headline in _best(result, effect, mode)]
    found[1:1] = _gain(result, effect, result.modes[0], reference)
    return [*found, clean_headline(result.mean_loss, result.count.sum().item())]


def _best(result: FaithfulnessResult, effect: FaithfulnessEffect, mode: str) -> list[Headline]:
    """The metric with the best mean over fractions."""
    table: Any = result.aopc(effect)  # pandas' stubs know no column types
    table = table[table["mode"] == mode].sort_values("aopc", ascending=mode == "sufficiency")
    best = table.to_dict("records")[0]
    word = "most" if mode == "comprehensiveness" else "least"
    part = "top" if mode == "comprehensiveness" else "bottom"
    return [
        Headline(
            _figure(best["aopc"]),
            f"{mode}: {METRIC_LABELS[best['metric']]}",
            f"Removing the {part} by it costs {word}: {EFFECT_NAMES[effect]}, mean over fractions; 95 % interval "
            f"{intervals([(best['low'], best['high'])])[0]}.",
        )
    ]


def _gain(result: FaithfulnessResult, effect: FaithfulnessEffect, mode: str, reference: str) -> list[Headline]:
    """The same metric minus the reference."""
    table: Any = result.differences(reference, effect, aopc=True)
    table = table[table["mode"] == mode].sort_values("difference", ascending=mode == "sufficiency")
    if table.empty:
        return []
    best = table.to_dict("records")[0]
    bounds = (best["low"], best["high"])
    return [
        Headline(
            _figure(best["difference"]),
            f"{METRIC_LABELS[best['metric']]} minus {METRIC_LABELS[reference]}",
            f"{mode.capitalize()}, mean over fractions, paired by document; 95 % interval {intervals([bounds])[0]}: "
            f"{better(mode, *bounds)}.",
        )
    ]


def _figure(value: float) -> str:
    return signed([value])[0].replace("-", "−")


def _settings(result: FaithfulnessResult) -> Facts:
    said = result.provenance.conventions
    layers = said.get("layers")
    return [
        ("Metrics", ", ".join(result.metrics)),
        ("Fractions", ", ".join(f"{100 * fraction:g} %" for fraction in result.fractions)),
        ("Granularity", _GRANULARITY.get(str(said.get("granularity")), "not recorded")),
        ("Ranking of contributions", str(said.get("ranking", "not recorded"))),
        ("Scores", f"of the {said.get('scores', 'not recorded')} pass"),
        ("Never removed", ", ".join(f"terms of the {name}" for name in said.get("exempt", ())) or "nothing is exempt"),
        ("Rest of a row", "scaled to its former sum" if said.get("renormalize") else "as it is"),
        ("Layers", describe_numbers(layers) if layers else "not recorded"),
        ("Resamples of documents", f"{result.n_bootstrap:,}"),
        ("Seed", str(result.provenance.seed)),
    ]


def _sections(result: FaithfulnessResult, effect: FaithfulnessEffect, reference: str) -> list[Section]:
    differences = difference_table(result, reference, effect, METRIC_LABELS)
    sections = [
        Section(
            "curves",
            "Curves",
            "Each line is a metric, each band its 95 % interval over documents. The loss of the clean model is 0.",
            [_curves(result, effect, mode) for mode in result.modes],
            [faithfulness_table(result, mode, effect, METRIC_LABELS) for mode in result.modes],
            side_by_side=True,
        )
    ]
    if differences is not None:
        charts = [_bars(result, effect, mode, reference) for mode in result.modes]
        intro = f"The mean over fractions (AOPC) of each metric minus that of {METRIC_LABELS[reference]}, document by document."
        sections.append(Section("differences", "Differences", intro, charts, [differences], side_by_side=True))
    return sections


def _curves(result: FaithfulnessResult, effect: FaithfulnessEffect, mode: str) -> Chart:
    logarithmic = result.fractions[0] > 0
    figure = _without_headings(faithfulness_curves(result, effect, mode=mode, log_fraction=logarithmic))
    words = [_READINGS[mode] + ("The horizontal axis is logarithmic." if logarithmic else "")]
    if _random_towers(result, effect, mode):
        rest = result.interval(effect)[_others(result), result.modes.index(mode)]
        low, high = rest.min().item(), rest.max().item()
        figure.update_yaxes(range=[low - 0.08 * (high - low), high + 0.08 * (high - low)])
        words.append("The curve of random terms leaves the frame; a double click on the chart shows it whole.")
    return as_chart(f"curves-{mode}", _TITLES[mode], " ".join(words), figure)


def _bars(result: FaithfulnessResult, effect: FaithfulnessEffect, mode: str, reference: str) -> Chart:
    others = [metric for metric in result.metrics if metric != "random"]
    table: Any = result.differences(reference, effect, aopc=True)
    sizes = table[table["mode"] == mode].set_index("metric")["difference"].abs()
    hidden = len(sizes) > 1 and "random" in sizes and sizes["random"] > _TOWERS * sizes.drop("random").max()
    figure = faithfulness_differences(result, reference, effect, mode=mode, metrics=others if hidden else None)
    words = [_BARS[mode] + "A whisker that crosses 0: the two are not told apart on this text."]
    words += ["Random terms are left out here, they would dwarf the rest; the table has them."] if hidden else []
    title = f"{mode.capitalize()}: difference of AOPC"
    return as_chart(f"differences-{mode}", title, " ".join(words), _without_headings(figure))


def _random_towers(result: FaithfulnessResult, effect: FaithfulnessEffect, mode: str) -> bool:
    """Whether the curve of the random metric would press all others flat."""
    others, column = _others(result), result.modes.index(mode)
    if len(others) < 2 or "random" not in result.metrics:
        return False
    values = result.effect(effect)[:, column]
    spread = (values[others].max() - values[others].min()).item()
    bounds = result.interval(effect)[others, column]
    random = values[result.metrics.index("random")].abs().max().item()
    return bool(bounds.isfinite().all()) and 0 < _TOWERS * spread < random


def _others(result: FaithfulnessResult) -> list[int]:
    return [row for row, metric in enumerate(result.metrics) if metric != "random"]


def _without_headings(figure: go.Figure) -> go.Figure:
    """The card has a heading of its own."""
    figure.layout.annotations = ()
    return figure
