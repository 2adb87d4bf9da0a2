"""The page of an ablation study or of a sweep."""

import math
from collections.abc import Sequence
from typing import Any

from sinklens.reports.charts import Chart, as_chart
from sinklens.reports.facts import Facts, Headline
from sinklens.reports.study import Section, Study, render_study
from sinklens.reports.tables import (
    CONTROL_NAMES,
    EFFECT_NAMES,
    Table,
    ablation_table,
    control_table,
    intervals,
    norm_table,
    signed,
    strongest,
    verdict,
)
from sinklens.results.ablation import AblationResult, SweepResult
from sinklens.viz import ablation_effects, ablation_map, sweep_effects, sweep_norms
from sinklens.viz.ablation import PLACES

GROUPS_SHOWN = 40
ROWS_OF_GROUPS = 8  # up to so many, a row each; more are points from left to right
SWEEPS_SHOWN = 5
HEADS_SHOWN = 6
ROWS_SHOWN = 60
_POINTS = (
    "Coloured points are edits of the sink, grey ones the same edit at a random other position (diamonds) or in a random "
    "direction of the same norm (squares), with 95 % intervals over documents. "
)
_ABOUT = {
    "delta_loss": "Above 0, the model predicts worse than without the edit.",
    "delta_perplexity": "Above 0, the model predicts worse than without the edit.",
    "divergence": "How far the predictions move, for better or for worse; 0 only where nothing changes.",
}
_TITLES = {
    "delta_loss": "Change of the next-token loss",
    "delta_perplexity": "Change of perplexity",
    "divergence": "Change of the predictions",
}
_EDITS = {
    "zero": "the sink's value is set to 0",
    "mean": "the sink's value is set to the mean value of the other tokens",
    "remove": "attention on the sink is removed, the rest of the row is scaled to the row's former sum",
    "scale": "the sink's value is multiplied by a factor",
    "mass": "attention on the sink is set to a mass, the rest of the row scaled to what is left",
}
_DEFINITIONS: Facts = [
    ("Δ loss", "Change of the mean next-token cross-entropy over real tokens, in nats, computed in float32 from the logits."),
    ("Δ perplexity", "Change of the exponential of that loss."),
    ("KL", "Mean over tokens of KL(clean ‖ edited) of the next-token distributions, in nats."),
    ("Interval", "95 % percentile bootstrap: documents are drawn with replacement; differences are taken within each draw."),
    ("Random position", "The same edit at a random other position of each sequence: what any token would cost."),
    ("Random direction", "An edit of the same norm in a random direction: what any disturbance of that size would cost."),
]  # fmt: skip
_NORMS: Facts = [
    (
        "Closed form",
        "With the sink's projected value ṽₛ, its mass a and the mixture ō of the other tokens: N(α) = ‖α ṽₛ + (1 − α) ō‖ for a "
        "mass α (arXiv 2606.07604), ‖f a ṽₛ + (1 − a) ō‖ for a scale f; from the clean pass alone.",
    ),
    ("Norm of head outputs", "Root mean square over the queries after the sink for which ō is defined."),
]


def render_ablation(
    result: AblationResult, effect: str = "delta_loss", *, title: str | None = None, text_name: str = ""
) -> str:
    """An ablation study or a sweep as one HTML page that needs no network.

    Args:
        result: from :func:`sinklens.ablate_sinks` or :func:`sinklens.sweep_sinks`.
        effect: what is shown first: ``delta_loss``, ``delta_perplexity`` or ``divergence``.
        title: heading of the page; by default the model's name and what was done.
        text_name: what the text is called.

    Returns:
        HTML.

    Raises:
        InputError: there is no such effect.
    """
    swept = isinstance(result, SweepResult)
    name = result.provenance.model_name
    heading = f"The sinks of {name}, weaker and stronger" if swept else f"{name} without its sinks"
    return render_study(
        Study(
            kind="sink sweep" if swept else "ablation study",
            title=title or heading,
            source=result.provenance,
            text_name=text_name,
            headlines=_headlines(result, effect),
            settings=_settings(result),
            sections=_sweep_sections(result, effect) if isinstance(result, SweepResult) else _sections(result, effect),
            definitions=[*_DEFINITIONS, *(_NORMS if swept else [])],
            warnings=_warnings(result),
        )
    )


def _headlines(result: AblationResult, effect: str) -> list[Headline]:
    [row] = strongest(result, effect, 1)[:1]
    cell, what = result.cells[row], EFFECT_NAMES[effect]
    [bounds] = intervals([result.interval(effect)[row].tolist()])
    found = [
        Headline(
            signed([result.effect(effect)[row].item()])[0].replace("-", "−"),
            f"{what}: {cell.edit_name}, {cell.group}",
            f"The largest effect of an edit of the sink; 95 % interval {bounds}.",
        )
    ]
    table: Any = result.against_controls(effect)  # pandas' stubs know no column types
    mine = table[(table["group"] == cell.group) & (table["edit"] == cell.edit)]
    mine = mine if math.isnan(cell.value) else mine[mine["value"] == cell.value]
    for control in mine.to_dict("records"):
        ends = (control["low"], control["high"])
        label = f"more than at the control: {CONTROL_NAMES[control['control']]}"
        found.append(
            Headline(
                signed([control["difference"]])[0].replace("-", "−"),
                label if control["difference"] >= 0 else label.replace("more", "difference", 1),
                f"The same edit, sink minus control, paired by document; 95 % interval {intervals([ends])[0]}: "
                f"{_said(verdict(*ends))}.",
            )
        )
    return [*found, clean_headline(result.mean_loss, result.count.sum().item())]


def _said(word: str) -> str:
    return {"more": "more than the control", "less": "less than the control"}.get(word, word)


def clean_headline(loss: float, n_predicted: float) -> Headline:
    """The model as it is."""
    perplexity = f"perplexity {math.exp(loss):.4g}" if loss < 700 else "perplexity beyond measure"
    return Headline(
        f"{loss:.3f}",
        "nats per token without an edit",
        f"Mean next-token loss of the clean model over {int(n_predicted):,} predicted tokens; {perplexity}.",
    )


def _settings(result: AblationResult) -> Facts:
    edits = list(dict.fromkeys(cell.edit_name for cell in result.cells))
    kinds = list(dict.fromkeys(cell.edit for cell in result.cells))
    groups = list(dict.fromkeys(cell.group for cell in result.cells))
    controls = [name for name in CONTROL_NAMES if any(cell.where == name for cell in result.cells)]
    return [
        ("Edits", ", ".join(edits)),
        *((f"Edit {kind}", _EDITS[kind]) for kind in kinds),
        (
            "Groups of heads",
            ", ".join(groups) if len(groups) <= ROWS_OF_GROUPS else f"{len(groups)}: {groups[0]} … {groups[-1]}",
        ),
        ("Controls", ", ".join(CONTROL_NAMES[name] for name in controls) or "none"),
        ("Resamples of documents", f"{result.n_bootstrap:,}"),
        ("Seed", str(result.provenance.seed)),
    ]


def _warnings(result: AblationResult) -> list[str]:
    idle = {cell.group for cell, changed in zip(result.cells, result.changed, strict=True) if not changed}
    found = [f"An edit changed nothing in {len(idle)} of the groups: {', '.join(sorted(idle)[:6])}."] if idle else []
    if all(cell.where == "sink" for cell in result.cells):
        found.append("No control was measured: an effect may be that of any edit of this size.")
    return found


def _second(effect: str) -> str:
    return "delta_loss" if effect == "divergence" else "divergence"


def _sections(result: AblationResult, effect: str) -> list[Section]:
    n_groups = len({cell.group for cell in result.cells})
    limit = GROUPS_SHOWN if n_groups > GROUPS_SHOWN else None
    intro = f"The {limit} of {n_groups} groups with the largest effect, largest first." if limit else ""
    charts = [
        as_chart(
            f"effects-{name}",
            _TITLES[name],
            _POINTS + _ABOUT[name],
            ablation_effects(result, name, n=limit, horizontal=n_groups <= ROWS_OF_GROUPS),
        )
        for name in (effect, _second(effect))
    ]
    return [
        Section("effects", "Effects", intro, charts, side_by_side=n_groups <= ROWS_OF_GROUPS),
        *_map_section(result, effect),
        Section("numbers", "Numbers", _shown(result), tables=_tables(result, effect)),
    ]


def _map_section(result: AblationResult, effect: str) -> list[Section]:
    single = [row for row, cell in enumerate(result.cells) if len(cell.heads) == 1]
    if len({result.cells[row].heads for row in single}) < 2:
        return []
    places = [place for place in PLACES if any(result.cells[row].where == place for row in single)]
    limit = result.effect(effect)[single].abs().max().item()
    reading = "One cell per head, the first layer on top. Red: the model gets worse; blue: it gets better; blank: not measured."
    reading += " All maps here have one colour range." if len(places) > 1 else ""
    charts = [
        as_chart(
            f"map-{place}",
            f"{_TITLES[effect]}: {result.cells[single[0]].edit_name}, {PLACES[place]}",
            reading,
            ablation_map(result, effect, place=place, limit=limit),
        )
        for place in places
    ]
    return [Section("heads", "Head by head", "", charts, side_by_side=True)]


def _sweep_sections(result: SweepResult, effect: str) -> list[Section]:
    n_groups = len({cell.group for cell in result.cells})
    limit = SWEEPS_SHOWN if n_groups > SWEEPS_SHOWN else None
    intro = f"The {limit} of {n_groups} groups with the largest effect." if limit else ""
    reading = "Bands are 95 % intervals over documents; broken lines are the controls. "
    charts = [
        as_chart(f"sweep-{name}", _TITLES[name], reading + _ABOUT[name], sweep_effects(result, name, n=limit))
        for name in (effect, _second(effect))
    ]
    return [
        Section("effects", "Effects", intro, charts, side_by_side=True),
        Section("norms", "Output norms", "", [_norm_chart(result)], [norm_table(result, HEADS_SHOWN)]),
        Section("numbers", "Numbers", _shown(result), tables=_tables(result, effect)),
    ]


def _norm_chart(result: SweepResult) -> Chart:
    reading = (
        "Lines are the closed form, from the clean pass alone; crosses were measured under the edit; the ring is the model as "
        "it is. Crosses on their line: the edit does to the head what the formula says. Crosses beside it: earlier layers were "
        "edited too, and the head sees other inputs."
    )
    title = "Norm of head outputs: closed form and measurement"
    return as_chart("norms-of-heads", title, reading, sweep_norms(result, n=HEADS_SHOWN))


def _shown(result: AblationResult) -> str:
    n_effects = sum(cell.where == "sink" for cell in result.cells)
    if n_effects <= ROWS_SHOWN:
        return "All figures behind the charts."
    return (
        f"The {ROWS_SHOWN} largest of {n_effects} effects; a table of all comes with --table, or result.to_dataframe()."
    )


def _tables(result: AblationResult, effect: str) -> Sequence[Table]:
    tables = (ablation_table(result, effect, ROWS_SHOWN), control_table(result, effect, ROWS_SHOWN))
    return [table for table in tables if table is not None]
