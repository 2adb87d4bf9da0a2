"""The page of an attention switch: hard and soft switches, what carries them, exclusion tests, communication."""

import math
from typing import Any

from sinklens.reports.charts import as_chart
from sinklens.reports.facts import Facts, Headline, percent
from sinklens.reports.study import Section, Study, render_study
from sinklens.reports.tables import Table
from sinklens.results.switch import AttentionSwitch
from sinklens.viz.switch import CARRIER_LABELS, communication_lines, switch_carriers, switch_maps, switch_scatter

HEADS_SHOWN = 20
OFTEN = 0.05  # a head with more hard-switched queries than this is counted in the headline
_OF_FEW_MODELS = ("gate", "learned_sink")
_EXCLUSION_MAPS = ("hull_distance", "hard_without_sink", "hard_excluded")
_ASSUMPTIONS = {
    "zero_excluded": "values lie strictly in a half-space: no output of 0 without a sink",
    "hard_excluded": "and so far from 0 that no hard switch is possible without a sink",
    "full_rank": "value matrix of full numerical rank",
    "independent": "values linearly independent",
}


def render_switch(result: AttentionSwitch, *, title: str | None = None, text_name: str = "") -> str:
    """An attention switch as one HTML page that needs no network.

    Args:
        result: from :func:`sinklens.attention_switch`.
        title: heading of the page; by default a question with the model's name.
        text_name: what the text is called.

    Returns:
        HTML.
    """
    return render_study(
        Study(
            kind="attention switch",
            title=title or f"What switches the heads of {result.provenance.model_name} off?",
            source=result.provenance,
            text_name=text_name,
            headlines=switch_headlines(result),
            settings=_settings(result),
            sections=switch_sections(result),
            definitions=switch_definitions(result),
        )
    )


def switch_headlines(result: AttentionSwitch) -> list[Headline]:
    """What was measured, in a yes or no where there is one."""
    often = int((result.mean("hard_values") > OFTEN).sum())
    n_heads = len(result.layers) * result.n_heads
    layer, least = _quietest(result)
    return [
        Headline(
            _share(result.overall("hard_values")[0]),
            "of queries are hard-switched",
            f"Output near zero against the head's values; 95 % interval {_ends(result.overall('hard_values'))}. Against the "
            f"head's own median {_share(result.overall('hard_median')[0])}. {often} of {n_heads} heads are off for more than "
            f"{percent(OFTEN)} of the queries.",
        ),
        _carried_by_sink(result),
        *_excluded(result),
        Headline(
            percent(result.overall("layer_others")[0]),
            "of layer outputs is communication",
            f"The rest is the sink's or the token's own, as in an MLP; 95 % interval {_ends(result.overall('layer_others'))}. "
            f"Least in layer {layer}: {percent(least)}.",
        ),
    ]


def _carried_by_sink(result: AttentionSwitch) -> Headline:
    share, low, high = _carrier(result, "sink")
    if math.isnan(share):
        return Headline("none", "hard switches", "No query of any head has an output near zero.")
    further = {name: _carrier(result, name)[0] for name in _OF_FEW_MODELS}
    also = "".join(f" By the {CARRIER_LABELS[name]}: {percent(part)}." for name, part in further.items() if part > 0)
    answer = "yes" if low > 0.5 else "no" if high < 0.5 else "not decided"
    return Headline(
        percent(share),
        "of hard switches are carried by the sink",
        f"Are most? {answer.capitalize()}: 95 % interval {_ends((share, low, high))}. Of all queries, "
        f"{percent(result.overall('on_sink')[0])} have that much mass on the sink; were it gone, "
        f"{_share(result.overall('hard_without_sink')[0])} would be hard-switched.{also}",
    )


def _excluded(result: AttentionSwitch) -> list[Headline]:
    if not result.n_hull_documents:
        return []
    hard = result.overall("hard_excluded")[0]
    further = "" if math.isnan(hard) else f"; an output near zero too in {percent(hard)}"
    number = result.n_hull_documents
    return [
        Headline(
            percent(result.overall("zero_excluded")[0]),
            "of heads exclude a zero output without the sink",
            f"Their other tokens' values lie strictly in a half-space{further}. Tested on {number} "
            f"{'document' if number == 1 else 'documents'}.",
        )
    ]


def _quietest(result: AttentionSwitch) -> tuple[int, float]:
    """The layer with the least communication."""
    shares = result.layer_documents("layer_others").nanmean(-1).nan_to_num(math.inf)
    row = int(shares.argmin())
    return result.layers[row], shares[row].item()


def _carrier(result: AttentionSwitch, carrier: str, scale: str = "values") -> tuple[float, float, float]:
    table: Any = result.carriers(scale)  # pandas' stubs know no column types
    row = table[table["carrier"] == carrier].iloc[0]
    return float(row["share"]), float(row["low"]), float(row["high"])


def switch_sections(result: AttentionSwitch) -> list[Section]:
    """The charts and tables, for a page of their own or a report's."""
    found = [
        Section(
            "switches",
            "Hard and soft switches",
            "A head is hard-switched where its output is near zero, soft-switched where the token attends to itself.",
            [
                as_chart("switch-maps", "Head by head", _MAPS, switch_maps(result)),
                as_chart("switch-carriers", "What carries the hard switches", _CARRIERS, switch_carriers(result)),
                as_chart("switch-scatter", "Hard switches and sink mass", _SCATTER, switch_scatter(result)),
            ],
            [carrier_table(result), head_table(result)],
        )
    ]
    if result.n_hull_documents:
        maps = [name for name in _EXCLUSION_MAPS if not result.documents(name).isnan().all()]
        chart = as_chart(
            "switch-exclusion", "Can a head be off without its sink?", _EXCLUSION, switch_maps(result, maps)
        )
        intro = "Whether the values of the other tokens allow an output near zero at all, whatever the pattern is."
        found.append(Section("exclusion", "Exclusion tests", intro, [chart], [assumption_table(result)]))
    lines = as_chart("switch-communication", "Layer by layer", _LINES, communication_lines(result))
    intro = (
        "How much of a layer's output comes from other tokens; near 0 the layer works token by token, as an MLP does."
    )
    return [*found, Section("communication", "Communication", intro, [lines], [layer_table(result)])]


_MAPS = (
    "Cells are means over documents; the interval is under the pointer. Communication: the share of a head's contributions "
    "that comes from other tokens than the query and the sink."
)
_CARRIERS = (
    "A stack is as high as the share of the layer's queries that are hard-switched, its colours say why. Short values: "
    "tokens other than the sink whose values are short, which serve as sinks of their own."
)
_SCATTER = "If sinks switch heads off, heads without sink mass lie on the bottom line."
_EXCLUSION = (
    "Distance of 0 from the convex hull of the other tokens' values, in units of their mean norm: no output without the sink "
    "is shorter. Beside it, how often the mixture of the other tokens would be near zero if the sink were gone."
)
_LINES = "Shares of the absolute inter-head contributions; bands are 95 % intervals over documents."


def carrier_table(result: AttentionSwitch) -> Table:
    """Shares of the hard-switched queries by carrier, on both scales."""
    rows = []
    for carrier, label in CARRIER_LABELS.items():
        cells = [_carrier(result, carrier, scale) for scale in ("values", "median")]
        if carrier in _OF_FEW_MODELS and not any(cell[0] > 0 for cell in cells):
            continue
        rows.append((label, *(text for cell in cells for text in (_share(cell[0]), _ends(cell)))))
    header = ("carrier", "against values", "95 % interval", "against median", "95 % interval")
    hard = [_share(result.overall(f"hard_{scale}")[0]) for scale in ("values", "median")]
    caption = f"What carries hard switches: shares of the {hard[0]} (against values) and {hard[1]} (against median) of queries"
    return Table(caption, header, tuple(rows))


def head_table(result: AttentionSwitch, n: int = HEADS_SHOWN) -> Table:
    """The heads with the most hard-switched queries."""
    table: Any = result.to_dataframe().nlargest(n, "hard_values")
    carriers: Any = result.carriers(by="head").set_index(["layer", "head"])
    rows = []
    for row in table.to_dict("records"):
        place = (row["layer"], row["head"])
        lead = carriers.loc[place].dropna(subset=["share"]).nlargest(1, "share")
        by = "–" if lead.empty else f"{CARRIER_LABELS[lead['carrier'].iloc[0]]} {percent(lead['share'].iloc[0])}"
        hard = (row["hard_values"], row["hard_values_low"], row["hard_values_high"])
        rows.append(
            (f"{row['layer']}.{row['head']}", by, _share(hard[0]), _ends(hard),
             f"{row['sink_mass']:.3f}", _share(row["hard_without_sink"]), percent(row["communication"]),
             _yes(row["zero_excluded"]), _yes(row["hard_excluded"]))
        )  # fmt: skip
    header = ("head", "carried by", "hard", "95 % interval", "sink mass", "hard without sink", "communication",
              "zero excluded", "hard excluded")  # fmt: skip
    caption = (
        f"The {len(rows)} heads with the most hard-switched queries"
        if len(rows) > 1
        else "The head and its hard-switched queries"
    )
    return Table(caption, header, tuple(rows), n_names=2)


def assumption_table(result: AttentionSwitch) -> Table:
    """The assumptions of the exclusion, and in what share of heads and documents each holds."""
    cells = [(words, result.overall(name)) for name, words in _ASSUMPTIONS.items()]
    rows = [(words, percent(cell[0]), _ends(cell)) for words, cell in cells]
    distance = result.overall("hull_distance")
    rows.append(("distance of 0 from the hull, over the mean norm", f"{distance[0]:.3f}", _ends(distance, "{:.3f}")))
    header = ("of the values of all tokens but the sink", "share of heads", "95 % interval")
    return Table(f"Assumptions, on {result.n_hull_documents} documents", header, tuple(rows))


def layer_table(result: AttentionSwitch) -> Table:
    """Hard and soft switches and the parts of the output, layer by layer."""
    table: Any = result.by_layer()
    rows = []
    for row in table.to_dict("records"):
        others = (row["layer_others"], row["layer_others_low"], row["layer_others_high"])
        rows.append(
            (str(row["layer"]), percent(others[0]), _ends(others), percent(row["layer_sink"]), percent(row["layer_self"]),
             percent(row["layer_signed_sink"]), percent(row["layer_signed_self"]), _share(row["hard_values"]),
             _share(row["soft_attention"]))
        )  # fmt: skip
    header = (
        "layer",
        "communication",
        "95 % interval",
        "sink",
        "own token",
        "sink, signed",
        "own token, signed",
        "hard",
        "soft",
    )
    return Table("Where each layer's output comes from", header, tuple(rows))


def _settings(result: AttentionSwitch) -> Facts:
    limits = result.thresholds
    return [
        ("Hard switch", f"‖o‖ ≤ {limits.values:g} of the values' mean norm; ≤ {limits.median:g} of the head's median"),
        ("Soft switch", f"own attention, or own contribution, > {limits.soft:g}"),
        ("Carriers", f"mass on the sink > {limits.sink:g}, on itself > {limits.self_mass:g}, on a learned sink > "
         f"{limits.learned_sink:g}; coherence < {limits.cancellation:g}; values < {limits.short_values:g} of the mean"),
        ("Documents with exclusion tests", str(result.n_hull_documents)),
    ]  # fmt: skip


def switch_definitions(result: AttentionSwitch) -> Facts:
    """Terms and what they mean."""
    limits = result.thresholds
    return [
        ("Hard switch", "A query whose head output is near zero (arXiv 2605.08453; measures ours). The scale is the mean norm of "
         "the head's projected values without the sink, which heads have in common, or the median of the head's own outputs "
         "over the document's queries, on which a head that is always off is never switched."),
        ("Soft switch", "A query that attends to itself (arXiv 2605.08453; threshold ours)."),
        ("Carrier", "The first that applies (ours): gate, without which the output would not be near zero; learned sink, sink or "
         "the query itself, by their mass; cancellation, ‖Σ A ṽ‖ / Σ A ‖ṽ‖ < "
         f"{limits.cancellation:g}; short values of other tokens, Σ A ‖ṽ‖ < {limits.short_values:g} of the mean norm; mixed."),
        ("Without the sink",
         "The mixture ō of the other tokens, their attention scaled up to 1: by arithmetic, not by intervention."),
        ("Exclusion", "If 0 lies outside the convex hull of the projected values ṽ_j of all tokens but the sink, no pattern over "
         "them gives 0, and none gives less than the distance. Queries see a part of these tokens, whose hull is farther still. "
         "The value map has rank d_head at most, below d_model, so that a half-space of its inputs would not be enough; the "
         "test is made on the values themselves, without a gate, and with learned sinks says that one of the sinks is needed."),
        ("Communication", "Σ |c_ij| over keys that are neither the query nor a sink, against all keys (ours), with c the "
         "contribution weights of arXiv 2606.07604: intra-head for a head, inter-head for a layer."),
        ("Interval", "95 % percentile bootstrap over documents."),
    ]  # fmt: skip


def _share(value: float) -> str:
    """A percentage with a decimal where it is small."""
    return percent(value) if math.isnan(value) or value >= 0.1 else f"{100 * value:.2g} %"


def _ends(cell: tuple[float, float, float], form: str = "") -> str:
    low, high = cell[1:]
    if math.isnan(low) or math.isnan(high):
        return "n/a"
    return f"[{form.format(low)}, {form.format(high)}]" if form else f"[{_share(low)}, {_share(high)}]"


def _yes(share: float) -> str:
    """Whether on all documents tested."""
    return "n/a" if math.isnan(share) else "yes" if share == 1 else "no" if share == 0 else f"in {percent(share)}"
