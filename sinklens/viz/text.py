"""Text for figures: plotly reads some HTML tags and entities in labels, and LaTeX between dollar signs."""

import html
from collections.abc import Sequence

LONGEST_TICK = 14
MOST_TICKS = 48


def escape(label: str) -> str:
    """A label as plotly shows it literally: ``<s>`` is no strike-through and ``$x$`` no formula.

    Args:
        label: plain text.

    Returns:
        The text with HTML and LaTeX taken out of force.

    Example:
        >>> escape("<s> & $x$")
        '&lt;s&gt; &amp; &#36;x&#36;'
    """
    return html.escape(label, quote=False).replace("$", "&#36;")


def shorten(label: str, longest: int = LONGEST_TICK) -> str:
    """A label cut to at most ``longest`` characters; the cut is shown.

    Args:
        label: plain text.
        longest: at least 2.

    Returns:
        The label, or its beginning and ``…``.

    Example:
        >>> shorten("internationalization", 8)
        'interna…'
    """
    return label if len(label) <= longest else label[: longest - 1] + "…"


def token_ticks(tokens: Sequence[str], most: int = MOST_TICKS) -> tuple[list[int], list[str]]:
    """Tick positions and labels of tokens, thinned evenly where there are too many to be read.

    Positions are integers, so that two equal tokens stay two columns.

    Args:
        tokens: a label per position.
        most: how many ticks an axis bears.

    Returns:
        Positions and escaped labels.

    Example:
        >>> token_ticks(["the", "cat", "the", "<s>"])
        ([0, 1, 2, 3], ['the', 'cat', 'the', '&lt;s&gt;'])
    """
    step = -(-len(tokens) // most)
    positions = list(range(0, len(tokens), max(step, 1)))
    return positions, [escape(shorten(tokens[position])) for position in positions]
