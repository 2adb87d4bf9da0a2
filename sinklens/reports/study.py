"""The page of a study: what all studies have in common; each says its own charts, tables and words."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sinklens.reports import facts
from sinklens.reports.charts import Chart, themes
from sinklens.reports.facts import Facts, Headline
from sinklens.reports.page import render_page
from sinklens.reports.tables import Table
from sinklens.results import Provenance

_SCRIPTS = ("core.js", "charts.js")
_FEW_DOCUMENTS = 10


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        name: its anchor.
        title: its heading.
        intro: what is seen in it.
        charts: drawn one under the other, or side by side.
        tables: under the charts.
        side_by_side: whether charts share a row where there is room.
    """

    name: str
    title: str
    intro: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    side_by_side: bool = False


@dataclass(frozen=True)
class Study:
    """A page's content.

    Attributes:
        kind: of study, in two or three words.
        title: heading.
        source: where the result comes from.
        text_name: what the text is called.
        headlines: the figures at the top.
        settings: what was done, beside model and text.
        sections: the rest of the page.
        definitions: terms and what they mean.
        warnings: shown at the top.
    """

    kind: str
    title: str
    source: Provenance
    text_name: str
    headlines: Sequence[Headline]
    settings: Facts
    sections: Sequence[Section]
    definitions: Facts
    warnings: Sequence[str] = field(default=())


def render_study(study: Study) -> str:
    """A study as one HTML page that needs no network."""
    source = study.source
    return render_page(
        "study.html.j2",
        _SCRIPTS,
        _data([chart for section in study.sections for chart in section.charts]),
        title=study.title,
        study=study,
        source=source,
        warnings=[*study.warnings, *facts.frame_warnings(source), *_few_documents(source)],
        fact_groups={
            "Model": facts.model_facts(source),
            "Text": facts.text_facts(source, study.text_name),
            "What was done": study.settings,
        },
    )


def _data(charts: Sequence[Chart]) -> dict[str, Any]:
    return {"style": {"themes": themes()}, "figures": {chart.name: chart.figure for chart in charts}}


def _few_documents(source: Provenance) -> list[str]:
    if source.n_documents >= _FEW_DOCUMENTS:
        return []
    documents = "document" if source.n_documents == 1 else "documents"
    return [
        f"Measured on {source.n_documents} {documents} only. Intervals come from resampling documents, and over so few "
        "they are rough, mostly too narrow."
    ]
