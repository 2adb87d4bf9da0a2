"""Colour ranges: which values the two ends of a colour scale stand for."""

import numpy as np
from jaxtyping import Float

from sinklens.viz.quantities import Quantity
from sinklens.viz.theme import ScaleName

Values = Float[np.ndarray, "..."]
# Beyond this share of the values, colours saturate: one extreme head must not make all others look alike.
ROBUST_SHARE = 0.98
# Ratios are shown as powers of two, at most 2^±10.
LARGEST_POWER = 10.0
_EMPTY_RANGE = 1.0


def symmetric_range(values: Values, robust: bool = True, share: float = ROBUST_SHARE) -> tuple[float, float]:
    """A range with 0 in its middle, so that the middle colour of a diverging scale means nothing.

    Args:
        values: any shape; NaN is left out.
        robust: whether the most extreme values may lie outside of it.
        share: how much of the values lies inside when ``robust``.

    Returns:
        ``(-bound, bound)``; (-1, 1) where there is no value but 0.

    Example:
        >>> symmetric_range(np.array([-0.5, 0.25]), robust=False)
        (-0.5, 0.5)
    """
    size = np.abs(values[np.isfinite(values)])
    bound = _upper(size, robust, share)
    return -bound, bound


def positive_range(values: Values, robust: bool = True, share: float = ROBUST_SHARE) -> tuple[float, float]:
    """A range that begins at 0.

    Args:
        values: not negative, any shape; NaN is left out.
        robust: whether the largest values may lie outside of it.
        share: how much of the values lies inside when ``robust``.

    Returns:
        ``(0, bound)``; (0, 1) where there is no value but 0.

    Example:
        >>> positive_range(np.array([0.5, 0.25]), robust=False)
        (0.0, 0.5)
    """
    return 0.0, _upper(values[np.isfinite(values)], robust, share)


def _upper(size: Values, robust: bool, share: float) -> float:
    if size.size == 0:
        return _EMPTY_RANGE
    bound = float(np.quantile(size, share)) if robust else 0.0
    return bound if bound > 0 else float(size.max()) or _EMPTY_RANGE


def shown_values(quantity: Quantity, values: Values) -> Values:
    """What is given to the colour scale: ratios as powers of two, all else as it is.

    Args:
        quantity: the quantity.
        values: its values, any shape.

    Returns:
        float32 of the same shape.

    Example:
        >>> from sinklens.viz.quantities import describe
        >>> shown_values(describe("suppression"), np.array([0.5, 1.0, 4.0])).tolist()
        [-1.0, 0.0, 2.0]
    """
    if quantity.scale != "ratio":
        return values.astype(np.float32)
    smallest = 2.0**-LARGEST_POWER
    return np.log2(np.clip(values, smallest, 1 / smallest)).astype(np.float32)


def colour_range(quantity: Quantity, shown: Values, robust: bool = True) -> tuple[float, float]:
    """The ends of the colour scale for a quantity.

    Args:
        quantity: the quantity.
        shown: from :func:`shown_values`.
        robust: whether extremes may lie outside of it.

    Returns:
        ``(low, high)``: around 0 for diverging and ratio scales, from 0 for sequential ones.
    """
    if quantity.limits is not None:
        return quantity.limits
    return positive_range(shown, robust) if quantity.scale == "sequential" else symmetric_range(shown, robust)


def scale_name(quantity: Quantity) -> ScaleName:
    """Which of the two colour scales a quantity uses."""
    return "sequential" if quantity.scale == "sequential" else "diverging"


def ratio_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Tick values, as powers of two, and their text for a ratio's colour bar.

    Args:
        low: lower end of the colour range, as a power of two.
        high: upper end.

    Returns:
        Positions and labels.

    Example:
        >>> ratio_ticks(-1.2, 1.2)
        ([-1.0, 0.0, 1.0], ['½', '1', '2'])
    """
    fractions = {-1: "½", -2: "¼", -3: "⅛"}
    step = 1 if high - low <= 6 else 2
    powers = [power for power in range(-10, 11, step) if low <= power <= high]
    if len(powers) < 3:  # a narrow range: its own ends say more than powers of two that lie outside
        return [low, 0.0, high], [f"{2**low:.2g}", "1", f"{2**high:.2g}"]
    return [float(power) for power in powers], [fractions.get(p, f"1/{2**-p}" if p < 0 else str(2**p)) for p in powers]
