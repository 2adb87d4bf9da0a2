"""How costs grow with the number of tokens: exponents of power laws, with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from sinklens.errors import InputError
from sinklens.theory.cost import pattern_cost


@dataclass(frozen=True)
class ScalingFit:
    """``cost ≈ prefactor · T^exponent``, by least squares in logarithms.

    Args:
        exponent: the slope.
        low: lower end of the exponent's interval.
        high: upper end.
        prefactor: the cost that the line gives to one token.
        confidence: of the interval. Costs without noise have residuals all the same, from curvature: the interval says
            how far the points are from one power law, not how uncertain they are.
        lengths: ``T`` of each point.
        costs: the points.
    """

    exponent: float
    low: float
    high: float
    prefactor: float
    confidence: float
    lengths: tuple[int, ...]
    costs: tuple[float, ...]


def scaling_fit(lengths: Sequence[int], costs: Sequence[float], confidence: float = 0.95) -> ScalingFit:
    """Fits a power law to costs over lengths (ours).

    Args:
        lengths: three or more different ``T``.
        costs: finite and above 0, one a length.
        confidence: of the interval (Student's t on the slope), between 0 and 1.

    Returns:
        A :class:`ScalingFit`.

    Raises:
        InputError: fewer than three different lengths, another number of costs, a cost that has no logarithm.

    Example:
        >>> fit = scaling_fit([4, 16, 64], [2 * 8.0, 2 * 64.0, 2 * 512.0])
        >>> round(fit.exponent, 6), round(fit.prefactor, 6)
        (1.5, 2.0)
    """
    if len(lengths) != len(costs) or len(set(lengths)) < 3 or min(lengths) < 1:
        raise InputError(
            f"a fit needs three or more different lengths, each with a cost, got {list(lengths)} and {len(costs)} costs"
        )
    if not all(np.isfinite(costs)) or min(costs) <= 0:
        raise InputError(
            f"a fit needs finite costs above 0, got {[float(cost) for cost in costs]}; leave those lengths out"
        )
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence}")
    x, y = np.log(lengths), np.log(costs)
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residual = y - y.mean() - slope * centred
    error = np.sqrt(residual @ residual / (len(x) - 2) / (centred @ centred))
    half_width = float(t.ppf((1 + confidence) / 2, len(x) - 2) * error)
    return ScalingFit(
        exponent=slope,
        low=slope - half_width,
        high=slope + half_width,
        prefactor=float(np.exp(y.mean() - slope * x.mean())),
        confidence=confidence,
        lengths=tuple(lengths),
        costs=tuple(float(cost) for cost in costs),
    )


def cost_scaling(
    lengths: Sequence[int],
    kind: str = "sink",
    norm: str = "nuclear",
    causal: bool = False,
    scaled: bool = True,
    active_share: float = 0.5,
    switch: str = "hard",
    method: str = "auto",
    confidence: float = 0.95,
) -> ScalingFit:
    """The exponent of :func:`~sinklens.theory.pattern_cost` in ``T`` (arXiv 2605.08453: nuclear, scaled, sink 1, diagonal 3/2).

    Args:
        lengths: three or more different ``T``.
        kind: as in ``pattern_cost``, and so are the other arguments; margin 1.
        norm: ``frobenius`` or ``nuclear``.
        causal: causal costs approach the full ones' exponents slowly.
        scaled: scores are divided by ``√T``.
        active_share: for ``backcopy``.
        switch: for ``backcopy``.
        method: as in ``pattern_cost``.
        confidence: of the interval.

    Returns:
        A :class:`ScalingFit`.

    Raises:
        InputError: as in ``scaling_fit`` and ``pattern_cost``.
        ConvergenceError: as in ``pattern_cost``.

    Example:
        >>> [round(cost_scaling([256, 1024, 4096], kind).exponent, 2) for kind in ("sink", "diagonal")]
        [1.0, 1.5]
    """
    costs = [
        pattern_cost(n, kind, norm, causal, scaled=scaled, active_share=active_share, switch=switch, method=method)
        for n in lengths
    ]
    return scaling_fit(lengths, costs, confidence)
