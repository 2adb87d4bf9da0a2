"""The size of a figure, known before it is shown: a notebook of hundreds of megabytes helps nobody."""

import plotly.graph_objects as go

from sinklens.errors import InputError

MEGABYTE = 1_000_000
DEFAULT_LIMIT = 20.0


def figure_bytes(figure: go.Figure) -> int:
    """The size of a figure as JSON: what a notebook or a page holds of it, without the 5 MB of plotly.js.

    Args:
        figure: any plotly figure.

    Returns:
        Bytes.

    Example:
        >>> figure_bytes(go.Figure()) < 10_000
        True
    """
    return len((figure.to_json() or "").encode())


def check_size(figure: go.Figure, max_megabytes: float = DEFAULT_LIMIT) -> go.Figure:
    """The figure itself, if it is not too large to be shown.

    Args:
        figure: any plotly figure.
        max_megabytes: the limit, in 10⁶ bytes of JSON.

    Returns:
        The same figure.

    Raises:
        InputError: it is larger.

    Example:
        >>> check_size(go.Figure(), max_megabytes=0.0001)
        Traceback (most recent call last):
            ...
        sinklens.errors.InputError: the figure takes ... MB, more than max_megabytes = 0.0001; ...
    """
    size = figure_bytes(figure) / MEGABYTE
    if size > max_megabytes:
        raise InputError(
            f"the figure takes {size:.2g} MB, more than max_megabytes = {max_megabytes:g}; "
            "use fewer tokens, metrics, layers or heads, or a larger max_megabytes"
        )
    return figure
