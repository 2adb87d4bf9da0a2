"""The report of a profile as one self-contained HTML page, and how pages are written."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sinklens.metrics.patterns import KINDS
from sinklens.reports import facts
from sinklens.reports.charts import Chart, curve_chart, layer_chart, map_charts, page_style
from sinklens.reports.encoding import EncodedMaps, encode_heads, encode_maps
from sinklens.reports.facts import Facts
from sinklens.reports.page import render_page
from sinklens.reports.study import Section
from sinklens.results import QUANTITIES, AttentionMaps, HeadProfile
from sinklens.results.files import write_whole
from sinklens.results.labels import describe_numbers
from sinklens.viz.quantities import DESCRIPTIONS, KIND_LABEL

_SCRIPTS = ("core.js", "heads.js", "charts.js", "scatter.js", "picker.js", "start.js")
_MOST_NARROW_HEADS = 24  # with more, a map needs a wider column
_RESTS = (
    " A learned sink, a null key without a value, takes what a row of attention lacks of 1; it is the column before the "
    "first token."
)
DEFAULT_AXES = {"x": "sink_mass", "y": "sink_intra", "color": "kind"}


def render_report(
    profile: HeadProfile,
    maps: AttentionMaps | None = None,
    *,
    title: str | None = None,
    text_name: str = "",
    warnings: Sequence[str] = (),
    sections: Sequence[Section] = (),
    definitions: Facts = (),
) -> str:
    """A report as one HTML page that needs no network: what was measured, maps, scatter, curves, head picker.

    Args:
        profile: from :func:`sinklens.head_profile`.
        maps: from :func:`sinklens.attention_maps`, for the head picker; None leaves it out.
        title: heading of the page; by default the model's name.
        text_name: what the text is called.
        warnings: shown at the top, with those that follow from the results, such as a folded frame.
        sections: further parts of the page.
        definitions: of the terms in them.

    Returns:
        HTML. At most 12 MB for 30 layers x 9 heads and a prompt of 60 tokens; larger models have maps of
        fewer heads.

    Example:
        >>> from tests.synthetic import make_profile
        >>> render_report(make_profile(3, 5, 6), title="Tiny").count("<title>Tiny</title>")
        1
    """
    encoded = None if maps is None else encode_maps(maps, profile)
    charts = [*map_charts(profile), layer_chart(profile), curve_chart(profile)]
    more = [chart for section in sections for chart in section.charts]
    return render_page(
        "report.html.j2",
        _SCRIPTS,
        _data(profile, encoded, [*charts, *more]),
        title=title or f"Attention sinks of {profile.provenance.model_name}",
        **_words(profile, maps, text_name, warnings),
        **_chart_context(charts, wide=profile.n_heads > _MOST_NARROW_HEADS),
        picker=_picker_context(maps, encoded),
        sections=sections,
        section_definitions=definitions,
    )


def write_report(path: str | os.PathLike[str], html: str) -> Path:
    """Write a report, whole or not at all.

    Args:
        path: the file; its folder is made where it is missing.
        html: from :func:`render_report`.

    Returns:
        The path.

    Raises:
        ResultFileError: it cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_report(Path(folder) / "report.html", "<!doctype html>").name
        'report.html'
    """
    return write_whole(path, lambda target: target.write_text(html, encoding="utf-8"))


def _words(profile: HeadProfile, maps: AttentionMaps | None, text_name: str, warnings: Sequence[str]) -> dict[str, Any]:
    return {
        "source": profile.provenance,
        "size": f"{len(profile.layers)} layers × {profile.n_heads} heads",
        "text_name": text_name,
        "warnings": facts.all_warnings(profile, maps, warnings),
        "headlines": facts.headlines(profile),
        "kinds": facts.kind_shares(profile),
        "fact_groups": {
            "Model": facts.model_facts(profile.provenance, _layers_and_heads(profile)),
            "Text": facts.text_facts(profile.provenance, text_name),
            "Conventions": facts.convention_facts(profile, maps),
        },
        "quantities": [DESCRIPTIONS[name] for name in QUANTITIES],
        "definitions": {name: _definition(name) for name in QUANTITIES},
        "kind_label": KIND_LABEL,
        "axes": DEFAULT_AXES,
    }


def _layers_and_heads(profile: HeadProfile) -> str:
    return f"{len(profile.layers)} × {profile.n_heads} (layers {describe_numbers(profile.layers)})"


def _definition(quantity: str) -> list[str]:
    """What the profile says of a quantity, as texts of which every second one is code."""
    summary = (getattr(HeadProfile, quantity).__doc__ or DESCRIPTIONS[quantity].reading).split("\n\n")[0]
    return summary.split("``")


def _chart_context(charts: Sequence[Chart], wide: bool) -> dict[str, Any]:
    by_name = {chart.name: chart for chart in charts}
    return {
        "wide_maps": wide,
        "maps": [chart for chart in charts if chart.name.startswith("map-")],
        "layers_chart": by_name["layers"],
        "curves_chart": by_name["curves"],
    }


def _picker_context(maps: AttentionMaps | None, encoded: EncodedMaps | None) -> dict[str, Any] | None:
    if maps is None or encoded is None:
        return None
    sinks = set(maps.sink_positions)
    tokens = [
        {"label": token, "position": position, "sink": position in sinks} for position, token in enumerate(maps.tokens)
    ]
    note = encoded.note + _RESTS * maps.learned_sink
    return {"tokens": tokens, "layers": maps.layers, "heads": range(maps.n_heads), "note": note}


def _data(profile: HeadProfile, encoded: EncodedMaps | None, charts: Sequence[Chart]) -> Mapping[str, Any]:
    return {
        "style": page_style(),
        "heads": encode_heads(profile),
        "kinds": list(KINDS),
        "figures": {chart.name: chart.figure for chart in charts},
        "maps": encoded and encoded.payload,
    }
