"""The page of head costs: what the maps cost, what they are spent on, and what the theory says is least."""

import math
import re
from typing import Any

from sinklens.reports.charts import Chart, as_chart
from sinklens.reports.facts import Facts, Headline
from sinklens.reports.study import Section, Study, render_study
from sinklens.reports.tables import Table, intervals, signed
from sinklens.results.head_costs import MAIN_COSTS, HeadCosts
from sinklens.results.labels import describe_numbers
from sinklens.results.pattern_costs import PatternCosts
from sinklens.viz.head_costs import cost_correlations, cost_map, cost_scatter, least_costs
from sinklens.viz.pattern_costs import pattern_costs
from sinklens.viz.quantities import DESCRIPTIONS

THEORY_LENGTHS = (16, 64, 256, 1024, 4096)
COST_NAMES: dict[str, str] = {
    "qk_frobenius": "Frobenius norm of W_QK",
    "qk_nuclear": "Nuclear norm of W_QK",
    "vo_frobenius": "Frobenius norm of W_VO",
    "vo_nuclear": "Nuclear norm of W_VO",
}
DEFINITIONS: Facts = [
    ("W_QK, W_VO", "W_Q W_Kᵀ and W_V W_O of a head, the raw weights' products; grouped heads share keys and values. Rotary "
     "positions and biases are not in them: W_QK is the map at relative position 0."),
    ("Gain folded in", "effective_ names: the maps of the normalised residual stream, with the gain of the norm before attention "
     "as a part of the weights."),
    ("Nuclear norm", "Σ σ, the least (‖W_Q‖² + ‖W_K‖²) / 2 over all factors: what weight decay pays for the map."),
    ("Rank correlation", "Spearman's, over heads; the interval resamples heads, which are not independent within a model. Within "
     "layers: of what ranks differ from their layer's mean, so that depth, which moves both, is out."),
    ("Least cost", "The least norm of any W with x_iᵀ W x_t(i) above every other key's by the margin, scores scaled as the "
     "model's are, on what the layer's attention reads (arXiv 2605.08453; on own embeddings ours)."),
    ("Spent", "The norm of the head's W_QK between the same tokens alone, which a least cost is to be compared with."),
    ("Achieved margin", "log A_i,t(i) − max log A_ij, which is the margin of the real scores; the median over queries."),
    ("Excess", "Spent over the least cost of the achieved margin."),
]  # fmt: skip


def render_head_costs(result: HeadCosts, *, title: str | None = None, text_name: str = "") -> str:
    """Head costs as one HTML page that needs no network.

    Args:
        result: from :func:`sinklens.head_costs`.
        title: heading of the page; by default a question with the model's name.
        text_name: what the text is called.

    Returns:
        HTML.
    """
    return render_study(
        Study(
            kind="cost of heads",
            title=title or f"What do the heads of {result.provenance.model_name} cost?",
            source=result.provenance,
            text_name=text_name,
            headlines=cost_headlines(result),
            settings=_settings(result),
            sections=head_costs_sections(result),
            definitions=DEFINITIONS,
            warnings=refusals(result),
        )
    )


def cost_headlines(result: HeadCosts) -> list[Headline]:
    """The measured yes or no: least costs, sink against diagonal heads, costs against the sink mass; and the theory."""
    found: list[Headline] = []
    if result.least is not None:
        found.append(_least_headline(result))
    if result.scores:
        found += [_correlation_headline(result, cost) for cost in ("qk_nuclear", "vo_nuclear")]
        found.append(_kinds_headline(result))
    else:
        median = result.cost("qk_nuclear").nanmedian().item()
        found.append(
            Headline(
                _three_digits(median), "median nuclear norm of W_QK", "Over heads; the weights alone were measured."
            )
        )
    return [*found, _theory_headline()]


def _least_headline(result: HeadCosts) -> Headline:
    assert result.least is not None
    value, low, high = result.least.sink_over_diagonal()
    answer = "yes" if high < 1 else "no" if low > 1 else "not told apart"
    impossible = [
        layer
        for layer, share in zip(result.least.layers, result.least.mean("diagonal_possible").tolist(), strict=True)
        if share < 1
    ]
    further = f" In layer {describe_numbers(impossible)} some documents have no diagonal at all." if impossible else ""
    return Headline(
        f"{value:.3g}",
        "least cost of a sink over that of a diagonal",
        f"Are sinks cheaper on the layers' own inputs? {answer.capitalize()}: nuclear norm, mean over layers "
        f"{describe_numbers(result.least.layers)}; 95 % interval over documents {_plain_interval(low, high)}.{further}",
    )


def _plain_interval(low: float, high: float) -> str:
    return "n/a" if math.isnan(low) else f"[{low:.3g}, {high:.3g}]"


def _correlation_headline(result: HeadCosts, cost: str) -> Headline:
    whole, within = (result.correlations([cost], ["sink_mass"], within_layers=way).iloc[0] for way in (False, True))
    if math.isnan(whole.low):
        heads = "1 head is" if whole.n_heads == 1 else f"{whole.n_heads} heads are"
        detail = f"Do costs grow with the sink mass? Not known: {heads} too few, or all alike."
        return Headline(_rank(whole.spearman), f"rank correlation with the sink mass: {COST_NAMES[cost]}", detail)
    answer = "yes" if whole.low > 0 else "no, it is negative" if whole.high < 0 else "not told apart from 0"
    return Headline(
        _rank(whole.spearman),
        f"rank correlation with the sink mass: {COST_NAMES[cost]}",
        f"Do costs grow with the sink mass? Over {whole.n_heads} heads: {answer}, 95 % interval over heads "
        f"{intervals([(whole.low, whole.high)])[0]}. Within layers {_rank(within.spearman)} "
        f"{intervals([(within.low, within.high)])[0]}.",
    )


def _kinds_headline(result: HeadCosts) -> Headline:
    row = result.sink_against_diagonal(["qk_nuclear"]).iloc[0]
    if not (row.n_sink and row.n_diagonal):
        absent = "diagonal" if row.n_sink else "sink"
        return Headline("none", f"{absent} heads", f"No head is of the kind {absent}, so the two cannot be compared.")
    answer = "yes" if row.high < 0 else "no, they cost more" if row.low > 0 else "not told apart"
    return Headline(
        _difference(row.difference),
        "median cost of sink heads minus diagonal heads",
        f"Do sink heads cost less? {answer.capitalize()}: nuclear norm of W_QK, {row.n_sink} sink and {row.n_diagonal} "
        f"diagonal heads; 95 % interval over heads {_difference_interval(row.low, row.high)}.",
    )


def _theory_headline() -> Headline:
    fits = PatternCosts.of(THEORY_LENGTHS[2:], causal=False, kinds=("sink", "diagonal")).fits["nuclear"]
    sink, diagonal = fits["sink"].exponent, fits["diagonal"].exponent
    return Headline(
        f"{sink:.2f}, {diagonal:.2f}",
        "exponents of T: least cost of a sink, of a diagonal",
        "In theory: nuclear norm on orthonormal embeddings, scores over √d, full attention, closed forms for T = 256 to 4,096 "
        "(arXiv 2605.08453).",
    )


def _difference(value: float) -> str:
    """Three digits with a sign: costs are of any size, and a thousandth of a norm of 1000 says nothing."""
    return "n/a" if math.isnan(value) else _three_digits(value + 0.0, "+").replace("-", "−")


def _difference_interval(low: float, high: float) -> str:
    return "n/a" if math.isnan(low) else f"[{_difference(low)}, {_difference(high)}]"


def _three_digits(value: float, sign: str = "") -> str:
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.3g}"


def _settings(result: HeadCosts) -> Facts:
    said = result.provenance.conventions
    scales = sorted({f"{scale:.4g}" for scale in result.scale.tolist() if not math.isnan(scale)})
    least = result.least
    return [
        ("Layers × heads", f"{len(result.layers)} × {result.n_heads}"),
        ("Scores are q · k times", ", ".join(scales) or "not established"),
        ("Margin of least costs", f"{said.get('margin', 1.0):g}"),
        ("Tokens of least costs and margins", str(said.get("embedding_tokens", "not recorded"))),
        ("Layers with least costs", "none" if least is None else describe_numbers(least.layers)),
        ("Documents with least costs", "none" if least is None else str(least.n_documents)),
    ]


def refusals(result: HeadCosts) -> list[str]:
    """What could not be established, each reason once, without the figures that differ from layer to layer."""
    found: dict[tuple[str, str], list[int]] = {}
    for layer, what, reason in result.refused:
        found.setdefault((what, re.sub(r" \(relative gap [^)]*\)", "", reason)), []).append(layer)
    words = {"qk": "W_QK", "vo": "W_VO", "effective": "Gain of the norm"}
    return [
        f"{words.get(what, what.capitalize())} of layer {describe_numbers(layers)} is left out: {reason}."
        for (what, reason), layers in found.items()
    ]


def head_costs_sections(result: HeadCosts) -> list[Section]:
    """The charts and tables, for a page of their own or a report's."""
    costs = [cost for cost in MAIN_COSTS if not result.cost(cost).isnan().all()]
    maps = [as_chart(f"cost-{cost}", COST_NAMES[cost], _MAP, cost_map(result, cost)) for cost in costs]
    found = [Section("cost-maps", "What every head costs", _MAPS_INTRO, maps, [], side_by_side=True)] if maps else []
    if result.scores and costs:
        scatter = [_scatter_chart(result, cost) for cost in costs if cost.endswith("nuclear")]
        correlations = as_chart(
            "cost-correlations", "Rank correlations", _CORRELATIONS, cost_correlations(result, costs)
        )
        tables = [correlation_table(result, costs), kinds_table(result, costs)]
        found.append(Section("cost-scores", "What it is spent on", _SCORES_INTRO, [*scatter, correlations], tables))
    if result.least is not None:
        chart = as_chart("cost-least", "Spent and least, layer by layer", _LEAST, least_costs(result))
        found.append(Section("cost-least", "On the layers' own inputs", _LEAST_INTRO, [chart], [least_table(result)]))
    return [*found, theory_section(PatternCosts.of(THEORY_LENGTHS, causal=False))]


def _scatter_chart(result: HeadCosts, cost: str) -> Chart:
    return as_chart(
        f"cost-scatter-{cost}", f"{COST_NAMES[cost]} against the sink mass", _SCATTER, cost_scatter(result, cost)
    )


_MAPS_INTRO = "Norms of the two maps of every head, from their factors. Larger: more weight decay is paid for it."
_MAP = "Colours of the largest 2 % saturate; blank where the map is not linear or could not be established."
_SCORES_INTRO = (
    "If sinks are cheap and diagonals dear, costs fall with the sink mass and rise with the attention on itself."
)
_SCATTER = "Each point is a head, its colour its pattern kind. Costs that differ by much are on a logarithmic axis."
_CORRELATIONS = (
    "Whiskers are 95 % intervals over heads. Where circles and diamonds disagree, the correlation of all heads comes from "
    "depth: late layers have other norms and other sinks than early ones."
)
_LEAST_INTRO = (
    "What the patterns cost at least on what the layer's attention reads, and what its heads spend on the same tokens."
)
_LEAST = (
    "The vertical axis is logarithmic. Whiskers are 95 % intervals over documents, thick bars the middle 80 % of the heads. "
    "A layer without a blue point has equal inputs at several positions, so that no matrix makes a diagonal."
)
_THEORY = "Points are least costs, lines their power laws: steeper is dearer in long contexts."


def theory_section(costs: PatternCosts) -> Section:
    """Costs by number of tokens."""
    figure = pattern_costs(costs.fits["nuclear"], f"nuclear, {costs.setting}")
    chart = as_chart("cost-theory", "Least cost by number of tokens", _THEORY, figure)
    intro = "The theory alone, on orthonormal embeddings with margin 1 (arXiv 2605.08453)."
    return Section("cost-theory", "How costs grow", intro, [chart], [theory_table(costs)])


def theory_table(costs: PatternCosts) -> Table:
    """A row per norm and pattern, a column per length, then the exponent with its interval."""
    fits = [(norm, kind, fit) for norm, by_kind in costs.fits.items() for kind, fit in by_kind.items()]
    rows = [
        (
            kind,
            norm,
            *(f"{cost:,.0f}" if cost >= 1000 else f"{cost:.4g}" for cost in fit.costs),
            f"{fit.exponent:.3f}",
            f"[{fit.low:.3f}, {fit.high:.3f}]",
        )
        for norm, kind, fit in fits
    ]
    header = ("pattern", "norm", *(f"T = {length}" for length in fits[0][2].lengths), "exponent", "95 % of the fit")
    return Table(f"Least costs of patterns, margin 1, {costs.setting}", header, tuple(rows), n_names=2)


def correlation_table(result: HeadCosts, costs: list[str] | None = None) -> Table:
    """Rank correlations with intervals, of all heads and within layers."""
    chosen = list(MAIN_COSTS) if costs is None else costs
    whole, within = (result.correlations(chosen, within_layers=way) for way in (False, True))
    rows: list[tuple[str, ...]] = []
    for one, other in zip(_records(whole), _records(within), strict=True):
        cells = [
            text
            for row in (one, other)
            for text in (*signed([row["spearman"]]), *intervals([(row["low"], row["high"])]))
        ]
        rows.append((_name(one["cost"]), DESCRIPTIONS[one["score"]].label, *cells))
    header = ("cost", "score", "all heads", "95 % interval", "within layers", "95 % interval")
    return Table("Spearman rank correlations, intervals over heads", header, tuple(rows), n_names=2)


def kinds_table(result: HeadCosts, costs: list[str] | None = None) -> Table:
    """Sink heads against diagonal heads."""
    table = _records(result.sink_against_diagonal(list(MAIN_COSTS) if costs is None else costs))
    rows = [
        (_name(row["cost"]), *(_short(row[kind]) for kind in ("sink", "diagonal")),
         _difference(row["difference"]), _difference_interval(row["low"], row["high"]))
        for row in table
    ]  # fmt: skip
    counts = table[0]
    caption = f"Medians of {counts['n_sink']} sink and {counts['n_diagonal']} diagonal heads; intervals over heads"
    header = ("cost", "sink heads", "diagonal heads", "difference", "95 % interval")
    return Table(caption, header, tuple(rows))


def least_table(result: HeadCosts) -> Table:
    """Least cost, spent cost and margins by layer."""
    rows = [
        (str(row["layer"]), row["pattern"], row["norm"], _short(row["least"]), _plain_interval(row["low"], row["high"]),
         f"{100 * row['possible']:.0f} %", _short(row["spent"]), _short(row["margin"]), _short(row["best_margin"]),
         _short(row["excess"]))
        for row in _records(result.embedding_table())
    ]  # fmt: skip
    header = (
        "layer",
        "pattern",
        "norm",
        "least",
        "95 % interval",
        "possible",
        "spent",
        "margin",
        "best head's",
        "excess",
    )
    caption = f"Least costs for a margin of {result.provenance.conventions.get('margin', 1.0):g}; spent, margin and excess are "
    return Table(caption + "medians over heads", header, tuple(rows), n_names=3)


def _rank(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:+.3f}".replace("-", "−")


def _name(cost: str) -> str:
    return COST_NAMES.get(cost, cost)


def _short(value: float) -> str:
    return "none" if math.isnan(value) else _three_digits(value).replace("-", "−")


def _records(table: Any) -> list[dict[str, Any]]:
    return table.to_dict("records")
