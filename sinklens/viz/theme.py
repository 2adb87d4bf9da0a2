"""One look for every figure: light and dark templates, colour scales, a fixed colour per pattern kind."""

from dataclasses import dataclass
from typing import Literal

import plotly.graph_objects as go
import plotly.io as pio

from sinklens.errors import InputError

Theme = Literal["light", "dark"]
ScaleName = Literal["sequential", "diverging"]
ColourScale = list[tuple[float, str]]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', Arial, sans-serif"
TOKEN_FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', 'Noto Sans', monospace"
# Okabe and Ito's palette, lightened where a colour must also be read on a dark page; kinds differ in
# lightness too.
KIND_COLOURS = {
    "sink": "#d55e00",
    "learned sink": "#b45fa8",
    "diagonal": "#3a8fd6",
    "previous": "#009e73",
    "dense": "#e6b000",
    "mixed": "#8c919b",
}
KIND_SYMBOLS = {
    "sink": "circle",
    "learned sink": "star",
    "diagonal": "square",
    "previous": "triangle-up",
    "dense": "diamond",
    "mixed": "circle-open",
}
COLORWAY = ("#3a8fd6", "#d55e00", "#009e73", "#b45fa8", "#e6b000", "#5bb8d6", "#8c6bb1", "#8c919b")
# Reads on both backgrounds, so that figures need not be rebuilt when the page changes its theme.
NEUTRAL = "#8c919b"


@dataclass(frozen=True)
class Palette:
    """The colours that depend on the theme.

    Attributes:
        background: of the page and the figure.
        text: titles and labels.
        muted: tick labels and notes.
        grid: grid lines.
        axis: zero lines and frames.
        sequential: colour scale from nothing to much.
        diverging: colour scale from negative (red) through nothing to positive (blue).
    """

    background: str
    text: str
    muted: str
    grid: str
    axis: str
    sequential: tuple[str, ...]
    diverging: tuple[str, ...]

    def scale(self, name: ScaleName) -> ColourScale:
        """A colour scale by name, as evenly spaced ``(position, colour)`` stops."""
        colours = self.sequential if name == "sequential" else self.diverging
        return [(index / (len(colours) - 1), colour) for index, colour in enumerate(colours)]


PALETTES: dict[Theme, Palette] = {
    "light": Palette(
        background="#ffffff",
        text="#1c2026",
        muted="#5a616c",
        grid="#e8eaee",
        axis="#b9bec7",
        sequential=("#f6f4fa", "#dfdaee", "#c0b6de", "#9d8cca", "#7c62b3", "#5f3c98", "#431d75", "#2a0a4d"),
        diverging=(
            "#7f1d1d",
            "#b93a2b",
            "#dc7a5c",
            "#f2bfa8",
            "#f6f5f3",
            "#b3d2e8",
            "#6aa5d0",
            "#2f72ae",
            "#123f73",
        ),
    ),
    "dark": Palette(
        background="#14171c",
        text="#e7eaef",
        muted="#a2a9b5",
        grid="#2a2f38",
        axis="#4a515d",
        sequential=("#1d2027", "#2f2650", "#4b3282", "#6f46ae", "#9767cd", "#bb91e0", "#dbbff0", "#f8effd"),
        diverging=(
            "#ffb79d",
            "#f08a68",
            "#c85a40",
            "#7a3529",
            "#23272e",
            "#24486b",
            "#3479b3",
            "#6cb0e6",
            "#b6dcfb",
        ),
    ),
}


def palette(theme: str) -> Palette:
    """The colours of a theme.

    Args:
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A :class:`Palette`.

    Raises:
        InputError: there is no such theme.

    Example:
        >>> palette("dark").background
        '#14171c'
    """
    for name, colours in PALETTES.items():
        if name == theme:
            return colours
    raise InputError(f"no theme {theme!r}; the themes are {', '.join(PALETTES)}")


def template(theme: str) -> go.layout.Template:
    """The plotly template of a theme; also registered as ``"sinklens"`` and ``"sinklens_dark"``.

    Args:
        theme: ``"light"`` or ``"dark"``.

    Returns:
        A plotly template with fonts, colours, grid and hover labels.

    Raises:
        InputError: there is no such theme.

    Example:
        >>> template("light").layout.font.color
        '#1c2026'
    """
    colours = palette(theme)
    axis = {
        "gridcolor": colours.grid,
        "zerolinecolor": colours.axis,
        "linecolor": colours.axis,
        "tickcolor": colours.axis,
        "tickfont": {"color": colours.muted, "size": 11},
        "title": {"font": {"size": 12.5}, "standoff": 8},
        "zerolinewidth": 1.5,
        "automargin": True,
    }
    colour_bar = {
        "outlinewidth": 0,
        "thickness": 10,
        "tickfont": {"color": colours.muted, "size": 10.5},
        "ticklen": 3,
        "tickcolor": colours.axis,
        "title": {"font": {"color": colours.muted, "size": 11}},
    }
    layout = go.Layout(
        font={"family": FONT, "size": 12, "color": colours.text},
        colorway=COLORWAY,
        title={"font": {"size": 15}, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 12}},
        paper_bgcolor=colours.background,
        plot_bgcolor=colours.background,
        xaxis=axis,
        yaxis=axis,
        colorscale={"sequential": colours.scale("sequential"), "diverging": colours.scale("diverging")},
        coloraxis={"colorbar": colour_bar},
        hoverlabel={
            "bgcolor": colours.text,
            "bordercolor": colours.text,
            "align": "left",
            "font": {"family": FONT, "size": 12, "color": colours.background},
        },
        legend={"bgcolor": "rgba(0,0,0,0)", "font": {"size": 11.5}},
        margin={"l": 56, "r": 24, "t": 48, "b": 44},
    )
    return go.layout.Template(layout=layout)


pio.templates["sinklens"] = template("light")
pio.templates["sinklens_dark"] = template("dark")
