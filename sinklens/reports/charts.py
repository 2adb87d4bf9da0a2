"""The charts of a report that come from sl.viz, each with a sentence that says how to read it."""

import json
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.utils import PlotlyJSONEncoder

from sinklens.results import HeadProfile
from sinklens.viz import head_map, layer_lines, strongest_sink_heads, suppression_curves
from sinklens.viz.quantities import DESCRIPTIONS, KIND_LABEL, KIND_READING
from sinklens.viz.ranges import scale_name
from sinklens.viz.theme import COLORWAY, KIND_COLOURS, KIND_SYMBOLS, NEUTRAL, PALETTES, TOKEN_FONT, template

MAPS_SHOWN = (
    "sink_mass",
    "sink_rate",
    "sink_value_ratio",
    "sink_alignment",
    "sink_intra",
    "sink_inter",
    "suppression",
    "kind",
)


@dataclass(frozen=True)
class Chart:
    """A figure with its words.

    Attributes:
        name: unique in the page.
        title: what is seen.
        reading: how to read it.
        height: pixels.
        figure: the figure as a dictionary that JSON can hold, without title, width and template, which the
            page sets.
    """

    name: str
    title: str
    reading: str
    height: int
    figure: dict[str, Any]


def map_charts(profile: HeadProfile) -> list[Chart]:
    """Layer x head maps."""
    return [_map_chart(profile, quantity) for quantity in MAPS_SHOWN]


def layer_chart(profile: HeadProfile) -> Chart:
    """Attention on the sink against its contribution, from layer to layer."""
    reading = (
        "Each line is the mean over a layer's heads, each band holds the middle 80 % of them. Where "
        "attention on the sink is far "
        "above its contribution, heads look at the sink without taking anything from it."
    )
    return as_chart("layers", "Sink attention and sink contribution by layer", reading, layer_lines(profile))


def curve_chart(profile: HeadProfile) -> Chart:
    """Suppression curves of the heads with the most attention on the sink."""
    count = len(strongest_sink_heads(profile))
    reading = (
        "Each curve is the length of a head's output if its sink had mass α, relative to no sink at "
        "all; the diamond is the shortest "
        "output, at α*, and the ring the mean mass that the head really has. A ring near the diamond "
        "is a head that its sink keeps quiet."
    )
    return as_chart(
        "curves",
        f"Suppression curves of the {count} strongest sink heads",
        reading,
        suppression_curves(profile),
    )


def themes() -> dict[str, Any]:
    """Templates, scales and colours by theme, for the page's script."""
    return {
        name: {
            "template": json.loads(json.dumps(template(name), cls=PlotlyJSONEncoder)),
            "scales": {scale: colours.scale(scale) for scale in ("sequential", "diverging")},
            "background": colours.background,
            "text": colours.text,
            "muted": colours.muted,
            "axis": colours.axis,
        }
        for name, colours in PALETTES.items()
    }


def page_style() -> dict[str, Any]:
    """What the page's script needs to draw in the same look: templates, scales, colours, names."""
    return {
        "themes": themes(),
        "kinds": [{"name": kind, "color": color, "symbol": KIND_SYMBOLS[kind]} for kind, color in KIND_COLOURS.items()],
        "quantities": {
            name: {
                "label": quantity.label,
                "ratio": quantity.scale == "ratio",
                "scale": scale_name(quantity),
                "share": quantity.share,
                "limits": quantity.limits,
            }
            for name, quantity in DESCRIPTIONS.items()
        },
        "kindLabel": KIND_LABEL,
        "neutral": NEUTRAL,
        "tokenFont": TOKEN_FONT,
        "colorway": list(COLORWAY),
    }


def _map_chart(profile: HeadProfile, quantity: str) -> Chart:
    title = KIND_LABEL if quantity == "kind" else DESCRIPTIONS[quantity].label
    reading = KIND_READING if quantity == "kind" else DESCRIPTIONS[quantity].reading
    return as_chart(f"map-{quantity}", title, reading, head_map(profile, quantity))


def as_chart(name: str, title: str, reading: str, figure: go.Figure) -> Chart:
    """A figure of sinklens.viz with its words; the page gives it its width and its theme."""
    plain = json.loads(figure.to_json() or "{}")
    height = int(plain["layout"]["height"])
    for key in ("title", "width", "height", "template"):
        plain["layout"].pop(key, None)
    return Chart(name, title, reading, height, plain)
